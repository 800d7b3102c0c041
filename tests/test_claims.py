"""The claims file is read strictly, and verdicts follow from intervals alone."""

import dataclasses
import math
from importlib import resources

import pytest
import yaml

from rapo_lib.evaluation import SUCCESS, TURNS
from rapo_lib.grid.arms import ARMS, FULL
from rapo_lib.grid.claims import (
    INCONCLUSIVE,
    NOT_SUPPORTED,
    NOT_TESTABLE,
    SUPPORTED,
    decide,
    judge_one,
    read_claims,
    same_claims,
    shipped_claims,
)
from rapo_lib.runs import RapoError
from rapo_lib.stats import Interval

CLAIMS = shipped_claims()
RECORD = yaml.safe_load((resources.files("rapo_lib") / "data" / "claims.yaml").read_text("utf-8"))


def interval(mean, half, p=0.001):
    return Interval(mean, mean - half, mean + half, n=16, seeds=3, p=p)


NO_INTERVAL = Interval(5.0, math.nan, math.nan, n=16, seeds=1)


# ------------------------------------------------------------------------------------------- the file


def test_the_shipped_claims_say_where_they_come_from_and_what_would_matter():
    assert all(c.source and c.text for c in (*CLAIMS.claims, *CLAIMS.not_testable))
    for claim in CLAIMS.claims:
        assert claim.smallest == (3.0 if claim.metric == "gained" else 0.10)
        assert claim.arm != claim.reference
    assert {c.id for c in CLAIMS.not_testable} >= {"emoharbor", "sotopia", "human_preference", "at_7b"}
    assert (CLAIMS.success_emotion, CLAIMS.success_turns) == (SUCCESS, TURNS)


def test_the_three_primary_contrasts_are_full_against_the_other_primary_arms():
    primary = [c for c in CLAIMS.claims if c.rule == "holm"]
    others = {name for name, arm in ARMS.items() if arm.tier == "primary"} - {FULL}
    assert {c.reference for c in primary} == others and {c.arm for c in primary} == {FULL}
    for claim in CLAIMS.claims:
        exploratory = "exploratory" in (ARMS[claim.arm].tier, ARMS[claim.reference].tier)
        assert (claim.rule == "point") == exploratory


def write(tmp_path, record):
    path = tmp_path / "claims.yaml"
    path.write_text(record if isinstance(record, str) else yaml.safe_dump(record), encoding="utf-8")
    return path


def changed(**entry):
    claims = [{**RECORD["claims"][0], **entry}, *RECORD["claims"][1:]]
    return {**RECORD, "claims": claims}


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({**RECORD, "levle": 0.9}, "unknown key 'levle'"),
        ({k: v for k, v in RECORD.items() if k != "level"}, "missing key 'level'"),
        (changed(metrik="x"), "claims, entry 1: unknown key 'metrik'"),
        (changed(metric="joy"), "claims, entry 1: metric 'joy' is not one of"),
        (changed(direction="up"), "direction 'up'"),
        (changed(arm="ful"), "arm 'ful'"),
        (changed(rule="vote"), "rule 'vote'"),
        (changed(smallest=0), "smallest must be more than 0"),
        (changed(smallest="3"), "smallest must be more than 0, not '3'"),
        (changed(id="emoharbor"), "'emoharbor' is used twice"),
        ({**RECORD, "level": 95}, "level must lie between 0 and 1"),
        ({**RECORD, "seekers": "appraisal"}, "seekers must be a list"),
        ({**RECORD, "claims": {}}, "claims must be a list"),
        ("- a", "expected keys and values, found list"),
        ("a: [", "cannot read the claims"),
    ],
)
def test_what_is_wrong_in_the_file_is_one_clear_line(tmp_path, record, says):
    with pytest.raises(RapoError, match=says):
        read_claims(write(tmp_path, record))


def test_the_file_cannot_run_code(tmp_path):
    with pytest.raises(RapoError, match="cannot read the claims"):
        read_claims(write(tmp_path, "level: !!python/object/apply:os.system ['true']"))


def test_a_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(RapoError, match="cannot read the claims"):
        read_claims(tmp_path / "none.yaml")


def test_the_hash_follows_the_values_and_not_the_comments(tmp_path):
    assert read_claims(write(tmp_path, RECORD)).hash == CLAIMS.hash
    assert read_claims(write(tmp_path, changed(smallest=2.9))).hash != CLAIMS.hash


