"""The grid with real cells on a tiny random model: resume, isolation, shards, merging, and what is refused."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rapo_lib import runs
from rapo_lib.ablation import load_policy, people
from rapo_lib.cli import main
from rapo_lib.dialogue import Dialogue, Turn, to_record
from rapo_lib.evaluation import self_play
from rapo_lib.grid import results
from rapo_lib.grid import run as grid
from rapo_lib.grid.adopt import adopt
from rapo_lib.grid.arms import ARMS, WARM
from rapo_lib.grid.cell import SEEKERS, cell_folder, prepare, random_histories, read_asked, run_cell, selected_histories
from rapo_lib.grid.claims import INCONCLUSIVE, NOT_TESTABLE, shipped_claims
from rapo_lib.grid.run import (
    Plan,
    belong_together,
    finished_cells,
    fits,
    merge,
    parse_arms,
    parse_seeds,
    run_grid,
    shard,
)
from rapo_lib.models import load_tokenizer
from rapo_lib.runs import RapoError
from rapo_lib.seeker import AppraisalSeeker

SMALL = {
    "warm_start": False,
    "turns": 2,
    "setup_profiles": 2,
    "histories": 3,
    "group": 2,
    "groups": 2,
    "steps": 2,  # the first only warms up
    "reply_tokens": 8,
    "eval_profiles": 2,
    "eval_histories": 4,
    "learning_rate": 0.05,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A tiny random Llama with the real tokenizer, as a folder that a run can start from."""
    folder, tokenizer = tmp_path_factory.mktemp("start"), load_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, initializer_range=0.2,
                         pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def plan_of(start, folder, arms=("full",), seeds=(0,), split="dev", **overrides):
    return Plan(
        folder=folder,
        profile="smoke",
        arms=arms,
        seeds=seeds,
        overrides={"model": str(start), **SMALL, **overrides},
        split=split,
    )


@pytest.fixture(scope="module")
def made(start, tmp_path_factory):
    """Inputs and two finished cells, made in this process; tests copy them."""
    plan = plan_of(start, tmp_path_factory.mktemp("grid") / "ablate")
    prepare(plan.folder, plan.settings_of(), plan.split)
    for arm in (WARM, "full"):
        run_cell(plan.folder, arm, 0, plan.settings_of(arm), plan.split)
    return plan


@pytest.fixture
def copied(made, start, tmp_path):
    shutil.copytree(made.folder, tmp_path / "ablate")
    return plan_of(start, tmp_path / "ablate")


def edit(place, **changes):
    record = json.loads((place / "cell.json").read_text("utf-8"))
    (place / "cell.json").write_text(json.dumps({**record, **changes}), encoding="utf-8")


# -------------------------------------------------------------------------------------- what is asked


def test_arms_by_name_and_tier():
    assert parse_arms("dpo, full") == ("full", "dpo")
    assert parse_arms("primary") == tuple(n for n, a in ARMS.items() if a.tier == "primary")
    assert set(parse_arms("all")) == set(ARMS)
    with pytest.raises(RapoError, match="did you mean 'verbal_only'"):
        parse_arms("verbal_onlu")
    with pytest.raises(RapoError, match="at least one arm"):
        parse_arms(" ,")


@pytest.mark.parametrize(("text", "seeds"), [("0", (0,)), ("0-2,5", (0, 1, 2, 5)), ("3,1,3", (1, 3))])
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "2-1", "-1", "1-"])
def test_what_is_no_seed(text):
    with pytest.raises(RapoError, match="as seeds"):
        parse_seeds(text)


def test_shards_are_all_cells_once(start, tmp_path):
    cells = plan_of(start, tmp_path, arms=parse_arms("all"), seeds=(0, 1)).cells()
    assert len(cells) == 2 * len(ARMS) == len(set(cells)) and cells[0] == (WARM, 0)
    parts = [shard(cells, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(sum(parts, [])) == sorted(cells) and max(map(len, parts)) - min(map(len, parts)) <= 1
    assert shard(cells, None) == cells


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "1", "a/b"])
def test_what_is_no_shard(text):
    with pytest.raises(RapoError, match="as a shard"):
        shard([("full", 0)], text)


