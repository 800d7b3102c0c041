"""The judge: what it reads from reactions, how it scores, and whether its critiques are true."""

import ast
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

import rapo_lib
from rapo_lib.corpora import load_dialogues
from rapo_lib.dialogue import Turn
from rapo_lib.encoder import embed
from rapo_lib.feedback import CandidateGroup, EmbeddedJudge, RubricJudge, scores_from
from rapo_lib.judge.reading import features, polarity, read_batch, read_relief, read_rows, ridge, words
from rapo_lib.judge.rubric import fault, questions_before, read_replies, rubric_score
from rapo_lib.measures.outside import rating_table

HISTORY = (Turn("seeker", "My exam is on Friday and I can't sleep. Everyone will see that I don't belong here."),)
ADVICE = "You should make a timetable and stick to it."
REFLECTION = "You're scared that on Friday everyone will see through you."
QUESTION = "What is it about Friday that frightens you most?"
STOCK = "I'm so sorry you're going through this. You are not alone."
CHEER = "Everything will be fine, you've got this!"
REPLIES = (ADVICE, REFLECTION, QUESTION, STOCK, CHEER)
GLAD = "Yes, exactly. You really understand it. My father was a professor and I was the slow one."
ANGRY = "I didn't ask for advice. You're not listening to me."
DATA = Path(os.environ.get("RAPO_DATA", Path(rapo_lib.__file__).parents[2] / "shared" / "data"))


def judged(replies, reactions, history=HISTORY):
    return EmbeddedJudge().compare(CandidateGroup(history, tuple(replies), reactions and tuple(reactions)))


@pytest.mark.parametrize(
    "module", ["feedback", "judge/reading", "judge/rubric", "judge/critique", "judge/naive", "selection"]
)
def test_the_judge_shares_nothing_with_the_seeker(module):
    tree = ast.parse((Path(rapo_lib.__file__).parent / f"{module}.py").read_text("utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {name.removeprefix("rapo_lib.") for name in imported if name.startswith("rapo_lib")}
    assert ours <= {"dialogue", "encoder", "feedback", "runs", "judge.reading", "judge.rubric", "judge.critique"}


# ---------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("That's true. It is the waiting.", "That's not true. It isn't the waiting."),
        ("Thank you, that helps.", "Thanks, I guess. That doesn't help."),
        ("Not bad, you were listening.", "Great, you weren't listening."),
        ("I would say that is accurate.", "I would say that is beside the point."),
        (GLAD, ANGRY),
    ],
)
def test_reads_which_of_two_people_sounds_better(better, worse):
    assert read_relief(HISTORY, REFLECTION, better) > read_relief(HISTORY, REFLECTION, worse)


def test_a_sad_story_told_to_someone_who_listens_is_no_complaint():
    story = " My mother died in June and I cry every night."
    assert read_relief(HISTORY, REFLECTION, "Yes. That's exactly it." + story) > 0.2
    assert read_relief(HISTORY, REFLECTION, "You're not listening." + story) < -0.2


def test_silence_is_read_as_nothing():
    assert [
        r.empty for r in read_batch([(HISTORY, ADVICE, ""), (HISTORY, ADVICE, " ... "), (HISTORY, ADVICE, "No.")])
    ] == [
        True,
        True,
        False,
    ]


def test_our_sentences_are_labelled_and_none_is_there_twice():
    rows = read_rows("reading.jsonl")
    assert all(set(row) == {"text", "relief", "cause"} and row["relief"] in (-2, -1, 0, 1, 2) for row in rows)
    assert len({row["text"].casefold() for row in rows}) == len(rows)
    vectors = embed([row["text"] for row in rows])
    near = np.triu(vectors @ vectors.T, 1)
    assert near[:, 774:].max() < 0.92  # rows from 774 on were checked for near-duplicates when they were written
    assert min(Counter(row["cause"] for row in rows).values()) >= 20


@pytest.mark.parametrize("shape", [(5, 9), (9, 5)])
def test_ridge_minimises_its_loss_on_either_side(shape):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=shape), rng.normal(size=(shape[0], 2))
    w = ridge(x, y, 0.7)
    np.testing.assert_allclose(x.T @ (x @ w - y) + 0.7 * w, 0, atol=1e-12)  # the gradient of the loss