def test_results_under_other_claims_are_refused(tmp_path):
    same_claims(CLAIMS.hash, CLAIMS, tmp_path)
    other = dataclasses.replace(CLAIMS, level=0.9)
    with pytest.raises(RapoError, match="other claims .*never mixed"):
        same_claims(CLAIMS.hash, other, tmp_path)


# ------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("effect", "p", "verdict"),
    [
        (interval(5, 2), None, SUPPORTED),  # 3 to 7
        (interval(4, 3.5), None, SUPPORTED),  # 0.5 to 7.5: more than nothing, and 3 is not excluded
        (interval(4, 3.5), 0.06, INCONCLUSIVE),  # but not after correction
        (interval(1, 1.5), None, NOT_SUPPORTED),  # -0.5 to 2.5 excludes 3
        (interval(1, 0.5), None, NOT_SUPPORTED),  # surely more than nothing, and surely less than matters
        (interval(-5, 2), None, NOT_SUPPORTED),  # the other way round
        (interval(2, 3), None, INCONCLUSIVE),  # -1 to 5 holds both
        (NO_INTERVAL, None, INCONCLUSIVE),
    ],
)
def test_one_seeker_by_hand(effect, p, verdict):
    assert judge_one(effect, 3.0, 0.95, p) == verdict


def verdicts(estimates):
    return {d.id: d for d in decide(CLAIMS, estimates)}


def both(name, first, second):
    return {(name, "appraisal"): first, (name, "evaluator"): second}


def test_a_claim_needs_every_seeker():
    name = "training_helps"
    assert verdicts(both(name, interval(5, 2), interval(4, 2)))[name].verdict == SUPPORTED
    unseen = verdicts({(name, "appraisal"): interval(5, 2)})[name]
    assert unseen.verdict == INCONCLUSIVE and unseen.reason == "not seen by evaluator"
    disagree = verdicts(both(name, interval(5, 2), interval(-1, 6)))[name]
    assert disagree.verdict == INCONCLUSIVE and "disagree on the sign" in disagree.reason
    fooled = verdicts(both(name, interval(9, 2), interval(0, 1)))[name]  # what the trained-on seeker alone likes
    assert fooled.verdict == NOT_SUPPORTED and "(evaluator)" in fooled.reason


def test_less_is_a_direction_too():
    name = "distillation_delays_advice"  # full - without distillation, claimed to be less
    found = verdicts(both(name, interval(-0.3, 0.1), interval(-0.2, 0.1)))[name]
    assert found.verdict == SUPPORTED
    assert found.estimates["appraisal"].mean == pytest.approx(0.3)  # in the claimed direction
    assert verdicts(both(name, interval(0.3, 0.1), interval(0.2, 0.1)))[name].verdict == NOT_SUPPORTED


def test_holm_over_the_three_primary_contrasts():
    names = [c.id for c in CLAIMS.claims if c.rule == "holm"]
    p = dict(zip(names, (0.02, 0.03, 0.04), strict=True))  # corrected: 0.06, 0.06, 0.06
    estimates = {key: i for name in names for key, i in both(name, *[interval(5, 4, p[name])] * 2).items()}
    assert {verdicts(estimates)[name].verdict for name in names} == {INCONCLUSIVE}
    estimates = {key: dataclasses.replace(i, p=0.01) for key, i in estimates.items()}  # 0.03 each
    assert {verdicts(estimates)[name].verdict for name in names} == {SUPPORTED}


def test_a_contrast_that_was_not_run_keeps_its_place_in_the_correction():
    name = "reactions_relieve"
    assert verdicts(both(name, *[interval(5, 4, 0.02)] * 2))[name].verdict == INCONCLUSIVE  # 3 * 0.02
    assert verdicts(both(name, *[interval(5, 4, 0.01)] * 2))[name].verdict == SUPPORTED


def test_what_cannot_be_tested_or_was_not_run_says_so():
    found = verdicts({})
    assert found["sotopia"].verdict == NOT_TESTABLE and "judge" in found["sotopia"].reason
    assert found["training_helps"].reason == "not run"
    point = verdicts(both("selection_helps", interval(9, 1), interval(9, 1)))["selection_helps"]
    assert point.verdict == INCONCLUSIVE and "point" in point.reason
    one = verdicts(both("training_helps", NO_INTERVAL, NO_INTERVAL))["training_helps"]
    assert (one.verdict, one.reason) == (INCONCLUSIVE, "one seed has no interval")
