"""The collapse watch: signs in a step's numbers and replies that the policy is degenerating. All thresholds are ours.

Optimising a learned or simulated judge ends badly in known ways: the policy says one sentence to everybody, repeats
itself, grows or shrinks its replies, or leaves the language it started from. Each has a number; a warning names it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a number is a sign; "at first" is the mean of the first `window` steps, "now" of the last. All ours."""

    window: int = 4  # steps averaged, at least
    entropy_share: float = 0.5  # of the entropy at first: less is a sign
    entropy: float = 0.3  # nats a token: less is a sign whatever it was at first
    longer: float = 1.6  # times the reply's tokens at first
    shorter: float = 0.5
    repetition: float = 0.25  # share of n-grams that their reply has said before
    sameness: float = 0.5  # share of replies that another reply of the step equals
    distance: float = 1.0  # KL to the start, nats a token
    fluency: float = 1.0  # nats a token less than at first, under the base model


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One step's numbers; None where one was not measured."""

    entropy: float | None = None  # nats a token
    reply_tokens: float | None = None
    repetition: float | None = None
    sameness: float | None = None
    distance: float | None = None  # KL to the start, nats a token
    fluency: float | None = None  # mean log-probability a token under the base model


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that looks like collapse: which number, and a sentence with the numbers in it."""

    kind: str
    text: str


LOGGED = {
    "entropy": "rapo/entropy",
    "reply_tokens": "completions/mean_length",
    "repetition": "rapo/repetition",
    "sameness": "rapo/sameness",
    "distance": "rapo/kl_to_start",
    "fluency": "rapo/fluency",
}


def reading(entry: Mapping[str, Any]) -> Reading:
    """A step's numbers from the trainer's log entry."""
    return Reading(**{name: entry.get(key) for name, key in LOGGED.items()})


def repetition(text: str, n: int = 3) -> float:
    """Share of a text's word n-grams that it has said before; 0 for a text of fewer than two."""
    words = text.lower().split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if len(grams) > 1 else 0.0


def sameness(texts: Sequence[str]) -> float:
    """Share of texts that equal another one, case and spaces aside."""
    counts = Counter(" ".join(text.lower().split()) for text in texts)
    return sum(n for n in counts.values() if n > 1) / len(texts) if texts else 0.0


def signs(readings: Sequence[Reading], limits: Limits) -> list[Sign]:
    """What looks like collapse at the last of `readings`, the steps so far in order; nothing before 2 windows."""
    if len(readings) < 2 * limits.window:
        return []
    first, now = _means(readings[: limits.window]), _means(readings[-limits.window :])
    return [sign for sign in _judged(first, now, limits) if sign]


def _means(readings: Sequence[Reading]) -> Reading:
    known = {name: [v for r in readings if (v := getattr(r, name)) is not None] for name in LOGGED}
    return Reading(**{name: fmean(values) if values else None for name, values in known.items()})


def _judged(first: Reading, now: Reading, limits: Limits) -> Iterable[Sign | None]:
    if now.entropy is not None and first.entropy is not None:
        lowest = max(limits.entropy, limits.entropy_share * first.entropy)
        yield _below("entropy", now.entropy, lowest, f"nats a token ({first.entropy:.2f} at first)")
    if now.reply_tokens is not None and first.reply_tokens is not None:
        at_first = f"tokens a reply ({first.reply_tokens:.1f} at first)"
        yield _above("length", now.reply_tokens, limits.longer * first.reply_tokens, at_first)
        yield _below("length", now.reply_tokens, limits.shorter * first.reply_tokens, at_first)
    if now.repetition is not None:
        yield _above(
            "repetition", now.repetition, limits.repetition, "of a reply's word triples were said before in it"
        )
    if now.sameness is not None:
        yield _above("sameness", now.sameness, limits.sameness, "of the replies of a step equal another one")
    if now.distance is not None:
        yield _above("distance", now.distance, limits.distance, "nats a token from the start")
    if now.fluency is not None and first.fluency is not None:
        lowest, unit = first.fluency - limits.fluency, "nats a token under the base model"
        yield _below("fluency", now.fluency, lowest, f"{unit} ({first.fluency:.2f} at first)")


def _above(kind: str, value: float, limit: float, unit: str) -> Sign | None:
    return Sign(kind, f"{kind} {value:.2f} {unit}, more than {limit:.2f}") if value > limit else None


def _below(kind: str, value: float, limit: float, unit: str) -> Sign | None:
    return Sign(kind, f"{kind} {value:.2f} {unit}, less than {limit:.2f}") if value < limit else None
