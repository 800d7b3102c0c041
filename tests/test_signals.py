"""What each signal says about each token, by hand where it can be, and the figures drawn from it."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from matplotlib.patches import Rectangle
from trainers import tiny

from rapo_lib import plots
from rapo_lib.dialogue import Turn
from rapo_lib.models import load_tokenizer
from rapo_lib.sampling import prompt_ids
from rapo_lib.simulation import Rollout
from rapo_lib.training import signals, watch
from rapo_lib.training.teacher import teacher_messages

PROMPT = [{"role": "system", "content": "Help."}, {"role": "user", "content": "I failed again."}]


def rollout(reply, score, critique="Name the feeling.", reaction="Hm."):
    return Rollout("p", (Turn("seeker", "I failed again."),), reply, reaction, 30.0, 31.0, score, critique)


@pytest.fixture(scope="module")
def model():
    tokenizer = load_tokenizer()
    return tiny(tokenizer).eval(), tokenizer


def test_the_scalar_is_the_advantage_and_the_verbal_one_the_teachers_log_ratio(model):
    """Scores 1 and 0: mean 0.5, unbiased std sqrt(1/2), so that A is 0.7070 and -0.7070."""
    policy, tokenizer = model
    group = [rollout("That hurts.", 1.0), rollout("Try harder next time.", 0.0)]
    found = signals.group_signals(policy, tokenizer, PROMPT, group, "critique", temperature=0.7)
    assert list(found.columns) == ["reply", "place", "token", "scalar", "verbal"]
    for i, advantage in ((0, 0.70701), (1, -0.70701)):
        rows = found[found.reply == i]
        assert "".join(rows.token) == group[i].reply and rows.place.tolist() == list(range(len(rows)))
        assert rows.scalar.to_numpy() == pytest.approx(advantage, abs=1e-4)
        said = tokenizer(group[i].reply, add_special_tokens=False).input_ids
        logp = []
        for messages in (teacher_messages(PROMPT, "Name the feeling.", None, None), PROMPT):
            prompt = prompt_ids(messages, tokenizer)
            with torch.no_grad():
                logits = policy(torch.tensor([prompt + said])).logits[0] / 0.7
            steps = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
            logp.append(steps[torch.arange(len(said)), said])
        assert rows.verbal.to_numpy() == pytest.approx((logp[0] - logp[1]).numpy(), abs=1e-4)
        assert rows.verbal.abs().max() > 1e-3


def test_who_was_not_criticised_gets_no_verbal_signal_and_who_was_not_ranked_no_signal(model):
    group = [rollout("That hurts.", 1.0, critique=" "), rollout("Try harder.", 0.0)]
    found = signals.group_signals(*model, PROMPT, group, "critique")
    assert found[found.reply == 0].verbal.eq(0).all() and found[found.reply == 1].verbal.ne(0).any()
    silent = [rollout("That hurts.", None), rollout("Try harder.", None)]
    found = signals.group_signals(*model, PROMPT, silent, "critique")
    assert found.scalar.eq(0).all() and found.verbal.eq(0).all() and len(found)


def test_the_clearest_group_is_the_one_furthest_apart():
    scores = [0.1, 0.2, None, None, -0.5, 0.9]
    rollouts = [rollout(str(i), s) for i, s in enumerate(scores)]
    assert [r.reply for r in signals.clearest_group(rollouts, 2)] == ["4", "5"]
    assert [r.reply for r in signals.clearest_group(rollouts[2:4], 2)] == ["2", "3"]
    verdict = signals.verdict_of(rollouts[4:])
    assert verdict.ranking == (1, 0) and verdict.reactions == ("Hm.", "Hm.")


# ------------------------------------------------------------------------------------------------ figures


def test_tokens_are_drawn_in_the_colour_of_their_push():
    table = pd.DataFrame({"reply": [0, 0, 1], "place": [0, 1, 0], "token": ["I", " $\n", "No"],
                          "scalar": [1.0, 1.0, -1.0], "verbal": [0.5, -0.25, 0.0]})  # fmt: skip
    figure = plots.draw_token_signals(table, {0: "best", 1: "worst"})
    first = figure.axes[0]
    boxes = [p for p in first.patches if isinstance(p, Rectangle)]
    assert len(boxes) == 4 and [t.get_text() for t in first.texts] == ["I", r" \$↵"] * 2
    up, down = plots.PUSH(1.0), plots.PUSH(0.25)
    assert boxes[0].get_facecolor() == up and boxes[2].get_facecolor() == up and boxes[3].get_facecolor() == down
    plt.close(figure)


def test_the_watch_has_a_panel_per_number_and_a_dashed_line_per_bound():
    readings = [watch.Reading(entropy=2.0 - 0.1 * i, reply_tokens=20.0, repetition=0.0) for i in range(10)]
    table = pd.DataFrame(watch.watched(readings, watch.Limits()))
    entropy = table[table.what == "entropy"]
    assert entropy.low.eq(0.5 * 1.85).all() and entropy["mean"].iloc[-1] == pytest.approx((1.4 + 1.3 + 1.2 + 1.1) / 4)
    figure = plots.draw_watch(table)
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [len(ax.lines) for ax in shown] == [3, 4, 3]
    plt.close(figure)
