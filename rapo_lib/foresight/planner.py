"""The foil of RLFF-ESC: a supporter that follows a predefined plan instead of looking ahead.

Work before RLFF plans with a fixed list of strategies (PPDPP: eight ESConv acts, a classifier picks one from the
history); its text is conditioned on the choice. Ours, at the size of the embedded models: a ridge classifier on
sentence embeddings of the history, fitted on every supporter turn of our warm-start dialogues, each labelled with what
the judge's rubric reads in it; and the warm-started model, whose reply is begun with a few words of that strategy.

What comes next is hard to foretell in dialogues that were written to mix what supporters do: on 249 turns of held-out
dialogues the classifier is right in 0.47, the best constant answer in 0.49; it finds 0.22 of a strategy's turns on
average over the eight, a constant answer 0.13. A plan is a choice, not a forecast, and this one is a weak one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rapo_lib.corpora.strategies import SPELLINGS
from rapo_lib.dialogue import Dialogue, Turn
from rapo_lib.encoder import WIDTH, embed
from rapo_lib.evaluation import ModelPolicy
from rapo_lib.foresight.policy import go_on
from rapo_lib.judge.reading import ridge
from rapo_lib.judge.rubric import Traits, read_replies, wants_advice
from rapo_lib.runs import RapoError, seed_for
from rapo_lib.warmstart import warmstart_pairs

STRATEGIES = tuple(SPELLINGS)  # ESConv's eight names
PENALTY = 30.0  # ridge, ours: by cross-validation over the fitted dialogues
HELD_OUT = 5  # every fifth dialogue is kept for measuring; ours
FEW_WORDS = 8  # ours
# How a reply of each strategy begins; several, drawn by seed, so that plans do not read alike. Ours, from no corpus.
BEGINNINGS: dict[str, tuple[str, ...]] = {
    "Question": ("What", "How", "When"),
    "Restatement or Paraphrasing": ("You", "So you"),
    "Reflection of feelings": ("It makes sense that", "It hurts that", "You feel"),
    "Self-disclosure": ("I once", "I also"),
    "Affirmation and Reassurance": ("You can", "You will", "You have already"),
    "Providing Suggestions": ("You could", "Maybe", "Try"),
    "Information": ("Many people", "There are", "In many places"),
    "Others": ("",),
}


def strategy_of(traits: Traits) -> str:
    """The ESConv strategy of a reply from what the rubric reads in it; ours.

    The rarest act that is there names the reply; a question names a reply that reflects first, for it is what the
    seeker is left with.
    """
    for found, name in (
        (traits.discloses, "Self-disclosure"),
        (traits.advises, "Providing Suggestions"),
        (traits.informs, "Information"),
        (traits.asks, "Question"),
        (traits.reassures, "Affirmation and Reassurance"),
        (traits.validates, "Reflection of feelings"),
        (traits.reflects >= 0.3, "Restatement or Paraphrasing"),
    ):
        if found:
            return name
    return "Others"


def label(turns: Sequence[tuple[Sequence[Turn], str]]) -> list[str]:
    """The strategy of each (history, reply)."""
    return [strategy_of(traits) for traits in read_replies(turns)]


# ------------------------------------------------------------------------------------------- the classifier


def features(histories: Sequence[Sequence[Turn]]) -> np.ndarray:
    """What the classifier sees of each history, (n, 384 + 15).

    The last seeker turn, and plain facts: how many supporter turns there were (none, one, two, more), the strategy of
    the last one, whether the seeker answers in a few words, whether advice was asked for.
    """
    embed([t.text for h in histories for t in h if t.speaker == "seeker"])  # all at once; below they are looked up
    before = _strategies_before(histories)
    rows = [_features(h, name) for h, name in zip(histories, before, strict=True)]
    return np.stack(rows) if rows else np.empty((0, WIDTH + 15))


def _strategies_before(histories: Sequence[Sequence[Turn]]) -> list[str | None]:
    """The strategy of the last supporter turn in each history, None where there is none."""
    places = [max((i for i, t in enumerate(h) if t.speaker == "supporter"), default=None) for h in histories]
    spoken = [(h[:i], h[i].text) for h, i in zip(histories, places, strict=True) if i is not None]
    names = iter(label(spoken))
    return [None if i is None else next(names) for i in places]


def _features(history: Sequence[Turn], before: str | None) -> np.ndarray:
    seeker = [t.text for t in history if t.speaker == "seeker"]
    if not seeker:
        raise RapoError("a plan needs a history in which the seeker has said something")
    number = sum(t.speaker == "supporter" for t in history)
    facts = [
        *np.eye(4)[min(number, 3)],
        *(float(name == before) for name in STRATEGIES),
        float(len(seeker[-1].split()) < FEW_WORDS),
        float(wants_advice(history)),
        1.0,
    ]
    return np.concatenate([embed(seeker[-1:])[0], facts])


@dataclass(frozen=True, slots=True)
class Planner:
    """A fitted classifier from histories to strategies; deterministic."""

    weights: np.ndarray  # (384 + 15, 8)

    def plan(self, histories: Sequence[Sequence[Turn]]) -> list[str]:
        """The strategy to reply with, for each history."""
        return [STRATEGIES[i] for i in (features(histories) @ self.weights).argmax(1)] if histories else []


def fit_planner(histories: Sequence[Sequence[Turn]], labels: Sequence[str], penalty: float = PENALTY) -> Planner:
    """The classifier of these histories and strategies; a strategy weighs as the square root of its number.

    Without that the planner would hardly ever choose anything but the commonest three.
    """
    targets = np.array([[float(name == known) for known in STRATEGIES] for name in labels])  # (n, 8)
    counts = targets.sum(0)
    row = (len(labels) / counts[targets.argmax(1)])[:, None] ** 0.25  # least squares squares it: weight n^-1/2
    return Planner(ridge(row * features(histories), row * targets, penalty))


# ------------------------------------------------------------------------------------------- our dialogues


Labelled = tuple[list[tuple[tuple[Turn, ...], str]], list[str]]  # (history, reply), strategy


@cache
def warmstart_turns() -> tuple[Labelled, Labelled]:
    """Every supporter turn of the warm-start dialogues with its strategy: those to fit on, those held out.

    Whole dialogues are held out, every fifth.
    """
    parts: list[list[tuple[tuple[Turn, ...], str]]] = [[], []]
    for number, (history, reply) in enumerate(warmstart_pairs()):
        turns = (*history, Turn("supporter", reply))
        spoken = [(turns[:i], t.text) for i, t in enumerate(turns) if t.speaker == "supporter"]
        parts[number % HELD_OUT == 0].extend(spoken)
    fitted, held_out = ((part, label(part)) for part in parts)
    return fitted, held_out


@cache
def shipped_planner() -> Planner:
    """The planner fitted on the warm-start dialogues that are not held out."""
    turns, labels = warmstart_turns()[0]
    return fit_planner([h for h, _ in turns], labels)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often a planner names the strategy that was used."""

    turns: int
    accuracy: float
    majority: float  # of the best constant answer
    macro: float  # mean over strategies of the share found; a constant answer has 1 / kinds
    kinds: int  # strategies that occur


