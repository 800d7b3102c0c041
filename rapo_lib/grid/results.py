"""From the files of finished cells to tables: measures by arm, contrasts with their intervals, the claims' verdicts.

Nothing here trains or draws. One long table holds every measure (arm, seed, seeker, metric, unit, value), so that each
contrast is computed by the same few lines. The unit is the person, for responsiveness the contrast pair, for distinct-2
the whole cell; a measure that no seeker takes part in counts for each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rapo_lib import runs
from rapo_lib.evaluation import distinct, self_deception, success_at
from rapo_lib.grid.arms import ARMS, FULL, LABELS, PRIMARY, WARM
from rapo_lib.grid.claims import Claims, Decision, decide, shipped_claims
from rapo_lib.grid.run import belong_together, finished_cells
from rapo_lib.runs import RapoError
from rapo_lib.stats import Interval, bands, components, crossed, detectable, differences

LONG = ["arm", "seed", "seeker", "metric", "unit", "value"]
OF_DIALOGUES = ("gained", "success", "turns")
OF_REPLIES = (
    "suggestion", "premature", "question", "open_question", "reflection", "stock", "repetition", "words", "fluency",
)  # fmt: skip
MAIN = ("gained", "success", "suggestion", "premature", "self_deception", "responsiveness")  # in the contrasts
POWER = ["claim", "seed", "unit", "rest", "seeds", "people", "detectable", "smallest"]  # variances, sizes, effects
TEXTS = ("replies", "samples", "responses")  # tables in which "None" and "NA" are words
TABLES = (
    "summary", "contrasts", "claims", "power", "trajectories", "rates", "success", "way", "curves", "equal_distance",
    "samples",
)  # fmt: skip
WHOLE = "all"  # the unit of a measure of a whole cell
Tables = Mapping[str, pd.DataFrame]


# --------------------------------------------------------------------------------------- reading cells


def load_cells(folder: Path) -> list[Path]:
    """The finished cells of a grid, after checking that they belong together."""
    cells = finished_cells(folder)
    if not cells:
        raise RapoError(f"{folder} holds no finished cell; run `rapo ablate`")
    belong_together(cells)
    return cells


def table_of(cells: Sequence[Path], name: str) -> pd.DataFrame:
    """The table `name` of all cells that have it, with arm and seed first."""
    parts = [
        pd.read_csv(place / f"{name}.csv", keep_default_na=name not in TEXTS).assign(
            arm=place.parent.name, seed=int(place.name.removeprefix("seed-"))
        )
        for place in cells
        if (place / f"{name}.csv").is_file()
    ]
    if not parts:
        return pd.DataFrame()
    table = pd.concat(parts, ignore_index=True)
    return table[["arm", "seed", *(c for c in table.columns if c not in ("arm", "seed"))]]


def measures(cells: Sequence[Path]) -> pd.DataFrame:
    """Every measure of every cell, long: arm, seed, seeker, metric, unit, value."""
    ends, replies, wins = (table_of(cells, name) for name in ("outcomes", "replies", "wins"))
    seekers = sorted(set(ends.seeker))
    parts = [_long(ends, OF_DIALOGUES), _long(replies, OF_REPLIES), _distinct(replies)]
    if not wins.empty:
        parts.append(_long(wins.assign(self_deception=self_deception(wins)), ("win", "true_win", "self_deception")))
    moved = table_of(cells, "samples").assign(kl=lambda t: pd.to_numeric(t.kl, errors="coerce"))
    answered = table_of(cells, "responses").rename(columns={"contrast": "profile"})
    for seeker in seekers:
        parts.append(_long(moved.assign(seeker=seeker), ("kl",)))
        if not answered.empty:
            parts.append(_long(answered.assign(seeker=seeker), ("responsiveness",)))
    return pd.concat(parts, ignore_index=True)[LONG]


def _long(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Means over a person's rows, one row per metric."""
    keys = ["arm", "seed", "seeker", "profile"]
    values = table[[*keys, *metrics]].astype(dict.fromkeys(metrics, float))
    means = values.groupby(keys, sort=False).mean().reset_index()
    return means.melt(id_vars=keys, value_vars=list(metrics), var_name="metric").rename(columns={"profile": "unit"})


