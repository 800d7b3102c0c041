"""Futures: what may follow a reply, played out between a supporter and a seeker, and judged by a critic on the way.

RLFF-ESC simulates future dialogues with several agents; numbers and prompts are not public, ours are `FutureConfig`.
A future is at most k turns long, the reply and its reaction being the first; it ends early where the critic calls the
issue solved. All futures of a block of candidates go turn by turn, so a turn is one call to the supporter, one to the
seeker and one to the critic. Blocks are drawn one after another from their own seeds and kept as lines of a file: a
kill costs the block at hand, and the rest comes out as if nothing had happened.
"""

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapo_lib.dialogue import SeekerProfile, Turn, read_jsonl, to_record, turn_from_record
from rapo_lib.evaluation import Policy
from rapo_lib.foresight.critic import Critic
from rapo_lib.runs import RapoError, plain, seed_for, stable_hash
from rapo_lib.seeker import Seeker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureConfig:
    """How far and how often to look ahead; every value is ours."""

    futures: int = 2  # m, continuations of each candidate
    horizon: int = 3  # k, turns of each at most; the candidate and its reaction are the first
    at_once: int = 48  # candidates in a block
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("futures", "horizon", "at_once"):
            if getattr(self, name) < 1:
                raise RapoError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reply that could be given to this person now."""

    profile: SeekerProfile
    history: tuple[Turn, ...]
    reply: str


@dataclass(frozen=True, slots=True)
class Future:
    """One continuation; seeker turns carry the true emotion for the oracle's eyes, `values` are the critic's."""

    turns: tuple[Turn, ...]  # from the candidate on
    values: tuple[float, ...]  # after each seeker turn, -1 to 1
    ended: str  # "solved", "horizon", or why it broke off

    @property
    def emotions(self) -> list[float | None]:
        """ORACLE: the true emotion after each turn, None where the seeker does not know it."""
        return [turn.emotion for turn in self.turns if turn.speaker == "seeker"]


def imagine(
    candidates: Sequence[Candidate],
    policy: Policy,
    seeker: Seeker,
    critic: Critic,
    config: FutureConfig | None = None,
    cache: Path | None = None,
) -> list[tuple[Future, ...]]:
    """m futures of each candidate, in order.

    The same candidates and config give the same futures. `cache` (JSONL, a block a line) belongs to one policy, seeker
    and critic; blocks found there are not played again. Raises RapoError if the file is damaged.
    """
    config = config or FutureConfig()
    known = _read_cache(cache)
    found: list[tuple[Future, ...]] = []
    for start in range(0, len(candidates), config.at_once):
        block = candidates[start : start + config.at_once]
        key = _key(block, config)
        if key not in known:
            log.info("imagining futures of candidates %d to %d of %d", start + 1, start + len(block), len(candidates))
            known[key] = _play(block, policy, seeker, critic, config, key)
            _append(cache, {"key": key, "futures": [[future_record(f) for f in each] for each in known[key]]})
        found += known[key]
    return found


# ------------------------------------------------------------------------------------------- playing


@dataclass(slots=True)
class _Growing:
    """A future under way."""

    candidate: Candidate
    draw: int
    turns: list[Turn]
    values: list[float]
    ended: str = ""

    @property
    def said(self) -> tuple[Turn, ...]:
        return (*self.candidate.history, *self.turns)


def _play(
    block: Sequence[Candidate], policy: Policy, seeker: Seeker, critic: Critic, config: FutureConfig, key: str
) -> list[tuple[Future, ...]]:
    growing = [_Growing(candidate, draw, [], []) for candidate in block for draw in range(config.futures)]
    for step in range(config.horizon):
        alive = [f for f in growing if not f.ended]
        if not alive:
            break
        if step == 0:
            replies = [f.candidate.reply for f in alive]
        else:
            replies = policy([f.said for f in alive], seed_for(config.seed, "future", key, step))
        _react(alive, replies, seeker, config.seed, step)
        _assess([f for f in alive if not f.ended], critic)
    done = [Future(tuple(f.turns), tuple(f.values), f.ended or "horizon") for f in growing]
    return [tuple(done[i : i + config.futures]) for i in range(0, len(done), config.futures)]


def _react(alive: Sequence[_Growing], replies: Sequence[str], seeker: Seeker, seed: int, step: int) -> None:
    """Add a reply and its reaction to each future; one whose seeker gives none breaks off without them."""
    items = [
        (f.candidate.profile, f.said, reply, seed_for(seed, "future", f.draw, step))
        for f, reply in zip(alive, replies, strict=True)
    ]
    for future, reply, reaction in zip(alive, replies, seeker.react_batch(items), strict=True):
        if reaction.status != "ok":
            future.ended = reaction.status
            continue
        felt = None if math.isnan(reaction.emotion) else reaction.emotion
        future.turns += [Turn("supporter", reply), Turn("seeker", reaction.text, emotion=felt)]


def _assess(alive: Sequence[_Growing], critic: Critic) -> None:
    """Add the critic's value to each future; one it cannot read breaks off."""
    talks = [(f.candidate.profile.situation, f.said) for f in alive]
    for future, assessed in zip(alive, critic.assess_batch(talks), strict=True):
        if assessed.value is None:
            future.ended = "unreadable"
            continue
        future.values.append(assessed.value)
        if assessed.solved:
            future.ended = "solved"


# ------------------------------------------------------------------------------------------- keeping


def future_record(future: Future) -> dict[str, Any]:
    """A future as a JSON object."""
    return {"turns": [to_record(t) for t in future.turns], "values": list(future.values), "ended": future.ended}


def future_from_record(record: Mapping[str, Any]) -> Future:
    """The inverse of `future_record`."""
    return Future(tuple(turn_from_record(t) for t in record["turns"]), tuple(record["values"]), record["ended"])


def _key(block: Sequence[Candidate], config: FutureConfig) -> str:
    said = [[c.profile.id, [[t.speaker, t.text] for t in c.history], c.reply] for c in block]
    return stable_hash([said, config.futures, config.horizon, config.seed])


def _read_cache(path: Path | None) -> dict[str, list[tuple[Future, ...]]]:
    """The blocks in the file; a line that a kill cut short is taken away."""
    if path is None or not path.exists():
        return {}
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    try:
        return {
            r["key"]: [tuple(future_from_record(f) for f in each) for each in r["futures"]] for r in read_jsonl(path)
        }
    except (ValueError, KeyError) as error:
        raise RapoError(f"the futures kept in {path} are damaged ({error}); remove the file") from None


def _append(path: Path | None, record: dict[str, Any]) -> None:
    if path is None:
        return
    line = json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(line.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RapoError(f"cannot write {path}: {error.strerror or error}") from error