def agreement(planner: Planner, histories: Sequence[Sequence[Turn]], used: Sequence[Sequence[str]]) -> Agreement:
    """Agreement with the strategies used in turns; a turn with several is met by any of them."""
    planned = planner.plan(histories)
    met = np.array([plan in names for plan, names in zip(planned, used, strict=True)], dtype=float)
    first = [names[0] for names in used]
    kinds = sorted(set(first))
    recalls = [met[[name == kind for name in first]].mean() for kind in kinds]
    majority = max(float(np.mean([name in names for names in used])) for name in STRATEGIES)
    return Agreement(len(met), float(met.mean()), majority, float(np.mean(recalls)), len(kinds))


def corpus_turns(dialogues: Sequence[Dialogue]) -> tuple[list[tuple[Turn, ...]], list[tuple[str, ...]]]:
    """Histories of a corpus that end with the seeker, and the strategies its supporter then used."""
    found = [
        (d.history(i), t.strategies)
        for d in dialogues
        for i, t in enumerate(d.turns)
        if i and t.speaker == "supporter" and t.strategies and d.turns[i - 1].speaker == "seeker"
    ]
    return [h for h, _ in found], [s for _, s in found]


# ------------------------------------------------------------------------------------------- the policy


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPolicy:
    """The warm-started model, each reply begun as the planned strategy begins."""

    policy: ModelPolicy
    planner: Planner

    def __call__(self, histories: Sequence[Sequence[Turn]], seed: int) -> list[str]:
        """One reply for each history."""
        plans = self.planner.plan(histories)
        begun = [beginning(plan, seed_for(seed, "plan", i)) for i, plan in enumerate(plans)]
        rest = go_on(self.policy, histories, begun, seed)
        return [(begin + more).strip() for begin, more in zip(begun, rest, strict=True)]


def beginning(strategy: str, seed: int) -> str:
    """The words that a reply of this strategy begins with, chosen by the seed."""
    choices = BEGINNINGS[strategy]
    return choices[seed % len(choices)]
