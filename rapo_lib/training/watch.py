"""The collapse watch: signs in a step's numbers and replies that the policy is degenerating. All thresholds are ours.

Optimising a learned or simulated judge ends badly in known ways: the policy says one sentence to everybody, repeats
itself, grows or shrinks its replies, or leaves the language it started from. Each has a number; a warning names it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
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


SAID = {  # what a sign is called, and the unit in its sentence
    "entropy": ("entropy", "nats a token"),
    "reply_tokens": ("length", "tokens a reply"),
    "repetition": ("repetition", "of a reply's word triples were said before in it"),
    "sameness": ("sameness", "of the replies of a step equal another one"),
    "distance": ("distance", "nats a token from the start"),
    "fluency": ("fluency", "nats a token under the base model"),
}
RELATIVE = ("entropy", "reply_tokens", "fluency")  # judged by what they were at first


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


def bounds(first: Reading, limits: Limits) -> dict[str, tuple[float, float]]:
    """The lowest and the highest value of each number that is no sign; those that were not measured at first go."""
    allowed = {
        "repetition": (-inf, limits.repetition),
        "sameness": (-inf, limits.sameness),
        "distance": (-inf, limits.distance),
    }
    if first.entropy is not None:
        allowed["entropy"] = (max(limits.entropy, limits.entropy_share * first.entropy), inf)
    if first.reply_tokens is not None:
        allowed["reply_tokens"] = (limits.shorter * first.reply_tokens, limits.longer * first.reply_tokens)
    if first.fluency is not None:
        allowed["fluency"] = (first.fluency - limits.fluency, inf)
    return allowed


def watched(readings: Sequence[Reading], limits: Limits) -> list[dict[str, Any]]:
    """For a figure: step, what, value, the mean of the window up to it, and the bounds beyond which it is a sign."""
    allowed, rows = bounds(_means(readings[: limits.window]), limits), []
    for step, one in enumerate(readings, start=1):
        now = _means(readings[max(0, step - limits.window) : step])
        for what in LOGGED:
            if (value := getattr(one, what)) is not None:
                low, high = allowed.get(what, (-inf, inf))
                mean = getattr(now, what)
                rows.append({"step": step, "what": what, "value": value, "mean": mean, "low": low, "high": high})
    return rows


def _judged(first: Reading, now: Reading, limits: Limits) -> Iterable[Sign | None]:
    for what, (low, high) in bounds(first, limits).items():
        value, (kind, unit), at_first = getattr(now, what), SAID[what], getattr(first, what)
        if value is None:
            continue
        unit += f" ({at_first:.{1 if what == 'reply_tokens' else 2}f} at first)" if what in RELATIVE else ""
        yield _above(kind, value, high, unit)
        yield _below(kind, value, low, unit)


def _above(kind: str, value: float, limit: float, unit: str) -> Sign | None:
    return Sign(kind, f"{kind} {value:.2f} {unit}, more than {limit:.2f}") if value > limit else None


def _below(kind: str, value: float, limit: float, unit: str) -> Sign | None:
    return Sign(kind, f"{kind} {value:.2f} {unit}, less than {limit:.2f}") if value < limit else None
