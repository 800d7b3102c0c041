"""Generative hindsight feedback: a group of replies with the seeker's reactions in, scores and critiques out.

The judge reads text only and shares nothing with the seeker. RAPO's judge is a language model that compares the
group and explains; its ranking-to-reward map is not public. Ours, for a merit m_i, in one place (`scores_from`):

    s_i = (rank_i + clip(m_i, -1, 1)) / 2,   rank_i in [-1, 1], the centred rank of m_i, ties sharing their mean rank

The judge sees (reply, reaction) pairs, so with reactions m_i = (relief heard in r_i + 0.6 mark of y_i) / 1.6, the mark
being the rubric's; without reactions the mark alone. The relief heard is the one read, less 0.8 times how well "a good
question" fits as its cause: to say that is a chance, not yet relief. Both numbers were chosen on 2,000 rollouts of
train people (tau with the hidden emotion 0.40 on replies of the warm start, against 0.32 for the relief as read and
0.23 for the mark alone).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from scipy.stats import rankdata

from rapo_lib.dialogue import Turn
from rapo_lib.judge.critique import write_critique
from rapo_lib.judge.reading import Reading, read_batch
from rapo_lib.judge.rubric import Traits, read_replies, rubric_score

T = TypeVar("T")
MARK_SHARE = 0.6  # ours: weight of the rubric's mark beside the relief
CHANCE = 0.8  # ours: relief taken off where the seeker only says that the question was good
DIGITS = 3  # readings closer than this are one: numerical noise must not make a ranking


@dataclass(frozen=True, slots=True)
class CandidateGroup:
    """Replies to one history, with what the seeker said to each; reactions None: the judge sees replies only."""

    history: tuple[Turn, ...]
    replies: tuple[str, ...]
    reactions: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.reactions is not None and len(self.reactions) != len(self.replies):
            raise ValueError(f"group has {len(self.replies)} replies but {len(self.reactions)} reactions")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's answer on one group; `scores` None means that it abstained."""

    scores: tuple[float, ...] | None
    critiques: tuple[str, ...]
    reactions: tuple[str, ...] | None
    ranking: tuple[int, ...]  # indices of the replies, best first; ties keep their order
    status: str = "ok"  # or "abstained: why"


class Judge(Protocol):
    """Compares the replies of each group."""

    def compare_batch(self, groups: Sequence[CandidateGroup]) -> list[Verdict]: ...


def scores_from(merits: Sequence[float]) -> tuple[float, ...]:
    """s_i = (rank_i + clip(m_i, -1, 1)) / 2; equal merits, equal scores."""
    m = np.round(np.asarray(merits, dtype=float), DIGITS)
    rank = 2 * (rankdata(m) - 1) / (len(m) - 1) - 1 if len(m) > 1 else np.zeros(len(m))
    return tuple(((rank + np.clip(m, -1, 1)) / 2).tolist())


def _verdict(group: CandidateGroup, merits: Sequence[float], critiques: tuple[str, ...]) -> Verdict:
    scores = scores_from(merits)
    ranking = tuple(sorted(range(len(scores)), key=lambda i: -scores[i]))
    return Verdict(scores, critiques, group.reactions, ranking)


def _abstention(group: CandidateGroup, why: str, critiques: tuple[str, ...]) -> Verdict:
    return Verdict(None, critiques, group.reactions, tuple(range(len(group.replies))), f"abstained: {why}")


def relief_heard(reading: Reading) -> float:
    """The relief read in a reaction, less what is only said of a good question."""
    return reading.relief - CHANCE * reading.causes.get("question", 0.0)


def _merits(group: CandidateGroup, traits: Sequence[Traits], readings: Sequence[Reading]) -> list[float]:
    """Relief and mark of each reply; silence counts as the median relief, and what is no reply can never win."""
    heard = [relief_heard(reading) for reading in readings]
    usual = float(np.median([h for h, reading in zip(heard, readings, strict=True) if not reading.empty]))
    relief = [usual if reading.empty else h for h, reading in zip(heard, readings, strict=True)]
    marks = [rubric_score(group.history, trait) for trait in traits]
    merits = [(r + MARK_SHARE * m) / (1 + MARK_SHARE) for r, m in zip(relief, marks, strict=True)]
    floor = min(merits) - 0.1  # below every true reply
    return [min(floor, -1.0) if trait.fault else merit for trait, merit in zip(traits, merits, strict=True)]


class RubricJudge:
    """The reaction-free judge: the expert rubric's marks; reactions, if given, are not read."""

    def compare_batch(self, groups: Sequence[CandidateGroup]) -> list[Verdict]:
        """A verdict for each group, from replies and history alone."""
        return [
            _judge(group, traits, None)
            for group, traits in zip(groups, _cut(groups, read_replies(_pairs(groups))), strict=True)
        ]


class EmbeddedJudge:
    """The judge that hears reactions: ranks by how the seeker sounds after each reply and says what caused it."""

    def compare_batch(self, groups: Sequence[CandidateGroup]) -> list[Verdict]:
        """A verdict for each group; a group without reactions is marked by the rubric."""
        traits = _cut(groups, read_replies(_pairs(groups)))
        items = [
            (group.history, reply, reaction)
            for group in groups
            for reply, reaction in zip(group.replies, group.reactions or ("",) * len(group.replies), strict=True)
        ]
        readings = _cut(groups, read_batch(items))
        return [
            _judge(group, group_traits, None if group.reactions is None else group_readings)
            for group, group_traits, group_readings in zip(groups, traits, readings, strict=True)
        ]

    def compare(self, group: CandidateGroup) -> Verdict:
        """The verdict on one group."""
        return self.compare_batch([group])[0]


def _judge(group: CandidateGroup, traits: list[Traits], readings: list[Reading] | None) -> Verdict:
    critiques = tuple(
        write_critique(group.history, trait, reading)
        for trait, reading in zip(traits, readings or [None] * len(traits), strict=True)
    )
    if len(set(group.replies)) < 2:
        return _abstention(group, "fewer than two distinct replies", critiques)
    if readings is None:
        return _verdict(group, [rubric_score(group.history, trait) for trait in traits], critiques)
    if all(reading.empty for reading in readings):
        return _abstention(group, "no reaction says anything", critiques)
    return _verdict(group, _merits(group, traits, readings), critiques)


def _pairs(groups: Sequence[CandidateGroup]) -> list[tuple[tuple[Turn, ...], str]]:
    return [(group.history, reply) for group in groups for reply in group.replies]


def _cut(groups: Sequence[CandidateGroup], flat: list[T]) -> list[list[T]]:
    """What was computed for all replies in a row, by group again."""
    ends = np.cumsum([len(group.replies) for group in groups]).tolist()
    return [flat[end - len(group.replies) : end] for group, end in zip(groups, ends, strict=True)]
