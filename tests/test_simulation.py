"""What the judge is given: words only; and what the record keeps: the truth."""

from dataclasses import replace

import numpy as np
import pytest

from rapo_lib.dialogue import ADVICE, Dialogue, Turn, load_profiles, opening_history
from rapo_lib.feedback import CandidateGroup, EmbeddedJudge, Verdict
from rapo_lib.judge.reading import read_batch, ridge
from rapo_lib.seeker import AppraisalSeeker, ProbeSeeker, probe_reply
from rapo_lib.simulation import SimulatedFeedback, rollouts_of, row_history, training_row

PERSON = load_profiles("train")[0]
HISTORY = (Turn("seeker", PERSON.opening, emotion=37.0),)
ROW = training_row(PERSON, HISTORY)


class Recorder:
    """A judge that keeps what it was shown."""

    def __init__(self):
        self.groups = []

    def compare_batch(self, groups):
        self.groups += groups
        return [Verdict((1.0, 0.0), ("good", "bad"), g.reactions, (0, 1)) for g in groups]


def ask(reactions=True, watch=None):
    judge = Recorder()
    feedback = SimulatedFeedback(ProbeSeeker(), judge, {PERSON.id: PERSON}, reactions=reactions, watch=watch)
    verdicts = feedback([ROW, ROW], [(probe_reply(HISTORY), "No."), ("No.", "Well.")])
    return judge, verdicts


def test_rows_hold_words_and_no_emotion_or_profile_text():
    assert row_history(ROW) == (Turn("seeker", PERSON.opening),)
    said = str(ROW)
    assert "37" not in said and PERSON.need not in said and PERSON.theme not in said


def test_the_judge_sees_words_only():
    judge, verdicts = ask()
    assert len(verdicts) == 2 and len(judge.groups) == 2
    for group in judge.groups:
        assert all(t.emotion is None for t in group.history)
        assert all(isinstance(r, str) for r in group.reactions)


def test_without_reactions_the_judge_gets_none_and_the_record_keeps_the_truth():
    watched = []
    judge, _ = ask(reactions=False, watch=watched.append)
    assert all(g.reactions is None for g in judge.groups)
    assert len(watched) == 4 and all(w.reaction is None for w in watched)
    assert watched[0].emotion > watched[1].emotion
    assert watched[0].before == PERSON.start and watched[0].emotion > watched[0].before


def test_the_same_replies_get_the_same_reactions_in_any_order():
    judge, _ = ask()
    turned = Recorder()
    feedback = SimulatedFeedback(ProbeSeeker(), turned, {PERSON.id: PERSON})
    feedback([ROW], [("No.", probe_reply(HISTORY))])
    assert judge.groups[0].reactions == turned.groups[0].reactions[::-1]


def test_dialogues_become_rollouts_where_the_emotion_is_known():
    felt = (Turn("seeker", "s1", emotion=30.0), Turn("supporter", "r1"), Turn("seeker", "s2", emotion=34.0))
    unknown = (*felt, Turn("supporter", "r2"), Turn("seeker", "s3"))
    (found,) = rollouts_of([Dialogue("p", unknown)])
    assert (found.profile, found.reply, found.reaction, found.before, found.emotion) == ("p", "r1", "s2", 30.0, 34.0)
    assert found.history == felt[:1]


@pytest.mark.parametrize("bank", ["a", "b"])
def test_the_same_advice_gets_opposite_critiques_from_opposite_people(bank):
    person = next(p for p in load_profiles("dev") if p.id == "dev-006")
    history, replies = opening_history(person), ("You should write down three options and pick one tomorrow.", "I see.")
    said, felt = {}, {}
    for advice in ("heard_first", "wants_plan"):
        one = replace(person, advice=advice)
        told = AppraisalSeeker(bank).react_batch([(one, history, reply, 0) for reply in replies])
        verdict = EmbeddedJudge().compare(CandidateGroup(history, replies, tuple(r.text for r in told)))
        said[advice], felt[advice] = verdict.critiques[0], told[0].emotion - person.start
    assert felt["heard_first"] < -2 and felt["wants_plan"] > 1
    assert "before they felt understood" in said["heard_first"]
    assert said["wants_plan"].startswith("Your advice was something they can use. Keep")


PROBES = (  # what to say to somebody to learn how they take it
    "You should make a plan and start with one small step tomorrow.",
    "I'm sure it will all turn out fine in the end.",
    "What has been the hardest part of this for you?",
    "So this has been weighing on you for a while now, and you are left alone with it.",
)


def told_to_probes(people, bank):
    """Relief read in each person's reactions (n, 4), and the true changes."""
    items = [(p, opening_history(p), probe, 0) for p in people for probe in PROBES]
    reactions = AppraisalSeeker(bank).react_batch(items)
    read = read_batch([(h, probe, r.text) for (_, h, probe, _), r in zip(items, reactions, strict=True)])
    felt = [r.emotion - p.start for (p, *_), r in zip(items, reactions, strict=True)]
    return np.reshape([r.relief for r in read], (-1, len(PROBES))), np.reshape(felt, (-1, len(PROBES)))


@pytest.mark.slow
def test_what_people_need_can_be_told_from_what_they_say():
    known, strangers = load_profiles("train") + load_profiles("dev"), load_profiles("heldout")
    target = np.array([[p.advice == advice for advice in ADVICE] for p in known], dtype=float)
    needs = [p.advice for p in strangers]

    def hits(shown, asked):
        scale = [np.c_[(x - shown.mean(0)) / shown.std(0), np.ones(len(x))] for x in (shown, asked)]
        guess = (scale[1] @ ridge(scale[0], target, 3.0)).argmax(1)
        return np.mean([ADVICE[i] == need for i, need in zip(guess, needs, strict=True)])

    (words, truth), (asked, felt) = told_to_probes(known, "a"), told_to_probes(strangers, "a")
    most = max(needs.count(advice) for advice in ADVICE) / len(needs)
    assert hits(truth, felt) > 0.75  # four replies are enough for one who knew the feelings
    assert hits(words, asked) > most + 0.15  # and most of it is in the words
