"""Settings, arms and the tables between notebooks."""

import json
from dataclasses import asdict

import pandas as pd
import pytest

from rapo_lib.ablation import ARMS, arm_settings, gather, people, read_pairs, step_metrics
from rapo_lib.profiles import PROFILES, Settings, settings
from rapo_lib.runs import RapoError
from rapo_lib.simulation import Rollout


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
    assert [p.id for p in people("dev", 2)] == [p.id for p in people("dev")][:2]


def test_histories_name_people_that_exist(tmp_path):
    path = tmp_path / "histories.jsonl"
    known = people("train", 1)[0]
    said = [{"speaker": "seeker", "text": "Hello."}]
    path.write_text(json.dumps({"profile": known.id, "history": said}) + "\n", encoding="utf-8")
    (person, history), *rest = read_pairs(path)
    assert person == known and history[0].text == "Hello." and not rest
    path.write_text(json.dumps({"profile": "nobody", "history": said}) + "\n", encoding="utf-8")
    with pytest.raises(RapoError, match="line 1: unknown profile 'nobody'"):
        read_pairs(path)


def test_metrics_of_a_step_by_hand():
    rolled = [Rollout("p", (), "r", "x", 35.0, e, 0.0, "c") for e in (36.0, 38.0, 35.0, 31.0)]
    logged = [{"loss": 0.1, "grad_norm": 1.0}, {"loss": 0.2, "grad_norm": 2.0}, {"train_runtime": 3.0}]
    table = step_metrics(logged, rolled, settings("smoke", {"group": 2, "groups": 1}))
    assert table.step.tolist() == [1, 2] and table.grad_norm.tolist() == [1.0, 2.0]
    assert table.change.tolist() == [2.0, -2.0]  # (1 + 3) / 2, (0 - 4) / 2


def test_gathered_tables_name_their_arm(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pd.DataFrame({"gained": [1.0, 2.0]}).to_csv(tmp_path / name / "outcomes.csv", index=False)
    table = gather({n: tmp_path / n for n in ("a", "b")}, "outcomes")
    assert table.arm.tolist() == ["a", "a", "b", "b"]
