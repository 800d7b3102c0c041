"""The series with language models in the roles, through the users' own runner: plumbing, not quality."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from stub_endpoint import said, serving

from rapo_lib import runs
from rapo_lib.cast import Cast, write_cast
from rapo_lib.cli import build_parser, main
from rapo_lib.dialogue import load_profiles, read_jsonl

KEY = "sk-planted-fedcba9876543210"
TINY = ("group=2", "groups=1", "shown=2", "lm_orders=1")
SHORT = ("turns=1", "eval_profiles=1", "eval_histories=1")
LM = ("seeker=lm", "judge=lm", "selector=lm")
LIVES = (
    "我上个月被公司裁员了，一直不敢告诉父母。",
    "室友们背着我搬走了，我觉得自己很多余。",
    "奶奶住院以后，家里的事都落在我一个人身上。",
)
ANSWERS = (
    "听起来你一个人撑了很久，最难的是哪一刻？", "我不知道怎么开口，怕他们失望。",
    "你怕看到他们失望的样子。", "对，就是这样，说出来好像轻松了一点。",
)  # fmt: skip


def reproduce(name: str, notebooks: str, *values: str) -> int:
    """The users' own command."""
    given = [part for value in values for part in ("--set", value)]
    return main(["reproduce", "--profile", "smoke", "--run", name, "--notebooks", notebooks, *given])


def prepared(folder: Path, count: int = 2) -> None:
    """A run whose first two notebooks are finished, with openings to reply to."""
    people = load_profiles("train")[:count]
    first = runs.start_stage(folder, "01_simulator_setup", {})
    write_cast(first, Cast(people=tuple(people)))
    first.finish()
    second = runs.start_stage(folder, "02_turn_selection", {})
    openings = [{"profile": p.id, "history": [{"speaker": "seeker", "text": p.opening}]} for p in people]
    runs.write_jsonl(second.path("histories.jsonl"), openings)
    second.finish()


def facts(folder: Path, stage: str) -> dict:
    return runs.read_stage(folder, stage)["facts"]


# ---------------------------------------------------------------------------------------------- the embedded model


def check_03(folder: Path, capsys: pytest.CaptureFixture[str], *values: str) -> None:
    """Run 03 with language models in the roles on one history, and look at what it says of them."""
    prepared(folder, 1)
    given = (*LM[:2], "group=2", "lm_orders=1", "canary_groups=0", *values)
    assert reproduce(folder.name, "03", *given) == 0, capsys.readouterr().err
    spent = facts(folder, "03_critique_generation")["language_model"]
    assert spent["sent"] >= 3 and spent["output_tokens"] > 0
    assert {asker.split(".")[0] for asker in spent["by_asker"]} == {"seeker", "judge"}
    table = pd.read_csv(folder / "03_critique_generation" / "calibration.csv").set_index("judge")
    assert set(table.index) == {"embedded", "rubric", "lm"} and table.tokens["lm"] > 0
    assert "flips unknown" in table.objections["lm"] and "no canary tried" in table.objections["lm"]
    seekers = pd.read_csv(folder / "03_critique_generation" / "seekers.csv")
    assert seekers.replies.tolist() == [2] and seekers.marked.between(0, 1).all()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_03_with_the_embedded_model_in_the_roles(outputs, capsys):
    check_03(outputs / "lm", capsys, "lm_tokens=128")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_steps_of_04_with_the_embedded_model_in_the_roles(outputs, capsys):
    check_two_steps(outputs / "lm", capsys, "lm_tokens=128")


def check_two_steps(folder: Path, capsys: pytest.CaptureFixture[str], *values: str) -> None:
    """Run two updates with language models in the roles, and the evaluation after them."""
    prepared(folder)
    given = (*LM[:2], "group=2", "groups=1", "lm_orders=1", *SHORT, *values)
    assert reproduce(folder.name, "04", *given) == 0, capsys.readouterr().err
    spent = facts(folder, "04_hybrid_training")["language_model"]
    assert spent["sent"] >= 8 and {asker.split(".")[0] for asker in spent["by_asker"]} == {"seeker", "judge"}
    assert len(pd.read_csv(folder / "04_hybrid_training" / "full" / "metrics.csv")) == 2
    settings = runs.read_json(folder / "04_hybrid_training" / "full" / "arm.json")["settings"]
    assert settings["seeker"] == settings["judge"] == "lm"


# ---------------------------------------------------------------------------------------------- a server


class Actor:
    """A server that plays every role sensibly, in Chinese where it is spoken to in Chinese, and repeats the key."""

    def __init__(self, leak: str = "") -> None:
        self.leak, self.count = leak, 0

    def __call__(self, body: dict, headers: object) -> object:
        self.count += 1
        fields = body["response_format"]["json_schema"]["schema"]["properties"]
        system, asked = (m["content"] for m in body["messages"][:2])
        chinese = re.search(r"[\u4e00-\u9fff]", system) is not None
        if "change" in fields:
            words = f"第{self.count}次想起这件事，心里还是很堵。" if chinese else f"On day {self.count} it came back."
            return said(json.dumps({"thought": self.leak, "change": self.count % 7 - 3, "reaction": words + self.leak}))
        if "candidates" in fields:
            numbers = sorted(int(n) for n in fields["candidates"]["properties"])
            one = {str(n): {"critique": f"Stay with them. {self.leak}", "score": 10 - n} for n in numbers}
            return said(json.dumps({"candidates": one, "ranking": numbers}))
        turns = [json.loads(line) for line in asked.splitlines() if line.startswith("{")]
        able = [t["turn"] for t in turns[1:-1] if t["speaker"] == "supporter"]
        pivots = [{"reason": "it lasted", "turn": t, "before": -4, "after": 2} for t in able[:2]]
        return said(json.dumps({"pivots": pivots}))


