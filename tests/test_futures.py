"""Futures and the rewards they earn: by hand, resumed, and with a seeker whose best reply is known."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapo_lib.dialogue import Turn, load_profiles, opening_history
from rapo_lib.foresight.critic import EmbeddedCritic
from rapo_lib.foresight.futures import Candidate, FutureConfig, future_from_record, future_record, imagine
from rapo_lib.foresight.records import (
    by_history,
    check_apart,
    make_records,
    read_records,
    split_by_profile,
    write_records,
)
from rapo_lib.foresight.reward import future_reward, oracle_reward, true_state
from rapo_lib.lm.critic import assessment
from rapo_lib.runs import RapoError
from rapo_lib.seeker import ProbeSeeker, Reaction, probe_reply

WEAK = ("You should make a list and stick to it.", "Everything will be fine.", "I see.")
CONFIG = FutureConfig(futures=2, horizon=3, at_once=4, seed=7)


def candidates(people=3):
    found = []
    for profile in load_profiles("train")[:people]:
        history = opening_history(profile)
        found += [Candidate(profile, history, reply) for reply in (probe_reply(history), *WEAK)]
    return found


class Repeater:
    """A policy that says what it was asked with, and counts its calls; dies at call number `dies`."""

    def __init__(self, dies=None):
        self.calls, self.dies = 0, dies

    def __call__(self, histories, seed):
        self.calls += 1
        if self.calls == self.dies:
            raise KeyboardInterrupt
        return [f"I hear you, {seed % 97}." for _ in histories]


class Silent(ProbeSeeker):
    """Gives no reaction to one reply, as a language model may."""

    def react_batch(self, items):
        return [Reaction("", float("nan"), "refused") if reply == WEAK[2] else answer
                for (*_, reply, _), answer in zip(items, super().react_batch(items), strict=True)]  # fmt: skip


class Solver:
    """A critic that calls everything solved after so many turns."""

    def __init__(self, turns):
        self.turns = turns

    def assess_batch(self, talks):
        count = [sum(t.speaker == "supporter" for t in said) for _, said in talks]
        return [assessment(["solved" if n >= self.turns else "same"]) for n in count]


# ------------------------------------------------------------------------------------------- the formula


def test_the_formula_by_hand():
    # weights 1, 1/2, 1/4; their sum 7/4
    assert future_reward([-0.5, 0.5, 0.5], 3, 0.5) == pytest.approx((-0.5 + 0.25 + 0.125) / 1.75)
    assert future_reward([-0.5, 0.6], 3, 0.5) == pytest.approx((-0.5 + 0.5 + 0.25) / 1.75), "solved: the rest counts 1"
    assert future_reward([0.5], 3, 0.5) == 0.5, "0.5 is no success, and a future that broke off keeps its value"
    assert future_reward([1.0], 3) == 1.0 and future_reward([-1.0] * 3, 3) == pytest.approx(-1.0)


@pytest.mark.parametrize("values", [[], [0.1] * 4])
def test_a_future_needs_values_and_no_more_than_fit(values):
    with pytest.raises(ValueError, match="1 to 3 values"):
        future_reward(values, 3)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.floats(0.1, 1.0), st.integers(0, 5), st.floats(0, 1))
def test_bounded_and_never_hurt_by_a_better_turn(values, discount, place, more):
    reward = future_reward(values, 6, discount)
    assert -1 - 1e-9 <= reward <= 1 + 1e-9
    better = [min(1.0, v + more) if i == place % len(values) else v for i, v in enumerate(values)]
    assert future_reward(better, 6, discount) >= reward - 1e-9


def test_early_success_is_worth_more():
    rewards = [future_reward([*[-0.5] * t, 1.0], 6) for t in range(6)]
    assert rewards == sorted(rewards, reverse=True) and len(set(rewards)) == 6


def test_the_oracle_by_hand():
    states = {29: "worse", 30: "same", 39: "same", 40: "better", 69: "better", 70: "solved"}
    assert {emotion: true_state(35, emotion) for emotion in states} == states
    assert oracle_reward(35, [40, 70], 2, 1.0) == pytest.approx(0.75)


# ------------------------------------------------------------------------------------------- playing


def test_the_best_reply_to_a_probe_seeker_earns_most():
    asked = candidates()
    futures = imagine(asked, Repeater(), ProbeSeeker(), EmbeddedCritic(), CONFIG)
    records = make_records(asked, futures, CONFIG.horizon)
    groups = by_history(records)
    assert len(groups) == 3
    for group in groups:
        assert max(group, key=lambda r: r.reward).reply == group[0].reply
        assert max(group, key=lambda r: r.oracle).reply == group[0].reply


def test_shape_and_one_call_a_turn():
    policy, asked = Repeater(), candidates(2)
    futures = imagine(asked, policy, ProbeSeeker(), EmbeddedCritic(), CONFIG)
    assert policy.calls == 2 * (CONFIG.horizon - 1), "two blocks, a call for each turn after the candidate's"
    assert [len(each) for each in futures] == [2] * 8
    for candidate, each in zip(asked, futures, strict=True):
        for future in each:
            assert [t.speaker for t in future.turns] == ["supporter", "seeker"] * 3 and len(future.values) == 3
            assert future.turns[0].text == candidate.reply and future.ended == "horizon"
            assert future_from_record(future_record(future)) == future


def test_a_solved_future_ends_and_costs_no_more():
    policy = Repeater()
    futures = imagine(candidates(1), policy, ProbeSeeker(), Solver(1), CONFIG)
    assert policy.calls == 0 and {f.ended for each in futures for f in each} == {"solved"}
    late = imagine(candidates(1), policy, ProbeSeeker(), Solver(2), CONFIG)
    assert policy.calls == 1 and all(len(f.values) == 2 for each in late for f in each)


def test_a_seeker_who_fails_ends_only_that_future():
    asked = candidates(1)
    futures = imagine(asked, Repeater(), Silent(), EmbeddedCritic(), CONFIG)
    assert [f.ended for f in futures[3]] == ["refused"] * 2 and futures[0][0].ended == "horizon"
    assert [r.reply for r in make_records(asked, futures, CONFIG.horizon)] == [c.reply for c in asked[:3]]


def test_a_kill_loses_nothing_that_was_finished(tmp_path):
    asked, parts = candidates(), (ProbeSeeker(), EmbeddedCritic(), CONFIG)
    whole = imagine(asked, Repeater(), *parts, cache=tmp_path / "whole.jsonl")
    cache = tmp_path / "killed.jsonl"
    with pytest.raises(KeyboardInterrupt):
        imagine(asked, Repeater(dies=4), *parts, cache=cache)  # in the second of three blocks
    kept = cache.read_bytes()
    assert kept.count(b"\n") == 1
    cache.write_bytes(kept + b'{"key": "torn, as a full disk or a kill may lea')
    policy = Repeater()
    assert imagine(asked, policy, *parts, cache=cache) == whole
    assert policy.calls == 4, "the finished block was not played again"
    assert cache.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert imagine(asked, Repeater(dies=1), *parts, cache=cache) == whole


def test_other_settings_are_other_futures(tmp_path):
    asked, cache = candidates(1), tmp_path / "futures.jsonl"
    first = imagine(asked, Repeater(), ProbeSeeker(), EmbeddedCritic(), CONFIG, cache)
    other = imagine(asked, Repeater(), ProbeSeeker(), EmbeddedCritic(), replace(CONFIG, seed=8), cache)
    assert first != other and cache.read_text("utf-8").count("\n") == 2


def test_a_damaged_file_is_named(tmp_path):
    cache = tmp_path / "futures.jsonl"
    cache.write_text('{"key": 1}\n', "utf-8")
    with pytest.raises(RapoError, match=r"futures\.jsonl.*damaged"):
        imagine(candidates(1), Repeater(), ProbeSeeker(), EmbeddedCritic(), CONFIG, cache)


def test_a_bad_size_is_an_error():
    with pytest.raises(RapoError, match="horizon"):
        FutureConfig(horizon=0)


# ------------------------------------------------------------------------------------------- D_r


@pytest.fixture(scope="module")
def records():
    asked = candidates(6)
    return make_records(asked, imagine(asked, Repeater(), ProbeSeeker(), EmbeddedCritic(), CONFIG), CONFIG.horizon)


@given(share=st.floats(0.01, 0.99), seed=st.integers(0, 100))
def test_nobody_is_in_both_splits(records, share, seed):
    fitted, apart = split_by_profile(records, share, seed)
    assert fitted and apart and sorted(map(id, fitted + apart)) == sorted(map(id, records))
    check_apart(fitted, apart)
    assert not {r.profile for r in fitted} & {r.profile for r in apart}


def test_a_leak_is_an_error(records):
    with pytest.raises(RapoError, match="both splits"):
        check_apart(records[:2], records[1:])
    with pytest.raises(RapoError, match="cannot be split"):
        split_by_profile(records[:4], 0.5)


def test_written_and_read_again(records, tmp_path):
    path = write_records(tmp_path / "records.jsonl", records)
    assert read_records(path) == records
    assert all(t.emotion is None for r in records for t in r.history), "a history holds words only"
    assert all(isinstance(f.turns[0], Turn) for r in records for f in r.futures)
    path.write_text("{}\n", "utf-8")
    with pytest.raises(RapoError, match=r"records\.jsonl"):
        read_records(path)
