"""What the judge is given: words only; and what the record keeps: the truth."""

from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.feedback import Verdict
from rapo_lib.seeker import ProbeSeeker, probe_reply
from rapo_lib.simulation import SimulatedFeedback, row_history, training_row

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