def cross_validated(columns: np.ndarray, relief: np.ndarray) -> float:
    """Spearman of ridge predictions with relief, 10 folds."""
    fold = np.random.default_rng(0).permutation(len(relief)) % 10
    fitted = np.zeros(len(relief))
    for i in range(10):
        fitted[fold == i] = columns[fold == i] @ ridge(columns[fold != i], relief[fold != i], 3.0)
    return float(spearmanr(fitted, relief)[0])


def test_reading_beats_a_bag_of_words_and_a_lexicon():
    rows = read_rows("reading.jsonl")
    relief, texts = np.array([row["relief"] / 2 for row in rows]), [row["text"] for row in rows]
    counts = Counter(word for text in texts for word in set(words(text)))
    vocabulary = sorted(word for word, count in counts.items() if count > 1)
    bag = np.array([[float(word in set(words(text))) for word in [*vocabulary]] + [1.0] for text in texts])
    ours = cross_validated(features(texts), relief)
    assert ours > 0.55
    assert ours > cross_validated(bag, relief) + 0.1
    assert ours > spearmanr([polarity(text) for text in texts], relief)[0] + 0.1


@pytest.mark.skipif(
    not (DATA / "failed_esconv_even.json").exists(), reason="needs failed_esconv_even.json in RAPO_DATA"
)
def test_reading_follows_peoples_own_ratings_more_than_the_reply_does():
    table = rating_table(load_dialogues(DATA / "failed_esconv_even.json").dialogues, draws=20).set_index("reading")
    assert table.rho["relief in the next words"] > 0.13 > table.rho["reply: tone"]


# ---------------------------------------------------------------------------------------------- scores


def test_scores_by_hand():
    # ranks of (-0.5, 0.5, 0.5): -1, and 0.5 for both of the tie
    assert scores_from([-0.5, 0.5, 0.5]) == pytest.approx((-0.75, 0.5, 0.5))
    assert scores_from([0.2, 0.2]) == pytest.approx((0.1, 0.1))


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=8))
def test_scores_keep_order_and_ties(merits):
    scores, m = scores_from(merits), np.round(merits, 3)
    assert all((m[i] > m[j]) == (scores[i] > scores[j]) for i in range(len(m)) for j in range(len(m)))
    assert all(-1 <= score <= 1 for score in scores)


def test_the_reaction_decides_and_swapping_swaps():
    first, second = judged((ADVICE, REFLECTION), (ANGRY, GLAD)), judged((ADVICE, REFLECTION), (GLAD, ANGRY))
    assert first.ranking == (1, 0) and second.ranking == (0, 1)
    assert second.scores[0] > 0 > first.scores[0] and first.scores[1] > 0 > second.scores[1]
    assert "before they felt understood" in first.critiques[0] and "Keep" in first.critiques[1]
    assert "Keep" in second.critiques[0] and "Keep" not in second.critiques[1]


def test_where_reactions_are_equal_the_mark_decides_and_equal_pairs_are_tied():
    verdict = judged(REPLIES, ("Okay.",) * 5)
    marked = RubricJudge().compare_batch([CandidateGroup(HISTORY, REPLIES)])[0]
    assert verdict.ranking == marked.ranking
    tied = judged((ADVICE, ADVICE, REFLECTION), ("Okay.",) * 3)
    assert tied.scores[0] == tied.scores[1] != tied.scores[2]


@pytest.mark.parametrize(
    "abuse",
    [
        "",
        "  ",
        "exam exam exam exam exam exam exam exam",
        "asdf qwer zxcv lkjh poiu mnbv",
        "我很难过",
        "\U0001f60a\U0001f60a\U0001f60a",
    ],
)
def test_what_is_no_reply_never_wins(abuse):
    verdict = judged((abuse, ADVICE, STOCK), (GLAD, ANGRY, "You can't know that."))
    assert verdict.ranking[-1] == 0
    assert RubricJudge().compare_batch([CandidateGroup(HISTORY, (abuse, ADVICE, STOCK))])[0].ranking[-1] == 0


def test_our_own_good_replies_pass_the_gates():
    for row in read_rows("warmstart.jsonl"):
        history = [Turn(turn["speaker"], turn["text"]) for turn in row["history"]]
        assert fault(history, row["reply"]) == "", row["reply"]


def test_abstains_where_nothing_can_be_compared():
    assert judged((ADVICE, ADVICE), (GLAD, ANGRY)).scores is None
    silent = judged((ADVICE, REFLECTION), ("", ""))
    assert silent.scores is None and silent.status.startswith("abstained") and len(silent.critiques) == 2
    with pytest.raises(ValueError, match="2 replies but 1 reactions"):
        CandidateGroup(HISTORY, (ADVICE, REFLECTION), (GLAD,))


