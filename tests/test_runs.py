"""Runs on disk: whole files or none, records that notice damage, hashes and seeds."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapo_lib import runs
from rapo_lib.runs import RapoError, hash_path, read_stage, require, seed_for, stable_hash, start_stage

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@dataclass(frozen=True)
class Setting:
    rate: float
    layers: tuple[int, ...]


# ---------------------------------------------------------------------------------------------- whole files


def test_written_files_are_read_back(tmp_path):
    value = {"é😊": Setting(0.5, (1, 2)), "n": np.int64(3), "xs": np.array([1.5, np.nan]), "at": Path("a/b")}
    path = runs.write_json(tmp_path / "deep" / "value.json", value)
    assert runs.read_json(path) == {"é😊": {"rate": 0.5, "layers": [1, 2]}, "n": 3, "xs": [1.5, None], "at": "a/b"}
    runs.write_jsonl(tmp_path / "rows.jsonl", [{"a": 1}, {"a": "\u2028"}])
    lines = (tmp_path / "rows.jsonl").read_text("utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [{"a": 1}, {"a": "\u2028"}]
    runs.write_csv(tmp_path / "table.csv", [{"arm": "full", "gain": 1.5}, {"arm": "none", "gain": None}])
    assert (tmp_path / "table.csv").read_bytes() == b"arm,gain\nfull,1.5\nnone,\n"


def test_writing_replaces_keeps_rights_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "a.txt"
    runs.write_text(path, "old")
    runs.write_text(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text("utf-8") == "new"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


FULL_DISK = """
import resource, sys
from pathlib import Path
from rapo_lib import runs
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    runs.write_text(Path(sys.argv[1]), "x" * 100_000)
except runs.RapoError as error:
    sys.exit(f"{error}")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits on file size are a Unix matter")
def test_a_full_disk_is_one_line_and_the_old_file_stays(tmp_path):
    path = runs.write_text(tmp_path / "metrics.csv", "before")
    done = subprocess.run([sys.executable, "-c", FULL_DISK, path], cwd=runs.ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"cannot write {path}: File too large\n"
    assert path.read_text("utf-8") == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_the_way_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(RapoError, match=r"cannot write .*file/a\.txt: "):
        runs.write_text(tmp_path / "file" / "a.txt", "x")


def test_atomic_folder_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "adapter"
    with pytest.raises(ZeroDivisionError), runs.atomic_folder(target) as folder:
        (folder / "half").write_text("x", encoding="utf-8")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    for content in ("one", "two"):
        with runs.atomic_folder(target) as folder:
            (folder / "weights").write_text(content, encoding="utf-8")
    assert list(tmp_path.iterdir()) == [target]
    assert (target / "weights").read_text("utf-8") == "two"


# ---------------------------------------------------------------------------------------------- places


def test_places_do_not_depend_on_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAPO_OUTPUTS")
    assert runs.outputs_dir() == runs.ROOT / "outputs"
    monkeypatch.setenv("RAPO_OUTPUTS", "elsewhere")
    assert runs.run_dir("cpu") == runs.ROOT / "elsewhere" / "cpu"
    monkeypatch.setenv("RAPO_CACHE", str(tmp_path / "cache"))
    assert runs.cache_dir() == tmp_path / "cache"


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "-x", ".hidden", "a\n", "é"])
def test_a_run_name_cannot_leave_the_outputs_folder(name):
    with pytest.raises(RapoError, match="cannot name a run"):
        runs.run_dir(name)


# ---------------------------------------------------------------------------------------------- hashes and seeds


@given(JSON)
def test_stable_hash_sees_the_value_not_its_spelling(value):
    assert stable_hash(value) == stable_hash(json.loads(json.dumps(value)))
    assert stable_hash([value]) != stable_hash([value, value])


