"""The people of a run: ours, those of a file of dialogues, and the series on such a file."""

import json
from pathlib import Path

import pandas as pd
import pytest

from rapo_lib import runs
from rapo_lib.ablation import read_pairs
from rapo_lib.cast import Cast, cast_of, dialogue_file, people_of, spread, write_cast
from rapo_lib.cli import main
from rapo_lib.dialogue import load_dialogues_jsonl, load_profiles

RAIN = "It rains through the roof of my shop and the insurer will not answer me."
TALKS = (  # a seeker's and a supporter's lines in turn; the second opens with the supporter
    (
        RAIN,
        "That leak has been keeping you up, and nobody picks up the phone.",
        "Yes. You're the first who understood that. I feel a bit lighter now.",
        "What would you tell the insurer if they did pick up?",
        "I would tell them I am scared to lose the shop my father built.",
    ),
    (
        "Hello, what brings you here?",
        "My choir voted me out after eleven years of singing alto.",
        "You should find another choir.",
        "You're not listening. I didn't ask for advice.",
        "Eleven years, and it ended with a vote. That hurts.",
        "Yes, exactly. It hurts that nobody rang me first.",
    ),
    ("I failed my driving test again and my brother laughed at me.", "How often was that?", "It was the fourth time."),
)


def esconv(folder: Path, talks=TALKS) -> Path:
    """A file in ESConv's form, made up here."""
    records = [
        {
            "situation": f"Story number {number}.",
            "problem_type": "job crisis",
            "emotion_type": "sadness",
            "dialog": [
                {"speaker": "supporter" if (i + talk[0].startswith("Hello")) % 2 else "seeker", "content": text}
                for i, text in enumerate(talk)
            ],
        }
        for number, talk in enumerate(talks)
    ]
    path = folder / "made-up.json"
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


def test_without_a_corpus_the_people_are_ours():
    assert cast_of(None, 3) == Cast(people=tuple(load_profiles("train")[:3]))


def test_a_corpus_gives_people_and_their_dialogues(tmp_path):
    cast = cast_of(str(esconv(tmp_path)))
    assert [p.opening for p in cast.people] == [TALKS[0][0], TALKS[1][1], TALKS[2][0]]
    assert cast.people[0].situation == "Story number 0." and TALKS[0][4] in cast.people[0].details
    assert [d.id for d in cast.dialogues] == [p.id for p in cast.people]


def test_a_dialogue_without_an_answer_gives_a_person_only(tmp_path):
    cast = cast_of(str(esconv(tmp_path, (TALKS[0], (RAIN, "I see.")))))
    assert len(cast.people) == 2 and len(cast.dialogues) == 1


def test_situations_alone_are_told_sentence_by_sentence(tmp_path):
    scene = "I nurse my mother at home. My brothers send money and no word! I have not slept since May."
    path = tmp_path / "scenes.jsonl"
    path.write_text(json.dumps({"id": "s1", "player": "", "scene": scene, "task": ""}), encoding="utf-8")
    cast = cast_of(str(path))
    assert cast.people[0].opening == "I nurse my mother at home." and cast.dialogues == ()
    assert cast.people[0].details == ("My brothers send money and no word!", "I have not slept since May.")