def test_a_batch_is_its_groups_one_by_one():
    groups = [CandidateGroup(HISTORY, REPLIES, (ANGRY, GLAD, "Hm.", "No.", "Okay.")), CandidateGroup(HISTORY, REPLIES)]
    judge = EmbeddedJudge()
    assert judge.compare_batch(groups) == [judge.compare(group) for group in groups]
    assert judge.compare_batch([]) == []


def test_emotion_is_never_read():
    group = CandidateGroup(HISTORY, REPLIES, (ANGRY, GLAD, "Hm.", "No.", "Okay."))
    felt = replace(group, history=tuple(replace(turn, emotion=99.0) for turn in HISTORY))
    assert EmbeddedJudge().compare(group) == EmbeddedJudge().compare(felt)


def test_the_rubric_prefers_understanding_to_early_advice_and_takes_advice_that_was_asked_for():
    marks = [rubric_score(HISTORY, traits) for traits in read_replies([(HISTORY, reply) for reply in REPLIES])]
    assert min(marks[1], marks[2]) > max(marks[0], marks[3], marks[4])
    asking = (Turn("seeker", "My exam is on Friday. What should I do? I need a plan."),)
    advice, stock = (rubric_score(asking, t) for t in read_replies([(asking, ADVICE), (asking, STOCK)]))
    assert advice > stock
    again = (*HISTORY, Turn("supporter", REFLECTION), Turn("seeker", "Yes."))
    assert read_replies([(again, REFLECTION)])[0].repeats == 1.0


def test_a_question_after_questions_alone_loses_its_worth_and_a_reflection_gives_it_back():
    asked = HISTORY
    marks = []
    for question in ("What happened then?", "When did it begin?", "Who knows about it?"):
        marks.append(rubric_score(asked, read_replies([(asked, QUESTION)])[0]))
        asked = (*asked, Turn("supporter", question), Turn("seeker", "I was late again, and my father shouted at me."))
    assert marks[0] > marks[1] > marks[2]
    assert questions_before(asked) == 3
    heard = (*asked, Turn("supporter", REFLECTION), Turn("seeker", "Yes."))
    assert questions_before(heard) == 0
    assert (
        "one more question" in RubricJudge().compare_batch([CandidateGroup(asked, (QUESTION, ADVICE))])[0].critiques[0]
    )


# ---------------------------------------------------------------------------------------------- critiques

REACTIONS = (
    *(GLAD, ANGRY, "Thank you, I feel lighter.", "You can't know that.", "That's what everyone says.", "Okay."),
    *("Good question. I think it's my father.", "You asked me that before.", "So it's my own fault?", "Never mind."),
    *("Too many questions at once.", "What does that have to do with it?", "Okay, but what do I do?", ""),
)


def test_critiques_claim_only_what_the_reply_does():
    others = ("Other people have it worse.", "I went through the same thing.", "You're amazing, everybody loves you.")
    for reply in REPLIES + others:
        traits = read_replies([(HISTORY, reply)])[0]
        for reaction in REACTIONS:
            critique = judged((reply, "Hm, go on."), (reaction, "Yes.")).critiques[0]
            assert len(critique.split()) <= 40
            assert ("You gave advice" in critique or "Your advice" in critique) <= bool(traits.advises)
            assert ("Your question" in critique) <= (traits.asks > 0)
            assert ("stock phrase" in critique) <= (traits.stock > 0)
            assert ("cheered" in critique or "encouragement" in critique) <= bool(traits.reassures)
            assert ("your own life" in critique) <= bool(traits.discloses)
            assert ("into words" in critique) <= (traits.reflects > 0.3)
            assert ("said again" in critique) <= (traits.repeats > 0.5)


def test_critiques_name_what_the_seeker_spoke_of_and_quote_nobody():
    verdict = judged(REPLIES, (ANGRY, GLAD, "Hm.", "No, that's not it.", "You can't know that."))
    assert all("the exam" in critique for critique in verdict.critiques)
    assert not any(reply.rstrip(".!?") in critique for reply in REPLIES for critique in verdict.critiques)


def test_without_reactions_there_are_scores_and_critiques_still():
    verdict = judged(REPLIES, None)
    assert verdict.scores == RubricJudge().compare_batch([CandidateGroup(HISTORY, REPLIES)])[0].scores
    assert "advice" in verdict.critiques[0] and "stock phrase" in verdict.critiques[3]
    assert verdict.reactions is None
