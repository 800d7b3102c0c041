"""D_r, the reward data: a reply to a history of a person, its futures, and the reward they earn.

Records are split by person, never one by one: a person's other histories and replies would give the answer away.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from rapo_lib.dialogue import SeekerProfile, Turn, read_jsonl, to_messages, to_record, turn_from_record
from rapo_lib.evaluation import ModelPolicy
from rapo_lib.foresight.futures import Candidate, Future, future_from_record, future_record
from rapo_lib.foresight.reward import DISCOUNT, future_reward, oracle_reward
from rapo_lib.runs import RapoError, write_jsonl
from rapo_lib.sampling import fit, sample_replies

Pair = tuple[SeekerProfile, Sequence[Turn]]


@dataclass(frozen=True, slots=True)
class RewardRecord:
    """One row of D_r. `oracle` and `final` come from the true emotion and are never trained on."""

    profile: str
    history: tuple[Turn, ...]  # words only
    reply: str
    reward: float  # mean of `future_reward` over the futures
    oracle: float | None  # ORACLE: the same from the true emotion, None where no seeker tells it
    final: float | None  # ORACLE: true emotion at the end, mean over the futures
    futures: tuple[Future, ...]


# ------------------------------------------------------------------------------------------- making


def sample_candidates(policy: ModelPolicy, pairs: Sequence[Pair], group: int, seed: int = 0) -> list[Candidate]:
    """`group` replies of the policy to each (person, history), in order; a reply drawn twice is kept once."""
    prompts = [fit(to_messages(history), policy.tokenizer, policy.prompt_tokens) for _, history in pairs]
    drawn = sample_replies(
        policy.model,
        policy.tokenizer,
        prompts,
        group=group,
        max_new_tokens=policy.reply_tokens,
        temperature=policy.temperature,
        seed=seed,
    )
    return [
        Candidate(profile, _words(history), reply)
        for (profile, history), replies in zip(pairs, drawn, strict=True)
        for reply in dict.fromkeys(replies)
    ]


def make_records(
    candidates: Sequence[Candidate], futures: Sequence[Sequence[Future]], horizon: int, discount: float = DISCOUNT
) -> list[RewardRecord]:
    """D_r from candidates and their futures; a candidate all of whose futures broke off at once is left out."""
    rows = []
    for candidate, imagined in zip(candidates, futures, strict=True):
        whole = tuple(f for f in imagined if f.values)
        if whole:
            rows.append(_record(candidate, whole, horizon, discount))
    return rows


def _record(candidate: Candidate, futures: tuple[Future, ...], horizon: int, discount: float) -> RewardRecord:
    start, felt = float(candidate.profile.start), [f.emotions for f in futures]
    known = all(emotion is not None for each in felt for emotion in each)
    return RewardRecord(
        profile=candidate.profile.id,
        history=_words(candidate.history),
        reply=candidate.reply,
        reward=fmean(future_reward(f.values, horizon, discount) for f in futures),
        oracle=fmean(oracle_reward(start, each, horizon, discount) for each in felt) if known else None,
        final=fmean(each[-1] for each in felt) if known else None,
        futures=futures,
    )


def _words(history: Sequence[Turn]) -> tuple[Turn, ...]:
    return tuple(Turn(turn.speaker, turn.text) for turn in history)


# ------------------------------------------------------------------------------------------- splitting


def by_history(records: Sequence[RewardRecord]) -> list[list[RewardRecord]]:
    """Neighbouring records of one history together."""
    return [list(each) for _, each in groupby(records, key=lambda r: (r.profile, r.history))]


def split_by_profile(
    records: Sequence[RewardRecord], share: float, seed: int = 0
) -> tuple[list[RewardRecord], list[RewardRecord]]:
    """Records of most people, and those of about `share` of the people (at least one of each kind)."""
    people = sorted({r.profile for r in records})
    if len(people) < 2:
        raise RapoError(f"{len(people)} people cannot be split; imagine futures of more people")
    random.Random(seed).shuffle(people)
    apart = set(people[: min(len(people) - 1, max(1, round(share * len(people))))])
    return [r for r in records if r.profile not in apart], [r for r in records if r.profile in apart]


def check_apart(fitted: Sequence[RewardRecord], tested: Sequence[RewardRecord]) -> None:
    """Raises RapoError if somebody is in both."""
    if shared := sorted({r.profile for r in fitted} & {r.profile for r in tested}):
        raise RapoError(f"{len(shared)} people are in both splits, {shared[0]} first; split by person")


# ------------------------------------------------------------------------------------------- files


def write_records(path: Path, records: Sequence[RewardRecord]) -> Path:
    """D_r as JSONL, futures as text."""
    return write_jsonl(path, map(_to_json, records))


def read_records(path: Path) -> list[RewardRecord]:
    """The inverse of `write_records`; a damaged file is a RapoError."""
    try:
        return [_from_json(record) for record in read_jsonl(path)]
    except (OSError, ValueError, KeyError) as error:
        raise RapoError(f"cannot read the reward data {path}: {error}") from None


def _to_json(r: RewardRecord) -> dict[str, Any]:
    said, futures = [to_record(t) for t in r.history], [future_record(f) for f in r.futures]
    numbers = {"reward": r.reward, "oracle": r.oracle, "final": r.final}
    return {"profile": r.profile, "history": said, "reply": r.reply, **numbers, "futures": futures}


def _from_json(r: Mapping[str, Any]) -> RewardRecord:
    history, futures = tuple(map(turn_from_record, r["history"])), tuple(map(future_from_record, r["futures"]))
    return RewardRecord(r["profile"], history, r["reply"], r["reward"], r["oracle"], r["final"], futures)