def _distinct(replies: pd.DataFrame) -> pd.DataFrame:
    said = replies.groupby(["arm", "seed", "seeker"], sort=False).reply
    table = said.apply(lambda texts: distinct(list(texts))).rename("value").reset_index()
    return table.assign(metric="distinct_2", unit=WHOLE)


# ------------------------------------------------------------------------------------------- contrasts


def contrast(long: pd.DataFrame, metric: str, arm: str, reference: str, seeker: str) -> Interval | None:
    """arm - reference with the interval that crosses seeds and units; None where a side was not measured."""
    part = long[(long.metric == metric) & (long.seeker == seeker)]
    d = differences(part, arm, reference)
    return None if d.empty else crossed(d)


def estimates(long: pd.DataFrame, claims: Claims) -> dict[tuple[str, str], Interval]:
    """The interval of every claim that the results can speak to, by (claim id, seeker)."""
    found = {
        (claim.id, seeker): contrast(long, claim.metric, claim.arm, claim.reference, seeker)
        for claim in claims.claims
        for seeker in claims.seekers
    }
    return {key: interval for key, interval in found.items() if interval is not None}


def contrasts_with(long: pd.DataFrame, reference: str = FULL, metrics: Sequence[str] = MAIN) -> pd.DataFrame:
    """Every arm minus `reference`, one row per metric, arm and seeker.

    Exploratory arms and controls have few seeds: they are points, their bounds are left out.
    """
    rows = []
    for metric in metrics:
        for arm in (name for name in ARMS if name != reference):
            for seeker in sorted(set(long.seeker)):
                interval = contrast(long, metric, arm, reference, seeker)
                if interval is not None:
                    tiers = {ARMS[arm].tier, ARMS[reference].tier}
                    point = bool(tiers & {"exploratory", "control"})
                    rows.append(_row(metric, arm, reference, seeker, interval, point))
    columns = ["metric", "arm", "reference", "seeker", "tier", "mean", "low", "high", "n", "seeds"]
    return pd.DataFrame(rows, columns=columns)


def _row(metric: str, arm: str, reference: str, seeker: str, i: Interval, point: bool) -> dict[str, Any]:
    bounds = {"low": None, "high": None} if point else {"low": i.low, "high": i.high}
    named = {"metric": metric, "arm": arm, "reference": reference, "seeker": seeker, "tier": ARMS[arm].tier}
    return {**named, "mean": i.mean, **bounds, "n": i.n, "seeds": i.seeds}


def counts(table: pd.DataFrame) -> str:
    """For a caption: how many units and seeds stand behind the rows, from columns `n` and `seeds`."""

    def between(column: pd.Series, word: str) -> str:
        low, high = int(column.min()), int(column.max())
        return f"{low if low == high else f'{low} to {high}'} {word}{'s' if high > 1 else ''}"

    return f"n = {between(table.n, 'unit')} x {between(table.seeds, 'seed')}"


def claims_table(decisions: Sequence[Decision], seekers: Sequence[str]) -> pd.DataFrame:
    """One row per claim: what was claimed, the effect each seeker saw (positive: as claimed), the verdict and why."""
    return pd.DataFrame(
        [
            {
                "id": d.id,
                "claim": d.text,
                **{seeker: str(d.estimates[seeker]) if seeker in d.estimates else "" for seeker in seekers},
                "verdict": d.verdict,
                "reason": d.reason,
            }
            for d in decisions
        ]
    )


def summary(long: pd.DataFrame) -> pd.DataFrame:
    """Mean of every metric by arm and seeker: first over a seed's units, then over seeds."""
    by_seed = long.groupby(["seeker", "arm", "metric", "seed"], sort=False).value.mean()
    wide = by_seed.groupby(["seeker", "arm", "metric"], sort=False).mean().unstack("metric").reset_index()
    seeds = long.groupby(["seeker", "arm"]).seed.nunique().rename("seeds").reset_index()
    return wide.merge(seeds, on=["seeker", "arm"])


def power(long: pd.DataFrame, claims: Claims, seeds: Sequence[int], people: Sequence[int]) -> pd.DataFrame:
    """What the primary contrasts could detect (power 0.8) with so many seeds and people, from a pilot's variances."""
    rows = []
    for claim in (c for c in claims.claims if c.rule == "holm"):
        part = long[(long.metric == claim.metric) & (long.seeker == claims.seekers[0])]
        d = differences(part, claim.arm, claim.reference).dropna(axis=1)
        if min(d.shape) < 2:
            continue
        found = components(d)
        for s in seeds:
            for n in people:
                size = {"seeds": s, "people": n, "detectable": detectable(found, s, n), "smallest": claim.smallest}
                rows.append({"claim": claim.id, **asdict(found), **size})
    return pd.DataFrame(rows, columns=POWER)