def test_settings_for_all_arms_and_for_one(start, tmp_path):
    plan = plan_of(start, tmp_path, arms=("full", "without_distillation"), **{"full.learning_rate": 1e-3})
    assert plan.settings_of("full").learning_rate == 1e-3
    assert plan.settings_of("without_distillation").learning_rate == 0.05
    assert plan.settings_of("without_distillation").weight == 0.0
    assert plan.settings_of().learning_rate == 0.05
    for bad in ({"stepz": 1}, {"ful.steps": 1}, {"full.stepz": 1}):
        with pytest.raises(RapoError, match="did you mean"):
            plan_of(start, tmp_path, **bad)
    with pytest.raises(RapoError, match="weight is what makes the arm verbal_only"):
        plan_of(start, tmp_path, **{"verbal_only.weight": 0.9})
    with pytest.raises(RapoError, match="heldout or dev"):
        plan_of(start, tmp_path, split="train")


def test_values_from_the_command_line_get_their_type():
    typed = grid.typed_overrides({"steps": "3", "full.learning_rate": "1e-3", "warm_start": "false", "model": "x"})
    assert typed == {"steps": 3, "full.learning_rate": 1e-3, "warm_start": False, "model": "x"}
    with pytest.raises(RapoError, match="'steps': expected int"):
        grid.typed_overrides({"steps": "many"})


# ------------------------------------------------------------------------------------------- inputs


def dialogue(name, turns):
    said = [Turn("seeker", f"{name} opens.", emotion=35.0)]
    for i in range(turns):
        said += [Turn("supporter", f"What about {i}?"), Turn("seeker", f"{name} says {i}.", emotion=36.0 + i)]
    return Dialogue(name, tuple(said))


def test_random_histories_are_as_many_different_and_ready_for_a_reply():
    dialogues = [dialogue("a", 4), dialogue("b", 4)]
    drawn = random_histories(dialogues, 5, seed=1)
    assert len({(n, len(h)) for n, h in drawn}) == 5 and all(h[-1].speaker == "seeker" for _, h in drawn)
    assert drawn == random_histories(dialogues, 5, seed=1) != random_histories(dialogues, 5, seed=2)
    assert len(random_histories(dialogues, 99, seed=1)) == 8


def test_selected_histories_are_filled_up_with_openings():
    dialogues = [dialogue("a", 2), dialogue("b", 2)]
    kept = selected_histories(dialogues, 9)
    assert len(kept) == len({(n, len(h)) for n, h in kept}) and {n for n, h in kept if len(h) == 1} == {"a", "b"}


def test_inputs_are_made_once_and_hold_what_every_policy_replies_to(made):
    place, before = made.folder / "inputs", runs.hash_path(made.folder / "inputs")
    assert prepare(made.folder, made.settings_of(), made.split) == place and runs.hash_path(place) == before
    asked = read_asked(place)
    assert len(asked) == 4 and {a.profile for a in asked} <= {p.id for p in people("dev", 2)}
    trained_on = [json.loads(line)["profile"] for line in (place / "selected.jsonl").read_text("utf-8").splitlines()]
    assert set(trained_on) <= {p.id for p in people("train", 2)}
    assert not any("emotion" in line for name in ("selected", "random", "asked")
                   for line in (place / f"{name}.jsonl").read_text("utf-8").splitlines())  # fmt: skip
    with pytest.raises(RapoError, match="made with other settings"):
        prepare(made.folder, made.settings_of(), "heldout")


# ------------------------------------------------------------------------------------------- a cell


