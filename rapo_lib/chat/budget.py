"""What the answers cost: counters for the record, and limits that stop a run before it costs more."""

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from rapo_lib.chat.request import Answer, ChatReply, ChatRequest
from rapo_lib.runs import RapoError

MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Money per million tokens, in whatever currency the endpoint charges."""

    input: float = 0.0
    output: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.input < math.inf and 0 <= self.output < math.inf):
            raise RapoError(f"prices must be 0 or more, not {self.input} and {self.output}")

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        """What these tokens cost."""
        return (input_tokens * self.input + output_tokens * self.output) / MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits for one ChatModel; None: no limit. Questions in flight when one is reached are still answered and kept."""

    requests: int | None = None
    tokens: int | None = None  # input and output together
    money: float | None = None  # at the given prices

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            if limit is not None and not limit >= 0:
                raise RapoError(f"budget: {name} must be 0 or more, not {limit!r}")


@dataclass(slots=True)
class Usage:
    """What one ChatModel has used so far; answers from the cache cost nothing and are counted apart."""

    prices: Prices = field(default_factory=Prices)
    sent: int = 0  # questions that went to the model
    answers: int = 0  # answers that came back from it
    cached: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    unmetered: int = 0  # answers whose tokens had to be estimated
    outcomes: dict[str, Counter] = field(default_factory=dict)  # asker -> status -> replies
    spent: dict[str, list[int]] = field(default_factory=dict)  # asker -> [input tokens, output tokens]

    @property
    def cost(self) -> float:
        """Money spent, at the given prices."""
        return self.prices.cost(self.input_tokens, self.output_tokens)

    def add_answer(self, asker: str, answer: Answer) -> None:
        """Count an answer that the model has just given."""
        self.answers += 1
        self.input_tokens += answer.input_tokens
        self.output_tokens += answer.output_tokens
        self.unmetered += not answer.metered
        spent = self.spent.setdefault(asker, [0, 0])
        spent[0] += answer.input_tokens
        spent[1] += answer.output_tokens

    def add_reply(self, request: ChatRequest, reply: ChatReply) -> None:
        """Count the final outcome of a request."""
        outcomes = self.outcomes.setdefault(request.asker, Counter())
        outcomes[reply.status] += 1
        outcomes["asked again"] += reply.attempts > 1

    def exceeded(self, budget: Budget) -> str:
        """Which limit is reached, or ""."""
        used = {"requests": self.sent, "tokens": self.input_tokens + self.output_tokens, "money": self.cost}
        limits = {"requests": budget.requests, "tokens": budget.tokens, "money": budget.money}
        reached = [
            f"{used[n]:.6g} of {limit:g} {n}" for n, limit in limits.items() if limit is not None and used[n] >= limit
        ]
        return ", ".join(reached)

    def report(self) -> dict[str, Any]:
        """The counters as JSON, for a run's record."""
        return {
            "sent": self.sent,
            "answers": self.answers,
            "cached": self.cached,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "unmetered": self.unmetered,
            "cost": round(self.cost, 6),
            "by_asker": {
                asker: {
                    **{name: count for name, count in outcomes.items() if count},
                    "input_tokens": self.spent.get(asker, [0, 0])[0],
                    "output_tokens": self.spent.get(asker, [0, 0])[1],
                    "cost": round(self.prices.cost(*self.spent.get(asker, [0, 0])), 6),
                }
                for asker, outcomes in sorted(self.outcomes.items())
            },
        }
