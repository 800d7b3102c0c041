"""Naive judges: they learn what they were shown, and nothing else."""

import pytest

from rapo_lib.dialogue import Turn
from rapo_lib.feedback import CandidateGroup
from rapo_lib.judge.naive import fit_bag_of_words, fit_templates, length_judge, template
from rapo_lib.runs import RapoError

HISTORY = (Turn("seeker", "My exam is on Friday."),)
KNOWN = ["Yes, that is it.", "No, not at all.", "I see."]
CHANGES = [6.0, -4.0, 0.0]


def ranked(judge, *reactions):
    group = CandidateGroup(HISTORY, tuple(f"reply {i}" for i in range(len(reactions))), reactions)
    (verdict,) = judge.compare_batch([group])
    return verdict


def test_a_bag_of_words_learns_which_words_go_with_relief():
    judge = fit_bag_of_words(KNOWN * 10, CHANGES * 10, [f"p{i}" for i in range(30)])
    assert ranked(judge, "Not at all!", "That is it, yes.", "I see that.").ranking == (1, 2, 0)
    assert judge.merit("Quite another vocabulary") == pytest.approx(sum(CHANGES) / 30)  # knows no word: the mean
    with pytest.raises(RapoError, match="two people"):
        fit_bag_of_words(KNOWN, CHANGES, ["p0"] * 3)


def test_templates_remember_the_mean_by_hand_and_know_no_other_wording():
    judge = fit_templates([*KNOWN, "Yes, that is it. My cat died."], [*CHANGES, 2.0])
    assert judge.merit("yes that is it!") == pytest.approx(0.4)  # (6 + 2) / 2 points of 10
    assert judge.merit("Yes, that is it. No, not at all.") == pytest.approx((0.4 - 0.4) / 2)
    assert judge.merit("That's exactly right.") == pytest.approx(0.1)  # never seen: the mean of all four changes
    assert template("That’s it, then!") == "that's it then"


def test_length_counts_words_and_silence_is_abstained_on():
    assert ranked(length_judge(), "One two.", "One two three.", "One.").ranking == (1, 0, 2)
    (verdict,) = length_judge().compare_batch([CandidateGroup(HISTORY, ("a", "b"))])
    assert verdict.scores is None and verdict.status.startswith("abstained")
