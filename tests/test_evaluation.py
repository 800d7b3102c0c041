"""Self-play, outcomes and comparisons on probe policies, with the probe seeker and hand-made dialogues."""

import pandas as pd
import pytest

from rapo_lib.dialogue import Dialogue, Turn, load_profiles
from rapo_lib.evaluation import (
    QUALITY,
    asks_for_advice,
    assess,
    critic_outcomes,
    distinct,
    outcomes,
    reply_metrics,
    reply_quality,
    self_deception,
    self_play,
    success_at,
    trajectories,
    win_rates,
)
from rapo_lib.feedback import Verdict
from rapo_lib.lm.critic import Assessment
from rapo_lib.seeker import AppraisalSeeker, ProbeSeeker, probe_reply

PEOPLE = load_profiles("dev")[:3]


def best(histories, seed):
    return [probe_reply(h) for h in histories]


def silent(histories, seed):
    return ["..." for _ in histories]


def test_self_play_alternates_and_carries_the_truth():
    dialogues = self_play(best, PEOPLE, ProbeSeeker(), turns=3)
    for d, person in zip(dialogues, PEOPLE, strict=True):
        assert [t.speaker for t in d.turns] == ["seeker", "supporter"] * 3 + ["seeker"]
        assert d.turns[0].emotion == person.start and d.id == person.id
        assert all((t.emotion is None) == (t.speaker == "supporter") for t in d.turns)


def test_the_best_reply_gains_and_silence_does_not():
    good, bad = (outcomes(self_play(p, PEOPLE, ProbeSeeker(), turns=4)) for p in (best, silent))
    assert (good.gained > 0).all() and (bad.gained <= 0).all()


def test_a_policy_is_asked_in_one_batch_a_turn():
    calls = []

    def counted(histories, seed):
        calls.append(len(histories))
        return best(histories, seed)

    self_play(counted, PEOPLE, ProbeSeeker(), turns=2)
    assert calls == [3, 3]


def test_outcomes_by_hand():
    felt = [35, 45, 71, 66]
    turns = [t for e in felt for t in (Turn("seeker", "x", emotion=e), Turn("supporter", "y"))][:-1]
    row = outcomes([Dialogue("p", tuple(turns))]).iloc[0]
    assert (row.start, row.end, row.gained, row.success, row.turns) == (35, 66, 31, True, 2)
    failed = outcomes([Dialogue("p", tuple(turns))], success=90).iloc[0]
    assert not failed.success and failed.turns == 3
    assert trajectories([Dialogue("p", tuple(turns))]).emotion.tolist() == felt


def test_what_replies_do():
    said = [
        Turn("seeker", "My landlord is selling the flat and we have eight weeks to get out with two kids."),
        Turn("supporter", "You should call an estate agent tomorrow and make a list of cheap flats."),
        Turn("seeker", "I know, I know. I just feel sick whenever a viewing is booked."),
        Turn("supporter", "What goes through your mind when another viewing is booked?"),
        Turn("seeker", "That my kids will remember this. What should I do?"),
        Turn("supporter", "You could ask the council about your rights as a tenant this week."),
    ]
    table = reply_metrics([Dialogue("p", tuple(said))])
    assert table.suggestion.tolist() == [True, False, True]
    assert table.premature.tolist() == [True, False, False]  # the last one was asked for
    assert table.question.tolist() == [False, True, False] and table.turn.tolist() == [1, 2, 3]


@pytest.mark.parametrize(("words", "asked"), [("What should I do?", True), ("Nobody asks what I want.", False)])
def test_asking_for_advice(words, asked):
    assert asks_for_advice([Turn("seeker", words)]) is asked


def test_distinct_by_hand():
    assert distinct(["a b a b"]) == pytest.approx(2 / 3)  # ab, ba, ab
    assert distinct([]) == 0.0


class LongerWins:
    def compare_batch(self, groups):
        return [Verdict(tuple(float(len(r)) for r in g.replies), ("", ""), g.reactions, (0, 1)) for g in groups]


def test_win_rates_do_not_depend_on_the_shuffled_order():
    asked = [(p.id, [Turn("seeker", p.opening)]) for p in PEOPLE] * 6
    people = {p.id: p for p in PEOPLE}
    ours = ["What is the hardest part of this for you, and since when?"] * len(asked)
    table = win_rates(LongerWins(), AppraisalSeeker(), people, asked, ours, ["No."] * len(asked), seed=3)
    assert table.win.eq(1.0).all() and isinstance(table, pd.DataFrame)
    swapped = win_rates(LongerWins(), AppraisalSeeker(), people, asked, ["No."] * len(asked), ours, seed=3)
    assert swapped.win.eq(0.0).all() and (swapped.true_win + table.true_win).eq(1.0).all()


