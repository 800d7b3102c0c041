"""Intervals over people and training seeds, and what a number of both can show. Turns and replies are never units.

Every arm meets the same people under the same seeds, so a difference between two arms is a table d_sp of S seeds by P
people (or contrast pairs, or any other unit). Two variances count, and the interval crosses both:

    d_sp = mu + a_s + b_p + e_sp,   Var(mean) = var_a / S + var_b / P + var_e / (S P)

estimated from the mean squares of the two-way layout without replication (negative components are set to zero), with
Student's t at Satterthwaite's degrees of freedom. Chosen by simulated coverage among several such intervals (ours):
with both variances at work it covers 93 to 97 % for 3 or 6 seeds by 16 to 40 people; where both are small it is too
wide (up to 99 %). A t interval over seeds alone covers 69 to 95 % there, a percentile bootstrap of three seeds 73 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import optimize, stats

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its interval and the number of independent units behind it."""

    mean: float
    low: float
    high: float
    n: int  # people, or other units
    seeds: int | None = None  # training seeds; None: the interval does not cross seeds
    p: float = math.nan  # two-sided, for a true mean of zero

    def __str__(self) -> str:
        n = f"n = {self.n}" + (f" x {self.seeds} seed{'s' if self.seeds > 1 else ''}" if self.seeds else "")
        if math.isnan(self.low):
            return f"{self.mean:.2f} ({n}, no interval)"
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}] ({n})"

    def flipped(self) -> "Interval":
        """The same of the opposite difference."""
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low)


# --------------------------------------------------------------------------------- over one kind of unit


def t_interval(values: "np.ndarray | pd.Series | list[float]", level: float = LEVEL) -> Interval:
    """Mean and t interval of independent values; NaN is left out, one value has no interval (NaN bounds).

    A percentile bootstrap of three values covers 73 % instead of 95 %, hence t.
    """
    x = np.asarray(values, dtype=float)
    x = x[~np.isnan(x)]
    if len(x) == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    if len(x) == 1:
        return Interval(float(x[0]), np.nan, np.nan, 1)
    return _interval(float(x.mean()), float(x.std(ddof=1) / np.sqrt(len(x))), len(x) - 1, level, n=len(x))


def _interval(mean: float, se: float, df: float, level: float, n: int, seeds: int | None = None) -> Interval:
    half = float(stats.t.ppf((1 + level) / 2, df)) * se
    p = float(2 * stats.t.sf(abs(mean) / se, df)) if se > 0 else float(mean == 0)
    return Interval(mean, mean - half, mean + half, n, seeds, p)


def clustered(table: pd.DataFrame, value: str, by: str = "profile", level: float = LEVEL) -> Interval:
    """The interval of a column whose rows belong to units `by`: first a mean within each unit, then t over units."""
    return t_interval(table.groupby(by)[value].mean(), level)


def paired(table: pd.DataFrame, value: str, arm: str, reference: str, by: str = "profile") -> Interval:
    """Mean difference arm - reference of the same units, with its t interval; columns `arm`, `by`, `value`."""
    wide = table.pivot_table(index=by, columns="arm", values=value, aggfunc="mean")
    return t_interval(wide[arm] - wide[reference])


# ------------------------------------------------------------------------------------ seeds by people


@dataclass(frozen=True, slots=True)
class Components:
    """The variances of a difference between arms: between seeds, between units, and the rest."""

    seed: float
    unit: float
    rest: float


