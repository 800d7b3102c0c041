"""Feedback from a simulated seeker: reactions to every reply of a group, then the judge's verdict on them.

This is where the hidden and the visible meet, so it is small: the seeker's emotion goes to the `watch` callback
for the experimenter's record, and only the reaction's words go to the judge.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rapo_lib.dialogue import SYSTEM, Dialogue, Reaction, Seeker, SeekerProfile, Turn, to_messages
from rapo_lib.feedback import CandidateGroup, Judge, Verdict
from rapo_lib.runs import seed_for

Row = Mapping[str, Any]  # "prompt": messages, "profile": id, "history": [{"speaker", "text"}, ...]


class Feedback(Protocol):
    """What the trainer asks about freshly sampled groups: one verdict for each row and its replies."""

    def __call__(self, rows: Sequence[Row], replies: Sequence[Sequence[str]]) -> list[Verdict]: ...


@dataclass(frozen=True, slots=True)
class Rollout:
    """One reply, what it led to and what was said about it; the emotions are for the record, the judge has none."""

    profile: str
    history: tuple[Turn, ...]
    reply: str
    reaction: str | None
    before: float  # emotion at the end of the history
    emotion: float  # and after the reply
    score: float | None
    critique: str


def rollouts_of(dialogues: Sequence[Dialogue]) -> list[Rollout]:
    """Every reply in simulated dialogues that was answered, with what it did; turns without emotion are left out."""
    return [
        Rollout(d.id, d.history(i), reply.text, answer.text, before.emotion, answer.emotion, None, "")
        for d in dialogues
        for i, (before, reply, answer) in enumerate(zip(d.turns, d.turns[1:], d.turns[2:], strict=False), start=1)
        if (before.speaker, reply.speaker, answer.speaker) == ("seeker", "supporter", "seeker")
        if before.emotion is not None and answer.emotion is not None
    ]


def training_row(profile: SeekerProfile, history: Sequence[Turn], system: str = SYSTEM) -> dict[str, Any]:
    """One training example: the policy's prompt and what the feedback needs; words only, no emotion."""
    said = [{"speaker": t.speaker, "text": t.text} for t in history]
    return {"prompt": to_messages(history, system), "profile": profile.id, "history": said}


def row_history(row: Row) -> tuple[Turn, ...]:
    """The history of a training row."""
    return tuple(Turn(t["speaker"], t["text"]) for t in row["history"])


@dataclass(frozen=True, slots=True)
class SimulatedFeedback:
    """Asks the seeker how each reply feels, then the judge to compare what was said.

    With `reactions=False` the judge sees the replies alone (the "without URM" arm); the seeker is still asked,
    so that the record holds the truth for every arm.
    """

    seeker: Seeker
    judge: Judge
    profiles: Mapping[str, SeekerProfile]
    reactions: bool = True
    seed: int = 0
    watch: Callable[[Rollout], None] | None = None

    def __call__(self, rows: Sequence[Row], replies: Sequence[Sequence[str]]) -> list[Verdict]:
        """One verdict per row, from one batched call to the seeker and one to the judge."""
        histories = [row_history(row) for row in rows]
        answers = self._react(rows, histories, replies)
        groups = [
            CandidateGroup(h, tuple(group), tuple(a.text for a in answered) if self.reactions else None)
            for h, group, answered in zip(histories, replies, answers, strict=True)
        ]
        verdicts = self.judge.compare_batch(groups)
        if self.watch:
            for row, group, answered, verdict in zip(rows, groups, answers, verdicts, strict=True):
                self._record(row, group, answered, verdict)
        return verdicts

    def _react(
        self, rows: Sequence[Row], histories: Sequence[tuple[Turn, ...]], replies: Sequence[Sequence[str]]
    ) -> list[list[Reaction]]:
        items = [
            (self.profiles[row["profile"]], history, reply, seed_for(self.seed, row["profile"], reply))
            for row, history, group in zip(rows, histories, replies, strict=True)
            for reply in group
        ]
        flat = iter(self.seeker.react_batch(items))
        return [[next(flat) for _ in group] for group in replies]

    def _record(self, row: Row, group: CandidateGroup, answered: Sequence[Reaction], verdict: Verdict) -> None:
        before = self.seeker.emotion(self.profiles[row["profile"]], group.history)
        for i, (reply, reaction) in enumerate(zip(group.replies, answered, strict=True)):
            self.watch(
                Rollout(
                    profile=row["profile"],
                    history=group.history,
                    reply=reply,
                    reaction=reaction.text if self.reactions else None,
                    before=before,
                    emotion=reaction.emotion,
                    score=verdict.scores[i] if verdict.scores else None,
                    critique=verdict.critiques[i],
                )
            )