# ---------------------------------------------------------------------------------------- for figures


def trajectory_bands(cells: Sequence[Path], seeker: str) -> pd.DataFrame:
    """True emotion by turn and arm, with bands over seeds and people."""
    table = table_of(cells, "trajectories")
    return bands(table[table.seeker == seeker], "emotion", "turn")


def rate_by_turn(cells: Sequence[Path], column: str, seeker: str) -> pd.DataFrame:
    """Share of replies with a property (`suggestion`, `premature`) by turn and arm, with bands."""
    table = table_of(cells, "replies")
    return bands(table[table.seeker == seeker].astype({column: float}), column, "turn")


def way(cells: Sequence[Path]) -> pd.DataFrame:
    """From the start to each trained policy: arm, seed, seeker, share of the way, kl, win (own judge), true_win.

    The first stop is the start itself: no distance, and half of the wins against itself.
    """
    between, wins, samples = (table_of(cells, name) for name in ("way", "wins", "samples"))
    keys, values = ["arm", "seed", "seeker", "share"], ["kl", "win", "true_win"]
    if wins.empty:
        return pd.DataFrame(columns=[*keys, *values])
    kl = pd.to_numeric(samples.kl, errors="coerce").groupby([samples.arm, samples.seed]).mean().rename("kl")
    ends = wins.groupby(["arm", "seed", "seeker"], sort=False)[["win", "true_win"]].mean().join(kl).reset_index()
    starts = ends.assign(kl=0.0, win=0.5, true_win=0.5, share=0.0)
    stops = between.groupby(keys, sort=False)[values].mean().reset_index()
    every = pd.concat([starts, stops, ends.assign(share=1.0)], ignore_index=True)
    order = {name: i for i, name in enumerate(ARMS)}
    return every.sort_values(keys, key=lambda c: c.map(order) if c.name == "arm" else c)[[*keys, *values]]


def over_optimisation(stops: pd.DataFrame) -> pd.DataFrame:
    """The rows of `way` as curves, means over seeds: arm, who (own judge, truth by seeker), share, kl, win."""
    if stops.empty:
        return pd.DataFrame(columns=["arm", "who", "share", "kl", "win"])
    own = stops[stops.seeker == stops.seeker.iloc[0]].assign(who="own judge")
    truth = stops.assign(who="truth, " + stops.seeker + " seeker", win=stops.true_win)
    every = pd.concat([own, truth], ignore_index=True)
    return every.groupby(["arm", "who", "share"], sort=False)[["kl", "win"]].mean().reset_index()


def at_equal_distance(stops: pd.DataFrame) -> pd.DataFrame:
    """True wins of every arm at the distance of the arm that moved least: arm, seed, seeker, kl, true_win.

    Read off the rows of `way` by straight lines between stops; a policy that moved less than that has NaN.
    """
    ends = stops[stops.share == 1.0]
    rows = []
    if not ends.empty:
        distance = float(ends.groupby("arm").kl.mean().min())
        for names, part in stops.groupby(["arm", "seed", "seeker"], sort=False):
            line = part.sort_values("kl")
            value = np.interp(distance, line.kl, line.true_win, right=np.nan)
            rows.append({**dict(zip(("arm", "seed", "seeker"), names, strict=True)), "kl": distance, "true_win": value})
    return pd.DataFrame(rows, columns=["arm", "seed", "seeker", "kl", "true_win"])


def success_by_threshold(cells: Sequence[Path]) -> pd.DataFrame:
    """Success rate of each arm at 60, 70, 80 and 90, by seeker."""
    found = success_at(table_of(cells, "trajectories"))
    by_seed = found.groupby(["seeker", "arm", "threshold", "seed"], sort=False).success.mean()
    return by_seed.groupby(["seeker", "arm", "threshold"], sort=False).mean().reset_index()


