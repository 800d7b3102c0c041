"""Judges that ought to fail: what can be had from reactions by counting words or by recognising sentences.

If reactions were too easy to read, these would do as well as a reader. Both are fitted on the true change of emotion,
which no judge may see otherwise, after reactions in one bank of wording with train people; they are reported on the
other bank and on people held out, beside the embedded judge, which was shown neither. A third only looks at length.
Everything here is ours.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rapo_lib.feedback import CandidateGroup, Verdict, scores_from
from rapo_lib.judge.reading import ridge, split_sentences, words
from rapo_lib.runs import RapoError

MOST = 10.0  # points an emotion moves at most in a turn: merits are changes on this scale
PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0)  # ridge; the best by leaving out people is taken, so that the judge is fair
FOLDS = 5
COMMON = 3  # reactions that a word must be in to count


@dataclass(frozen=True, slots=True)
class NaiveJudge:
    """Ranks replies by a number made of each reaction's text alone; the reply is not read."""

    merit: Callable[[str], float]

    def compare_batch(self, groups: Sequence[CandidateGroup]) -> list[Verdict]:
        """A verdict for each group, without critiques; it abstains where there are no reactions."""
        return [self._judge(group) for group in groups]

    def _judge(self, group: CandidateGroup) -> Verdict:
        silent = ("",) * len(group.replies)
        if group.reactions is None:
            return Verdict(None, silent, None, tuple(range(len(group.replies))), "abstained: no reactions")
        scores = scores_from([self.merit(reaction) for reaction in group.reactions])
        return Verdict(scores, silent, group.reactions, tuple(sorted(range(len(scores)), key=lambda i: -scores[i])))


def length_judge() -> NaiveJudge:
    """More words, more relief."""
    return NaiveJudge(lambda reaction: len(words(reaction)) / 100)


# -------------------------------------------------------------------------------------------- bag of words


def fit_bag_of_words(reactions: Sequence[str], changes: Sequence[float], people: Sequence[str]) -> NaiveJudge:
    """Ridge regression of the change on which words are there; raises RapoError on reactions of one person only."""
    if len(set(people)) < 2:
        raise RapoError("a bag of words needs the reactions of at least two people to be fitted on")
    counts = Counter(word for text in reactions for word in set(words(text)))
    place = {word: i for i, word in enumerate(sorted(word for word, n in counts.items() if n >= COMMON))}
    x, y = np.array([_bag(text, place) for text in reactions]), np.asarray(changes, dtype=float) / MOST
    mean, who = y.mean(), np.unique(people, return_inverse=True)[1] % FOLDS
    errors = {penalty: _left_out(x, y - mean, who, penalty) for penalty in PENALTIES}
    weights = ridge(x, y - mean, min(errors, key=lambda penalty: errors[penalty]))
    return NaiveJudge(lambda reaction: float(_bag(reaction, place) @ weights + mean))


def _bag(text: str, place: dict[str, int]) -> np.ndarray:
    """1 for every known word of the text, (V,)."""
    row = np.zeros(len(place))
    row[[place[word] for word in set(words(text)) if word in place]] = 1.0
    return row


def _left_out(x: np.ndarray, y: np.ndarray, who: np.ndarray, penalty: float) -> float:
    """Squared error on people left out, a fold of them at a time."""
    missed = (y[who == i] - x[who == i] @ ridge(x[who != i], y[who != i], penalty) for i in np.unique(who))
    return float(sum((part**2).sum() for part in missed))


# ------------------------------------------------------------------------------------------------ templates


def template(sentence: str) -> str:
    """A sentence as a template is recognised: its words, nothing else."""
    return " ".join(words(sentence))


def fit_templates(reactions: Sequence[str], changes: Sequence[float]) -> NaiveJudge:
    """Remembers the mean change after every sentence; a reaction is worth the mean of its sentences that are known."""
    after: dict[str, list[float]] = defaultdict(list)
    for reaction, change in zip(reactions, changes, strict=True):
        for sentence in {template(part) for part in split_sentences(reaction)}:
            after[sentence].append(change / MOST)
    worth = {sentence: float(np.mean(seen)) for sentence, seen in after.items()}
    usual = float(np.mean(changes)) / MOST

    def merit(reaction: str) -> float:
        known = [worth[key] for part in split_sentences(reaction) if (key := template(part)) in worth]
        return float(np.mean(known)) if known else usual

    return NaiveJudge(merit)
