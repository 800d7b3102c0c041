"""Settings, arms and the tables between notebooks."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest
from trainers import G, tiny, train_tiny_arm

from rapo_lib.ablation import (
    ARMS,
    arm_settings,
    gather,
    people,
    read_pairs,
    step_metrics,
)
from rapo_lib.dialogue import Turn
from rapo_lib.models import load_tokenizer, save_model
from rapo_lib.profiles import PROFILES, Settings, settings
from rapo_lib.runs import RapoError, hash_path, plain
from rapo_lib.simulation import Rollout
from rapo_lib.training import checkpoints
from rapo_lib.training.rollouts import rollout_from_record, rollout_record


def test_profiles_are_settings_with_known_names():
    for name, values in PROFILES.items():
        assert settings(name) == Settings(**values)


def test_overrides_by_name_and_none_leaves_alone():
    chosen = settings("cpu", {"steps": 3, "weight": None})
    assert chosen.steps == 3 and chosen.weight == Settings().weight


@pytest.mark.parametrize(
    ("profile", "overrides", "says"),
    [
        ("cpuu", {}, "unknown profile 'cpuu'"),
        ("cpu", {"stepss": 1}, "did you mean 'steps'"),
        ("cpu", {"zz": 1}, "'zz'"),
    ],
)
def test_unknown_names_are_one_clear_line(profile, overrides, says):
    with pytest.raises(RapoError, match=says):
        settings(profile, overrides)


def test_arms_share_all_that_they_do_not_name():
    chosen = settings("cpu")
    for arm in ARMS.values():
        changed = {f for f, v in asdict(arm_settings(arm, chosen)).items() if v != asdict(chosen)[f]}
        assert changed == set(arm.overrides), arm.name


def test_splits_do_not_meet():
    splits = [{p.id for p in people(s)} for s in ("train", "dev", "heldout")]
    assert sum(map(len, splits)) == len(set.union(*splits)) == 100
    assert [p.id for p in people("dev", 3)] == [people("dev")[i].id for i in (0, 4, 8)], "evenly spaced"


def test_histories_name_people_that_exist(tmp_path):
    path = tmp_path / "histories.jsonl"
    known = people("train", 1)[0]
    said = [{"speaker": "seeker", "text": "Hello."}]
    path.write_text(json.dumps({"profile": known.id, "history": said}) + "\n", encoding="utf-8")
    (person, history), *rest = read_pairs(path, {known.id: known})
    assert person == known and history[0].text == "Hello." and not rest
    path.write_text(json.dumps({"profile": "nobody", "history": said}) + "\n", encoding="utf-8")
    with pytest.raises(RapoError, match="record 1: unknown profile 'nobody'"):
        read_pairs(path, {known.id: known})


def test_metrics_of_a_step_by_hand():
    rolled = [Rollout("p", (), "r", "x", 35.0, e, 0.0, "c") for e in (36.0, 38.0, 35.0, 31.0)]
    logged = [{"loss": 0.1, "grad_norm": 1.0}, {"loss": 0.2, "grad_norm": 2.0}, {"train_runtime": 3.0}]
    table = step_metrics(logged, rolled, settings("smoke", {"group": 2, "groups": 1}))
    assert table.step.tolist() == [1, 2] and table.grad_norm.tolist() == [1.0, 2.0]
    assert table.change.tolist() == [2.0, -2.0]  # (1 + 3) / 2, (0 - 4) / 2


def test_a_reaction_that_was_marked_comes_back_unknown_from_the_rollouts():
    marked = Rollout("p", (Turn("seeker", "Hi"),), "r", "", 35.0, math.nan, None, "")
    again = rollout_from_record(json.loads(json.dumps(plain(rollout_record(marked)))))
    assert math.isnan(again.emotion) and replace(again, emotion=0.0) == replace(marked, emotion=0.0)
    table = step_metrics([{"loss": 0.1}], [again, replace(again, emotion=39.0)], settings("smoke", {"group": 2}))
    assert table.change.tolist() == [4.0]  # over those that are known


def test_gathered_tables_name_their_arm(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pd.DataFrame({"gained": [1.0, 2.0]}).to_csv(tmp_path / name / "outcomes.csv", index=False)
    table = gather({n: tmp_path / n for n in ("a", "b")}, "outcomes")
    assert table.arm.tolist() == ["a", "a", "b", "b"]


# -------------------------------------------------------------------------------- an arm that is interrupted


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tokenizer = load_tokenizer()
    save_model(folder, tiny(tokenizer), tokenizer)
    return folder


def killed(folder, model):
    """Train in another process that kills itself (SIGKILL) while it writes the checkpoint of step 4."""
    tests = Path(__file__).parent
    script = f"import trainers; trainers.train_tiny_arm(__import__('pathlib').Path({str(folder)!r}), {str(model)!r}, 4)"
    paths = os.pathsep.join([str(tests), str(tests.parent)])
    return subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": paths}, timeout=300)


def test_an_arm_killed_while_saving_ends_as_if_it_had_not_been(tiny_model, tmp_path):
    whole = train_tiny_arm(tmp_path / "whole", tiny_model)
    assert killed(tmp_path / "broken", tiny_model).returncode == -signal.SIGKILL
    going = tmp_path / "broken.training"
    assert not (tmp_path / "broken").exists()
    assert (going / ".checkpoint-4.tmp" / "optimizer.pt").is_file()  # half a checkpoint, under no name that counts
    assert checkpoints.latest(going) == going / "checkpoint-2"
    assert (
        len((going / "rollouts.jsonl").read_text("utf-8").splitlines()) == 4 * 2 * G
    )  # more than the checkpoint knows
    broken = train_tiny_arm(tmp_path / "broken", tiny_model)
    assert not going.exists()
    for name in ("adapter/adapter_model.safetensors", "metrics.csv", "rollouts.jsonl", "arm.json"):
        assert hash_path(broken / name) == hash_path(whole / name), name
    table = pd.read_csv(whole / "metrics.csv")
    assert table.step.tolist() == [1, 2, 3, 4, 5] and table.kl_to_start[0] == 0 and table.change.notna().all()


def test_what_another_training_left_is_not_gone_on_from(tiny_model, tmp_path):
    whole = train_tiny_arm(tmp_path / "whole", tiny_model)
    going = tmp_path / "arm.training"
    (going / "checkpoint-4").mkdir(parents=True)  # of other settings
    (going / "training.json").write_text('{"key": "another"}', encoding="utf-8")
    assert hash_path(train_tiny_arm(tmp_path / "arm", tiny_model) / "rollouts.jsonl") == hash_path(
        whole / "rollouts.jsonl"
    )


def test_an_update_is_cut_into_micro_batches_of_whole_groups():
    from rapo_lib.ablation import _config

    for groups, most, wanted in ((8, 4, (16, 2)), (6, 4, (12, 2)), (7, 4, (4, 7)), (1, 4, (4, 1)), (4, 9, (16, 1))):
        fitted = _config(settings("cpu", {"groups": groups, "micro_groups": most}), "x", 0)
        assert (fitted.per_device_train_batch_size, fitted.gradient_accumulation_steps) == wanted
