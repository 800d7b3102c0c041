"""Figures draw what the table says, in one colour per arm that can be told apart without red-green vision."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb

from rapo_lib.grid.arms import ARMS, LABELS, PRIMARY, WARM
from rapo_lib.plots import (
    COLOURS,
    draw_board,
    draw_contrasts,
    draw_critic,
    draw_curves,
    draw_heat,
    draw_over_optimisation,
    draw_panels,
    draw_rates,
    draw_trajectories,
    samples_html,
    spread,
)


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


# ------------------------------------------------------------------------------------------- colours

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB
PROTAN = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
DEUTAN = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def lab(colour, vision):
    """CIE L*a*b* of a colour as seen with this vision."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(vision) @ linear, 0, 1)
    t = np.array(XYZ) @ seen / [0.95047, 1.0, 1.08883]
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", [np.eye(3), PROTAN, DEUTAN])
def test_arms_drawn_together_can_be_told_apart(vision):
    for a, b in itertools.combinations([WARM, *PRIMARY], 2):
        assert np.linalg.norm(lab(COLOURS[a], vision) - lab(COLOURS[b], vision)) > 15, (a, b)


def test_every_arm_has_one_colour_of_its_own_that_shows_on_white():
    assert set(COLOURS) == set(ARMS) == set(LABELS) and len(set(COLOURS.values())) == len(ARMS)
    for colour in COLOURS.values():
        assert lab(colour, np.eye(3))[0] < 75  # lightness


# -------------------------------------------------------------------------------------------- curves


def curve(arms=("full", WARM)):
    rows = [(a, t, 35.0 + t, 34.0 + t, 36.0 + t) for a in arms for t in range(4)]
    return pd.DataFrame(rows, columns=["arm", "turn", "mean", "low", "high"])


def test_curves_are_the_table(ax):
    draw_curves(ax, curve(), "turn")
    assert [to_hex(line.get_color()).upper() for line in ax.lines] == [COLOURS["full"], COLOURS[WARM].upper()]
    assert ax.lines[0].get_ydata().tolist() == [35.0, 36.0, 37.0, 38.0]
    assert len(ax.collections) == 2  # bands
    assert {t.get_text() for t in ax.texts} == {LABELS["full"], LABELS[WARM]}


def test_a_line_without_bounds_has_no_band(ax):
    draw_curves(ax, curve().assign(low=np.nan, high=np.nan), "turn")
    assert all(len(c.get_paths()) == 0 or np.isnan(c.get_paths()[0].vertices).all() for c in ax.collections)


def test_trajectories_from_rows_of_people(ax):
    table = pd.DataFrame({"arm": ["full"] * 4, "profile": ["a", "b"] * 2, "turn": [0, 0, 1, 1],
                          "emotion": [30.0, 40.0, 40.0, 60.0]})  # fmt: skip
    draw_trajectories(ax, table, LABELS, COLOURS)
    assert ax.lines[0].get_ydata().tolist() == [35.0, 50.0]


def test_rates_begin_at_zero_and_keep_their_labels_inside(ax):
    table = curve(("full", WARM, "without_reactions")).assign(mean=0.0)
    draw_rates(ax, table, "suggestions")
    assert ax.get_ylim()[0] == 0
    low, high = ax.get_ylim()
    assert all(low <= t.xyann[1] <= high for t in ax.texts) and len({t.xyann[1] for t in ax.texts}) == 3


def test_a_panel_for_each_arm():
    table = curve(tuple(ARMS))
    figure = draw_panels(table, ["dpo", "verbal_only", "random_turns", "oracle_judge"], "turn", "emotion")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [(a.get_title(loc="left") or a.get_title()) for a in shown] == [
        LABELS[n] for n in ("dpo", "verbal_only", "random_turns", "oracle_judge")
    ]
    assert all(len(a.lines) == 3 for a in shown)
    plt.close(figure)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.floats(0.1, 1.2))
def test_spread_labels_keep_their_order_and_distance(places, gap):
    places = sorted(places)
    found = spread(places, gap, 0, 10)
    assert len(found) == len(places)
    assert all(b - a >= gap - 1e-9 for a, b in zip(found, found[1:], strict=False))
    assert found[0] >= 0
    if all(b - a >= gap for a, b in zip(places, places[1:], strict=False)):
        assert found == pytest.approx(places)


def test_spread_by_hand():
    assert spread([5.0, 5.0], 1.0, 0, 10) == [4.5, 5.5]
    assert spread([0.0, 0.0, 9.0], 1.0, 0, 10) == [0.0, 1.0, 9.0]  # not below the axis
    assert spread([1.0, 5.0], 1.0, 0, 10) == [1.0, 5.0]


# --------------------------------------------------------------------------------------- differences


