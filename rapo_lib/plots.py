"""Figures: tidy tables in, axes out. Nothing is computed here; bands and intervals come with the table."""

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from rapo_lib.grid.arms import ARMS, FULL, LABELS, WARM
from rapo_lib.runs import Stage, write_csv, write_json
from rapo_lib.stats import bands

STYLE = Path(__file__).with_name("rapo.mplstyle")
COLOURS = {  # one colour per arm everywhere; those drawn together are told apart without red-green vision (a test)
    "warm_start": "#555555",
    "full": "#0072B2",
    "without_reactions": "#D55E00",
    "without_distillation": "#009E73",
    "grpo_rubric": "#CC79A7",
    "random_turns": "#E69F00",
    "verbal_only": "#56B4E9",
    "oracle_judge": "#5B3A1A",
    "dpo": "#000000",
    "policy_scaled": "#117733",
    "critiques_in_group": "#332288",
    "critiques_across": "#AA4466",
    "critique_constant": "#999933",
    "critique_reply_only": "#44AA99",
    "reactions_shuffled": "#DDAA77",
}
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"
MARKERS = ("o", "s", "D")  # own judge or first seeker, second, third


def use_style() -> None:
    """The project's look for everything drawn afterwards."""
    plt.style.use(STYLE)


def save_figure(figure: Figure, stage: Stage, name: str, data: pd.DataFrame, caption: str) -> Figure:
    """`write_figure` into the stage's figures/; returns the figure so that a cell shows it."""
    write_figure(figure, stage.folder / "figures", name, data, caption)
    return figure


def write_figure(figure: Figure, folder: Path, name: str, data: pd.DataFrame, caption: str) -> Path:
    """Write folder/name.png, .svg, the .csv behind it and its caption (.json), and close it; returns the png."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png")
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    write_csv(folder / f"{name}.csv", data)
    write_json(folder / f"{name}.json", {"caption": caption})
    plt.close(figure)
    return folder / f"{name}.png"


# ----------------------------------------------------------------------------------------- curves


def draw_curves(
    ax: Axes,
    table: pd.DataFrame,
    x: str,
    labels: Mapping[str, str] = LABELS,
    colours: Mapping[str, str] = COLOURS,
    by: str = "arm",
) -> None:
    """One line per value of `by`, labelled at its end, with a band where bounds are; columns by, x, mean, low, high."""
    for name, rows in table.groupby(by, sort=False):
        ax.plot(rows[x], rows["mean"], color=colours[name])
        ax.fill_between(rows[x], rows.low, rows.high, color=colours[name], alpha=0.12, linewidth=0)
    _finish_curves(ax, table, x, labels, colours, by)


def _finish_curves(
    ax: Axes, table: pd.DataFrame, x: str, labels: Mapping[str, str], colours: Mapping[str, str], by: str
) -> None:
    ax.margins(x=0.02)
    last = table.groupby(by, sort=False).tail(1)
    label_ends(ax, table[x].max(), dict(zip(last[by], last["mean"], strict=True)), labels, colours)
    if pd.api.types.is_integer_dtype(table[x]):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel(x)


def draw_trajectories(ax: Axes, table: pd.DataFrame, labels: Mapping[str, str], colours: Mapping[str, str]) -> None:
    """Emotion by turn for each value of column `arm`, with the 95 % interval over people, and seeds where there are."""
    draw_curves(ax, bands(table, "emotion", "turn"), "turn", labels, colours)
    ax.set_ylabel("emotion (0-100)")


def draw_rates(ax: Axes, table: pd.DataFrame, what: str, x: str = "turn") -> None:
    """A share of replies or people by `x` for each arm, lines only: bands of shares would hide all else."""
    for name, rows in table.groupby("arm", sort=False):
        ax.plot(rows[x], rows["mean"], "o-", color=COLOURS[name], markersize=4)
    ax.set_ylim(0, max(1.1 * table["mean"].max(), 0.05))
    _finish_curves(ax, table, x, LABELS, COLOURS, "arm")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_ylabel(what)


def draw_panels(table: pd.DataFrame, arms: Sequence[str], x: str, what: str, columns: int = 3) -> Figure:
    """A panel per arm, the arm in its colour against full RAPO and the start: for more arms than one panel can hold."""
    rows = math.ceil(len(arms) / columns)
    size = (3.1 * columns, 2.4 * rows + 0.4)
    figure, axes = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for ax, arm in zip(axes.flat, arms, strict=False):
        for name, width in ((WARM, 1.2), (FULL, 1.2), (arm, 2.4)):
            part = table[table.arm == name]
            ax.plot(part[x], part["mean"], color=COLOURS[name], linewidth=width, label=LABELS[name])
        ax.set_title(LABELS[arm], color=COLOURS[arm], fontsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    for ax in axes.flat[len(arms) :]:
        ax.set_visible(False)
    figure.legend(handles=axes.flat[0].lines[:2], loc="outside upper right", ncols=2, fontsize=8)
    figure.supxlabel(x, fontsize=10)
    figure.supylabel(what, fontsize=10)
    return figure


def label_ends(
    ax: Axes, x: float, ends: Mapping[str, float], labels: Mapping[str, str], colours: Mapping[str, str]
) -> None:
    """Direct labels right of the lines, pushed apart where they would overlap, and tied to their lines."""
    low, high = ax.get_ylim()
    order = sorted((name for name in ends if not math.isnan(ends[name])), key=lambda name: ends[name])
    for name, y in zip(order, spread([ends[n] for n in order], 0.075 * (high - low), low, high), strict=True):
        ax.annotate(
            labels[name],
            (x, ends[name]),
            (x + 0.05 * (x - ax.get_xlim()[0]), y),
            color=colours[name],
            fontsize=9,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colours[name], "linewidth": 0.7, "shrinkA": 1, "relpos": (0, 0.5)},
        )


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending places at least `gap` apart, as near to the given ones as can be, within the limits."""
    blocks: list[list[float]] = []  # runs of labels that touch, as the places they would like
    for place in places:
        block = [place]
        while blocks and _first(block, gap, low, high) < _first(blocks[-1], gap, low, high) + gap * len(blocks[-1]):
            block = blocks.pop() + block
        blocks.append(block)
    return [_first(block, gap, low, high) + gap * i for block in blocks for i in range(len(block))]