def test_what_a_cell_leaves(made):
    place = cell_folder(made.folder, "full", 0)
    assert {p.name for p in place.iterdir()} == {
        "cell.json", "metrics.csv", "trajectories.csv", "outcomes.csv", "replies.csv", "wins.csv", "responses.csv",
        "samples.csv", "way.csv",
    }  # fmt: skip
    assert sum(p.stat().st_size for p in place.iterdir()) < 100_000
    record = runs.read_json(place / "cell.json")
    assert record["claims"] == shipped_claims().hash and record["library"] == runs.library_hash()
    assert record["settings"] == runs.plain(dict(record["settings"], steps=2)) and record["evaluated_on"] == "dev"
    outcomes = pd.read_csv(place / "outcomes.csv")
    assert set(outcomes.seeker) == set(SEEKERS) and set(outcomes.profile) == {p.id for p in people("dev", 2)}
    samples = pd.read_csv(place / "samples.csv")
    assert samples.kl.abs().max() > 0  # it has moved
    start = cell_folder(made.folder, WARM, 0)
    assert not (start / "metrics.csv").exists() and not (start / "wins.csv").exists()
    assert set(pd.read_csv(place / "way.csv").share.round(2)) == {0.33, 0.67}
    assert pd.read_csv(start / "samples.csv").kl.abs().max() == 0


def test_a_cell_depends_on_its_arm_and_seed_alone(made, start, tmp_path):
    shutil.copytree(made.folder / "inputs", tmp_path / "ablate" / "inputs")
    torch.rand(7)  # what ran before does not matter
    again = run_cell(tmp_path / "ablate", "full", 0, made.settings_of("full"), made.split)
    first = cell_folder(made.folder, "full", 0)
    for name in ("metrics", "outcomes", "replies", "wins", "samples", "responses", "trajectories"):
        pd.testing.assert_frame_equal(pd.read_csv(again / f"{name}.csv"), pd.read_csv(first / f"{name}.csv"))


def test_an_adapter_of_an_earlier_plan_is_not_measured_as_this_one(copied):
    place = copied.folder / "adapters" / "full" / "seed-0"
    before = runs.hash_path(place / "adapter")
    shutil.rmtree(cell_folder(copied.folder, "full", 0))
    run_cell(copied.folder, "full", 0, copied.settings_of("full"), "dev")
    assert runs.hash_path(place / "adapter") == before  # the same plan: trained already
    other = dataclasses.replace(copied.settings_of("full"), learning_rate=0.1)
    run_cell(copied.folder, "full", 0, other, "dev")
    assert runs.hash_path(place / "adapter") != before
    assert runs.read_json(place / "arm.json")["settings"]["learning_rate"] == 0.1


def test_a_short_cell_is_measured_by_the_training_seeker_alone_and_stands_apart(copied):
    short = dataclasses.replace(copied, short=True)
    with pytest.raises(RapoError, match="measured by appraisal, evaluator"):
        run_grid(short)
    shutil.rmtree(copied.folder / "cells")
    place = run_cell(copied.folder, "full", 0, short.settings_of("full"), "dev", short=True)
    assert {p.stem for p in place.glob("*.csv")} == {"metrics", "trajectories", "outcomes", "replies", "samples"}
    assert set(pd.read_csv(place / "outcomes.csv").seeker) == {"appraisal"}
    with pytest.raises(RapoError, match="measured by appraisal"):
        fits(place, copied, "full")


# ------------------------------------------------------------------------- what the notebooks have made already


@pytest.fixture
def run(made, start, tmp_path):
    """A run whose notebooks made what the grid `made` has made for itself."""
    chosen, seeker, place = made.settings_of(), AppraisalSeeker(), tmp_path / "run"
    policy = load_policy(chosen, None)
    for folder, split, count in (
        ("01_simulator_setup", "train", chosen.setup_profiles),
        ("04_hybrid_training/evaluation_warm_start", "dev", chosen.eval_profiles),
    ):
        dialogues = self_play(policy, people(split, count), seeker, turns=chosen.turns, seed=0)
        runs.write_jsonl(place / folder / "dialogues.jsonl", [to_record(d) for d in dialogues])
    runs.write_jsonl(place / "01_simulator_setup/profiles.jsonl", [to_record(p) for p in people("train")])
    shutil.copytree(made.folder / "inputs", place / "02_turn_selection")
    (place / "02_turn_selection/selected.jsonl").rename(place / "02_turn_selection/histories.jsonl")
    shutil.copytree(made.folder / "adapters/full/seed-0", place / "04_hybrid_training/full")
    return place


