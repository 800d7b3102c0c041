"""What is asked of a language model and what comes back: plain immutable data, no model and no network."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rapo_lib.dialogue import Message
from rapo_lib.runs import stable_hash

Status = Literal["ok", "repaired", "refused", "truncated", "unparsable", "failed"]
Finish = Literal["stop", "length", "refused"]
KEY_FORMAT = 1  # part of every key: a change of what a key means makes old answers invisible


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One question. With a schema the answer must be a JSON value that fits it, else it is plain text."""

    messages: tuple[Message, ...]
    schema: Mapping[str, Any] | None = None
    max_tokens: int = 256
    temperature: float = 0.0  # 0 is greedy
    top_p: float = 1.0
    draw: int = 0  # which of several answers to the same question
    check: Callable[[Any], str] | None = None  # what is wrong with a value beyond its schema, "" if nothing
    asker: str = ""  # role, version and hash of the prompt; recorded and counted, no part of the question


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said, before anybody read it."""

    text: str
    finish: Finish = "stop"
    input_tokens: int = 0
    output_tokens: int = 0
    metered: bool = True  # False: the endpoint reported no usage and the tokens are estimated from the length


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer; `again`: it came as an answer but made no sense, so that asking once more may help."""

    reason: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The outcome of one request; `value` is None unless the status is ok or repaired.

    ok          the text is the value, or its JSON is
    repaired    JSON was found after removing what surrounds it, or after mending its notation
    refused     the model declined
    truncated   it was cut at the token limit
    unparsable  it does not say what was asked: no JSON, another schema, or the request's own check objects
    failed      no answer: the transport failed, or the question was not accepted
    """

    status: Status
    text: str = ""  # raw, as it came
    value: Any = None
    reason: str = ""  # why not ok
    attempts: int = 1  # questions asked, the first one included
    cached: bool = False
    input_tokens: int = 0  # of all attempts, paid now or when the answer entered the cache
    output_tokens: int = 0

    @property
    def answered(self) -> bool:
        """Whether there is a value."""
        return self.status in ("ok", "repaired")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request on its way to a backend, under its cache key."""

    key: str
    request: ChatRequest

    @property
    def seed(self) -> int:
        """A seed (31 bits) of its own for every question, draw and attempt."""
        return int(self.key[:8], 16) >> 1


class Backend(Protocol):
    """A language model; `identity` is all of it that decides an answer (never a key, a timeout or a concurrency)."""

    @property
    def identity(self) -> Mapping[str, Any]: ...

    def answers(self, asks: Iterable[Ask]) -> Iterator[tuple[Ask, Answer | Failure]]:
        """Every ask with what came of it, in the order of completion; `asks` is drawn from as capacity allows."""


def request_record(identity: Mapping[str, Any], request: ChatRequest) -> dict[str, Any]:
    """The question as JSON: everything that decides the answer and nothing else."""
    return {
        "format": KEY_FORMAT,
        "model": dict(identity),
        "messages": list(request.messages),
        "sampling": {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
        },
        "schema": None if request.schema is None else json.dumps(request.schema),  # as text: its order counts
        "draw": request.draw,
    }


def request_key(record: Mapping[str, Any]) -> str:
    """The key that the cache knows a question by."""
    return stable_hash(record)
