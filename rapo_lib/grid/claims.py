"""The claims, written down before the first run, and the verdicts that results earn them.

`data/claims.yaml` says for each claim the metric, the contrast, the direction, the smallest effect of interest and the
rule. It is read strictly, its hash is in every result, and a verdict is computed, never typed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from rapo_lib.grid.arms import ARMS
from rapo_lib.runs import RapoError, stable_hash
from rapo_lib.stats import Interval, holm

METRICS = ("gained", "success", "turns", "suggestion", "premature", "self_deception", "responsiveness")
DIRECTIONS = {"more": 1, "less": -1}
RULES = ("holm", "interval", "point")
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "supported", "not supported", "inconclusive"
NOT_TESTABLE = "not testable here"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim that the grid can test."""

    id: str
    text: str
    source: str
    metric: str  # one of METRICS
    arm: str
    reference: str
    direction: Literal["more", "less"]  # of the metric in `arm`
    smallest: float  # smallest effect of interest, in the metric's unit
    rule: Literal["holm", "interval", "point"]

    def __post_init__(self) -> None:
        for name, value, known in (
            ("metric", self.metric, METRICS),
            ("arm", self.arm, ARMS),
            ("reference", self.reference, ARMS),
            ("direction", self.direction, DIRECTIONS),
            ("rule", self.rule, RULES),
        ):
            if value not in known:
                raise ValueError(f"{name} {value!r} is not one of {', '.join(known)}")
        if not isinstance(self.smallest, int | float) or not self.smallest > 0:
            raise ValueError(f"smallest must be more than 0, not {self.smallest!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfReach:
    """A claim of the papers that no run of ours can test."""

    id: str
    text: str
    source: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Everything that was written down beforehand."""

    level: float  # of the intervals
    seekers: tuple[str, ...]  # who must see an effect; the first is the one that trains
    success_emotion: float
    success_turns: int
    claims: tuple[Claim, ...]
    not_testable: tuple[OutOfReach, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.level, float) or not 0 < self.level < 1:
            raise ValueError(f"level must lie between 0 and 1, not {self.level!r}")

    @property
    def hash(self) -> str:
        """Changes with every value of the file, not with its comments."""
        return stable_hash(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A claim's verdict, the reason in words and the estimate of each seeker (positive: as claimed)."""

    id: str
    text: str
    verdict: str
    reason: str
    estimates: Mapping[str, Interval]


# ------------------------------------------------------------------------------------------- reading


@cache
def shipped_claims() -> Claims:
    """The claims that come with the package."""
    with resources.as_file(resources.files("rapo_lib") / "data" / "claims.yaml") as path:
        return read_claims(path)


def read_claims(path: Path) -> Claims:
    """Claims from a YAML file; an unknown, missing or repeated name is an error that says where."""
    try:
        record = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise RapoError(f"cannot read the claims in {path}: {error}") from None
    try:
        return _claims(record)
    except ValueError as error:
        raise RapoError(f"{path}: {error}") from None


def _claims(record: Any) -> Claims:
    parts = _checked(Claims, record, "the file")
    listed = {name: _listed(record[name], name) for name in ("claims", "not_testable")}
    claims = tuple(_build(Claim, entry, f"claims, entry {i}") for i, entry in enumerate(listed["claims"], 1))
    beyond = tuple(
        _build(OutOfReach, entry, f"not_testable, entry {i}") for i, entry in enumerate(listed["not_testable"], 1)
    )
    ids = [entry.id for entry in (*claims, *beyond)]
    if repeated := sorted({name for name in ids if ids.count(name) > 1}):
        raise ValueError(f"id {repeated[0]!r} is used twice")
    seekers = tuple(_listed(record["seekers"], "seekers"))
    return Claims(**{**parts, "seekers": seekers, "claims": claims, "not_testable": beyond})


def _listed(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list")
    return value


def _build(kind: type[T], record: Any, where: str) -> T:
    values = _checked(kind, record, where)
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _checked(kind: type, record: Any, where: str) -> dict[str, Any]:
    """The record itself, if its keys are exactly the fields of `kind`."""
    if not isinstance(record, dict):
        raise ValueError(f"{where}: expected keys and values, found {type(record).__name__}")
    names = {f.name for f in fields(kind)}
    for problem, found in (("unknown", set(record) - names), ("missing", names - set(record))):
        if found:
            raise ValueError(f"{where}: {problem} key {min(map(str, found))!r}; keys: {', '.join(sorted(names))}")
    return record


# ------------------------------------------------------------------------------------------ verdicts


def signed(interval: Interval, direction: str) -> Interval:
    """The interval of the effect in the claimed direction."""
    return interval if DIRECTIONS[direction] > 0 else interval.flipped()


def judge_one(effect: Interval, smallest: float, level: float, p: float | None = None) -> str:
    """What one seeker's interval of the effect (positive: as claimed) says; `p` corrected for several contrasts."""
    if math.isnan(effect.low):
        return INCONCLUSIVE
    if effect.high < smallest:
        return NOT_SUPPORTED
    corrected = effect.p if p is None else p
    return SUPPORTED if effect.low > 0 and corrected <= 1 - level else INCONCLUSIVE


def decide(claims: Claims, estimates: Mapping[tuple[str, str], Interval]) -> list[Decision]:
    """A verdict for every claim; `estimates` maps (claim id, seeker) to the interval of arm - reference."""
    corrected = {seeker: _corrected(claims.claims, estimates, seeker) for seeker in claims.seekers}
    tested = [_decision(claims, claim, estimates, corrected) for claim in claims.claims]
    beyond = [
        Decision(id=c.id, text=c.text, verdict=NOT_TESTABLE, reason=c.why, estimates={}) for c in claims.not_testable
    ]
    return tested + beyond


def _corrected(claims: Sequence[Claim], estimates: Mapping[tuple[str, str], Interval], seeker: str) -> dict[str, float]:
    """Holm's p values of the primary claims; a contrast without results counts as p = 1 and keeps its place."""
    primary = [claim.id for claim in claims if claim.rule == "holm"]
    found = [estimates[name, seeker].p if (name, seeker) in estimates else math.nan for name in primary]
    return dict(zip(primary, holm([1.0 if math.isnan(p) else p for p in found]), strict=True))


def _decision(
    claims: Claims,
    claim: Claim,
    estimates: Mapping[tuple[str, str], Interval],
    corrected: Mapping[str, Mapping[str, float]],
) -> Decision:
    effects = {
        seeker: signed(estimates[claim.id, seeker], claim.direction)
        for seeker in claims.seekers
        if (claim.id, seeker) in estimates
    }
    said = {
        seeker: judge_one(effect, claim.smallest, claims.level, corrected[seeker].get(claim.id))
        for seeker, effect in effects.items()
    }
    verdict, reason = _combined(claims, claim, effects, said)
    return Decision(id=claim.id, text=claim.text, verdict=verdict, reason=reason, estimates=effects)


def _combined(
    claims: Claims, claim: Claim, effects: Mapping[str, Interval], said: Mapping[str, str]
) -> tuple[str, str]:
    missing = [seeker for seeker in claims.seekers if seeker not in effects]
    if claim.rule == "point":
        return INCONCLUSIVE, "exploratory: a point, no interval" if effects else "not run"
    if not effects:
        return INCONCLUSIVE, "not run"
    against = [seeker for seeker, verdict in said.items() if verdict == NOT_SUPPORTED]
    if against:
        return NOT_SUPPORTED, f"an effect of {claim.smallest:g} is excluded ({', '.join(against)})"
    if missing:
        return INCONCLUSIVE, f"not seen by {', '.join(missing)}"
    if all(verdict == SUPPORTED for verdict in said.values()):
        return SUPPORTED, "every seeker's interval lies on the claimed side"
    if any(math.isnan(effect.low) for effect in effects.values()):
        return INCONCLUSIVE, "one seed has no interval"
    if len({math.copysign(1, effect.mean) for effect in effects.values()}) > 1:
        return INCONCLUSIVE, "the seekers disagree on the sign"
    return INCONCLUSIVE, "the interval holds both no effect and an effect of interest"


def same_claims(found: str, claims: Claims, where: Path) -> None:
    """Raise a RapoError if a result was made under other claims."""
    if found != claims.hash:
        raise RapoError(
            f"{where} was made under other claims ({found[:8]}, now {claims.hash[:8]}); results under different "
            "claims are never mixed: restore claims.yaml, or start a run of another name"
        )