def _first(block: Sequence[float], gap: float, low: float, high: float) -> float:
    """Where a run begins: centred on the mean of its places, but inside the limits."""
    size = gap * (len(block) - 1)
    return max(low, min(sum(block) / len(block) - size / 2, high - size))


# -------------------------------------------------------------------------------------- differences


def draw_contrasts(
    ax: Axes, table: pd.DataFrame, unit: str, smallest: float | None = None, own: pd.DataFrame | None = None
) -> None:
    """A row per arm of `results.contrasts_with`, a marker per seeker (filled: the one that trains); bars are intervals.

    The shaded zone holds effects smaller than the smallest of interest. An arm without bounds is a point. `own` are
    rows of another, short grid, drawn over it as crosses.
    """
    arms, seekers = list(dict.fromkeys(table.arm)), list(dict.fromkeys(table.seeker))
    if smallest:
        ax.axvspan(-smallest, smallest, color="0.93", zorder=0, linewidth=0, label=f"less than {smallest:g}")
    for place in (i for i in range(1, len(arms)) if ARMS[arms[i]].tier != ARMS[arms[i - 1]].tier):
        ax.axhline(place - 0.5, color="0.8", linewidth=0.8)
    ax.axvline(0, color="0.4", linewidth=1)
    for place, row in zip(_rows(table, arms, seekers), table.itertuples(), strict=True):
        first = row.seeker == seekers[0]
        colour, marker = COLOURS[row.arm], MARKERS[seekers.index(row.seeker)]
        ax.plot([row.low, row.high], [place, place], color=colour, linewidth=2 if first else 1.2, zorder=2)
        ax.plot(row.mean, place, marker, color=colour, markerfacecolor=colour if first else "white", zorder=3)
    if own is not None:
        crosses = own[own.arm.isin(arms)]
        places = [arms.index(arm) for arm in crosses.arm]
        ax.plot(crosses["mean"], places, "x", color="black", markersize=7, zorder=4, label="this run, one seed")
    ax.set_yticks(range(len(arms)), [LABELS[arm] for arm in arms])
    for label, arm in zip(ax.get_yticklabels(), arms, strict=True):
        label.set_color(COLOURS[arm])
    ax.set_ylim(len(arms) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(unit)
    _seeker_legend(ax, seekers)


def draw_board(table: pd.DataFrame, titles: Mapping[str, str], labels: Mapping[str, str], anchors: set[str]) -> Figure:
    """A panel per suite, a row per model: its headline and 95 % interval; hollow: anchors with known standing.

    `table` has columns suite, model, mean, low, high; `titles` says what each suite's headline is.
    """
    models, suites = list(dict.fromkeys(table.model)), [s for s in titles if s in set(table.suite)]
    size = (2.2 + 2.1 * len(suites), 0.9 + 0.34 * len(models))
    figure, axes = plt.subplots(1, len(suites), figsize=size, sharey=True, squeeze=False)
    for ax, suite in zip(axes.flat, suites, strict=True):
        for row in table[table.suite == suite].itertuples():
            place, anchor = models.index(row.model), row.model in anchors
            colour = GREY if anchor else BLUE
            ax.plot([row.low, row.high], [place, place], color=colour, linewidth=1.4 if anchor else 2.2, zorder=2)
            ax.plot(row.mean, place, "o", color=colour, markerfacecolor="white" if anchor else colour, zorder=3)
        ax.set_title(titles[suite], fontsize=9)
        ax.grid(axis="y", visible=False)
    axes.flat[0].set_yticks(range(len(models)), [labels.get(m, m) for m in models])
    axes.flat[0].set_ylim(len(models) - 0.5, -0.5)
    return figure


def draw_heat(ax: Axes, table: pd.DataFrame, low: float, high: float) -> None:
    """A cell per row and column of `table` with its number in it; dark is high."""
    image = ax.imshow(table.to_numpy(dtype=float), cmap="Blues", vmin=low, vmax=high, aspect="auto")
    for (row, column), value in np.ndenumerate(table.to_numpy(dtype=float)):
        dark = value > low + 0.6 * (high - low)
        ax.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
    ax.set_xticks(range(table.shape[1]), table.columns, rotation=35, ha="right")
    ax.set_yticks(range(table.shape[0]), table.index)
    ax.grid(False)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, pad=0.02)