def test_stable_hash_is_fixed_for_good():
    assert stable_hash({"b": (1, 2), "a": "é"}) == stable_hash({"a": "é", "b": [1, 2]})
    assert stable_hash({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # sha256 of "{}"


@given(st.integers(0, 10_000), st.lists(st.text(max_size=5) | st.integers(), max_size=3))
def test_seeds_fit_31_bits_and_follow_their_names(root, names):
    seed = seed_for(root, *names)
    assert 0 <= seed < 2**31
    assert seed == seed_for(root, *names)


def test_seeds_of_neighbouring_names_differ():
    seeds = {seed_for(root, "arm", n) for root in range(20) for n in range(20)}
    assert len(seeds) == 400
    assert seed_for(1, "a", "b") != seed_for(1, "ab")


def test_hash_of_a_folder_sees_names_and_contents(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("1", encoding="utf-8")
    assert hash_path(tmp_path / "a") == hash_path(tmp_path / "b")
    (tmp_path / "b" / "x").rename(tmp_path / "b" / "y")
    assert hash_path(tmp_path / "a") != hash_path(tmp_path / "b")


# ---------------------------------------------------------------------------------------------- stages


@pytest.fixture
def run(tmp_path):
    """A run with one finished stage."""
    stage = start_stage(tmp_path / "cpu", "01_setup", {"seed": 1}, seeds={"root": 1})
    runs.write_jsonl(stage.path("dialogues.jsonl"), [{"text": "hello"}])
    runs.write_text(stage.path("figures/emotion.csv"), "turn,emotion\n")
    stage.finish(heldout=["p1"])
    return tmp_path / "cpu"


def test_the_record_of_a_stage(run):
    stage = start_stage(run, "02_select", {"rate": 0.1}, inputs=[run / "01_setup" / "dialogues.jsonl"])
    stage.finish()
    first, second = read_stage(run, "01_setup"), read_stage(run, "02_select")
    assert (
        first["parameters"] == {"seed": 1} and first["seeds"] == {"root": 1} and first["facts"] == {"heldout": ["p1"]}
    )
    assert sorted(first["artefacts"]) == ["dialogues.jsonl", "figures/emotion.csv"]
    assert second["inputs"] == {"01_setup/dialogues.jsonl": first["artefacts"]["dialogues.jsonl"]["sha256"]}
    assert second["completed"] and second["seconds"] >= 0 and second["versions"]["torch"].startswith("2.13.0")
    assert second["git"] is None or set(second["git"]) == {"commit", "dirty"}


def test_an_unfinished_stage_says_which_notebook_to_run(run):
    start_stage(run, "02_select", {})
    for name in ("02_select", "03_never"):
        with pytest.raises(
            RapoError, match=rf"{name} is not finished; run `rapo reproduce --run cpu --notebooks {name[:2]}`"
        ):
            read_stage(run, name)
    with pytest.raises(
        RapoError, match=r"pivotal.jsonl is missing; notebook 02_select makes it: run .*--notebooks 02`"
    ):
        require(run / "02_select" / "pivotal.jsonl", made_by="02_select")
    with pytest.raises(RapoError, match="input .*nowhere is missing"):
        start_stage(run, "02_select", {}, inputs=[run / "nowhere"])


def test_damage_is_reported_by_name(run):
    path = run / "01_setup" / "dialogues.jsonl"
    whole = path.read_bytes()
    assert require(path, made_by="01_setup") == path
    path.write_bytes(whole[:-5])
    for check in (
        lambda: read_stage(run, "01_setup"),
        lambda: require(path, "01_setup"),
        lambda: require(path.parent, "01_setup"),
    ):
        with pytest.raises(RapoError, match=r"dialogues.jsonl is damaged: 13 bytes instead of 18"):
            check()
    assert require(run / "01_setup" / "figures", made_by="01_setup")
    path.write_bytes(whole.replace(b"hello", b"jello"))
    with pytest.raises(RapoError, match="dialogues.jsonl was changed after its stage finished"):
        require(path, made_by="01_setup")
    path.unlink()
    with pytest.raises(RapoError, match="dialogues.jsonl is missing"):
        read_stage(run, "01_setup")
    (run / "01_setup" / "run.json").write_text('{"comp', encoding="utf-8")
    with pytest.raises(RapoError, match=r"run\.json is damaged"):
        read_stage(run, "01_setup")


def test_a_file_of_the_users_own_needs_no_record(tmp_path):
    path = runs.write_text(tmp_path / "mine.jsonl", "{}\n")
    assert require(path, made_by="01_setup") == path


def test_the_same_work_goes_on_and_other_work_starts_clean(run):
    folder = run / "01_setup"
    runs.write_text(folder / "record.json", "{}")
    (folder / ".x.tmp").write_text("half", encoding="utf-8")
    start_stage(run, "01_setup", {"seed": 1}, seeds={"root": 1})
    assert sorted(p.name for p in folder.iterdir()) == ["dialogues.jsonl", "figures", "record.json", "run.json"]
    start_stage(run, "01_setup", {"seed": 2}, seeds={"root": 1})
    assert sorted(p.name for p in folder.iterdir()) == ["record.json", "run.json"]