def test_a_grid_takes_over_from_a_run_what_it_would_make_itself(made, start, run, tmp_path):
    plan = plan_of(start, tmp_path / "taken")
    adopt(plan, run, 0)
    adopt(plan, run, 0)  # what is there stays
    for name in ("selected", "random", "asked"):
        path = f"inputs/{name}.jsonl"
        assert (plan.folder / path).read_bytes() == (made.folder / path).read_bytes(), name
    before = runs.hash_path(plan.folder / "adapters")
    run_cell(plan.folder, "full", 0, plan.settings_of("full"), "dev", short=True)
    assert runs.hash_path(plan.folder / "adapters") == before, "trained again"


def test_a_run_that_trained_on_other_histories_is_refused(start, run, tmp_path):
    path = run / "02_turn_selection/histories.jsonl"
    path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[1:]), encoding="utf-8")
    with pytest.raises(RapoError, match="other histories"):
        adopt(plan_of(start, tmp_path / "taken"), run, 0)


def test_a_run_without_its_notebooks_says_which_to_run(start, tmp_path):
    with pytest.raises(RapoError, match="02_turn_selection"):
        adopt(plan_of(start, tmp_path / "taken"), tmp_path / "nothing", 0)


# -------------------------------------------------------------------------------------- what is refused


def test_a_cell_made_before_a_setting_was_invented_fits_while_that_is_at_its_default(copied):
    place = cell_folder(copied.folder, "full", 0)
    settings = runs.read_json(place / "cell.json")["settings"]
    edit(place, settings={name: value for name, value in settings.items() if name != "policy_scale"})
    fits(place, copied, "full")
    with pytest.raises(RapoError, match="policy_scale = 1.0, not 0.5"):
        fits(place, dataclasses.replace(copied, overrides={**copied.overrides, "policy_scale": 0.5}), "full")


def test_cells_of_other_claims_are_refused(copied):
    place = cell_folder(copied.folder, "full", 0)
    edit(place, claims="0" * 64)
    with pytest.raises(RapoError, match="other claims"):
        run_grid(copied)
    with pytest.raises(RapoError, match="other claims"):
        results.load_cells(copied.folder)


def test_cells_of_other_settings_are_refused(copied, start):
    other = plan_of(start, copied.folder, steps=3)
    with pytest.raises(RapoError, match="steps = 2, not 3; choose another --run"):
        run_grid(other)
    with pytest.raises(RapoError, match="evaluated on dev, not heldout"):
        run_grid(plan_of(start, copied.folder, split="heldout"))


def test_what_is_done_is_skipped(copied):
    before = {p: runs.hash_path(p) for p in finished_cells(copied.folder)}
    assert run_grid(copied) == [] and before == {p: runs.hash_path(p) for p in finished_cells(copied.folder)}


# ------------------------------------------------------------------------------------------- merging


def test_shards_come_together(copied, tmp_path):
    other = tmp_path / "other" / "ablate"
    shutil.copytree(copied.folder, other)
    shutil.rmtree(cell_folder(copied.folder, "full", 0))
    os.replace(cell_folder(other, "full", 0), cell_folder(other, "full", 1))
    target = tmp_path / "all" / "ablate"
    assert merge(target, [copied.folder, other.parent]) == 2  # the start's cell is in both, and the same
    assert [f"{p.parent.name}/{p.name}" for p in finished_cells(target)] == ["warm_start/seed-0", "full/seed-1"]
    assert (target / "inputs" / "asked.jsonl").is_file()
    assert merge(target, [other]) == 0