def mean_squares(d: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """MS_a (seeds), MS_b (units) and MS_e of tables d (..., S, P), S and P at least 2; each (...)."""
    seeds, units = d.shape[-2:]
    by_seed, by_unit = d.mean(-1), d.mean(-2)  # (..., S), (..., P)
    rest = d - by_seed[..., :, None] - by_unit[..., None, :] + d.mean((-2, -1))[..., None, None]
    ms_e = (rest**2).sum((-2, -1)) / ((seeds - 1) * (units - 1))
    return units * by_seed.var(-1, ddof=1), seeds * by_unit.var(-1, ddof=1), ms_e


def crossed_error(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard error of the mean of tables d (..., S, P), and Satterthwaite's degrees of freedom; each (...)."""
    seeds, units = d.shape[-2:]
    ms_a, ms_b, ms_e = mean_squares(d)
    total = np.maximum(ms_a - ms_e, 0) + np.maximum(ms_b - ms_e, 0) + ms_e  # S P Var(mean)
    return np.sqrt(total / (seeds * units)), _satterthwaite(total, ms_a, ms_b, ms_e, seeds, units)


def _satterthwaite(
    total: np.ndarray, ms_a: np.ndarray, ms_b: np.ndarray, ms_e: np.ndarray, seeds: int, units: int
) -> np.ndarray:
    """total^2 / sum_k MS_k^2 / df_k, at least 1."""
    spread = ms_a**2 / (seeds - 1) + ms_b**2 / (units - 1) + ms_e**2 / ((seeds - 1) * (units - 1))
    return np.maximum(total**2 / np.maximum(spread, np.finfo(float).tiny), 1.0)


def crossed(d: "np.ndarray | pd.DataFrame", level: float = LEVEL) -> Interval:
    """Mean of a table d (S seeds, P units) and its interval over both.

    A unit that was not measured under every seed is left out. One seed has no interval, for it says nothing about the
    next; one unit (a measure of a whole arm) leaves a t interval over seeds.
    """
    x = np.asarray(d, dtype=float)
    x = x[:, ~np.isnan(x).any(0)]
    seeds, units = x.shape
    if units == 0 or seeds == 0:
        return Interval(np.nan, np.nan, np.nan, 0, seeds)
    if seeds == 1:
        return Interval(float(x.mean()), np.nan, np.nan, units, 1)
    if units == 1:
        return replace(t_interval(x[:, 0], level), n=1, seeds=seeds)
    se, df = crossed_error(x)
    return _interval(float(x.mean()), float(se), float(df), level, n=units, seeds=seeds)


def differences(
    table: pd.DataFrame, arm: str, reference: str, value: str = "value", unit: str = "unit"
) -> pd.DataFrame:
    """arm - reference, seeds by units, for the seeds that both arms have; columns `arm`, `seed`, `unit`, `value`."""
    wide = table.pivot_table(index="seed", columns=["arm", unit], values=value, aggfunc="mean")
    if not {arm, reference} <= set(wide.columns.get_level_values(0)):
        return pd.DataFrame()
    return (wide[arm] - wide[reference]).dropna(how="all")


def components(d: "np.ndarray | pd.DataFrame") -> Components:
    """The three variances of a pilot's differences (S, P), S and P at least 2; a negative estimate is zero."""
    x = np.asarray(d, dtype=float)
    if min(x.shape) < 2:
        raise ValueError(f"a pilot needs at least 2 seeds and 2 units, not {x.shape[0]} and {x.shape[1]}")
    seeds, units = x.shape
    ms_a, ms_b, ms_e = (float(m) for m in mean_squares(x))
    return Components(max(ms_a - ms_e, 0.0) / units, max(ms_b - ms_e, 0.0) / seeds, ms_e)


def detectable(pilot: Components, seeds: int, units: int, power: float = 0.8, level: float = LEVEL) -> float:
    """The smallest true difference whose interval excludes zero with probability `power`, by the noncentral t."""
    ms_e = np.float64(pilot.rest)
    ms_a, ms_b = ms_e + units * pilot.seed, ms_e + seeds * pilot.unit
    total = ms_a + ms_b - ms_e
    se = math.sqrt(total / (seeds * units))
    df = float(_satterthwaite(total, ms_a, ms_b, ms_e, seeds, units))
    critical = stats.t.ppf((1 + level) / 2, df)

    def missing(shift: float) -> float:
        return float(stats.nct.sf(critical, df, shift) - power)

    return se * float(optimize.brentq(missing, 0.0, 20 * critical))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down p values, in the order given: max over j <= i of min(1, (m - j) p_(j)), j from 0."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, worst = [0.0] * len(p), 0.0
    for place, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = worst
    return adjusted


# ------------------------------------------------------------------------------------------- curves


def bands(table: pd.DataFrame, value: str, x: str, by: str = "arm", unit: str = "profile") -> pd.DataFrame:
    """Mean of `value` at each `x` for each `by` with its interval; columns by, x, mean, low, high, n, seeds.

    Crosses seeds and units where the table has a column `seed` with more than one value, else over units alone.
    """
    rows = []
    for (name, at), part in table.groupby([by, x], sort=False):
        i = _of_seeds_and_units(part, value, unit)
        rows.append({by: name, x: at, "mean": i.mean, "low": i.low, "high": i.high, "n": i.n, "seeds": i.seeds or 1})
    return pd.DataFrame(rows, columns=[by, x, "mean", "low", "high", "n", "seeds"])


def _of_seeds_and_units(part: pd.DataFrame, value: str, unit: str) -> Interval:
    if "seed" not in part or part.seed.nunique() < 2:
        return clustered(part, value, unit)
    return crossed(part.pivot_table(index="seed", columns=unit, values=value, aggfunc="mean"))


def verdict(interval: Interval, sign: int = 1) -> str:
    """What an interval says of a claim that the difference has this sign: supported, not supported or inconclusive."""
    if interval.n < 2:
        return "no interval"
    low, high = sorted((sign * interval.low, sign * interval.high))
    return "supported" if low > 0 else "not supported" if high < 0 else "inconclusive"
