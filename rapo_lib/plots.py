"""Figures: tidy tables in, axes out. Nothing is computed here but the mean and interval of a drawn line."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rapo_lib.runs import Stage, write_csv, write_json
from rapo_lib.stats import Interval

STYLE = Path(__file__).with_name("rapo.mplstyle")
COLOURS = {  # colour-blind safe (Okabe-Ito), one colour per arm everywhere
    "warm_start": "#7f7f7f",
    "full": "#0072B2",
    "without_reactions": "#D55E00",
    "without_distillation": "#009E73",
}
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7f7f7f"


def use_style() -> None:
    """The project's look for everything drawn afterwards."""
    plt.style.use(STYLE)


def save_figure(figure: Figure, stage: Stage, name: str, data: pd.DataFrame, caption: str) -> Figure:
    """Write figures/name.png, .svg, the .csv behind it and its caption; returns the figure so that a cell shows it."""
    figure.savefig(stage.path(f"figures/{name}.png"))
    figure.savefig(stage.path(f"figures/{name}.svg"), metadata={"Date": None})
    write_csv(stage.path(f"figures/{name}.csv"), data)
    write_json(stage.path(f"figures/{name}.json"), {"caption": caption})
    plt.close(figure)
    return figure


def draw_trajectories(ax: Axes, table: pd.DataFrame, labels: Mapping[str, str], colours: Mapping[str, str]) -> None:
    """Emotion by turn, one line per value of column `arm`; bands are 1.96 standard errors over people."""
    for name, rows in table.groupby("arm", sort=False):
        by_turn = rows.groupby("turn").emotion
        mean, half = by_turn.mean(), 1.96 * by_turn.sem()
        ax.plot(mean.index, mean, color=colours[name])
        ax.fill_between(mean.index, mean - half, mean + half, color=colours[name], alpha=0.15, linewidth=0)
    ends = {name: rows[rows.turn == rows.turn.max()].emotion.mean() for name, rows in table.groupby("arm", sort=False)}
    label_ends(ax, table.turn.max(), ends, labels, colours)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="turn", ylabel="emotion (0-100)")


def label_ends(
    ax: Axes, x: float, ends: Mapping[str, float], labels: Mapping[str, str], colours: Mapping[str, str]
) -> None:
    """Direct labels right of the lines, pushed apart where they would overlap."""
    low, high = ax.get_ylim()
    gap, last = 0.07 * (high - low), -float("inf")
    for name, y in sorted(ends.items(), key=lambda item: item[1]):
        last = max(y, last + gap)
        ax.annotate(
            labels[name], (x, y), (x * 1.02 + 0.05, last), color=colours[name], va="center", annotation_clip=False
        )


def draw_forest(
    ax: Axes, intervals: Mapping[str, Interval], labels: Mapping[str, str], unit: str, at: float = 0.0
) -> None:
    """One row per contrast: the mean difference and its 95 % interval, with a line at no difference."""
    names = list(intervals)
    for row, name in enumerate(names):
        i = intervals[name]
        colour = COLOURS.get(name, BLUE)
        ax.plot([i.low, i.high], [row, row], color=colour)
        ax.plot(i.mean, row, "o", color=colour)
    ax.axvline(at, color="0.4", linewidth=1, linestyle="--")
    ax.set_yticks(range(len(names)), [f"{labels[n]} (n = {intervals[n].n})" for n in names])
    ax.invert_yaxis()
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel(unit)


def draw_shares(ax: Axes, table: pd.DataFrame, columns: Sequence[str], labels: Mapping[str, str]) -> None:
    """Share of replies with each property, bars grouped by arm; `table` has a row per arm."""
    long = table.melt(id_vars="arm", value_vars=list(columns), var_name="what", value_name="share")
    sns.barplot(long, x="what", y="share", hue="arm", palette=COLOURS, ax=ax)
    handles, names = ax.get_legend_handles_labels()
    ax.legend(handles, [labels[n] for n in names], fontsize=8)
    ax.set(xlabel="", ylabel="share of replies")
    ax.set_xticks(range(len(columns)), [c.replace("_", "\n") for c in columns])