def contrasts():
    rows = [
        ("without_reactions", "appraisal", -4.0, -6.0, -2.0),
        ("without_reactions", "evaluator", -3.0, -5.0, -1.0),
        ("dpo", "appraisal", -1.0, np.nan, np.nan),
        ("dpo", "evaluator", 1.0, np.nan, np.nan),
    ]
    return pd.DataFrame(rows, columns=["arm", "seeker", "mean", "low", "high"])


def test_contrasts_show_means_bounds_and_the_zone_that_does_not_matter(ax):
    draw_contrasts(ax, contrasts(), "points", smallest=3.0)
    drawn = {float(line.get_xdata()[0]) for line in ax.lines if len(line.get_xdata()) == 1}
    assert drawn == {-4.0, -3.0, -1.0, 1.0}
    bars = [tuple(line.get_xdata()) for line in ax.lines if len(line.get_xdata()) == 2]
    assert (-6.0, -2.0) in bars and (-5.0, -1.0) in bars
    assert [t.get_text() for t in ax.get_yticklabels()] == [LABELS["without_reactions"], LABELS["dpo"]]
    assert {"less than 3", "appraisal seeker", "evaluator seeker"} == {
        t.get_text() for t in ax.get_legend().get_texts()
    }


def test_over_optimisation_shows_what_the_judge_says_and_what_people_feel():
    rows = [("full", who, k, 0.1 * k, win) for who, end in (("own judge", 0.9), ("truth", 0.6))
            for k, win in enumerate((0.5, (0.5 + end) / 2, end))]  # fmt: skip
    figure = draw_over_optimisation(pd.DataFrame(rows, columns=["arm", "who", "share", "kl", "win"]), ["full"])
    lines = figure.axes[0].lines[1:]
    assert [list(line.get_ydata())[-1] for line in lines] == [0.9, 0.6]
    assert to_hex(lines[0].get_color()).upper() == COLOURS["full"]
    assert {t.get_text() for t in figure.legends[0].get_texts()} == {"own judge", "truth"}
    plt.close(figure)


# ------------------------------------------------------------------------------------------- samples


def test_samples_are_escaped_and_side_by_side():
    table = pd.DataFrame(
        {"profile": ["p"], "said": ["<b>Hi</b> & you"], "start": [None], "full": ["<script>alert(1)</script>"],
         "dpo": ['"Well" <i>']}
    )  # fmt: skip
    page = samples_html(table)
    assert "<script" not in page and "<b>" not in page and "&lt;script&gt;" in page and "&lt;b&gt;Hi" in page
    assert "&mdash;" in page  # nothing was said
    heads = [page.index(LABELS[name]) for name in (WARM, "full", "dpo")]
    assert heads == sorted(heads)


# --------------------------------------------------------------------------------------- evaluation


def test_a_board_draws_every_result_in_its_panel():
    rows = [("safety", "m", 0.4), ("safety", "probe", 1.0), ("selfplay", "m", 9.0)]
    table = pd.DataFrame(rows, columns=["suite", "model", "mean"]).assign(low=0.1, high=1.5, n=4)
    figure = draw_board(
        table, {"selfplay": "Self-play", "sotopia": "Goals", "safety": "Safety"}, {"m": "mine"}, {"probe"}
    )
    drawn = {ax.get_title(): ax for ax in figure.axes}
    assert list(drawn) == ["Self-play", "Safety"] and [len(ax.lines) for ax in figure.axes] == [2, 4]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["mine", "probe"]
    points = [line for line in drawn["Safety"].lines if line.get_marker() == "o"]
    assert [p.get_xdata()[0] for p in points] == [0.4, 1.0] and points[1].get_markerfacecolor() == "white"
    plt.close(figure)


def test_a_heat_map_says_its_numbers(ax):
    draw_heat(ax, pd.DataFrame({"a": [1.0, 4.94], "b": [2.0, 3.0]}, index=["x", "y"]), 1.0, 5.0)
    assert [t.get_text() for t in ax.texts] == ["1.0", "2.0", "4.9", "3.0"]
    assert ax.texts[0].get_color() == "black" and ax.texts[2].get_color() == "white"


def test_critic_against_truth():
    figure, axes = plt.subplots(1, 2)
    rates = pd.DataFrame({"model": ["a", "b"], "truth": [0.2, 0.8], "critic": [0.3, 0.3]})
    values = pd.DataFrame({"emotion": [25, 75], "mean": [-0.4, 0.6], "low": [-0.5, 0.5], "high": [-0.3, 0.7]})
    draw_critic(axes, rates, values, {"a": "first"})
    assert [t.get_text() for t in axes[0].get_yticklabels()] == ["first", "b"]
    points = [line.get_xdata()[0] for line in axes[0].lines if line.get_marker() == "o"]
    assert points == [0.2, 0.3, 0.8, 0.3]
    assert axes[1].lines[0].get_ydata().tolist() == [-0.4, 0.6]
    plt.close(figure)
