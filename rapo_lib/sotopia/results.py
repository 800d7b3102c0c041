"""What the social ablation found: tidy tables from finished cells, and a figure drawn from those tables alone."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rapo_lib import plots
from rapo_lib.grid.arms import LABELS, WARM
from rapo_lib.grid.results import table_of
from rapo_lib.grid.run import finished_cells
from rapo_lib.runs import RapoError, write_csv
from rapo_lib.stats import Interval, crossed, differences, t_interval

START = "warm start (our talks)"  # not the supporter's
AGREED, SMOOTH = "agreed", 5  # steps in a running mean of the training curve
TABLES = ("summary", "episodes", "families", "training")


def interval(table: pd.DataFrame, value: str) -> Interval:
    """Mean over scenarios, their talks averaged; the interval is over scenarios, and over seeds where there are."""
    wide = table.pivot_table(index="seed", columns="scenario", values=value, aggfunc="mean")
    return t_interval(wide.iloc[0]) if len(wide) == 1 else crossed(wide)


def against_start(table: pd.DataFrame, arm: str, value: str) -> Interval:
    """The same of the difference arm - start, paired by seed and scenario."""
    d = differences(table, arm, WARM, value, "scenario")
    return t_interval(d.iloc[0]) if len(d) == 1 else crossed(d)


def summary(episodes: pd.DataFrame) -> pd.DataFrame:
    """One row per arm: goal (0-10) with its interval, minus the start, share of talks that end in agreement, turns.

    `episodes` are rows of `episode.episodes_table` with columns `arm` and `seed`.
    """
    rows = []
    for arm, part in episodes.groupby("arm", sort=False):
        goal = interval(part, "goal")
        apart = None if arm == WARM else against_start(episodes, arm, "goal")
        rows.append(
            {
                "arm": arm,
                "goal": goal.mean,
                "low": goal.low,
                "high": goal.high,
                "minus_start": apart.mean if apart else None,
                "minus_low": apart.low if apart else None,
                "minus_high": apart.high if apart else None,
                "agreed": (part.ended == AGREED).mean(),
                "left": (part.ended == "left").mean(),
                "secret": part.secret.mean(),
                "turns": part.turns.mean(),
                "scenarios": part.scenario.nunique(),
                "talks": len(part),
                "seeds": part.seed.nunique(),
            }
        )
    return pd.DataFrame(rows)


def families(episodes: pd.DataFrame) -> pd.DataFrame:
    """Mean goal by arm and family; one or two scenarios each, so without intervals."""
    return episodes.groupby(["arm", "family"], sort=False).goal.mean().reset_index()


def training(metrics: pd.DataFrame) -> pd.DataFrame:
    """By arm and update: `change`, the mean progress that a reply brought, as a running mean over SMOOTH updates."""
    shown = ["change", "reply_tokens", "flat_groups", "kl_to_start"]
    curves = metrics.groupby(["arm", "step"], sort=False)[shown].mean().reset_index()
    smooth = curves.groupby("arm", sort=False).change.rolling(SMOOTH, min_periods=1).mean()
    return curves.assign(smooth=smooth.reset_index(level=0, drop=True))


def write_results(folder: Path) -> pd.DataFrame:
    """Tables and figure of the finished cells in `folder`; returns the summary."""
    cells = finished_cells(folder)
    if not cells:
        raise RapoError(f"{folder} holds no finished cell; `rapo ablate --domain sotopia` makes them")
    episodes = table_of(cells, "episodes")
    tables = {"episodes": episodes, "summary": summary(episodes), "families": families(episodes)}
    if len(metrics := table_of(cells, "metrics")):
        tables["training"] = training(metrics)
    for name, table in tables.items():
        write_csv(folder / f"{name}.csv", table)
    write_figure(folder)
    return tables["summary"]


# ------------------------------------------------------------------------------------------- figure


def read_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """The tables that `write_results` wrote."""
    missing = [name for name in TABLES if not (folder / f"{name}.csv").is_file()]
    if missing:
        raise RapoError(f"{folder / missing[0]}.csv is missing; `rapo ablate --domain sotopia` writes it at its end")
    return {name: pd.read_csv(folder / f"{name}.csv") for name in TABLES}


def write_figure(folder: Path) -> Path | None:
    """Draw the figure from the tables in `folder` into `folder/figures`; nothing where no arm was trained."""
    if not (folder / "training.csv").is_file():
        return None
    plots.use_style()
    tables = read_tables(folder)
    table = tables["summary"]
    caption = (
        f"Goal reached by check in {table.scenarios.max()} held-out scenarios, {table.talks.max()} talks an arm; bars "
        f"are 95 % intervals over scenarios, dots are scenarios; {table.seeds.max()} training seed"
        f"{'s' if table.seeds.max() > 1 else ', so nothing is said about another'}. Right: train scenarios."
    )
    return plots.write_figure(drawn(tables), folder / "figures", "goals", table, caption)


def drawn(tables: dict[str, pd.DataFrame]) -> Figure:
    """Goals by arm on the left, progress a reply brings while training on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.0, 3.8), width_ratios=(1.0, 1.0))
    draw_goals(left, tables["summary"], tables["episodes"])
    curves = tables["training"].rename(columns={"smooth": "mean"}).assign(low=None, high=None)
    plots.draw_curves(right, curves.astype({"low": float, "high": float}), "step")
    right.set_title("while training: progress a reply brings")
    right.set_ylabel(f"points of 100, mean of {SMOOTH} updates")
    right.set_xlabel("update")
    return figure


def draw_goals(ax: Axes, table: pd.DataFrame, episodes: pd.DataFrame) -> None:
    """A row per arm: every scenario's mean as a dot, their mean with its interval."""
    for place, row in enumerate(table.itertuples()):
        colour = plots.COLOURS[row.arm]
        own = episodes[episodes.arm == row.arm].groupby("scenario").goal.mean()
        ax.plot(own, [place + 0.18] * len(own), "o", color=colour, alpha=0.45, markersize=5, markeredgewidth=0)
        ax.plot([row.low, row.high], [place, place], color=colour)
        ax.plot(row.goal, place, "o", color=colour, markersize=8)
    labels = [START if arm == WARM else LABELS[arm] for arm in table.arm]
    ax.set_yticks(range(len(table)), labels)
    for label, arm in zip(ax.get_yticklabels(), table.arm, strict=True):
        label.set_color(plots.COLOURS[arm])
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.set_xlim(-0.3, 10.3)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("goal reached by check (0-10)")
    ax.set_title("held-out scenarios")


def readme_table(table: pd.DataFrame) -> str:
    """The summary as Markdown."""
    head = ("", "goal reached (0-10)", "minus start", "talks that end in agreement", "our turns")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in table.itertuples():
        label = START if row.arm == WARM else LABELS[row.arm]
        apart = "" if row.arm == WARM else _bounded(row.minus_start, row.minus_low, row.minus_high, "+")
        cells = (label, _bounded(row.goal, row.low, row.high), apart, f"{row.agreed:.0%}", f"{row.turns:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _bounded(mean: float, low: float, high: float, sign: str = "") -> str:
    return f"{mean:{sign}.1f}" + ("" if pd.isna(low) else f" [{low:.1f}, {high:.1f}]")