def draw_critic(axes: Sequence[Axes], rates: pd.DataFrame, values: pd.DataFrame, labels: Mapping[str, str]) -> None:
    """Left: success by the truth (filled) and by the critic (hollow), a row per model; right: its word by true emotion.

    `rates` has columns model, critic, truth; `values` emotion, mean, low, high (over people).
    """
    left, right = axes
    for place, row in enumerate(rates.itertuples()):
        left.plot([row.truth, row.critic], [place, place], color="0.7", linewidth=1.5, zorder=1)
        left.plot(row.truth, place, "o", color=BLUE, zorder=2, label="truth" if place == 0 else None)
        left.plot(row.critic, place, "o", color=ORANGE, markerfacecolor="none", markersize=9, zorder=3,
                  label="critic" if place == 0 else None)  # fmt: skip
    left.set_yticks(range(len(rates)), [labels.get(m, m) for m in rates.model])
    left.set(xlim=(-0.03, 1.03), ylim=(len(rates) - 0.5, -0.5), xlabel="share of people whose talk is a success")
    left.grid(axis="y", visible=False)
    left.legend(loc="best", fontsize=8)
    right.fill_between(values.emotion, values.low, values.high, color=ORANGE, alpha=0.15, linewidth=0)
    right.plot(values.emotion, values["mean"], "o-", color=ORANGE, markersize=4)
    right.axhline(0.5, color="0.6", linewidth=0.8, linestyle="--")
    right.set(xlabel="true emotion (0-100)", ylabel="critic (-1 worse to 1 solved)", ylim=(-1.05, 1.05))


def draw_shares(ax: Axes, table: pd.DataFrame, columns: Sequence[str], labels: Mapping[str, str]) -> None:
    """Share of replies with each property, bars grouped by arm; `table` has a row per arm."""
    long = table.melt(id_vars="arm", value_vars=list(columns), var_name="what", value_name="share")
    sns.barplot(long, x="what", y="share", hue="arm", palette=COLOURS, ax=ax)
    handles, names = ax.get_legend_handles_labels()
    ax.legend(handles, [labels[n] for n in names], fontsize=8)
    ax.set(xlabel="", ylabel="share of replies")
    ax.set_xticks(range(len(columns)), [c.replace("_", "\n") for c in columns])


