"""The notebooks: how they are stored, and the whole series at smoke scale through the users' own runner."""

import ast
import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from rapo_lib.dialogue import load_profiles
from rapo_lib.foresight.records import check_apart, read_records
from rapo_lib.parameters import read_parameters
from rapo_lib.reproduce import reproduce
from rapo_lib.runs import ROOT, hash_path, read_stage

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
OWN = "05_ablations/grid/adapters"  # arms that 05 trains
LONGEST_CELL, LONGEST_LINE, LONGEST_FUNCTION = 25, 120, 10


def cells(path: Path, kind: str) -> list[str]:
    return ["".join(c["source"]) for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == kind]


def test_the_series_is_complete():
    assert [p.name[:2] for p in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06", "07"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_stored_clean_and_parameterised(path):
    book = json.loads(path.read_text("utf-8"))
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    assert "papermill" not in book["metadata"]
    code = [c for c in book["cells"] if c["cell_type"] == "code"]
    assert all(not c["outputs"] and c["execution_count"] is None for c in code)
    tagged = [c for c in code if "parameters" in c["metadata"].get("tags", [])]
    assert tagged == code[:1], "exactly one parameters cell, and it comes first"
    assert {"run", "profile", "seed"} <= set(read_parameters(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_cells_are_short_and_hold_no_logic(path):
    for source in cells(path, "code"):
        assert len(source.splitlines()) <= LONGEST_CELL or source.startswith("run: str"), source
        assert all(len(line) <= LONGEST_LINE for line in source.splitlines()), source
        assert "!pip" not in source and "filterwarnings" not in source
        assert not any(mark in source for mark in ('"/', "'/", "C:\\")), f"an absolute path: {source}"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                assert node.end_lineno - node.lineno < LONGEST_FUNCTION, node.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_each_tells_its_story(path):
    text = cells(path, "markdown")
    assert text[0].startswith("# 0") and "\n> " in text[0] and "*Reads*" in text[0] and "*Writes*" in text[0]
    assert any("## Checks" in t for t in text) and any("## Limits" in t for t in text)


# ------------------------------------------------------------------------------- the series at smoke scale


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """One smoke run of everything, the way `make reproduce PROFILE=smoke` does it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAPO_OUTPUTS", str(tmp_path_factory.mktemp("outputs")))
        index = reproduce(profile="smoke")
    return index.parent


@pytest.mark.timeout(1500)
def test_the_series_runs(series):
    for path in NOTEBOOKS[:5]:
        record = read_stage(series, path.stem)
        assert record["completed"] and record["parameters"]["profile"] == "smoke"
        assert (series / f"{path.stem}.html").is_file()


def test_every_figure_has_its_data_and_is_on_the_index(series):
    index = (series / "index.html").read_text("utf-8")
    figures = sorted(series.glob("*/figures/*.png"))
    assert len(figures) >= 8
    for figure in figures:
        assert figure.with_suffix(".svg").is_file() and json.loads(figure.with_suffix(".json").read_text())["caption"]
        with figure.with_suffix(".csv").open(encoding="utf-8") as file:
            assert len(list(csv.reader(file))) > 1
        assert figure.name in index


def test_arms_differ_only_in_what_they_say(series):
    full = json.loads((series / "04_hybrid_training/full/arm.json").read_text("utf-8"))
    for name in ("without_reactions", "without_distillation"):
        arm = json.loads((series / OWN / name / "seed-0/arm.json").read_text("utf-8"))
        assert arm["settings"] == full["settings"] | arm["arm"]["overrides"] and arm["seed"] == full["seed"]
        changed = {k for k in arm["arm"] if arm["arm"][k] != full["arm"][k]} - {"name", "label"}
        assert changed == ({"reactions"} if name == "without_reactions" else {"overrides"})


def test_rollouts_hold_what_the_arm_heard(series):
    def reactions(folder):
        return [json.loads(line)["reaction"] for line in (folder / "rollouts.jsonl").read_text("utf-8").splitlines()]

    assert all(reactions(series / "04_hybrid_training/full"))
    assert not any(reactions(series / OWN / "without_reactions/seed-0"))


def test_the_grid_of_05_takes_over_what_04_trained(series):
    taken = series / OWN / "full/seed-0"
    assert hash_path(taken) == hash_path(series / "04_hybrid_training/full")
    cell = json.loads((series / "05_ablations/grid/cells/full/seed-0/cell.json").read_text("utf-8"))
    assert cell["seconds"]["training"] < 5  # read, not trained again


def test_adapters_are_safetensors_and_differ(series):
    files = [f for place in ("04*/full", f"{OWN}/without*/*") for f in series.glob(f"{place}/adapter/*.safetensors")]
    assert len(files) == 3 and len({f.read_bytes() for f in files}) == 3
    assert not [*series.rglob("*.bin")] and not [*series.rglob("*.pt")] and not [*series.rglob("*.pkl")]


def test_tables_are_in_range(series):
    cells = (series / "05_ablations/grid/cells").glob("*/seed-0/trajectories.csv")
    table = pd.concat([pd.read_csv(path).assign(arm=path.parts[-3]) for path in cells])
    assert table.emotion.between(0, 100).all() and set(table.arm) >= {"warm_start", "full"}
    assert table.sort_values("turn").groupby(["arm", "profile"]).emotion.diff().abs().max() <= 10


def test_nothing_is_done_twice(series, monkeypatch, capsys):
    monkeypatch.setenv("RAPO_OUTPUTS", str(series.parent))
    before = {p: p.stat().st_mtime_ns for p in series.glob("*/run.json")}
    reproduce(profile="smoke")
    assert {p: p.stat().st_mtime_ns for p in series.glob("*/run.json")} == before


# ------------------------------------------------------------------------------------- what builds on the series


@pytest.fixture(scope="module")
def foresight(series):
    """Notebook 06 on the smoke run, as `rapo reproduce --profile smoke --notebooks 06` does it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAPO_OUTPUTS", str(series.parent))
        reproduce(profile="smoke", notebooks="06")
    return series / "06_future_rewards"


@pytest.mark.timeout(600)
def test_futures_follow_the_series(foresight):
    assert read_stage(foresight.parent, foresight.name)["completed"]
    assert foresight.name in (foresight.parent / "index.html").read_text("utf-8")
    for figure in foresight.glob("figures/*.png"):
        assert figure.with_suffix(".svg").is_file() and figure.with_suffix(".csv").is_file()
    assert {p.stem for p in foresight.glob("figures/*.png")} >= {"futures", "predictors", "calibration"}


def test_the_reward_model_never_met_whom_it_is_measured_on(foresight):
    fitted = read_records(foresight / "reward_data.jsonl")
    check_apart(fitted, read_records(foresight / "reward_data_heldout.jsonl"))
    assert {r.profile for r in fitted} <= {p.id for p in load_profiles("train")}
    assert not [*foresight.rglob("*.bin")] and not [*foresight.rglob("*.pt")]


@pytest.fixture(scope="module")
def evaluated(series):
    """Notebook 07 on the smoke run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAPO_OUTPUTS", str(series.parent))
        reproduce(profile="smoke", notebooks="07")
    return series / "07_evaluation"


@pytest.mark.timeout(600)
def test_every_suite_has_met_every_policy(evaluated):
    record = read_stage(evaluated.parent, evaluated.name)
    assert record["completed"] and record["facts"]["failed"] == {}
    board = pd.read_csv(evaluated / "board.csv")
    assert {"warm_start", "full", "good_listener", "silent"} <= set(board.model)
    assert set(board.suite) == {"selfplay", "emoharbor", "sotopia", "safety"}
    assert (board.groupby("suite").model.nunique() == board.model.nunique()).all()
    assert {p.stem for p in evaluated.glob("figures/*.png")} == {"board", "dimensions", "critic"}
