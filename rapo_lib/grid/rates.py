"""A learning rate for each arm, chosen on dev people before the grid: one seed, few values, the most emotion gained.

An arm at a rate that suits another arm is no fair comparison. The search is a grid per rate under `ablate/search/`, so
it goes on where it stopped, and its choice is kept in `ablate/rates.json`, which a later run of the same grid reads.
Chosen by the seeker that trains; the evaluator never chooses anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from rapo_lib import runs
from rapo_lib.grid.arms import ARMS
from rapo_lib.grid.results import load_cells, table_of
from rapo_lib.grid.run import Failure, Plan, run_grid
from rapo_lib.runs import RapoError

SEED = 1000  # of the search; no seed of a grid


def parse_rates(text: str) -> tuple[float, ...]:
    """`1e-4,3e-4` as numbers above zero, each once, ascending."""
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not 0 < found[0] <= found[-1] < 1:
        raise RapoError(f"cannot read {text!r} as learning rates; write, say, 1e-4,3e-4,1e-3")
    return tuple(found)


def search_plans(plan: Plan, rates: Sequence[float], steps: int | None) -> dict[float, Plan]:
    """The grids of the search: the trained arms on dev people, one seed, at each rate and so many steps."""
    trained = tuple(name for name in plan.arms if ARMS[name].trainer != "none")
    short = {} if steps is None else {"steps": steps}
    return {
        rate: replace(
            plan,
            folder=plan.folder / "search" / f"{rate:g}",
            arms=trained,
            seeds=(SEED,),
            split="dev",
            overrides={**plan.overrides, **short, "learning_rate": rate},
        )
        for rate in rates
    }


def search(plan: Plan, rates: Sequence[float], steps: int | None = None) -> list[Failure]:
    """Run the search and write rates.json and search.csv; returns the cells that failed."""
    plans = search_plans(plan, rates, steps)
    failures = [failure for one in plans.values() for failure in run_grid(one)]
    table = gains({rate: one.folder for rate, one in plans.items()})
    runs.write_csv(plan.folder / "search.csv", table)
    runs.write_json(plan.folder / "rates.json", best_rates(table))
    return failures


def gains(folders: Mapping[float, Path]) -> pd.DataFrame:
    """Mean emotion gained of dev people, as the training seeker sees it, by arm and rate."""
    rows = []
    for rate, folder in folders.items():
        ends = table_of(load_cells(folder), "outcomes")
        first = runs.read_json(load_cells(folder)[0] / "cell.json")["seekers"][0]
        means = ends[ends.seeker == first].groupby("arm", sort=False).gained.mean()
        rows += [{"arm": arm, "rate": rate, "gained": gained} for arm, gained in means.items()]
    return pd.DataFrame(rows, columns=["arm", "rate", "gained"])


def best_rates(table: pd.DataFrame) -> dict[str, float]:
    """The rate with the most gained for every trained arm; of equals the smallest."""
    trained = table[table.arm.map(lambda name: ARMS[name].trainer != "none")]
    ordered = trained.sort_values(["gained", "rate"], ascending=[False, True])
    return {row.arm: row.rate for row in ordered.groupby("arm", sort=False).head(1).itertuples()}


def with_rates(plan: Plan) -> Plan:
    """The plan with the rates that an earlier search chose; a rate given for an arm by name stays."""
    path = plan.folder / "rates.json"
    if not path.is_file():
        return plan
    found: dict[str, Any] = {f"{a}.learning_rate": r for a, r in runs.read_json(path).items() if a in plan.arms}
    return replace(plan, overrides={**found, **plan.overrides})
