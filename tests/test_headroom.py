"""Headroom by hand: spread, pairs out of order, what choosing is worth, whether acts depend on the history."""

import math
from dataclasses import fields

import pandas as pd
import pytest

from rapo_lib.dialogue import Turn, load_profiles, opening_history
from rapo_lib.feedback import CandidateGroup, Verdict
from rapo_lib.measures import headroom
from rapo_lib.person.perception import Perception
from rapo_lib.seeker import ProbeSeeker, probe_reply


class Scripted:
    """Gives each group the next scores of a list; None is an abstention."""

    def __init__(self, *scores):
        self.scores = scores

    def compare_batch(self, groups):
        return [
            Verdict(s, ("",) * len(g.replies), None, tuple(range(len(g.replies))))
            for g, s in zip(groups, self.scores, strict=True)
        ]


GROUPS = [
    CandidateGroup((Turn("seeker", "s"),), ("a", "b", "c")),
    CandidateGroup((Turn("seeker", "t"),), ("d", "e", "f")),
]
TRUTH = [[0.0, 2.0, 4.0], [-3.0, -3.0, 3.0]]


@pytest.fixture
def table():
    judges = {"good": Scripted((0.1, 0.2, 0.9), (0.0, 0.1, 0.5)), "poor": Scripted((0.9, 0.1, 0.1), None)}
    return headroom.judged(judges, GROUPS, TRUTH, ["p", "q"])


def test_judged_groups_lie_side_by_side(table):
    assert list(table.columns) == ["group", "profile", "place", "reply", "truth", "good", "poor"]
    assert list(table.reply) == list("abcdef") and list(table.truth) == [0.0, 2.0, 4.0, -3.0, -3.0, 3.0]
    assert table[table.group == 1].poor.isna().all()


def test_taus_by_hand(table):
    found = headroom.taus(table, ["good", "poor"]).set_index(["judge", "group"]).tau
    assert found["good", 0] == pytest.approx(1.0)
    assert found["good", 1] == pytest.approx(2 / math.sqrt(3 * 2))  # two pairs agree, the third is tied by the truth
    assert found["poor", 0] == pytest.approx(-2 / math.sqrt(2 * 3))
    assert ("poor", 1) not in found
    agreed = headroom.rank_agreement(table, ["good", "poor"]).set_index("judge")
    assert agreed.people["good"] == 2 and agreed.groups["poor"] == 1 and math.isnan(agreed.low["poor"])


def test_pairs_in_the_wrong_order_by_hand(table):
    wrong = headroom.misordered(table, "poor")
    assert list(wrong.group) == [0] and wrong.pairs[0] == 3
    assert wrong.share[0] == pytest.approx((1 + 1 + 0.5) / 3)  # a over b, a over c, and b tied with c
    assert list(headroom.misordered(table, "good").share) == [0.0, 0.0]
    assert list(headroom.misordered(table, "good").pairs) == [3, 2]


def test_spread_by_hand(table):
    found = headroom.spread(table)
    assert list(found["range"]) == [4.0, 6.0]
    assert list(found.sd) == pytest.approx([math.sqrt(8 / 3), math.sqrt(8)])


def test_choices_by_hand(table):
    chosen = headroom.choices(table, ["good", "poor"]).pivot(index="group", columns="arm", values="change")
    assert chosen.loc[0].to_dict() == {"good": 4.0, "oracle": 4.0, "poor": 0.0, "random": 2.0}
    assert chosen.loc[1].to_dict() == {"good": 3.0, "oracle": 3.0, "poor": -1.0, "random": -1.0}
    gained = headroom.worth(headroom.choices(table, ["good", "poor"])).set_index("arm")["mean"]
    assert gained.to_dict() == pytest.approx({"good": 3.0, "poor": -1.0, "oracle": 3.0})


def test_a_shared_first_place_counts_with_its_mean():
    table = headroom.judged({"flat": Scripted((0.5, 0.5, 0.1))}, GROUPS[:1], TRUTH[:1], ["p"])
    reached = headroom.choices(table, ["flat"]).set_index("arm").change
    assert reached["flat"] == pytest.approx(1.0)


def test_the_truth_comes_from_the_seeker():
    asked = [(p, opening_history(p)) for p in load_profiles("dev")[:2]]
    replies = [(probe_reply(h), "You should sleep more.") for _, h in asked]
    groups, changes = headroom.reacted(ProbeSeeker(), asked, replies)
    assert changes == [[6.0, -4.0], [6.0, -4.0]]
    assert all(g.reactions[0].startswith("Thank you for asking") for g in groups)


def acts_table(best):
    """Two people, two histories each, four replies: act `best[person]` gains 2 there, the other loses 2."""
    rows = []
    for number, person in enumerate(sorted(best) * 2):
        for place in range(4):
            act = "question" if place < 2 else "advice"
            rows.append((number, person, place, 2.0 if act == best[person] else -2.0, act))
    return pd.DataFrame(rows, columns=["group", "profile", "place", "truth", "act"])


def reached(table):
    return headroom.act_choices(table).groupby("arm").change.mean().to_dict()


def test_where_everyone_wants_the_same_the_history_adds_nothing(monkeypatch):
    monkeypatch.setattr(headroom, "FEWEST", 2)
    same = reached(acts_table({"p": "question", "q": "question"}))
    assert same == {"random": 0.0, "context-free": 2.0, "given history": 2.0}
    opposite = reached(acts_table({"p": "question", "q": "advice"}))
    assert opposite == {"random": 0.0, "context-free": -2.0, "given history": 2.0}  # what served the other, hurts here


def test_an_act_needs_enough_replies_to_be_called_best():
    assert reached(acts_table({"p": "question", "q": "question"}))["context-free"] == 0.0


def test_standing_by_act():
    table = acts_table({"p": "question", "q": "question"}).assign(blind=[0.0, 0.0, 0.0, 0.0] * 4)
    found = headroom.seen_by_act(table, ["blind"]).set_index(["who", "act"]).standing
    assert found["truth", "question"] == pytest.approx(2 / 3) and found["truth", "advice"] == pytest.approx(-2 / 3)
    assert found["blind", "question"] == found["blind", "advice"] == 0.0


def heard(fault="", **acts):
    numbers = {f.name: 0.0 for f in fields(Perception) if f.name != "fault"}
    return Perception(**{**numbers, **acts}, fault=fault)


@pytest.mark.parametrize(
    ("acts", "name"),
    [
        (heard(understands=0.6), "reflection"),
        (heard(understands=0.6, asks=0.5, suggests=0.9), "reflection and question"),
        (heard(asks=0.8, suggests=0.7), "open question"),
        (heard(suggests=0.7), "advice"),
        (heard(dismisses=0.49), "little"),
        (heard(fault="garbled", understands=0.9), "no reply"),
    ],
)
def test_main_act(acts, name):
    assert headroom.main_act(acts) == name