UNUSABLE = {
    "nothing there": (None, "no such file"),
    "no JSON": ("Dear diary", "not valid JSON"),
    "not English": (
        json.dumps({"dialog": [{"speaker": "usr", "text": "我很难过，什么都不想做了。"}]}),
        "none of 1 dialogues is English; .*a language model play all of them .seeker=lm judge=lm selector=lm",
    ),
    "nobody seeks": (json.dumps({"dialog": [{"speaker": "sys", "text": "Is anybody there?"}]}), "nobody to play"),
    "no dialogue": (json.dumps([{"title": "a poem"}]), "no dialogue found"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_file_is_one_line_with_its_remedy(tmp_path, name):
    text, why = UNUSABLE[name]
    path = tmp_path / "x.json"
    if text:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(runs.RapoError, match=why) as caught:
        cast_of(str(path))
    assert str(path) in str(caught.value) and "set `corpus`" in str(caught.value) and "\n" not in str(caught.value)


def test_where_a_language_model_plays_every_role_any_language_will_do(tmp_path, caplog):
    chinese = ("我上个月被裁员了，一直没敢告诉父母。", "你怕他们失望。", "对，每天都装作去上班，很累。")
    path = str(esconv(tmp_path, (TALKS[0], chinese)))
    assert len(cast_of(path).people) == 1 and "1 dialogues not English" in caplog.text
    cast = cast_of(path, any_language=True)
    assert [p.opening for p in cast.people] == [TALKS[0][0], chinese[0]] and len(cast.dialogues) == 2
    assert cast.people[1].need == "先被倾听，再谈建议。" and cast.people[1].theme == "与job crisis有关。"
    assert cast.people[0].need.startswith("To be heard")
    stage = runs.start_stage(runs.run_dir("mixed"), "01_simulator_setup", {})
    write_cast(stage, cast)
    stage.finish()
    assert len(people_of(runs.run_dir("mixed"), any_language=True)) == 2
    with pytest.raises(runs.RapoError, match="1 of 2 people speak no English; .*seeker=lm judge=lm"):
        people_of(runs.run_dir("mixed"))


def test_self_play_is_with_people_from_all_over_the_file():
    people = tuple(load_profiles("train")[:10])
    assert spread(people, 20) == list(people)
    assert [people.index(p) for p in spread(people, 4)] == [0, 2, 5, 7]


def test_later_notebooks_read_the_people_and_the_dialogues(tmp_path, outputs):
    cast, folder = cast_of(str(esconv(tmp_path))), runs.run_dir("mine")
    stage = runs.start_stage(folder, "01_simulator_setup", {})
    write_cast(stage, cast)
    runs.write_jsonl(stage.path("dialogues.jsonl"), [])
    with pytest.raises(runs.RapoError, match="not finished"):
        people_of(folder)
    stage.finish()
    assert tuple(people_of(folder).values()) == cast.people
    assert dialogue_file(folder).name == "corpus.jsonl"
    assert [d.turns for d in load_dialogues_jsonl(dialogue_file(folder))] == [d.turns for d in cast.dialogues]


def test_without_dialogues_of_its_own_a_run_looks_back_over_the_simulated_ones(outputs):
    folder = runs.run_dir("ours")
    stage = runs.start_stage(folder, "01_simulator_setup", {})
    write_cast(stage, cast_of(None, 2))
    runs.write_jsonl(stage.path("dialogues.jsonl"), [])
    stage.finish()
    assert dialogue_file(folder).name == "dialogues.jsonl"


TINY = ("setup_profiles=2", "turns=2", "histories=4", "group=2", "shown=4")


def reproduce(corpus: str, capsys) -> tuple[int, str]:
    """The users' own command on notebooks 01-03, as small as it gets."""
    given = [part for value in (f"corpus={corpus}", *TINY) for part in ("--set", value)]
    code = main(["reproduce", "--profile", "smoke", "--run", "given", "--notebooks", "01-03", *given])
    return code, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_series_runs_on_a_given_file(tmp_path, outputs, capsys, monkeypatch):
    path = esconv(tmp_path)
    monkeypatch.chdir(tmp_path)  # a relative path is meant from where the user stands
    code, said = reproduce(path.name, capsys)
    assert code == 0, said
    run = outputs / "given"
    people = people_of(run)
    assert len(people) == 3
    pairs = read_pairs(run / "02_turn_selection" / "histories.jsonl", people)
    lines = {line for talk in TALKS for line in talk}
    assert len(pairs) >= 3 and all(turn.text in lines for _, history in pairs for turn in history)
    assert all(history[-1].speaker == "seeker" for _, history in pairs)
    pivots = pd.read_csv(run / "02_turn_selection" / "pivots.csv")
    assert len(pivots) and set(pivots.dialogue) <= set(people)
    verdicts = (run / "03_critique_generation" / "verdicts.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(v)["profile"] for v in verdicts} <= set(people) and len(verdicts) == len(pairs)
    assert str(path) in runs.read_stage(run, "01_simulator_setup")["inputs"]  # a changed file is read again


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_series_names_the_cell_and_the_remedy(tmp_path, capsys):
    code, said = reproduce(str(tmp_path / "absent.json"), capsys)
    last = said.strip().splitlines()[-1]
    assert code == 1 and "01_simulator_setup.ipynb, cell" in last and "no such file" in last and "set `corpus`" in last
