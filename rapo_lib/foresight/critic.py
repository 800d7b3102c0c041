"""The embedded critic: worse, same, better or solved, said of a conversation from its words alone.

PPDPP's critic is a language model asked ten times (`lm.critic`, the same interface). This one needs none. The relief
that the judge hears in every answer of the seeker adds up to an estimate of how far they have come since the opening;
thresholds make states of it. The estimate is off by `SPREAD` points: ten draws around it, at fixed quantiles instead of
at random, are the ten votes, so the mean value moves smoothly and is the same every time. No emotion is read and
nothing is shared with the seeker.

All numbers are ours, from 1,024 answers of train people (the first three fitted, the last threshold where success is
called best there). There the value goes with the true change at Spearman 0.76 and names the state in 65 % (the
commonest state alone: 59 %); for dev people 0.76, and 75 % (83 %, nearly all of them feel better).
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from rapo_lib.chat import ChatModel
from rapo_lib.dialogue import Turn
from rapo_lib.feedback import relief_heard
from rapo_lib.judge.reading import read_batch
from rapo_lib.lm.critic import SAMPLES, Assessment, Critic, LMCritic, assessment
from rapo_lib.runs import RapoError
from rapo_lib.selection import exchanges

Talk = tuple[str, Sequence[Turn]]  # situation, everything said so far

GAIN = 10.5  # points of emotion that full relief in one answer stands for
EACH = 1.4  # points that any answer stands for, relieved or not
SPREAD = 7.3  # standard error of the estimate, points
WORSE, BETTER, SOLVED = -5.0, 5.0, 38.0  # points since the opening: below, from, from


class EmbeddedCritic:
    """Says how conversations stand, from the seekers' words; the situation is not needed."""

    def assess_batch(self, talks: Sequence[Talk]) -> list[Assessment]:
        """One assessment for each (situation, turns); value None where the seeker says nothing in answer."""
        return [assessment(votes(change) if change is not None else [None]) for change in estimates(talks)]


def make_critic(kind: str, chat: ChatModel | None) -> Critic:
    """The critic that a run's settings name: 'embedded', or 'lm' with the model behind the roles."""
    if kind == "embedded":
        return EmbeddedCritic()
    if kind == "lm" and chat is not None:
        return LMCritic(chat)
    raise RapoError(f"unknown critic {kind!r}; known: embedded, lm")


def estimates(talks: Sequence[Talk]) -> list[float | None]:
    """How far each seeker has come since the opening, points of emotion; None if they never answer.

    Talks often share their beginnings (the turns of one future), so every answer is read once.
    """
    answers = [_answers(turns) for _, turns in talks]
    unique = list(dict.fromkeys(item for each in answers for item in each))
    heard = dict(zip(unique, map(relief_heard, read_batch(unique)), strict=True))
    return [sum(GAIN * heard[item] + EACH for item in each) if each else None for each in answers]


def votes(change: float, draws: int = SAMPLES) -> list[str]:
    """The states that `draws` evenly spaced quantiles of N(change, SPREAD) fall into."""
    points = change + SPREAD * ndtri((np.arange(draws) + 0.5) / draws)
    return [state_of(point) for point in points.tolist()]


def state_of(change: float) -> str:
    """The state that a change since the opening, in points, stands for."""
    if change < WORSE:
        return "worse"
    return "same" if change < BETTER else "better" if change < SOLVED else "solved"


def _answers(turns: Sequence[Turn]) -> list[tuple[tuple[Turn, ...], str, str]]:
    """(history, reply, answer) of every exchange after the opening; words only, whatever notes the turns carry."""
    said = tuple(Turn(turn.speaker, turn.text) for turn in turns)
    return [(said[: e.turn], e.reply, e.answer) for e in exchanges(said) if said[e.turn].speaker == "supporter"]
