"""A language model as the critic of self-play: worse, same, better or solved, averaged over several draws.

PPDPP's critic samples ten times at temperature 1.1 and maps worse -1, same -0.5, better 0.5, solved 1; those values are
kept. Its substring reading is not: an answer is one of the four words in its field, or it is counted as unreadable.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rapo_lib.chat import ChatModel, ChatRequest
from rapo_lib.dialogue import Turn, language_of
from rapo_lib.lm.prompts import load_prompt, quoted, transcript

VALUES = {"worse": -1.0, "same": -0.5, "better": 0.5, "solved": 1.0}  # PPDPP
SAMPLES, TEMPERATURE = 10, 1.1  # PPDPP
SUCCESS = 0.5  # PPDPP: a mean above it ends the conversation as solved

SCHEMA = {
    "type": "object",
    "properties": {"reason": {"type": "string", "maxLength": 240}, "state": {"type": "string", "enum": list(VALUES)}},
    "required": ["state"],
}


@dataclass(frozen=True, slots=True)
class Assessment:
    """How a seeker stands at the end of a conversation; `value` None: no draw could be read."""

    value: float | None  # mean over the readable draws, -1 to 1
    votes: dict[str, int]  # draws for each state
    unreadable: int

    @property
    def solved(self) -> bool:
        """Whether the conversation counts as a success."""
        return self.value is not None and self.value > SUCCESS


class Critic(Protocol):
    """Anyone who says how conversations stand, from their words alone."""

    def assess_batch(self, talks: Sequence[tuple[str, Sequence[Turn]]]) -> list[Assessment]:
        """One assessment for each (situation, turns)."""


class LMCritic:
    """Says how conversations went, from their words."""

    def __init__(
        self, chat: ChatModel, *, samples: int = SAMPLES, temperature: float = TEMPERATURE, max_tokens: int = 120
    ) -> None:
        self.chat, self.samples, self.temperature, self.max_tokens = chat, samples, temperature, max_tokens

    def assess_batch(self, talks: Sequence[tuple[str, Sequence[Turn]]]) -> list[Assessment]:
        """One assessment for each (situation, turns); all draws of all of them in one call."""
        requests = [self._request(*talk, draw) for talk in talks for draw in range(self.samples)]
        replies = iter(self.chat.complete(requests))
        return [
            assessment([r.value["state"] if r.answered else None for r in [next(replies) for _ in range(self.samples)]])
            for _ in talks
        ]

    def _request(self, situation: str, turns: Sequence[Turn], draw: int) -> ChatRequest:
        prompt = load_prompt("critic", language_of([t.text for t in turns if t.speaker == "seeker"]))
        return ChatRequest(
            messages=prompt.messages(situation=quoted(situation), history=transcript(turns)),
            schema=SCHEMA,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            draw=draw,
            asker=prompt.tag,
        )


def assessment(states: Sequence[str | None]) -> Assessment:
    """The mean value of the states that could be read."""
    read = [state for state in states if state is not None]
    votes = Counter(read)
    mean = sum(VALUES[state] for state in read) / len(read) if read else None
    return Assessment(mean, {state: votes[state] for state in VALUES}, len(states) - len(read))