def _rows(table: pd.DataFrame, arms: Sequence[str], seekers: Sequence[str]) -> list[float]:
    """Where each row lies: the seekers of an arm beside each other."""
    step = 0.3
    return [
        arms.index(row.arm) + step * (seekers.index(row.seeker) - (len(seekers) - 1) / 2) for row in table.itertuples()
    ]


def _seeker_legend(ax: Axes, seekers: Sequence[str]) -> None:
    for i, name in enumerate(seekers):
        ax.plot([], [], MARKERS[i], color="0.3", markerfacecolor="0.3" if i == 0 else "white", label=f"{name} seeker")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)


def draw_over_optimisation(table: pd.DataFrame, arms: Sequence[str], columns: int = 2) -> Figure:
    """Win rate over the start against the distance from it, a panel per arm; `table` is `results.over_optimisation`.

    In colour what the arm's own judge says, in dark what people feel: where they part, the judge is over-optimised.
    """
    rows = math.ceil(len(arms) / columns)
    size = (3.9 * columns, 2.5 * rows + 0.4)
    figure, axes = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    who = list(dict.fromkeys(table.who))
    looks = dict(zip(who, (("-", "o"), ("-", "s"), ("--", "D"), (":", "^")), strict=False))
    for ax, arm in zip(axes.flat, arms, strict=False):
        ax.axhline(0.5, color="0.6", linewidth=0.8)
        for name, (line, marker) in looks.items():
            part = table[(table.arm == arm) & (table.who == name)]
            own = name == who[0]
            colour = COLOURS[arm] if own else "0.25"
            style = {"marker": marker, "markerfacecolor": colour if own else "white", "markersize": 5}
            ax.plot(part.kl, part.win, line, color=colour, linewidth=2 if own else 1.3, label=name, **style)
        ax.set_title(LABELS[arm], color=COLOURS[arm], fontsize=9)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    for ax in axes.flat[len(arms) :]:
        ax.set_visible(False)
    figure.legend(handles=axes.flat[0].lines[1:], loc="outside upper right", ncols=len(who), fontsize=8)
    figure.supxlabel("distance from the start (KL, nats a token)", fontsize=10)
    figure.supylabel("wins over the start", fontsize=10)
    return figure


# ------------------------------------------------------------------------------------------ training


def draw_group_row(ax: Axes, table: pd.DataFrame, positions: Sequence[int], names: Sequence[str]) -> None:
    """Who sees whom in one group row: a cell per pair of tokens, by the segment that is seen; -1 is not seen.

    `table` is (S, S), a row the token that sees; segment 0 is the shared prompt, 1, 2, ... the replies.
    """
    colours = ["white", "#9AA5B1", "#7DB8DD", "#F0B27A", "#8CCBB0", "#D7A3C4"]
    ax.imshow(table, cmap=ListedColormap(colours), vmin=-1.5, vmax=len(colours) - 1.5)
    places = range(len(names))
    ax.set_xticks(places, names, fontsize=7)
    ax.set_yticks(places, [f"{name}   {position}" for name, position in zip(names, positions, strict=True)], fontsize=7)
    ax.set_xticks([p - 0.5 for p in places], minor=True)
    ax.set_yticks([p - 0.5 for p in places], minor=True)
    ax.grid(False, which="major")
    ax.grid(True, which="minor", color="0.9", linewidth=0.6)
    ax.tick_params(which="both", length=0)
    ax.set(xlabel="token that is seen", ylabel="token that sees, and its position")


SIGNALS = {"scalar": "scalar: advantage A (standard deviations)", "verbal": "verbal: log q − log π (nats)"}
PUSH = LinearSegmentedColormap.from_list("push", [ORANGE, "white", BLUE])  # down, not at all, up
TOKENS_SHOWN = 32


