"""The table of policies by hand, and going on from histories that somebody else began."""

import pandas as pd
import pytest

from rapo_lib.cast import Cast
from rapo_lib.dialogue import Dialogue, Turn, load_profiles, opening_history
from rapo_lib.evaluation import outcomes, play_on, self_play, trajectories
from rapo_lib.foresight.comparison import halfway, outcomes_from, side_by_side
from rapo_lib.seeker import ProbeSeeker, probe_reply

PEOPLE = load_profiles("train")[:3]


def best(histories, seed):
    return [probe_reply(h) for h in histories]


def begun(person, exchanges=2):
    """A history in which two supporter turns have hurt the probe seeker."""
    turns = [Turn("seeker", person.opening)]
    for _ in range(exchanges):
        turns += [Turn("supporter", "Cheer up."), Turn("seeker", "You do not hear me, my landlord is awful.")]
    return tuple(turns)


def test_side_by_side_by_hand() -> None:
    rows = [
        ("rlff", "appraisal", "a", True, 3, 40.0),
        ("rlff", "appraisal", "b", False, 8, 10.0),
        ("warm_start", "appraisal", "a", False, 8, 0.0),
        ("warm_start", "appraisal", "b", False, 8, 10.0),
    ]
    table = side_by_side(pd.DataFrame(rows, columns=["arm", "seeker", "profile", "success", "turns", "gained"]))
    first = table.iloc[0]
    assert list(table.arm) == ["rlff", "warm_start"] and first.people == 2
    assert (first.success, first.turns, first.gained) == (0.5, 5.5, 25.0)
    assert first.success_low < 0.5 < first.success_high and table.iloc[1].gained == 5.0


def test_a_dialogue_goes_on_from_what_its_history_did_to_the_seeker() -> None:
    seeker = ProbeSeeker()
    dialogues = play_on(best, [(p, begun(p)) for p in PEOPLE], seeker, turns=2)
    for d, person in zip(dialogues, PEOPLE, strict=True):
        assert d.turns[:4] == begun(person)[:4] and len(d.turns) == 5 + 4
        assert [t.emotion is not None for t in d.turns] == [False] * 4 + [True, False, True, False, True]
    table = outcomes(dialogues)
    assert table.start.tolist() == [p.start - 8.0 for p in PEOPLE] and table.gained.tolist() == [12.0] * 3
    assert trajectories(dialogues).groupby("profile").turn.max().tolist() == [2] * 3


def test_self_play_is_going_on_from_the_opening() -> None:
    openings = [(p, opening_history(p)) for p in PEOPLE]
    assert play_on(best, openings, ProbeSeeker(), turns=2) == self_play(best, PEOPLE, ProbeSeeker(), turns=2)


def test_histories_of_a_corpus_stop_at_the_middle_after_the_seeker() -> None:
    person = PEOPLE[0]
    talk = Dialogue(person.id, (Turn("supporter", "Hello."), *begun(person, 3)))  # eight turns
    ((found, history),) = halfway(Cast(people=(person,), dialogues=(talk,)))
    assert found is person and history == talk.turns[:4] and history[-1].speaker == "seeker"
    table = outcomes_from(best, [(found, history)], {"probe": ProbeSeeker()}, turns=3)
    assert table.seeker.tolist() == ["probe"] and table.gained[0] == pytest.approx(18.0)
