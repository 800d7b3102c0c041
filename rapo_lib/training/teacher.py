"""What the teacher reads: the student's prompt with the verdict on a reply as a note behind the seeker's last words.

The note is the critique alone, the critique with the reaction the reply got, or with the best sibling; never the
student's own reply, which collapses entropy (SDPO's ablation). Wording, place and options are ours.
"""

from collections.abc import Sequence

from rapo_lib.dialogue import Message
from rapo_lib.feedback import Verdict

NOTES = ("critique", "critique_and_reaction", "critique_and_sibling")
Note = tuple[str, str | None, str | None]  # critique, reaction, better sibling


def teacher_messages(prompt: list[Message], critique: str, reaction: str | None, sibling: str | None) -> list[Message]:
    """The student's prompt with a note behind the seeker's last words; nothing else changes.

    Placed last, the whole history stays a common prefix of the group (computed once), and the note moves this
    small model more than one in the system message (+0.25 against +0.17 nats a token for a listening reply).
    """
    parts = [critique.strip()]
    if reaction:
        parts.insert(0, f'An earlier reply got this answer: "{reaction.strip()}"')
    if sibling:
        parts.append(f'A reply that was received better: "{sibling.strip()}"')
    last = prompt[-1]
    note = f"{last['content']}\n\n(Note to the supporter: {' '.join(parts)})"
    return [*prompt[:-1], {**last, "content": note}]


def verdict_notes(verdict: Verdict, replies: Sequence[str], kind: str) -> list[Note | None]:
    """What the teacher is told about each reply of a group, or None where it sits out (an abstention)."""
    if verdict.scores is None:
        return [None] * len(replies)
    best = max(range(len(replies)), key=lambda i: verdict.scores[i])
    notes: list[Note | None] = []
    for i, critique in enumerate(verdict.critiques):
        reaction = verdict.reactions[i] if kind == "critique_and_reaction" and verdict.reactions else None
        sibling = replies[best] if kind == "critique_and_sibling" and verdict.scores[best] > verdict.scores[i] else None
        notes.append((critique, reaction, sibling) if critique.strip() else None)
    return notes


def teacher_prompts(
    prompts: Sequence[list[Message]], verdicts: Sequence[Verdict], groups: Sequence[Sequence[str]], kind: str
) -> tuple[list[list[Message]], list[bool]]:
    """The teacher's prompt for each reply, group after group, and whether a note is in it.

    `prompts` has one entry a reply; a reply without a note keeps its prompt, and the distillation leaves it out.
    """
    notes = [
        note
        for verdict, replies in zip(verdicts, groups, strict=True)
        for note in verdict_notes(verdict, replies, kind)
    ]
    read = [teacher_messages(p, *note) if note else p for p, note in zip(prompts, notes, strict=True)]
    return read, [note is not None for note in notes]
