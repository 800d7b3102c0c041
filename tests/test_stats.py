"""Intervals against hand-worked numbers and their coverage."""

import math

import numpy as np
import pandas as pd
import pytest

from rapo_lib.stats import Interval, clustered, paired, t_interval, verdict


def test_interval_by_hand():
    # 1, 2, 3: mean 2, sd 1, t(0.975, 2) = 4.3027, half width 4.3027 / sqrt(3) = 2.4841
    i = t_interval([1.0, 2.0, 3.0])
    assert (i.mean, i.n) == (2.0, 3)
    assert i.high - i.mean == pytest.approx(2.4841, abs=1e-4)


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
