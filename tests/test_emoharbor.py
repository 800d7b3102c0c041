"""The EmoHarbor-style user: every dimension by hand, endings, invariances, and replies written for somebody else."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapo_lib.chat import Failure
from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.measures.emoharbor import (
    DIMENSIONS,
    JUDGES,
    EmbeddedUser,
    Felt,
    Judgement,
    Life,
    Moment,
    scores,
    scores_table,
    stays,
    stays_table,
)
from rapo_lib.measures.probes import listen, probe_policy
from rapo_lib.person.appraisal import first_mood
from rapo_lib.person.perception import ACT_FIELDS, Perception, faulty
from rapo_lib.seeker import AppraisalSeeker

PERSON = replace(load_profiles("dev")[0], advice="heard_first", voice="plain", start=40)
SAID = (Turn("seeker", "Tibbles died in the garden."), Turn("supporter", "Oh."), Turn("seeker", "We buried him."))


def acts(**values):
    return Perception(**dict.fromkeys((*ACT_FIELDS, "stock", "relevance", "repeats"), 0.0) | {"fault": ""} | values)


def life(*felt, person=PERSON, turns=None, **mood):
    """A life of these (acts, causes); `mood` is how the last of it leaves this person."""
    turns = turns or (SAID[0], *(SAID[1:] * len(felt)))
    moods = [first_mood(person)] * (len(felt) - 1) + [replace(first_mood(person), **mood)]
    return Life(person, turns, tuple(Felt(a, c, m) for (a, c), m in zip(felt, moods, strict=True)))


def score(name, lived):
    return scores(lived)[name]


# ------------------------------------------------------------------------------------- dimensions by hand


def test_ten_dimensions():
    assert list(JUDGES) == list(DIMENSIONS) and len(DIMENSIONS) == 10


def test_understood():
    lived = life((acts(understands=0.5), {}), (acts(understands=0.5, stock=0.5), {}))
    assert score("understood", lived) == 4.0  # (0.5 + 0.25) / 2 / 0.5 = 0.75


def test_particular():
    assert score("particular", life((acts(relevance=0.75), {}), (acts(relevance=0.15), {}))) == 3.0  # 0.3 / 0.6
    assert score("particular", life((acts(relevance=0.75, repeats=1.0), {}))) == 1.0


@pytest.mark.parametrize(("reply", "expected"), [("You found Tibbles.", 5.0), ("You buried him.", 1.0)])
def test_remembered(reply, expected):
    lived = life((acts(), {}), (acts(), {}), turns=(*SAID, Turn("supporter", reply)))
    assert score("remembered", lived) == expected


def test_theme():
    own = (*SAID[:1], Turn("supporter", PERSON.theme))
    assert score("theme", life((acts(), {}), turns=own)) == 5.0
    weather = (*SAID[:1], Turn("supporter", "It rained in Lisbon on Tuesday."))
    assert score("theme", life((acts(), {}), turns=weather)) < 3.0
    half = (*own, Turn("seeker", "Yes."), Turn("supporter", "..."))
    assert score("theme", life((acts(), {}), (faulty("empty"), {}), turns=half)) == 1.0  # 1 of 2: (0.5 - 0.5) / 0.4


def test_drawn_out():
    assert len(PERSON.disclosures) == 2
    told = (*SAID, Turn("supporter", "Why?"), Turn("seeker", f"Well. {PERSON.disclosures[0].text}"))
    lived = life((acts(), {}), (acts(), {}), turns=told, reached=((0, 0), (1, 3)))
    assert score("drawn_out", lived) == 4.0  # one told, one reached: (1 + 0.5) / 2
    assert score("drawn_out", life((acts(), {}))) == 1.0


def test_acknowledged():
    lived = life((acts(validates=0.25), {}), (acts(dismisses=0.4), {}))
    assert score("acknowledged", lived) == 3.0  # 0.4 + 0.6 * 0.5 - 0.5 * 0.4
    assert score("acknowledged", life((acts(dismisses=1.0), {}))) == 1.0


def test_advice_depends_on_who_gets_it():
    given_twice = (acts(suggests=1.0), {"advice": 6.0}), (acts(suggests=1.0), {"advice_again": -2.5})
    planner = replace(PERSON, advice="wants_plan")
    assert score("advice", life(*given_twice, person=planner)) == 3.0  # 6 / 8 - 2.5 / 10
    assert score("advice", life((acts(), {}), person=planner)) == 1.0
    assert score("advice", life((acts(), {}))) == 4.0  # none is fine: 0.75
    assert score("advice", life((acts(suggests=1.0), {"advice_early": -7.0}))) == 1.2  # 0.75 - 0.7


def test_manner():
    assert score("manner", life((acts(), {"reassurance": -3.0}), (acts(), {"questioned": -1.0}))) == 3.0  # 1 - 4 / 8
    assert score("manner", life((acts(), {}), (faulty("empty"), {"empty": -2.5}))) == 3.0  # half of it no reply


def test_genuine():
    assert score("genuine", life((acts(stock=0.25), {}), (acts(repeats=0.75), {}))) == 3.0  # (0.75 + 0.25) / 2
    assert score("genuine", life((faulty("garbled"), {}))) == 1.0


def test_lighter():
    trust = first_mood(PERSON).trust
    lived = life((acts(), {}), emotion=60.0, trust=trust + (0.8 - trust) / 2)
    assert score("lighter", lived) == 3.0  # half of 40 points and half of the trust
    assert score("lighter", life((acts(), {}), emotion=100.0, trust=1.0)) == 5.0


def test_no_reply_at_all_is_the_lowest_in_everything():
    assert set(scores(life((faulty("empty"), {"empty": -2.5}), (faulty("parrot"), {"parrot": -3.0}))).values()) == {1.0}


strength = st.floats(0, 1)


@settings(max_examples=25, deadline=None)
@given(st.builds(acts, **dict.fromkeys((*ACT_FIELDS, "stock", "relevance", "repeats"), strength)), strength)
def test_scores_stay_on_the_scale_and_understanding_never_hurts(a, more):
    better = replace(a, understands=max(a.understands, more))
    low, high = (scores(life((x, {"questioned": -3.0}))) for x in (a, better))
    assert all(1.0 <= value <= 5.0 for value in low.values())
    assert all(high[name] >= low[name] for name in DIMENSIONS)


# ------------------------------------------------------------------------------------------------ talking


class Stub:
    """A user whose emotion moves by a fixed step, and whose judgement is always 3."""

    def __init__(self, step):
        self.step = step

    def live(self, items):
        moments = []
        for _, history, reply, _ in items:
            moments.append(Moment(reply, "heard", "So.", history[-1].emotion + self.step))
        return moments

    def judge(self, talks):
        return [Judgement(dict.fromkeys(DIMENSIONS, 3.0)) for _ in talks]


@pytest.mark.parametrize(
    ("step", "ended", "turns"), [(20.0, "relieved", 2), (-16.0, "overwhelmed", 2), (1.0, "turns", 5)]
)
def test_people_leave_when_relieved_or_overwhelmed(step, ended, turns):
    people = [replace(PERSON, id="a", start=40), replace(PERSON, id="b", start=40)]
    asked = []

    def policy(histories, seed):
        asked.append(len(histories))
        return ["Yes?"] * len(histories)

    found = stays(policy, people, Stub(step), turns=5)
    assert [(s.ended, len(s.moments)) for s in found] == [(ended, turns)] * 2 and asked == [2] * turns
    assert scores_table(found).overall.tolist() == [3.0, 3.0]
    assert stays_table(found).end.tolist() == [40 + turns * step] * 2


def test_a_user_or_a_policy_that_fails_ends_that_talk_only():
    class Losing(Stub):
        def live(self, items):
            return [
                replace(m, status="feels: refused", emotion=math.nan) if p.id == "b" else m
                for m, (p, *_) in zip(super().live(items), items, strict=True)
            ]

    people = [replace(PERSON, id=name) for name in "abc"]

    def policy(histories, seed):
        return [Failure("HTTP 500") if i == 2 else "Yes?" for i in range(len(histories))]

    found = {s.profile.id: s for s in stays(policy, people, Losing(1.0), turns=3)}
    assert found["a"].ended == "turns" and found["a"].judgement.scores
    assert found["b"].failed == "user: feels: refused" and found["c"].failed == "HTTP 500"
    assert all(found[name].judgement.scores is None for name in "bc")


def test_a_judgement_is_a_function_of_the_words():
    person = load_profiles("train")[1]
    user, seeker = EmbeddedUser(), AppraisalSeeker()
    (stay,) = stays(lambda h, seed: probe_policy("stock_phrases", h), [person], user, turns=3)
    blind = [Turn(t.speaker, t.text, emotion=None if t.emotion is None else 99.0) for t in stay.turns]
    assert user.judge([(person, blind, ())])[0] == stay.judgement
    assert stay.moments[-1].emotion == seeker.emotion(person, stay.turns)
    assert all(m.perceived for m in stay.moments)


def test_replies_written_for_somebody_else_support_less():
    people = load_profiles("heldout")[:39:13]
    others = dict(zip((p.opening for p in people), [*people[1:], people[0]], strict=True))

    def misplaced(histories, seed):
        """What the listener would say to another person at the same point of their story."""
        replies = []
        for h in histories:
            other = others[h[0].text]
            told = (other.opening, *other.details)[min(sum(t.speaker == "supporter" for t in h), len(other.details))]
            opening = Turn("seeker", other.opening)
            replies.append(listen((opening,) if told == other.opening else (opening, Turn("seeker", told))))
        return replies

    own = scores_table(stays(lambda h, seed: [listen(x) for x in h], people, EmbeddedUser(), turns=3))
    moved = scores_table(stays(misplaced, people, EmbeddedUser(), turns=3))
    lost = own.set_index("profile")[[*DIMENSIONS, "overall"]] - moved.set_index("profile")[[*DIMENSIONS, "overall"]]
    assert (lost.overall > 0.3).all(), lost.round(1).to_string()
    assert isinstance(lost, pd.DataFrame) and lost[["understood", "particular", "lighter"]].mean().min() > 0.8