def sage(folder: Path) -> Path:
    """A file of Chinese conversations in SAGE's form, made up here."""
    lines = []
    for number, life in enumerate(LIVES):
        history = [{"role": "user", "content": life, "emotion-point": 40}]
        for i, text in enumerate(ANSWERS):
            role, felt = (("assistant", {}), ("user", {"emotion-point": 42 + i}))[i % 2]
            history.append({"role": role, "content": text, **felt})
        scene = f"## 背景\n{life}\n#### 隐藏主题:\n你想被理解"
        lines.append({"id": f"zh-{number}", "player": "* 姓名：小林", "scene": scene, "history": history})
    path = folder / "made-up.jsonl"
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    return path


def without_key(outputs: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether the planted key is nowhere in what a run wrote or said."""
    written = [p for p in outputs.rglob("*") if p.is_file()]
    assert {"chat.sqlite", "run.json"} <= {p.name for p in written}
    return not [p for p in written if KEY.encode() in p.read_bytes()] and KEY not in "".join(capsys.readouterr())


@pytest.mark.timeout(600)
def test_03_with_an_endpoint_in_the_roles(outputs, capsys):
    with serving(Actor()) as server:
        check_03(outputs / "served", capsys, "lm=m", f"lm_url={server.url}")


@pytest.mark.timeout(600)
def test_two_steps_of_04_with_an_endpoint_that_repeats_the_key(outputs, capsys, monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    with serving(Actor(leak=KEY)) as server:
        check_two_steps(outputs / "served", capsys, "lm=m", f"lm_url={server.url}", "lm_key=TEST_KEY", "lm_price_in=2")
    spent = facts(outputs / "served", "04_hybrid_training")["language_model"]
    assert spent["cost"] == pytest.approx(spent["answers"] * 100 * 2 / 1e6)
    assert without_key(outputs, capsys)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_chinese_file_feeds_the_series_and_no_key_is_left_anywhere(tmp_path, outputs, capsys, monkeypatch):
    """Notebooks 01-03 on an endpoint that repeats the key in all it says; then again from the cache alone."""
    monkeypatch.setenv("TEST_KEY", KEY)
    given = (f"corpus={sage(tmp_path)}", *LM, "lm=m", "lm_key=TEST_KEY", "group=2", "shown=2", "lm_orders=1",
             "setup_profiles=2", "turns=2", "histories=4", "canary_groups=1",
             "lm_price_in=1", "lm_price_out=2")  # fmt: skip
    with serving(Actor(leak=KEY)) as server:
        assert reproduce("zh", "01-03", f"lm_url={server.url}", *given) == 0, capsys.readouterr().err
        asked = len(server.asked)
        assert asked > 10
        again = reproduce("zh", "01-03", f"lm_url={server.url}", *given, "lm_cache=replay")
        assert again == 0 and len(server.asked) == asked, capsys.readouterr().err
    folder = outputs / "zh"
    people = [
        json.loads(line) for line in (folder / "01_simulator_setup/profiles.jsonl").read_text("utf-8").splitlines()
    ]
    assert [p["opening"] for p in people] == list(LIVES) and all("倾听" in p["need"] for p in people)
    kept = list(read_jsonl(folder / "02_turn_selection/histories.jsonl"))
    lines = {*LIVES, *ANSWERS}
    assert len(kept) == 4 and all(turn["text"] in lines for k in kept for turn in k["history"])
    assert facts(folder, "02_turn_selection")["selected"] == 4
    verdicts = (folder / "03_critique_generation/verdicts.jsonl").read_text("utf-8")
    assert "第" in verdicts and '"status": "ok"' in verdicts
    spent = facts(folder, "03_critique_generation")["language_model"]
    assert spent["sent"] == 0 and spent["cached"] > 0
    assert without_key(outputs, capsys)


@pytest.mark.parametrize(
    "given", [f"lm_key={KEY}", f"lm_url=http://me:{KEY}@localhost/v1", f"lm_url=http://x/v1?k={KEY}"]
)
def test_a_key_where_its_name_belongs_reaches_no_file(outputs, capsys, given):
    assert reproduce("typo", "03", *LM[:2], given) == 1
    said_so = "".join(capsys.readouterr())
    assert "NAME of an environment variable" in said_so or "must hold no key" in said_so
    assert KEY not in said_so and not outputs.exists()


def test_several_values_may_follow_one_set():
    asked = build_parser().parse_args(["reproduce", "--set", "seeker=lm", "judge=lm", "--set", "lm=m", "--fresh"])
    assert asked.overrides == [("seeker", "lm"), ("judge", "lm"), ("lm", "m")] and asked.fresh
