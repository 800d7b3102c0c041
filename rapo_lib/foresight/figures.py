"""Figures of foresight: a tree of futures, predictors of what follows, calibration; tidy tables in, axes out."""

import textwrap
from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.ticker import MaxNLocator

from rapo_lib.foresight.prediction import MODEL
from rapo_lib.foresight.records import RewardRecord
from rapo_lib.plots import BLUE, GREY

COLOURS = plt.get_cmap("BrBG")  # brown worse, green better; told apart without red-green vision
ARM_COLOURS = {"reasoning_start": GREY, "rlff": BLUE}
WIDE, BEND = 3.5, 0.6  # the first turn lies far from the history: from the bend on, the reply is written on its branch


def tree_table(group: Sequence[RewardRecord], before: float) -> pd.DataFrame:
    """The futures of the replies to one history as a tree, best reward on top; `before` is the emotion there.

    Columns reply, future, turn, x, y, parent_x, parent_y, emotion, label; a row a node, the history (turn 0) first. The
    first turn's node belongs to the reply: its emotion is the mean over the futures.
    """
    best_first = sorted(group, key=lambda r: -r.reward)
    rows, place = [], 0
    for i, record in enumerate(best_first):
        places = [-(place + k) for k in range(len(record.futures))]
        place += len(places) + 1
        middle = sum(places) / len(places)
        first = sum(f.emotions[0] for f in record.futures) / len(record.futures)
        label = f"{record.reply}\nreward {record.reward:+.2f}"
        rows.append((i, -1, 1, WIDE, middle, 0.0, None, first, label))
        for j, (future, y) in enumerate(zip(record.futures, places, strict=True)):
            for turn, emotion in enumerate(future.emotions[1:], start=2):
                x, parent_y = WIDE + turn - 1, middle if turn == 2 else y
                rows.append((i, j, turn, x, y, x - 1, parent_y, emotion, "solved" if future.ended == "solved" else ""))
    columns = ["reply", "future", "turn", "x", "y", "parent_x", "parent_y", "emotion", "label"]
    root = -(place - 2) / 2
    table = pd.DataFrame([(-1, -1, 0, 0.0, root, None, None, before, ""), *rows], columns=columns)
    table.loc[table.turn == 1, "parent_y"] = root
    return table


def draw_tree(ax: Axes, table: pd.DataFrame, width: int = 48) -> None:
    """A node a turn, coloured by the true emotion after it; each reply stands on its branch."""
    before = float(table.emotion[table.turn == 0].iloc[0])
    reach = max(abs(table.emotion - before).max(), 1.0)
    norm = TwoSlopeNorm(before, before - reach, before + reach)
    for node in table[table.turn > 0].itertuples():
        along = [node.parent_x, BEND, node.x] if node.turn == 1 else [node.parent_x, node.x]
        ax.plot(along, [node.parent_y, *[node.y] * (len(along) - 1)], color="0.75", linewidth=1.2, zorder=1)
    drawn = ax.scatter(table.x, table.y, c=table.emotion, cmap=COLOURS, norm=norm, s=330, edgecolor="0.4", zorder=2)
    for node in table.itertuples():
        dark = abs(node.emotion - before) > 0.6 * reach
        ax.annotate(f"{node.emotion:.0f}", (node.x, node.y), ha="center", va="center", fontsize=8,
                    color="white" if dark else "black", zorder=3)  # fmt: skip
    for node in table[table.turn == 1].itertuples():
        *reply, reward = node.label.split("\n")
        text = "\n".join(textwrap.wrap(" ".join(reply), width))
        ax.annotate(text, (BEND, node.y), (0, 2), textcoords="offset points", va="bottom", fontsize=8)
        ax.annotate(reward, (BEND, node.y), (0, -3), textcoords="offset points", va="top", fontsize=8, color="0.35")
    ax.figure.colorbar(drawn, ax=ax, label="true emotion", pad=0.02, shrink=0.8)
    ticks = [0.0, *(WIDE + turn - 1 for turn in range(1, int(table.turn.max()) + 1))]
    ax.set_xticks(ticks, ["now", *(f"turn {turn}" for turn in range(1, len(ticks)))])
    ax.set_yticks([])
    ax.grid(False)
    ax.spines["left"].set_visible(False)
    ax.margins(x=0.06, y=0.08)


def draw_predictors(ax: Axes, table: pd.DataFrame, chance: float, what: str) -> None:
    """A row per predictor of `prediction.summary`, with its interval over people; the line is what guessing reaches."""
    ax.axvline(chance, color="0.4", linewidth=1)
    for place, row in enumerate(table.itertuples()):
        colour = BLUE if row.arm == MODEL else GREY
        ax.plot([row.low, row.high], [place, place], color=colour)
        ax.plot(row.mean, place, "o", color=colour)
    ax.set_yticks(range(len(table)), table.arm)
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(what)


def draw_calibration(ax: Axes, table: pd.DataFrame) -> None:
    """Outcome against prediction, a point a bin with its interval over people; a calibrated model lies on the line."""
    low, high = table.predicted.min(), table.predicted.max()
    ax.plot([low, high], [low, high], color="0.4", linewidth=1)
    ax.errorbar(table.predicted, table.observed, [table.observed - table.low, table.high - table.observed],
                fmt="o", color=BLUE, linewidth=1.2)  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set(xlabel="reward predicted", ylabel="reward of the imagined futures")
