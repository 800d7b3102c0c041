"""Three kinds of game, each with a private side and a goal that needs no model to check. All of it is ours.

* `Bargain` (negotiation, competition): one number to agree on, a price or a share.
* `Plan` (cooperation): one of several options, each worth something to either side; the best for both is hidden.
* `Concerns` (persuasion, accommodation): the other agrees once what holds them back has been heard and answered, and,
  where there is a secret, as long as it is not said.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rapo_lib.dialogue import from_record

IMPOSSIBLE = 3  # a plan's option worth less to the other cannot be done


@dataclass(frozen=True, slots=True)
class Point:
    """Something that moves the other: a reason, a constraint or a concern."""

    label: str
    hint: str  # how the other gives it away when asked
    examples: tuple[str, ...]  # what speaks to it
    hidden: bool = False  # counts only once the other has told it


@dataclass(frozen=True, slots=True)
class Bargain:
    """One number; `start` and `limit` are the other's first offer and the worst they take, both private."""

    start: float
    limit: float
    reserve: float  # a deal here is worth nothing to us
    target: float  # and here everything
    points: tuple[Point, ...]
    unit: str = "$"  # "$" before the number, else a word behind it
    step: float = 1.0  # what the other's offers are rounded to
    total: float | None = None  # for shares: what there is to divide; the number is our share

    @property
    def top(self) -> float:
        """The higher of the other's two numbers."""
        return max(self.start, self.limit)

    def offer(self, moved: float) -> float:
        """The other's standing offer after going `moved` (0-1) of their way."""
        return round((self.start + (self.limit - self.start) * moved) / self.step) * self.step

    def takes(self, number: float, standing: float) -> bool:
        """Whether the other likes `number` at least as much as their standing offer."""
        return number >= standing if self.start > self.limit else number <= standing

    def score(self, number: float) -> float:
        """0 at our reserve or worse, 100 at our target or better."""
        return 100 * min(1.0, max(0.0, (number - self.reserve) / (self.target - self.reserve)))


@dataclass(frozen=True, slots=True)
class Option:
    """One way to do it, and its worth (0-10) to either side; below IMPOSSIBLE the other cannot."""

    name: str
    words: tuple[str, ...]  # how it is referred to, lower case
    ours: float
    theirs: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Options to agree on; the other starts with the one they like best."""

    options: tuple[Option, ...]
    points: tuple[Point, ...]  # our constraints, worth telling

    def liked(self) -> list[int]:
        """What the other could do, best first."""
        possible = [k for k, option in enumerate(self.options) if option.theirs >= IMPOSSIBLE]
        return sorted(possible, key=lambda k: -self.options[k].theirs)

    def score(self, choice: int) -> float:
        """100 for the option that is best for us among those the other can do."""
        best = max(self.options[k].ours for k in self.liked())
        return 100 * min(1.0, self.options[choice].ours / best)


@dataclass(frozen=True, slots=True)
class Concerns:
    """What holds the other back (or what they need), the first of it plain from the start."""

    points: tuple[Point, ...]
    needed: int  # how many must be answered before they agree
    secret: tuple[str, ...] = ()  # words that give our secret away
    probes: tuple[str, ...] = ()  # questions of the other that come near it


Game = Bargain | Plan | Concerns
GAMES: Mapping[str, type[Game]] = {"bargain": Bargain, "plan": Plan, "concerns": Concerns}


def game_from_record(record: Mapping[str, Any]) -> Game:
    """A game from {"kind": ..., fields}; unknown kinds and keys raise a ValueError that names them."""
    fields = dict(record)
    kind = fields.pop("kind", None)
    if kind not in GAMES:
        raise ValueError(f"unknown game {kind!r}; games: {', '.join(GAMES)}")
    for name in ("secret", "probes"):
        if name in fields:
            fields[name] = tuple(fields[name])
    fields["points"] = tuple(_point(p) for p in fields.get("points", ()))
    if "options" in fields:
        fields["options"] = tuple(from_record(Option, {**o, "words": tuple(o["words"])}) for o in fields["options"])
    return from_record(GAMES[kind], fields)


def _point(record: Mapping[str, Any]) -> Point:
    return from_record(Point, {**record, "examples": tuple(record["examples"])})