def draw_token_signals(table: pd.DataFrame, titles: Mapping[int, str]) -> Figure:
    """The replies in `titles` token by token, a line for each signal: blue where it pushes up, orange down.

    `table` is `signals.group_signals`; of a long reply the first tokens are shown.
    """
    figure, axes = plt.subplots(len(titles), 1, figsize=(10, 1.15 * len(titles) + 1.0), squeeze=False)
    limits = {name: max(table[name].abs().max(), 1e-6) for name in SIGNALS}
    for ax, (reply, title) in zip(axes.flat, titles.items(), strict=True):
        for line, name in enumerate(SIGNALS):
            _token_line(ax, table[table.reply == reply].head(TOKENS_SHOWN), name, line, limits[name])
        ax.set_title(title, fontsize=9)
        ax.set(xlim=(0, None), ylim=(1.9, -0.1))
        ax.set_yticks([0.4, 1.4], SIGNALS, fontsize=9)
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.grid(False)
    widest = max(ax.get_xlim()[1] for ax in axes.flat)
    for ax in axes.flat:
        ax.set_xlim(0, widest)
    for name, label in reversed(SIGNALS.items()):  # the first lies lowest
        scale = ScalarMappable(Normalize(-limits[name], limits[name]), PUSH)
        figure.colorbar(scale, ax=axes, location="bottom", shrink=0.4, aspect=40, pad=0.03).set_label(label, fontsize=8)
    return figure


def _token_line(ax: Axes, rows: pd.DataFrame, name: str, line: int, limit: float) -> None:
    """One reply's tokens in a row, each as wide as its characters."""
    left = 0.0
    for token, value in zip(rows.token, rows[name], strict=True):
        shown = token.replace("\n", "↵").replace("$", r"\$")
        width = len(shown) + 0.5
        ax.add_patch(Rectangle((left, line), width, 0.8, facecolor=PUSH(0.5 + value / limit / 2), edgecolor="0.85"))
        ax.text(left + 0.25, line + 0.42, shown, family="monospace", fontsize=7, va="center")
        left += width
    ax.set_xlim(0, max(left, ax.get_xlim()[1]))


WATCHED = {
    "entropy": "entropy (nats a token)",
    "reply_tokens": "tokens a reply",
    "repetition": "word triples said before",
    "sameness": "replies equal to another",
    "distance": "KL to the start (nats a token)",
    "fluency": "fluency (nats a token)",
}


def draw_watch(table: pd.DataFrame) -> Figure:
    """A panel per number of the collapse watch: each step (thin), the window's mean, dashed where a sign begins."""
    names = [name for name in WATCHED if (table.what == name).any()]
    rows = math.ceil(len(names) / 3)
    figure, axes = plt.subplots(rows, 3, figsize=(9.5, 2.3 * rows), sharex=True, squeeze=False)
    for ax, name in zip(axes.flat, names, strict=False):
        part = table[table.what == name]
        ax.plot(part.step, part.value, color=BLUE, alpha=0.3, linewidth=1)
        ax.plot(part.step, part["mean"], color=BLUE)
        for bound in (part.low.iloc[0], part.high.iloc[0]):
            if math.isfinite(bound):
                ax.axhline(bound, color=ORANGE, linewidth=1.2, linestyle="--")
        ax.set_title(WATCHED[name], fontsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    figure.supxlabel("step", fontsize=10)
    return figure


# ------------------------------------------------------------------------------------------- samples


def samples_html(table: pd.DataFrame, labels: Mapping[str, str] = LABELS, colours: Mapping[str, str] = COLOURS) -> str:
    """What each arm replied to the same histories, side by side, escaped; `table` is `results.same_history`."""
    arms = [name for name in table.columns if name not in ("profile", "said", "start", WARM)]
    shown = {"start": WARM, **{name: name for name in arms}}
    head = "".join(
        f'<th style="border-bottom:3px solid {colours[arm]}">{html.escape(labels[arm])}</th>' for arm in shown.values()
    )
    body = "".join(_table_row([row["said"], *(row[name] for name in shown)]) for row in table.to_dict("records"))
    return (
        '<table style="text-align:left;font-size:90%;border-spacing:0.8em 0.4em">\n'
        f"<thead><tr><th>the seeker said</th>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
    )


def _table_row(texts: Sequence[object]) -> str:
    said, *replies = map(_cell, texts)
    cells = "".join(f"<td>{text}</td>" for text in (f"<i>{said}</i>", *replies))
    return f'<tr style="vertical-align:top">{cells}</tr>\n'


def _cell(text: object) -> str:
    return html.escape(text) if isinstance(text, str) and text else "&mdash;"
