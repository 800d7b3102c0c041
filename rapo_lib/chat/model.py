"""ChatModel: many questions to one language model in one call, cached, counted, asked again where it helps.

What concerns one question is that reply's status; what concerns them all (no such endpoint, a wrong key, a spent
budget, a miss in a replay) is a RapoError, raised after everything that was already answered has been kept.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from rapo_lib.chat.budget import Budget, Prices, Usage
from rapo_lib.chat.cache import ChatCache
from rapo_lib.chat.parsing import is_refusal, read_json, without_thoughts
from rapo_lib.chat.request import Answer, Ask, Backend, ChatReply, ChatRequest, Failure, request_key, request_record
from rapo_lib.runs import RapoError

log = logging.getLogger(__name__)
AGAIN = "(Your last answer could not be used: {complaint}. Answer again, exactly in the form asked for.)"


class ChatModel:
    """One language model behind a batched call.

    `retries` is how often an answer that cannot be used is asked for again (the transport has retries of its own).
    Synchronous and thread-safe: it works inside a running event loop, as in Jupyter, and outside.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        cache: ChatCache | None = None,
        budget: Budget | None = None,
        prices: Prices | None = None,
        retries: int = 1,
    ) -> None:
        self.backend = backend
        self.cache = cache or ChatCache(mode="off")
        self.budget = budget or Budget()
        self.usage = Usage(prices=prices or Prices())
        self.retries = retries
        self._lock = Lock()

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """One reply for each request, in their order; an item that fails never fails the others."""
        asked = dict(enumerate(requests))
        replies: dict[int, ChatReply] = {}
        for _ in range(self.retries + 1):
            outcomes = self._outcomes(asked)
            again = {}
            for i, request in asked.items():
                outcome, cached = outcomes[i]
                replies[i] = _metered(read_reply(requests[i], outcome), outcome, replies.get(i), cached)
                if follow_up := _follow_up(requests[i], request, outcome, replies[i]):
                    again[i] = follow_up
            asked = again
            if not asked:
                break
        ordered = [replies[i] for i in range(len(requests))]
        self._count(requests, ordered)
        return ordered

    def report(self) -> dict[str, Any]:
        """Model, cache mode and usage as JSON, for a run's record."""
        return {"model": dict(self.backend.identity), "cache": self.cache.mode, **self.usage.report()}

    def _outcomes(self, asked: Mapping[int, ChatRequest]) -> dict[int, tuple[Answer | Failure, bool]]:
        """What came of each request and whether it was known; equal questions are asked once."""
        records = {i: request_record(self.backend.identity, request) for i, request in asked.items()}
        keys = {i: request_key(record) for i, record in records.items()}
        by_key = {key: i for i, key in keys.items()}
        known = self.cache.get(list(by_key))
        missing = [Ask(key, asked[i]) for key, i in by_key.items() if key not in known]
        if missing and self.cache.mode == "replay":
            what = f"{len(missing)} of {len(by_key)} questions ({missing[0].request.asker or 'no asker'} first)"
            raise RapoError(f"{self.cache.path} does not hold the answers to {what}; run it with cache mode read_write")
        with self._lock:
            self.usage.cached += len(known)
        fresh: dict[str, Answer | Failure] = {}
        for ask, outcome in self.backend.answers(self._allowed(missing)):
            fresh[ask.key] = self._keep(ask, outcome, records[by_key[ask.key]])
        if len(fresh) < len(missing):
            reached = self.usage.exceeded(self.budget)
            raise RapoError(
                f"the budget is spent ({reached}) with {len(missing) - len(fresh)} questions left; "
                "raise it and run again: what was answered is "
                + ("lost without a cache" if self.cache.mode == "off" else "kept")
            )
        return {i: (known[key], True) if key in known else (fresh[key], False) for i, key in keys.items()}

    def _allowed(self, asks: Sequence[Ask]) -> Iterator[Ask]:
        """The asks, longest first, until the budget is reached; each is counted as it leaves."""
        for ask in sorted(asks, key=lambda a: -sum(len(m["content"]) for m in a.request.messages)):
            with self._lock:
                if self.usage.exceeded(self.budget):
                    return
                self.usage.sent += 1
            yield ask

    def _keep(self, ask: Ask, outcome: Answer | Failure, record: Mapping[str, Any]) -> Answer | Failure:
        if isinstance(outcome, Failure):
            return outcome
        with self._lock:
            self.usage.add_answer(ask.request.asker, outcome)
        return self.cache.put(ask.key, record, outcome, ask.request.asker)

    def _count(self, requests: Sequence[ChatRequest], replies: Sequence[ChatReply]) -> None:
        with self._lock:
            for request, reply in zip(requests, replies, strict=True):
                self.usage.add_reply(request, reply)
        bad = Counter(f"{reply.status}: {reply.reason}" for reply in replies if not reply.answered)
        if bad:
            reason, count = bad.most_common(1)[0]
            log.warning("%d of %d answers cannot be used; %d times %s", sum(bad.values()), len(replies), count, reason)


