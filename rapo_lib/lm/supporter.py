"""A served language model as the supporter under evaluation, or as an agent with a goal: text in, one reply out.

An answer that never came (the endpoint failed, after the transport's own retries) is a Failure, not an empty reply; a
reply that was cut at the limit counts as it stands, like that of a model in this process. Whole histories are sent:
how much of them it reads is the endpoint's affair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rapo_lib.chat import ChatModel, ChatReply, ChatRequest, Failure
from rapo_lib.chat.parsing import without_thoughts
from rapo_lib.dialogue import Message, Turn, to_messages
from rapo_lib.sotopia.episode import prompt_messages
from rapo_lib.sotopia.scenarios import Scenario

ASKER = "supporter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The model behind `chat`, which should not ask again by itself (retries=0): a cut reply is a reply."""

    chat: ChatModel
    reply_tokens: int = 40
    temperature: float = 0.8

    def policy(self, histories: Sequence[Sequence[Turn]], seed: int) -> list[str | Failure]:
        """One reply, or why there is none, for each history."""
        return self._answers([to_messages(history) for history in histories], seed)

    def agent(self, items: Sequence[tuple[Scenario, Sequence[Turn]]], seed: int) -> list[str | Failure]:
        """The same for each (scenario, history), told its goal."""
        return self._answers([prompt_messages(scenario, history) for scenario, history in items], seed)

    def _answers(self, prompts: Sequence[list[Message]], seed: int) -> list[str | Failure]:
        requests = [
            ChatRequest(
                messages=tuple(prompt),
                max_tokens=self.reply_tokens,
                temperature=self.temperature,
                draw=seed,
                asker=ASKER,
            )
            for prompt in prompts
        ]
        return [said(reply) for reply in self.chat.complete(requests)]


def said(reply: ChatReply) -> str | Failure:
    """The words of an answer, its thoughts removed; "" where it said none."""
    if reply.status == "failed":
        return Failure(reply.reason)
    return reply.value if reply.answered else (without_thoughts(reply.text) or "").strip()
