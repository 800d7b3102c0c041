"""Controls: the same training with one link between what happened and what is said about it cut.

If critiques help because they are true of the reply, a critique of another reply must help less; if reactions help
because they answer the reply, another reply's reaction must help less. A critique control is a wrapper of the feedback
that changes the critiques of its verdicts and nothing else; the reaction control is a wrapper of the judge, for it must
act before anything is judged. All are pure: the same rows and replies get the same answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rapo_lib.feedback import CandidateGroup, Judge, RubricJudge, Verdict
from rapo_lib.runs import RapoError, seed_for
from rapo_lib.simulation import Feedback, Row, row_history

Critiques = tuple[str, ...]  # of one group
Rewrite = Callable[[Sequence[Row], Sequence[Sequence[str]], Sequence[Verdict]], list[Critiques]]

GENERIC = "Listen first. Name the feeling you hear and ask one open question."


def rotated(items: Sequence[str], seed: int) -> tuple[str, ...]:
    """The items moved round by 1 to n - 1 places, so that each gets another's; fewer than two stay."""
    if len(items) < 2:
        return tuple(items)
    shift = 1 + seed % (len(items) - 1)
    return (*items[shift:], *items[:shift])


# ----------------------------------------------------------------------------------------- critiques


@dataclass(frozen=True, slots=True)
class ChangedCritiques:
    """A feedback whose critiques are rewritten; scores, ranking, reactions and abstentions are the inner feedback's."""

    feedback: Feedback
    rewrite: Rewrite

    def __call__(self, rows: Sequence[Row], replies: Sequence[Sequence[str]]) -> list[Verdict]:
        """One verdict per row."""
        verdicts = self.feedback(rows, replies)
        written = self.rewrite(rows, replies, verdicts)
        return [replace(v, critiques=c) for v, c in zip(verdicts, written, strict=True)]


def in_group(seed: int) -> Rewrite:
    """Every reply gets the critique of another reply to the same history."""

    def rewrite(rows: Sequence[Row], replies: Sequence[Sequence[str]], verdicts: Sequence[Verdict]) -> list[Critiques]:
        return [
            rotated(verdict.critiques, seed_for(seed, "in_group", *group))
            for verdict, group in zip(verdicts, replies, strict=True)
        ]

    return rewrite


def across_histories(seed: int) -> Rewrite:
    """Every group gets the critiques of a group with another history of the same step."""

    def rewrite(rows: Sequence[Row], replies: Sequence[Sequence[str]], verdicts: Sequence[Verdict]) -> list[Critiques]:
        told = [row_history(row) for row in rows]
        first = 1 + seed_for(seed, "across", *(reply for group in replies for reply in group)) % max(len(rows) - 1, 1)
        for turn in range(len(rows) - 1):
            shift = 1 + (first - 1 + turn) % (len(rows) - 1)
            others = [(i + shift) % len(rows) for i in range(len(rows))]
            if all(told[i] != told[other] for i, other in enumerate(others)):
                return [verdicts[other].critiques for other in others]
        raise RapoError(
            f"critiques cannot be shuffled across histories: a step of {len(rows)} groups holds too few different "
            "ones; use more groups a step"
        )

    return rewrite


def constant(seed: int) -> Rewrite:
    """One generic critique for everything: whether any fixed instruction would do."""
    return lambda rows, replies, verdicts: [(GENERIC,) * len(group) for group in replies]


def reply_only(seed: int) -> Rewrite:
    """Critiques written from the reply alone, as without reactions; the scores still hear them."""

    def rewrite(rows: Sequence[Row], replies: Sequence[Sequence[str]], verdicts: Sequence[Verdict]) -> list[Critiques]:
        groups = [CandidateGroup(row_history(row), tuple(g)) for row, g in zip(rows, replies, strict=True)]
        return [verdict.critiques for verdict in RubricJudge().compare_batch(groups)]

    return rewrite


# ----------------------------------------------------------------------------------------- reactions


@dataclass(frozen=True, slots=True)
class ShuffledReactions:
    """A judge that hears, for every reply, the reaction to another reply of its group."""

    judge: Judge
    seed: int

    def compare_batch(self, groups: Sequence[CandidateGroup]) -> list[Verdict]:
        """The inner judge's verdicts on the groups with reactions moved round."""
        return self.judge.compare_batch([self._moved(group) for group in groups])

    def _moved(self, group: CandidateGroup) -> CandidateGroup:
        if group.reactions is None:
            return group
        return replace(group, reactions=rotated(group.reactions, seed_for(self.seed, "reactions", *group.replies)))


CRITIQUE_CONTROLS: dict[str, Callable[[int], Rewrite]] = {
    "in_group": in_group,
    "across_histories": across_histories,
    "constant": constant,
    "reply_only": reply_only,
}


def controlled_judge(control: str | None, judge: Judge, seed: int) -> Judge:
    """The judge under a control; all but the reaction control leave it as it is."""
    return ShuffledReactions(judge, seed) if control == "reactions" else judge


def controlled_feedback(control: str | None, feedback: Feedback, seed: int) -> Feedback:
    """The feedback under a control; None and the reaction control leave it as it is."""
    if control in (None, "reactions"):
        return feedback
    return ChangedCritiques(feedback, CRITIQUE_CONTROLS[control](seed))
