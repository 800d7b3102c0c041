"""Intervals against hand-worked numbers, their coverage in simulated experiments, corrections and power."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from rapo_lib.stats import (
    Components,
    Interval,
    bands,
    clustered,
    components,
    crossed,
    crossed_error,
    detectable,
    differences,
    holm,
    paired,
    t_interval,
    verdict,
)


def test_interval_by_hand():
    # 1, 2, 3: mean 2, sd 1, t(0.975, 2) = 4.3027, half width 4.3027 / sqrt(3) = 2.4841
    i = t_interval([1.0, 2.0, 3.0])
    assert (i.mean, i.n) == (2.0, 3)
    assert i.high - i.mean == pytest.approx(2.4841, abs=1e-4)
    assert i.p == pytest.approx(0.0742, abs=1e-4)  # t = 2 / (1 / sqrt 3) = 3.464, 2 df


def test_nan_is_left_out_and_one_value_has_no_interval():
    i = t_interval([float("nan"), 4.0])
    assert (i.mean, i.n) == (4.0, 1) and math.isnan(i.low) and "no interval" in str(i)
    assert t_interval([]).n == 0


def test_people_are_the_units_not_their_replies():
    table = pd.DataFrame({"profile": ["a"] * 98 + ["b", "c"], "win": [1.0] * 98 + [0.0, 0.5]})
    i = clustered(table, "win")
    assert i.n == 3 and i.mean == pytest.approx(0.5)


def test_pairs_cancel_what_people_differ_in():
    table = pd.DataFrame({"profile": ["a", "b", "c"] * 2, "arm": ["x"] * 3 + ["y"] * 3,
                          "gained": [10.0, 50.0, 90.0, 8.0, 47.0, 89.0]})  # fmt: skip
    i = paired(table, "gained", "x", "y")
    assert i.mean == pytest.approx(2.0) and i.high - i.low < 6


def test_coverage_of_the_interval():
    rng = np.random.default_rng(0)
    inside = [(i := t_interval(rng.normal(1.0, 2.0, 5))).low <= 1.0 <= i.high for _ in range(1000)]
    assert 0.93 <= np.mean(inside) <= 0.97


def test_verdicts():
    assert verdict(Interval(2, 1, 3, 5)) == "supported"
    assert verdict(Interval(2, 1, 3, 5), sign=-1) == "not supported"
    assert verdict(Interval(0, -1, 1, 5)) == "inconclusive"
    assert verdict(Interval(2, float("nan"), float("nan"), 1)) == "no interval"


# ------------------------------------------------------------------------------------ seeds by people


def test_crossed_interval_by_hand():
    # 2 seeds x 3 people. Seed means 2, 5; person means 2, 3, 5.5; mean 3.5.
    # MS_a = 3 * var(2, 5) = 3 * 4.5 = 13.5;  MS_b = 2 * var(2, 3, 5.5) = 2 * 3.25 = 6.5
    # rest: 1-2-2+3.5=.5, 2-2-3+3.5=.5, 3-2-5.5+3.5=-1 and the opposite; MS_e = 2 * 1.5 / (1 * 2) = 1.5
    # total = 12 + 5 + 1.5 = 18.5; se = sqrt(18.5 / 6) = 1.75594
    # df = 18.5^2 / (13.5^2 / 1 + 6.5^2 / 2 + 1.5^2 / 2) = 342.25 / 204.5 = 1.67359
    d = np.array([[1.0, 2.0, 3.0], [3.0, 4.0, 8.0]])
    i = crossed(d)
    assert (i.mean, i.n, i.seeds) == (3.5, 3, 2)
    half = scipy_stats.t.ppf(0.975, 1.67359) * 1.75594
    assert i.high - i.mean == pytest.approx(half, rel=1e-4) and i.mean - i.low == pytest.approx(half, rel=1e-4)
    assert i.p == pytest.approx(2 * scipy_stats.t.sf(3.5 / 1.75594, 1.67359), rel=1e-4)
    assert str(i).endswith("(n = 3 x 2 seeds)")
    assert components(d) == Components(12 / 3, 5 / 2, 1.5)


def test_people_who_differ_alike_under_every_seed_leave_a_t_interval_over_people():
    d = np.tile([1.0, 2.0, 3.0, 6.0], (3, 1))
    i, over_people = crossed(d), t_interval(d[0])
    assert (i.low, i.high, i.p) == pytest.approx((over_people.low, over_people.high, over_people.p))


def test_seeds_that_differ_alike_for_every_person_leave_a_t_interval_over_seeds():
    d = np.tile([[1.0], [2.0], [6.0]], (1, 5))
    i, over_seeds = crossed(d), t_interval(d[:, 0])
    assert (i.low, i.high) == pytest.approx((over_seeds.low, over_seeds.high))


def test_one_seed_or_one_unit():
    one = crossed(np.array([[1.0, 2.0, 3.0]]))
    assert (one.mean, one.n, one.seeds) == (2.0, 3, 1) and math.isnan(one.low) and math.isnan(one.p)
    assert "no interval" in str(one)
    whole = crossed(np.array([[1.0], [2.0], [3.0]]))
    assert (whole.n, whole.seeds) == (1, 3) and whole.high == pytest.approx(t_interval([1.0, 2.0, 3.0]).high)
    assert crossed(np.empty((0, 0))).n == 0
    flat = crossed(np.zeros((3, 4)))
    assert (flat.low, flat.high, flat.p) == (0.0, 0.0, 1.0)


def test_a_unit_missing_under_one_seed_is_left_out():
    d = np.array([[1.0, 2.0, np.nan], [3.0, 4.0, 9.0]])
    assert crossed(d).n == 2 and crossed(d).mean == 2.5


def test_differences_are_paired_by_seed_and_person():
    rows = [
        ("x", 0, "a", 5.0), ("x", 0, "b", 7.0), ("x", 1, "a", 6.0), ("x", 1, "b", 6.0), ("x", 2, "a", 99.0),
        ("y", 0, "a", 1.0), ("y", 0, "b", 2.0), ("y", 1, "a", 1.0), ("y", 1, "b", 3.0),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["arm", "seed", "unit", "value"])
    d = differences(table, "x", "y")
    assert d.loc[0].tolist() == [4.0, 5.0] and d.loc[1].tolist() == [5.0, 3.0]
    assert d.index.tolist() == [0, 1]  # y has no seed 2
    assert differences(table, "x", "nobody").empty


@given(st.floats(-50, 50), st.floats(0.1, 20), st.integers(0, 999))
def test_the_interval_moves_and_stretches_with_the_values(shift, scale, seed):
    d = np.random.default_rng(seed).normal(size=(3, 5))
    i, moved = crossed(d), crossed(scale * d + shift)
    assert moved.low == pytest.approx(scale * i.low + shift, abs=1e-6)
    assert moved.high == pytest.approx(scale * i.high + shift, abs=1e-6)
    assert moved.flipped().flipped() == moved and crossed(-d).low == pytest.approx(i.flipped().low)


def covered(seeds, units, sd_seed, sd_unit, sd_rest, experiments, draw=np.random.Generator.normal):
    """Share of simulated experiments whose 95 % interval holds the true mean, 0."""
    rng = np.random.default_rng([seeds, units])
    d = (
        sd_seed * draw(rng, size=(experiments, seeds, 1))
        + sd_unit * draw(rng, size=(experiments, 1, units))
        + sd_rest * draw(rng, size=(experiments, seeds, units))
    )
    se, df = crossed_error(d)
    return (np.abs(d.mean((1, 2))) <= scipy_stats.t.ppf(0.975, df) * se).mean()


SIZES = [(3, 16), (3, 40), (6, 16), (6, 40)]
BOTH = [(1.5, 3, 4), (2, 5, 8), (3, 2, 4), (1, 6, 6), (2, 4, 4)]  # sd over seeds, over people, and the rest


@pytest.mark.parametrize(("seeds", "units"), SIZES)
@pytest.mark.parametrize("sd", BOTH)
def test_coverage_with_both_variances(seeds, units, sd):
    assert 0.93 <= covered(seeds, units, *sd, experiments=20_000) <= 0.97  # standard error 0.15 points


@pytest.mark.parametrize(("seeds", "units"), SIZES)
@pytest.mark.parametrize("sd", [(0, 0, 5), (0.3, 1, 6), (0, 4, 4), (2, 0, 4)])
def test_never_too_narrow_where_a_variance_is_missing(seeds, units, sd):
    assert covered(seeds, units, *sd, experiments=1000) >= 0.93


@pytest.mark.parametrize(("seeds", "units"), SIZES)
def test_coverage_with_skewed_effects(seeds, units):
    def skewed(rng, size):
        return rng.exponential(size=size) - 1

    assert covered(seeds, units, 2, 5, 8, 1000, skewed) >= 0.92


def test_an_interval_over_seeds_alone_would_be_too_narrow():
    """Why the interval crosses both: people who differ make every seed err the same way."""
    rng = np.random.default_rng(0)
    d = rng.normal(size=(1000, 6, 1)) + 6 * rng.normal(size=(1000, 1, 16)) + 6 * rng.normal(size=(1000, 6, 16))
    means = d.mean(2)
    half = scipy_stats.t.ppf(0.975, 5) * means.std(1, ddof=1) / np.sqrt(6)
    assert (np.abs(means.mean(1)) <= half).mean() < 0.8


# ------------------------------------------------------------------------------- correction and power


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.04: 3 * 0.01 = 0.03; 2 * 0.02 = 0.04; 1 * 0.04 = 0.04
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.03, 0.02, 0.6]) == pytest.approx([0.06, 0.06, 0.6])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_never_lowers_a_p_value_and_keeps_the_order(p):
    adjusted = holm(p)
    assert all(a >= b or a == 1 for a, b in zip(adjusted, p, strict=True)) and max(adjusted) <= 1
    order = sorted(range(len(p)), key=lambda i: p[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


@pytest.mark.parametrize(("seeds", "units"), [(3, 16), (6, 40)])
def test_the_detectable_effect_is_detected_as_often_as_promised(seeds, units):
    pilot = Components(seed=4.0, unit=25.0, rest=64.0)
    effect = detectable(pilot, seeds, units, power=0.8)
    rng = np.random.default_rng(1)
    d = (
        effect
        + 2 * rng.normal(size=(4000, seeds, 1))
        + 5 * rng.normal(size=(4000, 1, units))
        + 8 * rng.normal(size=(4000, seeds, units))
    )
    se, df = crossed_error(d)
    found = (d.mean((1, 2)) - scipy_stats.t.ppf(0.975, df) * se > 0).mean()
    assert found == pytest.approx(0.8, abs=0.06)


def test_more_seeds_and_people_detect_less():
    pilot = Components(seed=4.0, unit=25.0, rest=64.0)
    sizes = [(3, 16), (3, 40), (6, 40), (12, 80)]
    effects = [detectable(pilot, *size) for size in sizes]
    assert effects == sorted(effects, reverse=True)
    with pytest.raises(ValueError, match="at least 2 seeds"):
        components(np.ones((1, 5)))


def test_components_of_a_large_pilot_are_the_true_ones():
    rng = np.random.default_rng(2)
    d = 2 * rng.normal(size=(300, 1)) + 5 * rng.normal(size=(1, 300)) + 8 * rng.normal(size=(300, 300))
    found = components(d)
    assert (found.seed, found.unit, found.rest) == pytest.approx((4, 25, 64), rel=0.15)


# -------------------------------------------------------------------------------------------- curves


def test_bands_by_hand():
    table = pd.DataFrame({"arm": ["x"] * 4, "turn": [0, 0, 1, 1], "profile": ["a", "b"] * 2, "emotion": [1, 3, 2, 6]})
    found = bands(table, "emotion", "turn")
    assert found["mean"].tolist() == [2.0, 4.0] and found.n.tolist() == [2, 2] and found.seeds.tolist() == [1, 1]
    # 1, 3: sd sqrt 2, se 1, t(0.975, 1) = 12.706
    assert found.high[0] - 2 == pytest.approx(12.706, abs=1e-3)


def test_bands_cross_seeds_where_there_are_several():
    d = np.array([[1.0, 2.0, 3.0], [3.0, 4.0, 8.0]])
    table = pd.DataFrame(
        [("x", 0, s, p, d[s, p]) for s in range(2) for p in range(3)], columns=["arm", "turn", "seed", "profile", "e"]
    )
    found, i = bands(table, "e", "turn").iloc[0], crossed(d)
    assert (found["mean"], found.low, found.high, found.n, found.seeds) == pytest.approx((i.mean, i.low, i.high, 3, 2))