def test_what_does_not_belong_together_is_not_merged(copied, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(copied.folder, other)
    edit(cell_folder(other, "full", 0), inputs="0" * 64)
    with pytest.raises(RapoError, match="their inputs differ"):
        merge(copied.folder, [other])
    edit(cell_folder(other, "full", 0), claims="0" * 64)
    with pytest.raises(RapoError, match="other claims"):
        merge(copied.folder, [other])
    with pytest.raises(RapoError, match="no finished cell"):
        merge(copied.folder, [tmp_path / "nothing"])


def test_the_same_cell_with_other_results_is_not_merged(copied, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(copied.folder, other)
    (cell_folder(other, "full", 0) / "outcomes.csv").write_text("seeker\n", encoding="utf-8")
    with pytest.raises(RapoError, match="same cell with different results"):
        merge(copied.folder, [other])
    belong_together(finished_cells(copied.folder))


# ------------------------------------------------------------------------------------------- results


def test_results_and_verdicts_from_the_files_alone(copied):
    decisions = {d.id: d for d in results.write_results(copied.folder)}
    assert set(decisions) == {c.id for c in (*shipped_claims().claims, *shipped_claims().not_testable)}
    assert decisions["training_helps"].verdict == INCONCLUSIVE and decisions["sotopia"].verdict == NOT_TESTABLE
    assert decisions["reactions_relieve"].reason == "not run"
    written = pd.read_csv(copied.folder / "claims.csv")
    assert len(written) == len(decisions) and "(n = 2 x 1 seed, no interval)" in written.appraisal[3]
    long = pd.read_csv(copied.folder / "results.csv")
    ends = pd.read_csv(cell_folder(copied.folder, "full", 0) / "outcomes.csv")
    found = long[(long.arm == "full") & (long.metric == "gained")]
    assert found.set_index("unit").value.to_dict() == pytest.approx(ends.set_index("profile").gained.to_dict())
    facts = runs.read_json(copied.folder / "run.json")
    assert facts["cells"] == ["warm_start/seed-0", "full/seed-0"] and len(facts["library"]) == 1


# ------------------------------------------------------------------------- processes, kills, failures

ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1"}


def command(start, *options):
    settings = [f for name, value in {"model": start, **SMALL}.items() for f in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "rapo_lib", "ablate", "--profile", "smoke", "--split", "dev", *settings, *options]


@pytest.mark.slow
def test_a_killed_grid_goes_on_where_it_stopped(start, outputs):
    asked = command(start, "--run", "killed", "--arms", "full,without_reactions")
    folder = outputs / "killed" / "ablate"
    env = {**ENVIRONMENT, "RAPO_OUTPUTS": str(outputs)}
    child = subprocess.Popen(asked, env=env, stderr=subprocess.PIPE, start_new_session=True)
    until = time.monotonic() + 300
    while not finished_cells(folder) and time.monotonic() < until:
        time.sleep(0.2)
    os.kill(child.pid, signal.SIGKILL)  # the parent alone: its cell must notice
    child.wait()
    kept = {p: (p / "cell.json").stat().st_mtime_ns for p in finished_cells(folder)}
    assert kept and len(kept) < 3
    done = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [p.parent.name for p in finished_cells(folder)] == [WARM, "full", "without_reactions"]
    assert all((p / "cell.json").stat().st_mtime_ns == at for p, at in kept.items())
    assert not list(folder.rglob("*.tmp"))
    assert "reactions_relieve" in done.stdout and "ablate" in done.stderr


@pytest.mark.slow
def test_a_failed_cell_is_reported_and_stops_nothing(start, outputs, capsys):
    groups = ["--set", "critiques_across.groups=1", "--set", "critiques_across.group=4"]
    code = main(command(start, "--run", "failing", "--arms", "critiques_across,full", *groups)[3:])
    said = capsys.readouterr()
    assert code == 1 and "1 cells failed" in said.err
    assert "critiques_across seed 0: " in said.err and "use more groups a step" in said.err
    assert [p.parent.name for p in finished_cells(outputs / "failing" / "ablate")] == [WARM, "full"]


def test_the_grid_measures_with_the_embedded_roles_whatever_the_profile(tmp_path):
    plan = Plan(folder=tmp_path, profile="gpu", arms=("full",), seeds=(0,))
    for chosen in (plan.settings_of(), plan.settings_of("full")):
        assert chosen.seeker == chosen.judge == chosen.selector == "embedded"
    for name in ("seeker", "full.lm_orders", "lm"):
        with pytest.raises(RapoError, match="trains with the embedded seeker and judge"):
            Plan(folder=tmp_path, profile="smoke", arms=("full",), seeds=(0,), overrides={name: "lm"})