def read_reply(request: ChatRequest, outcome: Answer | Failure) -> ChatReply:
    """What an answer means for the request that asked for it."""
    if isinstance(outcome, Failure):
        return ChatReply("failed", reason=outcome.reason)
    text, cut = outcome.text, outcome.finish == "length"
    if outcome.finish == "refused":
        return ChatReply("refused", text, reason="the model declined")
    if request.schema is None:
        return _read_text(request, text, cut)
    try:
        value, repaired = read_json(text, request.schema)
    except ValueError as error:
        if cut:
            return ChatReply("truncated", text, reason=f"cut at {request.max_tokens} tokens")
        if is_refusal(without_thoughts(text) or ""):
            return ChatReply("refused", text, reason="the model declined in words")
        return ChatReply("unparsable", text, reason=str(error) if text.strip() else "an empty answer")
    return _checked(request, text, value, "repaired" if repaired else "ok")


def _metered(reply: ChatReply, outcome: Answer | Failure, before: ChatReply | None, cached: bool) -> ChatReply:
    """The reply with what it took to get it, earlier attempts included."""
    spent = (outcome.input_tokens, outcome.output_tokens) if isinstance(outcome, Answer) else (0, 0)
    attempts, *earlier = (before.attempts, before.input_tokens, before.output_tokens) if before else (0, 0, 0)
    return replace(
        reply,
        attempts=attempts + 1,
        cached=cached,
        input_tokens=earlier[0] + spent[0],
        output_tokens=earlier[1] + spent[1],
    )


def _read_text(request: ChatRequest, text: str, cut: bool) -> ChatReply:
    said = without_thoughts(text)
    if cut or said is None:
        return ChatReply("truncated", text, reason=f"cut at {request.max_tokens} tokens")
    if not said:
        return ChatReply("unparsable", text, reason="an empty answer")
    return _checked(request, text, said, "ok")


def _checked(request: ChatRequest, text: str, value: Any, status: str) -> ChatReply:
    complaint = request.check(value) if request.check else ""
    return ChatReply("unparsable", text, reason=complaint) if complaint else ChatReply(status, text, value)


def _follow_up(
    first: ChatRequest, asked: ChatRequest, outcome: Answer | Failure, reply: ChatReply
) -> ChatRequest | None:
    """What to ask next: the same, with what was wrong, or with more room; None where asking again cannot help."""
    if isinstance(outcome, Failure):
        return asked if outcome.again else None
    if reply.status == "truncated":
        return replace(asked, max_tokens=2 * asked.max_tokens)
    if reply.status != "unparsable":
        return None
    note = AGAIN.format(complaint=reply.reason)
    *before, last = first.messages
    return replace(asked, messages=(*before, {**last, "content": f"{last['content']}\n\n{note}"}))
