"""The figures of a grid, drawn from the tables beside them: nothing is trained, measured or computed again.

`results.write_results` leaves a table for each; a folder of tables is enough, be it a run's own or the published one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from rapo_lib import plots
from rapo_lib.grid.arms import ARMS, LABELS, PRIMARY, WARM
from rapo_lib.grid.results import TABLES, TEXTS, counts
from rapo_lib.runs import RapoError

SHOWN = (WARM, *PRIMARY)  # arms that one panel can hold
ACTS = ("suggestion", "premature", "open_question", "reflection", "stock", "repetition")
UNITS = {
    "gained": ("emotion points, arm minus full RAPO", 3.0),
    "success": ("share of people who reach 70, arm minus full RAPO", 0.1),
    "self_deception": ("own judge's win rate minus the true one, arm minus full RAPO", 0.1),
    "responsiveness": ("share of replies that adapt, arm minus full RAPO", 0.1),
}
Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure with its name, the table behind it and its caption."""

    name: str
    figure: Figure
    table: pd.DataFrame
    caption: str


def read_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """The tables of a grid by name; a missing one is an error that says how to make it."""
    found = {}
    for name in TABLES:
        path = folder / f"{name}.csv"
        if not path.is_file():
            raise RapoError(f"{path} is missing; `rapo ablate` writes it at its end")
        found[name] = pd.read_csv(path, keep_default_na=name not in TEXTS)
    return found


# --------------------------------------------------------------------------------------- the figures


def trajectories(tables: Tables) -> Drawn:
    """Emotion by turn, a panel for each seeker."""
    table = _shown(tables["trajectories"])
    seekers = list(dict.fromkeys(table.seeker))
    figure, axes = plt.subplots(1, len(seekers), figsize=(6.2 * len(seekers), 3.8), sharey=True, squeeze=False)
    for ax, seeker in zip(axes.flat, seekers, strict=True):
        plots.draw_curves(ax, table[table.seeker == seeker], "turn")
        ax.set_title(f"as the {seeker} seeker feels it")
    axes.flat[0].set_ylabel("emotion (0-100)")
    return Drawn("trajectories", figure, table, f"Self-play, 95 % bands over seeds and people; {counts(table)}.")


def differences(tables: Tables, metric: str = "gained", own: Tables | None = None) -> Drawn:
    """Every arm minus full RAPO, a forest; `own`, the tables of a short grid, is drawn over it as crosses."""
    (unit, smallest), found = UNITS[metric], tables["contrasts"]
    table = found[found.metric == metric]
    short = None if own is None else own["contrasts"][own["contrasts"].metric == metric]
    figure, ax = plt.subplots(figsize=(8.4, 1.0 + 0.42 * table.arm.nunique()))
    plots.draw_contrasts(ax, table, unit, smallest, short)
    caption = f"Paired by seed and person; 95 % intervals over both where an arm has several seeds; {counts(table)}."
    return Drawn(f"differences_{metric}", figure, table, caption)


def acts(tables: Tables) -> Drawn:
    """What the replies do, by arm, with the training seeker."""
    table = _shown(tables["summary"])
    table = table[table.seeker == table.seeker.iloc[0]]
    figure, ax = plt.subplots(figsize=(8.4, 3.6))
    plots.draw_shares(ax, table, ACTS, LABELS)
    return Drawn("reply_acts", figure, table, f"Share of replies with each property; {int(table.seeds.max())} seeds.")


def suggestions(tables: Tables) -> Drawn:
    """Share of suggesting and of prematurely suggesting replies by turn."""
    table = _shown(tables["rates"])
    table = table[table.seeker == table.seeker.iloc[0]]
    figure, axes = plt.subplots(1, 2, figsize=(12.4, 3.8))
    for ax, act in zip(axes, ("suggestion", "premature"), strict=True):
        part = table[table.act == act]
        plots.draw_rates(ax, part, "share of replies")
        ax.set_title({"suggestion": "suggestions", "premature": "premature suggestions"}[act])
    return Drawn("suggestions", figure, table, f"Self-play with the training seeker; {counts(table)}.")


def successes(tables: Tables) -> Drawn:
    """Share of people who reach an emotion, by how high that is, a panel for each seeker."""
    table = _shown(tables["success"])
    seekers = list(dict.fromkeys(table.seeker))
    figure, axes = plt.subplots(1, len(seekers), figsize=(6.2 * len(seekers), 3.6), sharey=True, squeeze=False)
    for ax, seeker in zip(axes.flat, seekers, strict=True):
        plots.draw_rates(ax, table[table.seeker == seeker].rename(columns={"success": "mean"}), "", "threshold")
        ax.set(title=f"as the {seeker} seeker feels it", ylim=(0, 1.05), xlabel="emotion reached within the dialogue")
    axes.flat[0].set_ylabel("share of people")
    return Drawn("successes", figure, table, "70 was fixed as success beforehand; the others show what hangs on it.")


def over_optimisation(tables: Tables) -> Drawn:
    """Wins over the start on the way to the trained policy, by its own judge and by the truth."""
    table = tables["curves"]
    arms = [name for name in ARMS if name in set(table.arm)]
    figure = plots.draw_over_optimisation(table, arms, columns=3)
    return Drawn("over_optimisation", figure, table, "The adapter scaled from 0 to 1; means over seeds.")


FIGURES: tuple[Callable[[Tables], Drawn], ...] = (
    trajectories,
    differences,
    acts,
    suggestions,
    successes,
    over_optimisation,
)


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """The start and the primary arms, in the order of the arms."""
    order = {name: place for place, name in enumerate(SHOWN)}
    return table[table.arm.isin(SHOWN)].sort_values("arm", key=lambda c: c.map(order), kind="stable")


# ------------------------------------------------------------------------------------------- writing


def write_figures(folder: Path) -> list[Path]:
    """Draw every figure from the tables in `folder` into `folder/figures` (png, svg, csv, caption)."""
    plots.use_style()
    tables = read_tables(folder)
    return [plots.write_figure(d.figure, folder / "figures", d.name, d.table, d.caption) for d in drawn(tables)]


def drawn(tables: Tables) -> list[Drawn]:
    """Every figure for which there are rows."""
    found = [make(tables) for make in FIGURES if make is not over_optimisation or len(tables["curves"])]
    measured = set(tables["contrasts"].metric)
    return found + [differences(tables, metric) for metric in UNITS if metric != "gained" and metric in measured]
