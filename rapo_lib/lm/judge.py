"""A language model as the judge: the whole group at once, words only, in several orders; it abstains, never guesses.

1. Equal (reply, reaction) pairs are shown once; a blank reply is not shown and ranks last.
2. The candidates are shuffled (seeded by the group's own text) and shown in that order and in its reverse, so that
   each stands at the same place on average; with `orders` above 2, further shuffles and their reverses.
3. An answer counts if it ranks every candidate exactly once and scores every one within 0-10; if not it is asked for
   again. A pair of orders counts if both answers do; without any such pair the judge abstains.
4. The ranking is primary. m_i = mean over the orders of the centred rank in [-1, 1]; the scores follow from it as for
   every judge (`feedback.scores_from`). The 0-10 scores are only held against it: contradictions are counted.
5. `flips` is the share of pairs of candidates that an order and its reverse rank differently: 0 is steady, 0.5 is
   chance, 1 means that the place decides. If they cancel out for all candidates the judge abstains.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import factorial
from typing import Any

import numpy as np

from rapo_lib.chat import ChatModel, ChatReply, ChatRequest
from rapo_lib.dialogue import language_of
from rapo_lib.feedback import CandidateGroup, Verdict, scores_from
from rapo_lib.lm.prompts import load_prompt, quoted, transcript
from rapo_lib.runs import RapoError, seed_for

TOP = 10  # best score that the model can give
LISTED = 4  # up to so many candidates the schema lists every permutation (24), so that a constrained model ranks well
CRITIQUE = 400  # characters
EVERY = "every candidate's number exactly once, best first"
SILENCE = "(says nothing)"
Pair = tuple[str, str | None]  # reply, reaction
Order = tuple[int, ...]  # which candidate stands where


@dataclass(frozen=True, slots=True)
class Comparison:
    """A verdict and what stands behind it."""

    verdict: Verdict
    flips: float | None  # None: fewer than two orders counted
    contradictions: int  # orders whose scores contradict their ranking
    replies: tuple[ChatReply, ...]  # one an order, raw text included


class LMJudge:
    """Compares the replies of each group with a language model."""

    def __init__(
        self, chat: ChatModel, *, orders: int = 2, seed: int = 0, temperature: float = 0.0, max_tokens: int = 160
    ) -> None:
        if orders < 1 or (orders > 1 and orders % 2):
            raise RapoError(
                f"orders must be 1 or an even number, not {orders}: every shuffle is shown with its reverse"
            )
        self.chat, self.orders, self.seed = chat, orders, seed
        self.temperature, self.max_tokens = temperature, max_tokens  # max_tokens: for each candidate

    def compare_batch(self, groups: Sequence[CandidateGroup]) -> list[Verdict]:
        """A verdict for each group."""
        return [found.verdict for found in self.judge_batch(groups)]

    def compare(self, group: CandidateGroup) -> Verdict:
        """The verdict on one group."""
        return self.compare_batch([group])[0]

    def judge_batch(self, groups: Sequence[CandidateGroup]) -> list[Comparison]:
        """Every group in every order in one call, with all that stands behind the verdicts."""
        shown = [distinct_pairs(group) for group in groups]
        orders = [
            self._orders(group, len(pairs)) if len(pairs) > 1 else []
            for group, pairs in zip(groups, shown, strict=True)
        ]
        requests = [
            self._request(group, [pairs[k] for k in order])
            for group, pairs, own in zip(groups, shown, orders, strict=True)
            for order in own
        ]
        answers = iter(self.chat.complete(requests))
        return [
            _comparison(group, pairs, own, tuple(next(answers) for _ in own))
            for group, pairs, own in zip(groups, shown, orders, strict=True)
        ]

    def _orders(self, group: CandidateGroup, count: int) -> list[Order]:
        text = [[t.speaker, t.text] for t in group.history], group.replies, group.reactions
        rng, found = random.Random(seed_for(self.seed, repr(text))), []
        while len(found) < self.orders:
            order = tuple(rng.sample(range(count), count))
            if order not in found or len(found) >= factorial(count):
                found += [order, order[::-1]]
        return found[: self.orders]

    def _request(self, group: CandidateGroup, pairs: Sequence[Pair]) -> ChatRequest:
        prompt = load_prompt("judge", language_of([t.text for t in group.history if t.speaker == "seeker"]))
        lines = [
            {"candidate": k, "reply": reply}
            | ({} if group.reactions is None else {"reaction": (reaction or "").strip() or SILENCE})
            for k, (reply, reaction) in enumerate(pairs, start=1)
        ]
        return ChatRequest(
            messages=prompt.messages(
                basis=prompt.parts["basis replies" if group.reactions is None else "basis reactions"],
                history=transcript(group.history),
                candidates="\n".join(map(quoted, lines)),
                count=len(pairs),
            ),
            schema=answer_schema(len(pairs)),
            max_tokens=self.max_tokens * len(pairs),
            temperature=self.temperature,
            check=check_answer,
            asker=prompt.tag,
        )


# ---------------------------------------------------------------------------------------------- the question


def distinct_pairs(group: CandidateGroup) -> list[Pair]:
    """The different (reply, reaction) pairs of a group in order, without blank replies."""
    return list(dict.fromkeys(pair for pair in _pairs(group) if pair[0].strip()))


def _pairs(group: CandidateGroup) -> list[Pair]:
    return list(zip(group.replies, group.reactions or (None,) * len(group.replies), strict=True))


def answer_schema(count: int) -> dict[str, Any]:
    """A critique and a score for each candidate by its number, then the ranking, best first."""
    one = {
        "type": "object",
        "properties": {
            "critique": {"type": "string", "maxLength": CRITIQUE},
            "score": {"type": "integer", "minimum": 0, "maximum": TOP},
        },
        "required": ["critique", "score"],
    }
    numbers = range(1, count + 1)
    ranking: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": count}}
    ranking |= {"minItems": count, "maxItems": count, "description": EVERY}
    if count <= LISTED:
        ranking["enum"] = [list(order) for order in permutations(numbers)]
    return {
        "type": "object",
        "properties": {
            "candidates": {
                "type": "object",
                "properties": {str(k): one for k in numbers},
                "required": [str(k) for k in numbers],
                "additionalProperties": False,
            },
            "ranking": ranking,
        },
        "required": ["candidates", "ranking"],
    }


def check_answer(value: Any) -> str:
    """What the schema cannot say: every candidate is ranked once, every critique says something."""
    if sorted(value["ranking"]) != list(range(1, len(value["ranking"]) + 1)):
        return f"$.ranking: {EVERY}"
    if not all(any(c.isalpha() for c in one["critique"]) for one in value["candidates"].values()):
        return "a critique says nothing"
    return ""


# ---------------------------------------------------------------------------------------------- the verdict


def _comparison(
    group: CandidateGroup, pairs: Sequence[Pair], orders: Sequence[Order], replies: tuple[ChatReply, ...]
) -> Comparison:
    if len(pairs) < 2:
        return Comparison(_abstention(group, "fewer than two distinct replies"), None, 0, replies)
    read = [(order, reply.value) if reply.answered else None for order, reply in zip(orders, replies, strict=True)]
    counted = [read] if len(read) == 1 else [read[i : i + 2] for i in range(0, len(read), 2)]
    counted = [pair for pair in counted if None not in pair]
    if not counted:
        bad = next(reply for reply in replies if not reply.answered)
        return Comparison(_abstention(group, f"{bad.status}, {bad.reason}"), None, 0, replies)
    ranks = [[centred_ranks(*one) for one in pair] for pair in counted]
    flips = None if len(counted[0]) == 1 else float(np.mean([flipped(*pair) for pair in ranks]))
    contradictions = sum(contradicts(value) for pair in counted for _, value in pair)
    merits = np.mean([rank for pair in ranks for rank in pair], axis=0)
    if np.ptp(merits) < 1e-9:
        verdict = _abstention(group, "the orders contradict each other")
    else:
        verdict = _verdict(group, pairs, merits, *counted[0][0])
    return Comparison(verdict, flips, contradictions, replies)


def centred_ranks(order: Order, value: Any) -> list[float]:
    """The rank of every candidate by its own index, 1 for the best and -1 for the worst."""
    ranks = [0.0] * len(order)
    for place, number in enumerate(value["ranking"]):
        ranks[order[number - 1]] = 1 - 2 * place / (len(order) - 1)
    return ranks


def flipped(one: Sequence[float], other: Sequence[float]) -> float:
    """The share of pairs of candidates that two rankings put the other way round."""
    pairs = list(combinations(range(len(one)), 2))
    return sum((one[i] - one[j]) * (other[i] - other[j]) < 0 for i, j in pairs) / len(pairs)


def contradicts(value: Any) -> bool:
    """Whether a candidate ranked below another has the higher score."""
    scores = [value["candidates"][str(number)]["score"] for number in value["ranking"]]
    return any(later > earlier for earlier, later in combinations(scores, 2))


def _verdict(
    group: CandidateGroup, pairs: Sequence[Pair], merits: Sequence[float], order: Order, value: Any
) -> Verdict:
    """Scores for all replies: equal pairs share theirs, blank ones get the lowest."""
    index = {pair: k for k, pair in enumerate(pairs)}
    number = {k: str(place + 1) for place, k in enumerate(order)}
    where = [index.get(pair) for pair in _pairs(group)]
    all_merits = [float(min(merits)) - 1 if k is None else float(merits[k]) for k in where]
    critiques = tuple("" if k is None else value["candidates"][number[k]]["critique"].strip() for k in where)
    scores = scores_from(all_merits)
    ranking = tuple(sorted(range(len(scores)), key=lambda i: -scores[i]))
    return Verdict(scores, critiques, group.reactions, ranking)


def _abstention(group: CandidateGroup, why: str) -> Verdict:
    nothing = ("",) * len(group.replies)
    return Verdict(None, nothing, group.reactions, tuple(range(len(group.replies))), f"abstained: {why}")
