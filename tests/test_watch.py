"""The collapse watch against planted collapses and against a training that is fine."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainers import Scripted, make

from rapo_lib.models import load_tokenizer
from rapo_lib.training.watch import LOGGED, Limits, Reading, reading, repetition, sameness, signs

LIMITS = Limits()
FINE = Reading(entropy=2.4, reply_tokens=18.0, repetition=0.02, sameness=0.1, distance=0.05, fluency=-3.0)


def steps(last, count=12):
    """A healthy training whose numbers slide to `last` from the middle on; a little noise everywhere."""
    noise, found = random.Random(0), []
    for i in range(count):
        share = max(0.0, (i - count / 2) / (count / 2 - 1))
        values = {}
        for name in LOGGED:
            value = getattr(FINE, name) + share * (last.get(name, getattr(FINE, name)) - getattr(FINE, name))
            values[name] = value * noise.uniform(0.97, 1.03)
        found.append(Reading(**values))
    return found


def test_repetition_by_hand():
    # "a b c a b c": triples abc bca cab abc, three different of four; a text too short to repeat has none
    assert repetition("a b c A b c") == pytest.approx(1 / 4)
    assert repetition("a b c") == 0.0 and repetition("") == 0.0 and repetition("one two three four five") == 0.0
    assert repetition("no " * 30) > 0.9


def test_sameness_by_hand():
    assert sameness(["I see.", "i  see.", "What happened?", "Go on."]) == 0.5
    assert sameness(["a", "b"]) == 0.0 and sameness([]) == 0.0 and sameness(["a", "a", "a"]) == 1.0


@given(st.lists(st.text(max_size=30), max_size=8), st.text(max_size=60))
def test_shares_are_shares(texts, text):
    assert 0 <= sameness(texts) <= 1 and 0 <= repetition(text) <= 1


def test_a_healthy_training_shows_no_sign():
    healthy = steps({})
    assert all(signs(healthy[:n], LIMITS) == [] for n in range(len(healthy) + 1))


@pytest.mark.parametrize(
    ("planted", "kind", "says"),
    [
        ({"entropy": 0.2}, "entropy", r"entropy \d\.\d\d nats a token \(2\.\d\d at first\), less than 1\.\d\d"),
        ({"reply_tokens": 60.0}, "length", r"length .* \(1\d\.\d at first\), more than"),
        ({"reply_tokens": 2.0}, "length", "less than"),
        ({"repetition": 0.9}, "repetition", "word triples"),
        ({"sameness": 1.0}, "sameness", "replies of a step equal another one"),
        ({"distance": 4.0}, "distance", "nats a token from the start, more than 1.00"),
        ({"fluency": -7.0}, "fluency", "under the base model"),
    ],
)
def test_a_planted_collapse_is_named_with_its_numbers(planted, kind, says):
    (sign,) = signs(steps(planted), LIMITS)
    assert sign.kind == kind
    assert re.search(says, sign.text), sign.text


def test_several_signs_at_once():
    found = signs(steps({"entropy": 0.1, "sameness": 1.0, "repetition": 0.8}), LIMITS)
    assert {s.kind for s in found} == {"entropy", "sameness", "repetition"}


def test_one_bad_step_is_no_collapse_and_too_few_steps_say_nothing():
    spike = steps({})
    spike[-1] = Reading(entropy=0.9, reply_tokens=30.0, repetition=0.4, sameness=0.8, distance=1.5, fluency=-4.5)
    assert signs(spike, LIMITS) == []
    assert signs(steps({"entropy": 0.0}, count=2 * LIMITS.window - 1), LIMITS) == []


def test_what_was_not_measured_is_not_judged():
    blind = [Reading(entropy=r.entropy) for r in steps({"sameness": 1.0})]
    assert signs(blind, LIMITS) == []
    assert reading({"loss": 0.1, "rapo/entropy": 1.5}) == Reading(entropy=1.5)


# ------------------------------------------------------------------------------------------ in the trainer


class Narrowing(Scripted):
    """Planted: from the third step on every choice of the policy becomes sharper, until it has none."""

    def __init__(self):
        super().__init__()
        self.trainer = None

    def __call__(self, rows, replies):
        if len(self.seen) >= 2:
            self.trainer.model.get_base_model().lm_head.weight.data *= 2
        return super().__call__(rows, replies)


def planted(tmp_path, **options):
    feedback = Narrowing()
    feedback.trainer = make(load_tokenizer(), tmp_path, feedback, max_steps=14, learning_rate=1e-3, **options)
    feedback.trainer.train()
    return feedback.trainer


def test_the_trainer_records_and_tells_once_and_goes_on(tmp_path, caplog):
    trainer = planted(tmp_path)
    logged = [e for e in trainer.state.log_history if "loss" in e]
    assert len(logged) == 14 and logged[0]["rapo/collapse"] == [] and logged[0]["rapo/repetition"] >= 0
    assert any(said.startswith("entropy") for said in logged[-1]["rapo/collapse"])
    told = [r.getMessage() for r in caplog.records if r.name == "rapo_lib.training.callbacks"]
    assert len([t for t in told if "entropy" in t]) == 1 < len([e for e in logged if e["rapo/collapse"]])


def test_the_trainer_stops_on_request(tmp_path):
    trainer = planted(tmp_path, stop_on_collapse=True)
    steps_made = [e for e in trainer.state.log_history if "loss" in e]
    assert 8 <= len(steps_made) < 14 and steps_made[-1]["rapo/collapse"] and not steps_made[-2]["rapo/collapse"]


def test_fluency_is_measured_if_asked_for(tmp_path):
    trainer = make(load_tokenizer(), tmp_path, max_steps=1, fluency=lambda texts: [-2.0] * len(texts))
    trainer.train()
    assert trainer.state.log_history[0]["rapo/fluency"] == pytest.approx(-2.0)
