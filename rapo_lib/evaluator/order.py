"""Do the words stand in an order? A small language model of word shapes, the evaluator's measure of fluency.

The 250 commonest words stand for themselves, every other word for its shape: its ending and how rare it is. A trigram
model with Witten-Bell smoothing is fitted on our own text. What is measured is how much the order helps: the mean log
probability of a token given the two before it, less that of the token alone. Keywords in a row gain nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from rapo_lib.evaluator.words import KNOWN, records, sentences, tokens, vectors

GLUE = 250  # words that stand for themselves
ENDINGS = ("ing", "ed", "ly", "s")
BANDS = 10_000  # ranks in one band of rarity
ORDER = 3

Context = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShapeModel:
    """Counts of what follows each context of up to two shapes."""

    follows: dict[Context, Counter[str]]
    kinds: int  # shapes seen, and one more for all others

    def probability(self, context: Context, shape: str) -> float:
        """Witten-Bell: p = (count + types * p_shorter) / (total + types), from no context to the longest."""
        p = 1 / self.kinds
        for length in range(len(context) + 1):
            if seen := self.follows.get(context[len(context) - length :]):
                p = (seen[shape] + len(seen) * p) / (seen.total() + len(seen))
        return p

    def order_gain(self, line: Sequence[str]) -> float:
        """Mean over tokens of log p(token | two before) - log p(token), in nats."""
        padded = ["<s>"] * (ORDER - 1) + [*line, "</s>"]
        gains = [
            np.log(self.probability(tuple(padded[i - ORDER + 1 : i]), padded[i]) / self.probability((), padded[i]))
            for i in range(ORDER - 1, len(padded))
        ]
        return float(np.mean(gains))


def fit_shapes(lines: Iterable[Sequence[str]]) -> ShapeModel:
    """Count every shape after every context."""
    follows: dict[Context, Counter[str]] = defaultdict(Counter)
    for line in lines:
        padded = ["<s>"] * (ORDER - 1) + [*line, "</s>"]
        for i in range(ORDER - 1, len(padded)):
            for length in range(ORDER):
                follows[tuple(padded[i - length : i])][padded[i]] += 1
    return ShapeModel(dict(follows), len(follows[()]) + 1)


@cache
def own_text() -> tuple[str, ...]:
    """Sentences we wrote: the warm-start pairs and the people to train with."""
    texts = [text for r in records("warmstart.jsonl") for text in (*(t["text"] for t in r["history"]), r["reply"])]
    for person in records("profiles/train.jsonl"):
        texts += [person[key] for key in ("situation", "opening", "need", "theme")]
        texts += [*person["details"], *(disclosure["text"] for disclosure in person["disclosures"])]
    return tuple(dict.fromkeys(part for text in texts for part in sentences(text)))


@cache
def glue() -> frozenset[str]:
    """The commonest words and marks of our text."""
    counts = Counter(token for line in own_text() for token in tokens(line))
    return frozenset(token for token, _ in counts.most_common(GLUE))


@lru_cache(maxsize=50_000)
def shape(token: str) -> str:
    """A common word as it is, any other as its ending and its band of rarity."""
    if token in glue() or token in ".,?!":
        return token
    stem = token.split("'")[0]
    place = vectors().place.get(stem, KNOWN)
    if place == KNOWN:
        return "<unknown>"
    ending = next((e for e in ENDINGS if stem.endswith(e) and len(stem) > len(e) + 2), "")
    return f"<{ending}{min(place // BANDS, 2)}>"


def shapes(text: str) -> list[str]:
    """The shapes of a text's tokens."""
    return [shape(token) for token in tokens(text)]


@cache
def shape_model() -> ShapeModel:
    """Fitted on our own text, in well under a second."""
    return fit_shapes(shapes(line) for line in own_text())


@lru_cache(maxsize=20_000)
def order_gain(text: str) -> float:
    """Mean gain over the sentences of a text, weighed by length; 0 where there is no word."""
    lines = [shapes(part) for part in sentences(text)]
    lengths = [len(line) for line in lines]
    return float(np.average([shape_model().order_gain(line) for line in lines], weights=lengths)) if lines else 0.0
