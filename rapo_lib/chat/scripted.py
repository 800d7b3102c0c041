"""A backend that says what it is told to: for tests and for trying prompts without a model."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rapo_lib.chat.request import Answer, Ask, ChatRequest, Failure

Script = Callable[[ChatRequest], str | Answer | Failure]


@dataclass(frozen=True, slots=True)
class Scripted:
    """Answers every request with what `script` returns for it."""

    script: Script
    name: str = "scripted"

    @property
    def identity(self) -> dict[str, str]:
        """The script's name: two scripts that share a cache need two names."""
        return {"model": self.name}

    def answers(self, asks: Iterable[Ask]) -> Iterator[tuple[Ask, Answer | Failure]]:
        """Every answer, in the order asked."""
        for ask in asks:
            said = self.script(ask.request)
            yield ask, Answer(said) if isinstance(said, str) else said