def same_history(cells: Sequence[Path], arms: Sequence[str], count: int = 6, seed: int | None = None) -> pd.DataFrame:
    """What each arm said to the same histories under one seed: profile, said, start, and a column per arm."""
    table = table_of(cells, "samples")
    chosen = table.seed.min() if seed is None else seed
    part = table[(table.seed == chosen) & table.arm.isin(arms)]
    part = part.assign(place=part.groupby("arm").cumcount())
    step = max(1, (part.place.max() + 1) // count)
    part = part[(part.place % step == 0) & (part.place < count * step)]
    wide = part.pivot(index=["place", "profile", "said", "start"], columns="arm", values="reply").reset_index()
    return wide[["profile", "said", "start", *(name for name in arms if name in wide)]]


# -------------------------------------------------------------------------------------------- writing


def tables_of(cells: Sequence[Path], claims: Claims, decisions: Sequence[Decision], long: pd.DataFrame) -> Tables:
    """Everything that is written of a grid, by the names in TABLES."""
    seekers = sorted(set(long.seeker))
    trajectories = [trajectory_bands(cells, seeker).assign(seeker=seeker) for seeker in seekers]
    rates = [
        rate_by_turn(cells, act, seeker).assign(seeker=seeker, act=act)
        for seeker in seekers
        for act in ("suggestion", "premature")
    ]
    stops = way(cells)
    return {
        "summary": summary(long),
        "contrasts": contrasts_with(long),
        "claims": claims_table(decisions, claims.seekers),
        "power": power(long, claims, (3, 6), (16, 40)),
        "trajectories": pd.concat(trajectories, ignore_index=True),
        "rates": pd.concat(rates, ignore_index=True),
        "success": success_by_threshold(cells),
        "way": stops,
        "curves": over_optimisation(stops),
        "equal_distance": at_equal_distance(stops),
        "samples": same_history(cells, [name for name in ARMS if name != WARM]),
    }


def write_results(folder: Path) -> list[Decision]:
    """Write results.csv (every measure, long), the tables of `tables_of` and run.json; returns the verdicts."""
    cells, claims = load_cells(folder), shipped_claims()
    long = measures(cells)
    decisions = decide(claims, estimates(long, claims))
    runs.write_csv(folder / "results.csv", long)
    for name, table in tables_of(cells, claims, decisions, long).items():
        runs.write_csv(folder / f"{name}.csv", table)
    runs.write_json(folder / "run.json", provenance(cells, claims))
    return decisions


def readme_table(folder: Path) -> str:
    """The primary arms of a finished grid as a Markdown table: emotion gained, and the difference from full RAPO."""
    summary_, contrasts = (pd.read_csv(folder / f"{name}.csv") for name in ("summary", "contrasts"))
    gained = contrasts[contrasts.metric == "gained"].set_index(["arm", "seeker"])
    seekers = list(dict.fromkeys(summary_.seeker))
    head = ["", *(f"gained ({s})" for s in seekers), *(f"minus full ({s})" for s in seekers), "success", "seeds"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for arm in (name for name in (WARM, *PRIMARY) if name in set(summary_.arm)):
        rows = summary_[summary_.arm == arm].set_index("seeker")
        means = [f"{rows.gained[s]:.1f}" for s in seekers]
        apart = [_difference(gained.loc[arm, s]) if (arm, s) in gained.index else "" for s in seekers]
        first = rows.loc[seekers[0]]
        lines.append("| " + " | ".join([LABELS[arm], *means, *apart, f"{first.success:.0%}", f"{first.seeds}"]) + " |")
    return "\n".join(lines)


def _difference(row: pd.Series) -> str:
    bounds = "" if pd.isna(row.low) else f" [{row.low:.1f}, {row.high:.1f}]"
    return f"{row['mean']:+.1f}{bounds}"


def provenance(cells: Sequence[Path], claims: Claims) -> dict[str, Any]:
    """Where the results come from: cells, claims, code, inputs, people, machines and time."""
    records = [runs.read_json(place / "cell.json") for place in cells]
    return {
        "claims": claims.hash,
        "inputs": records[0]["inputs"],
        "evaluated_on": records[0]["evaluated_on"],
        "seekers": records[0]["seekers"],
        "library": sorted({r["library"] for r in records}),  # more than one: cells of different code
        "devices": sorted({r["device"] for r in records}),
        "versions": records[0]["versions"],
        "arms": {name: LABELS[name] for name in ARMS if any(p.parent.name == name for p in cells)},
        "cells": [f"{p.parent.name}/{p.name}" for p in cells],
        "seconds": round(sum(sum(r["seconds"].values()) for r in records), 1),
    }
