"""The embedded critic: what it says of conversations, and that it reads nothing but words."""

import ast
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rapo_lib
from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.evaluation import self_play
from rapo_lib.foresight.critic import BETTER, SOLVED, WORSE, EmbeddedCritic, estimates, make_critic, state_of, votes
from rapo_lib.lm.critic import SAMPLES, VALUES, assessment
from rapo_lib.runs import RapoError
from rapo_lib.seeker import ProbeSeeker, probe_reply

OPENING = Turn("seeker", "My exam is on Friday and I can't sleep. Everyone will see that I don't belong here.")
ASKED, TOLD = Turn("supporter", "What is it about Friday that frightens you?"), Turn("supporter", "Just relax.")
GLAD = Turn("seeker", "Yes, exactly. You really understand it. I feel lighter already, thank you.")
ANGRY = Turn("seeker", "I didn't ask for that. You're not listening to me at all.")


def value(*turns):
    return EmbeddedCritic().assess_batch([("", turns)])[0].value


def test_relief_is_better_than_anger_and_lasts():
    assert value(OPENING, TOLD, ANGRY) < 0 < value(OPENING, ASKED, GLAD, ASKED, GLAD)
    assert value(OPENING, ASKED, GLAD, ASKED, GLAD) > value(OPENING, ASKED, GLAD)
    assert value(OPENING, TOLD, ANGRY, ASKED, GLAD) > value(OPENING, TOLD, ANGRY, TOLD, ANGRY)


def test_a_conversation_without_an_answer_cannot_be_read():
    for turns in ((), (OPENING,), (OPENING, ASKED), (ASKED, OPENING)[:1]):
        found = EmbeddedCritic().assess_batch([("", turns)])[0]
        assert found.value is None and found.unreadable == 1 and not found.solved


def test_who_begins_and_who_speaks_twice_do_not_matter():
    two = (OPENING, ASKED, Turn("seeker", "Yes, exactly."), Turn("seeker", "You really understand it."))
    one = (OPENING, ASKED, Turn("seeker", "Yes, exactly. You really understand it."))
    assert value(*two) == value(*one)
    assert value(Turn("supporter", ""), GLAD) is not None


def test_reads_words_only():
    rng = random.Random(0)
    talks = self_play(lambda histories, seed: [probe_reply(h) for h in histories], load_profiles("train")[:4],
                      ProbeSeeker(), turns=3)  # fmt: skip
    masked = [[Turn(t.speaker, t.text, emotion=rng.uniform(0, 100), feedback=rng.randint(1, 5)) for t in d.turns]
              for d in talks]  # fmt: skip
    critic = EmbeddedCritic()
    plain = critic.assess_batch([(d.situation, d.turns) for d in talks])
    assert plain == critic.assess_batch([("", turns) for turns in masked])
    assert plain == [critic.assess_batch([(d.situation, d.turns)])[0] for d in talks], "each talk alone says the same"


def test_shares_nothing_with_the_seeker():
    tree = ast.parse((Path(rapo_lib.__file__).parent / "foresight" / "critic.py").read_text("utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if "seeker" in name or "person" in name or "evaluator" in name}


def test_states_by_hand():
    assert [state_of(x) for x in (WORSE - 1, WORSE, BETTER - 0.1, BETTER, SOLVED - 0.1, SOLVED)] == [
        "worse", "same", "same", "better", "better", "solved",
    ]  # fmt: skip


@given(st.floats(-60, 60), st.floats(0, 20))
def test_votes_are_ten_and_never_fall_as_the_change_grows(change, more):
    low, high = assessment(votes(change)), assessment(votes(change + more))
    assert sum(low.votes.values()) == SAMPLES and low.unreadable == 0
    assert -1 <= low.value <= high.value <= 1


def test_extremes_are_unanimous():
    assert assessment(votes(-100.0)).votes["worse"] == SAMPLES and assessment(votes(100.0)).value == VALUES["solved"]


def test_an_unknown_critic_is_an_error():
    assert isinstance(make_critic("embedded", None), EmbeddedCritic)
    for kind in ("human", "lm"):
        with pytest.raises(RapoError, match="critic"):
            make_critic(kind, None)


def test_nothing_asked_nothing_said():
    assert estimates([]) == [] and EmbeddedCritic().assess_batch([]) == []
