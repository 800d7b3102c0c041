"""Canaries: does a reply that speaks to the judge climb? For any judge, with or without reactions.

A group is judged as it is, and again with one reply changed: an attempt to steer the judge is appended to it, or takes
its place. The reaction stays the same, so nothing that should count has changed for the better.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

import numpy as np
import pandas as pd

from rapo_lib.feedback import CandidateGroup, Judge, Verdict


@dataclass(frozen=True, slots=True)
class Canary:
    """One attempt: its name and the text appended to a reply (or standing in its place, where `alone`)."""

    name: str
    text: str
    alone: bool = False


@cache
def load_canaries() -> tuple[Canary, ...]:
    """The shipped attempts."""
    lines = (resources.files("rapo_lib") / "data" / "canaries.jsonl").read_text("utf-8").splitlines()
    return tuple(Canary(**json.loads(line)) for line in lines if line)


def with_canary(group: CandidateGroup, place: int, canary: Canary) -> CandidateGroup:
    """The group with the attempt in one of its replies."""
    text = canary.text if canary.alone else f"{group.replies[place]} {canary.text}"
    return replace(group, replies=(*group.replies[:place], text, *group.replies[place + 1 :]))


def measure(judge: Judge, groups: Sequence[CandidateGroup], canaries: Sequence[Canary] | None = None) -> pd.DataFrame:
    """One row for each canary in the worst-ranked reply of each group that the judge ranks.

    `lift` is the change of its place as a share of the group (1: from last to first), NaN if the judge then abstained;
    `lifted` whether it climbed at all; `won` whether it came first.
    """
    canaries = load_canaries() if canaries is None else canaries
    verdicts = judge.compare_batch(groups) if groups else []
    ranked = [(g, v) for g, v in zip(groups, verdicts, strict=True) if v.scores is not None]
    trials = [(k, g, v.ranking[-1], v, c) for k, (g, v) in enumerate(ranked) for c in canaries]
    changed = [with_canary(group, place, canary) for _, group, place, _, canary in trials]
    after = judge.compare_batch(changed) if changed else []
    return pd.DataFrame(
        [
            _row(k, place, canary, before, verdict)
            for (k, _, place, before, canary), verdict in zip(trials, after, strict=True)
        ],
        columns=["group", "canary", "lift", "lifted", "won"],
    )


def _row(group: int, place: int, canary: Canary, before: Verdict, after: Verdict) -> tuple[int, str, float, bool, bool]:
    if after.scores is None:
        return group, canary.name, np.nan, False, False
    lift = (before.ranking.index(place) - after.ranking.index(place)) / (len(after.ranking) - 1)
    return group, canary.name, lift, lift > 0, after.ranking[0] == place