def test_a_judge_that_hears_nothing_is_shown_no_reactions():
    asked = [(p.id, [Turn("seeker", p.opening)]) for p in PEOPLE]
    people, shown = {p.id: p for p in PEOPLE}, []

    class Watching(LongerWins):
        def compare_batch(self, groups):
            shown.extend(groups)
            return super().compare_batch(groups)

    args = (Watching(), ProbeSeeker(), people, asked, ["What hurts?"] * 3, ["No."] * 3)
    deaf, hearing = win_rates(*args, hears=False), win_rates(*args)
    assert all(g.reactions is None for g in shown[:3]) and all(len(g.reactions) == 2 for g in shown[3:])
    assert deaf.equals(hearing)  # this judge does not listen; the truth is the same


def test_self_deception_by_hand():
    wins = pd.DataFrame({"win": [1.0, 1.0, 0.5, float("nan")], "true_win": [0.0, 1.0, 0.5, 1.0]})
    assert self_deception(wins).tolist()[:3] == [1.0, 0.0, 0.0] and self_deception(wins).isna()[3]


def test_success_at_other_thresholds_by_hand():
    felt = pd.DataFrame({"arm": "x", "profile": ["p"] * 4 + ["q"] * 4, "turn": [0, 1, 2, 3] * 2,
                         "emotion": [35, 62, 71, 66, 40, 41, 39, 59]})  # fmt: skip
    found = success_at(felt).set_index(["profile", "threshold"])
    assert found.loc["p"].success.tolist() == [True, True, False, False]
    assert found.loc["p"].turns.tolist() == [1, 2, 3, 3]  # failures count as all
    assert not found.loc["q"].success.any() and set(found.arm) == {"x"}
    same = success_at(felt, [70.0]).success
    assert same.tolist() == [True, False]


# -------------------------------------------------------------------------------------- the critic beside the truth


class Listed:
    """A critic that says these values, turn after turn, to everybody, and keeps what it was shown."""

    def __init__(self, values):
        self.values, self.shown = values, []

    def assess_batch(self, talks):
        self.shown.append(talks)
        place = [sum(t.speaker == "supporter" for t in turns) - 1 for _, turns in talks]
        return [Assessment(self.values[p], {}, 0) for p in place]


def talk(name, felt):
    turns = [t for e in felt for t in (Turn("seeker", "x", emotion=e), Turn("supporter", "y"))][:-1]
    return Dialogue(name, tuple(turns), situation="A cat died.")


def test_the_critic_ends_a_dialogue_where_it_says_solved():
    critic = Listed([-0.5, 0.6, 0.9])
    found = assess([talk("p", [35, 45, 71, 66]), talk("q", [35, 30])], critic)
    assert found[["profile", "turn", "value", "emotion"]].values.tolist() == [
        ["p", 1, -0.5, 45],
        ["q", 1, -0.5, 30],
        ["p", 2, 0.6, 71],
    ]
    assert [len(talks) for talks in critic.shown] == [2, 1] and critic.shown[0][0][0] == "A cat died."
    assert all(t.emotion is None for talks in critic.shown for _, turns in talks for t in turns), "it saw the truth"
    ends = critic_outcomes(found, turns=8).set_index("profile")
    assert ends.loc["p"].to_dict() == {
        "critic_success": True, "critic_turns": 2, "agrees": True, "tau": 1.0, "abstained": 0.0}  # fmt: skip
    assert not ends.critic_success["q"] and ends.critic_turns["q"] == 8 and ends.agrees["q"]


def test_a_critic_that_abstains_or_errs_is_counted():
    ends = critic_outcomes(assess([talk("p", [35, 45, 50])], Listed([None, 0.9])), turns=2).iloc[0]
    assert ends.abstained == 0.5 and ends.critic_success and not ends.agrees and pd.isna(ends.tau)
    backwards = critic_outcomes(assess([talk("p", [35, 45, 50, 55])], Listed([0.2, 0.1, -0.3])), turns=3).iloc[0]
    assert backwards.tau == -1.0 and backwards.agrees  # both say: not solved


def test_reply_quality_by_hand():
    row = dict.fromkeys((*QUALITY, "fluency"), 0.0) | {"suggestion": False, "words": 4}
    rows = [
        {**row, "profile": "p", "turn": 1, "reply": "a b a b", "specificity": 0.2},
        {**row, "profile": "p", "turn": 2, "reply": "c d", "suggestion": True, "words": 2, "specificity": 0.6},
        {**row, "profile": "q", "turn": 1, "reply": "a b", "specificity": 0.9},
    ]
    found = reply_quality(pd.DataFrame(rows))
    assert found["specificity"].mean == pytest.approx((0.4 + 0.9) / 2) and found["specificity"].n == 2
    assert found["suggestion"].mean == 0.25 and found["words"].mean == 3.5
    assert (found["first suggestion"].mean, found["first suggestion"].n) == (2.0, 1)
    assert found["distinct-2"].mean == pytest.approx((3 / 4 + 1) / 2)  # p: ab, ba, ab, cd
