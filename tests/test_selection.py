"""Turn selection against dialogues with planted pivots."""

import random
from dataclasses import replace

import numpy as np
import pytest
from planted import SMALL, planted

from rapo_lib.dialogue import Dialogue, Turn
from rapo_lib.selection import (
    PivotalTurn,
    despike,
    emotions,
    exchanges,
    histories_of,
    lasting_change,
    levels,
    readable,
    select,
)


def f1(picked: list[list[int]], planted_turns: list[int]) -> float:
    hits = sum(turn in turns for turns, turn in zip(picked, planted_turns, strict=True))
    return 2 * hits / (sum(map(len, picked)) + len(planted_turns))


def largest_step(dialogue: Dialogue) -> list[int]:
    talk, level = exchanges(dialogue.turns), levels(dialogue)
    return [talk[1 + int(np.argmax(np.abs(np.diff(level))))].turn]


def test_despiking_and_lasting_change_by_hand():
    assert despike([0.0, 0.0, 0.9, 0.0, 0.4, 0.3]) == [0.0, 0.0, 0.0, 0.0, 0.3, 0.3]
    assert lasting_change([0.0, 0.0, 0.6, 0.5, 0.4], 2) == pytest.approx(0.5)  # median after 0.5, before 0
    assert lasting_change([0.0, 0.5, 0.1, 0.0], 1) == pytest.approx(0.1)
    assert lasting_change([0.0, -0.6], 1) == pytest.approx(-0.6)


def test_finds_planted_pivots_better_than_the_largest_step_and_chance():
    for seed in (0, 1, 2):
        cases = planted(seed)
        truth = [turn for _, turn in cases]
        ours = f1([[pivot.turn for pivot in select([d])] for d, _ in cases], truth)
        step = f1([largest_step(d) for d, _ in cases], truth)
        rng = random.Random(seed)
        chance = f1([[rng.choice(exchanges(d.turns)[1:]).turn] for d, _ in cases], truth)
        assert ours >= 0.8
        assert ours > step + 0.2 and ours > chance + 0.2


def test_a_delayed_effect_is_credited_to_the_question_and_news_to_nobody():
    cases = {dialogue.id: (dialogue, turn) for dialogue, turn in planted(0)}
    dialogue, turn = cases["mother-delayed"]
    (pivot,) = select([dialogue])
    assert pivot.turn == turn and "later" in pivot.reason and pivot.after > pivot.before
    news = Dialogue(
        "news",
        (
            Turn("seeker", "I'm waiting for the landlord's answer."),
            Turn("supporter", "What happens while you wait?"),
            Turn("seeker", "I sit and look at the phone."),
            Turn("supporter", "I see. And then?"),
            Turn("seeker", "Hang on. They just called, we got the flat!"),
        ),
    )
    assert select([news]) == []


def test_small_talk_is_never_selected():
    talk = [turn for reply, answer in SMALL * 2 for turn in (Turn("supporter", reply), Turn("seeker", answer))]
    assert select([Dialogue("small", (Turn("seeker", "Hi there."), *talk))]) == []


def test_reads_text_only():
    cases, rng = [dialogue for dialogue, _ in planted(1)], random.Random(3)
    moved = [
        replace(d, turns=tuple(replace(t, emotion=rng.uniform(0, 100), feedback=rng.randint(1, 5)) for t in d.turns))
        for d in cases
    ]
    assert select(cases) == select(moved)


def test_limits_and_order():
    cases = [dialogue for dialogue, _ in planted(2)]
    every, top = select(cases), select(cases, top=5)
    assert len(top) == 5 and set(top) <= set(every)
    place = {dialogue.id: number for number, dialogue in enumerate(cases)}
    assert [place[pivot.dialogue_id] for pivot in every] == sorted(place[pivot.dialogue_id] for pivot in every)
    for pivot in every:
        turns = cases[place[pivot.dialogue_id]].turns
        assert turns[pivot.turn].speaker == "supporter" and turns[pivot.turn - 1].speaker == "seeker"


def test_what_cannot_be_read_is_said_so(caplog):
    chinese = Dialogue("zh", (Turn("seeker", "我很难过"), Turn("supporter", "怎么了"), Turn("seeker", "谢谢你")))
    assert not readable(chinese)
    assert select([chinese]) == []
    assert "1 of 1 dialogues are not English" in caplog.text
    assert select([Dialogue("empty", ())]) == []


def given(*texts: str, first: str = "seeker") -> tuple[Turn, ...]:
    pair = ("seeker", "supporter") if first == "seeker" else ("supporter", "seeker")
    return tuple(Turn(pair[i % 2], text) for i, text in enumerate(texts))


def test_histories_end_with_the_seeker_whoever_opens():
    talks = [Dialogue("a", given("Hi?", "s1", "r1", "s2", first="supporter")), Dialogue("b", given("s1", "r1", "s2"))]
    pivots = [PivotalTurn("a", 0, 0.0, 1.0, "opens"), PivotalTurn("a", 2, 0.0, 1.0, "second")]
    found = [(name, [turn.text for turn in history]) for name, history in histories_of(talks, pivots, 9)]
    assert found == [("a", ["Hi?", "s1"]), ("b", ["s1"])]  # turn 0 follows nothing; the opening of a is there already
    assert len(histories_of(talks, [], 1)) == 1


def test_emotions_by_exchange_and_none_for_a_corpus():
    felt = (Turn("seeker", "s1", emotion=30.0), Turn("supporter", "r1"), Turn("seeker", "s2", emotion=34.0))
    assert emotions(Dialogue("a", felt)) == [30.0, 34.0]
    opened = Dialogue("b", (Turn("supporter", "Hi?"), *felt, Turn("supporter", "Bye.")))
    assert emotions(opened) == [30.0, 34.0] and len(exchanges(opened.turns)) == 2
    assert np.isnan(emotions(Dialogue("c", given("s1", "r1", "s2")))).all()
    assert histories_of([Dialogue("a", felt)], [PivotalTurn("a", 1, 0, 1, "")], 1)[0][1] == (Turn("seeker", "s1"),)


def test_levels_of_a_language_we_cannot_read_are_unknown():
    talk = Dialogue("zh", (Turn("seeker", "我很难过。"), Turn("supporter", "嗯。"), Turn("seeker", "好一点了。")))
    assert np.isnan(levels(talk)).tolist() == [True, True]
