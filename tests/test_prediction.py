"""How well scores foretell what follows, on tables whose answer is known."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from rapo_lib.dialogue import Dialogue, Turn
from rapo_lib.foresight.figures import draw_calibration, draw_predictors, draw_tree, tree_table
from rapo_lib.foresight.futures import Future
from rapo_lib.foresight.prediction import (
    BASELINES,
    LENGTH,
    REACTION,
    agreement,
    calibration,
    dialogue_items,
    dialogue_table,
    record_table,
    spearman,
    summary,
)
from rapo_lib.foresight.records import RewardRecord

HISTORY = (Turn("seeker", "My exam is on Friday and I can't sleep."),)
GLAD, ANGRY = "Yes, exactly. You really understand it.", "I didn't ask for that. You're not listening."


def record(reply, said, emotions, reward, profile="a"):
    turns = [t for text, e in zip(said, emotions, strict=True)
             for t in (Turn("supporter", reply), Turn("seeker", text, emotion=e))]  # fmt: skip
    future = Future(tuple(turns), (reward,) * len(said), "horizon")
    return RewardRecord(profile, HISTORY, reply, reward, reward, emotions[-1], (future, future))


def table(people=4):
    """Two histories a person with three replies each; `truth` orders them, `noise` does not, `against` is reversed."""
    rng = np.random.default_rng(0)
    rows = [{"profile": f"p{p}", "history": 2 * p + h, "final": float(3 * h + r), "truth": 3.0 * h + r,
             "against": -3.0 * h - r, "flat": 1.0, "noise": rng.normal()}
            for p in range(people) for h in range(2) for r in range(3)]  # fmt: skip
    return pd.DataFrame(rows)


def test_perfect_reversed_and_silent_predictors():
    agreed = agreement(table(), "final", ["truth", "against", "flat"])
    means = summary(agreed).set_index(["arm", "measure"])["mean"]
    assert means["truth", "pairs"] == 1 and means["truth", "spearman"] == pytest.approx(1)
    assert means["against", "pairs"] == 0 and means["against", "spearman"] == pytest.approx(-1)
    assert means["flat", "pairs"] == 0.5 and math.isnan(means["flat", "spearman"])


def test_pairs_by_hand():
    frame = pd.DataFrame({"profile": ["a"] * 4, "history": [0, 0, 0, 1], "final": [1.0, 2.0, 2.0, 9.0],
                          "x": [0.0, 1.0, 0.0, -5.0]})  # fmt: skip
    agreed = agreement(frame, "final", ["x"])
    # pairs of history 0: (1, 2) right, (1, 2') tied in x, (2, 2') tied in the outcome and left out
    assert agreed[agreed.measure == "pairs"].value.item() == pytest.approx((1 + 0.5) / 2)


def test_jackknife_of_equal_people_is_the_whole():
    frame = pd.concat([table(1).assign(profile=name) for name in "abc"])
    values = agreement(frame, "final", ["noise"]).query("measure == 'spearman'").value
    assert values.std() < 0.5 and values.mean() == pytest.approx(spearman(frame.noise, frame.final), abs=0.1)


def test_outcomes_that_are_unknown_are_left_out():
    frame = table().assign(final=lambda t: t.final.where(t.profile != "p0"))
    assert set(agreement(frame, "final", ["truth"]).profile) == {"p1", "p2", "p3"}


def test_baselines_of_records():
    rows = [record("What frightens you about Friday?", [GLAD, GLAD], [40.0, 45.0], 0.5),
            record("Just relax, all will be fine.", [ANGRY, ANGRY], [30.0, 28.0], -0.5)]  # fmt: skip
    found = record_table(rows, {"mine": [1.0, 2.0]})
    assert list(found.history) == [0, 0] and list(found.final) == [45.0, 28.0] and list(found.mine) == [1.0, 2.0]
    assert found[LENGTH][0] == 5 and found[REACTION][0] > 0 > found[REACTION][1]
    assert set(BASELINES) <= set(found)


def test_dialogues_end_where_they_end():
    turns = (
        Turn("seeker", "Hello.", emotion=30.0),
        Turn("supporter", "Hi."),
        Turn("seeker", ANGRY, emotion=25.0),
        Turn("supporter", "You feel unheard."),
        Turn("seeker", GLAD, emotion=33.0),
        Turn("supporter", "Bye"),
    )
    talk = Dialogue("d", turns[:5])
    assert [place for _, place in dialogue_items([Dialogue("d", turns), talk])] == [1, 3, 1, 3]
    found = dialogue_table(dialogue_items([talk]), {"mine": [1.0, 2.0]})
    assert list(found.final) == [33.0, 33.0] and list(found.profile) == ["d", "d"]
    assert found[REACTION].is_monotonic_increasing


def test_calibration_of_a_calibrated_model():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, 200)
    frame = pd.DataFrame({"profile": [f"p{i % 10}" for i in range(200)], "x": x, "y": x})
    found = calibration(frame, "x", "y", bins=5)
    assert list(found.replies) == [40] * 5 and found.predicted.is_monotonic_increasing
    assert np.allclose(found.predicted, found.observed, atol=0.05)


def test_figures_draw_what_the_tables_say(tmp_path):
    group = [record("What frightens you about Friday?", [GLAD] * 3, [40.0, 45.0, 50.0], 0.5),
             record("Just relax.", [ANGRY] * 3, [30.0, 28.0, 27.0], -0.5)]  # fmt: skip
    tree = tree_table(group, before=35.0)
    assert len(tree) == 1 + 2 * (1 + 2 * 2) and tree.emotion.iloc[0] == 35.0
    nodes = {(row.x, row.y) for row in tree.itertuples()}
    assert len(nodes) == len(tree), "no two nodes in one place"
    assert all((row.parent_x, row.parent_y) in nodes for row in tree[tree.turn > 0].itertuples()), "every edge has ends"
    figure, axes = plt.subplots(1, 3)
    draw_tree(axes[0], tree)
    draw_predictors(axes[1], summary(agreement(table(), "final", ["truth", "noise"])), 0.5, "share")
    draw_calibration(axes[2], calibration(table(), "truth", "final", bins=3))
    figure.savefig(tmp_path / "figures.png")
    plt.close(figure)
    assert (tmp_path / "figures.png").stat().st_size > 1000
