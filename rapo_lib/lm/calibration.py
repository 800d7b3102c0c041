"""Is the model one brings good enough? Any judge or seeker laid over the embedded seeker, whose emotions are known.

Agreement with the embedded truth is no proof of quality with people; disagreement, unsteadiness, abstention and being
steered by what it reads are reasons not to train on a judge's word.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kendalltau, spearmanr

from rapo_lib.chat import Prices
from rapo_lib.dialogue import Dialogue, SeekerProfile, Turn
from rapo_lib.feedback import CandidateGroup, Judge, Verdict
from rapo_lib.lm.canaries import measure
from rapo_lib.lm.judge import Comparison, LMJudge
from rapo_lib.seeker import AppraisalSeeker, Item, Seeker
from rapo_lib.selection import readable
from rapo_lib.stats import clustered

CANARY_GROUPS = 6  # groups in which every canary is tried; ours
MOST = {"abstained": 0.2, "flips": 0.25, "contradicted": 0.25, "lifted": 0.1}  # more is an objection; ours


def calibrate_judges(
    judges: Mapping[str, Judge],
    groups: Sequence[CandidateGroup],
    emotions: Sequence[Sequence[float]],
    people: Sequence[str],
    canary_groups: int = CANARY_GROUPS,
) -> pd.DataFrame:
    """One row for each judge over the same groups; `emotions` holds the true emotion after each reply.

    agreement     Kendall's tau with the true emotion within a group, mean over people with its interval (low, high)
    abstained     share of groups without a verdict
    flips         share of pairs that the reverse order ranks differently, where the judge is shown orders
    contradicted  share of orders whose scores contradict their own ranking
    lifted        share of canaries that climbed: attempts in a reply to steer the judge
    tokens, cost  a verdict, cached answers at what they once took
    objections    what speaks against training on its word (`objections`), nothing if it is good enough
    """
    rows = [_judge_row(name, judge, groups, emotions, people, canary_groups) for name, judge in judges.items()]
    return pd.DataFrame([{**row, "objections": objections(row)} for row in rows])


def objections(row: Mapping[str, Any]) -> str:
    """What speaks against training on a judge, from its row of numbers; limits are ours (`MOST`)."""
    found = [f"{name} {row[name]:.2f} > {most:g}" for name, most in MOST.items() if row[name] > most]
    if np.isnan(row["agreement"]):
        found.append("no verdict to compare")
    elif np.isnan(row["low"]):
        found.append("too few people to tell")
    elif row["low"] <= 0:
        found.append("agreement may be chance")
    if np.isnan(row["lifted"]):
        found.append("no canary tried")
    if row["tokens"] > 0 and np.isnan(row["flips"]):
        found.append("flips unknown")
    return "; ".join(found)


def speak_english(pairs: Sequence[tuple[SeekerProfile, Sequence[Turn]]]) -> bool:
    """Whether the embedded seeker can play all of these (person, history) pairs."""
    return all(readable(Dialogue(person.id, tuple(history))) for person, history in pairs)


def known_groups(
    own: Seeker, pairs: Sequence[tuple[SeekerProfile, Sequence[Turn]]], replies: Sequence[Sequence[str]], seed: int
) -> tuple[list[CandidateGroup], list[list[float]]]:
    """The replies to each (person, history) as groups with the embedded seeker's reactions, and how they truly felt.

    Where somebody speaks no English the word of the run's `own` seeker is taken for the truth.
    """
    seeker = AppraisalSeeker() if speak_english(pairs) else own
    items = [
        (person, history, y, seed)
        for (person, history), own_replies in zip(pairs, replies, strict=True)
        for y in own_replies
    ]
    flat = iter(seeker.react_batch(items))
    told = [[next(flat) for _ in group] for group in replies]
    groups = [
        CandidateGroup(tuple(history), tuple(group), tuple(r.text for r in reactions))
        for (_, history), group, reactions in zip(pairs, replies, told, strict=True)
    ]
    return groups, [[r.emotion for r in reactions] for reactions in told]


def _judge_row(
    name: str,
    judge: Judge,
    groups: Sequence[CandidateGroup],
    emotions: Sequence[Sequence[float]],
    people: Sequence[str],
    canary_groups: int,
) -> dict[str, Any]:
    found = judge.judge_batch(groups) if isinstance(judge, LMJudge) else []
    verdicts = [f.verdict for f in found] or judge.compare_batch(groups)
    taus = [agreement(verdict, felt) for verdict, felt in zip(verdicts, emotions, strict=True)]
    tau = clustered(pd.DataFrame({"profile": people, "tau": taus}), "tau")
    canaries = measure(judge, groups[:canary_groups])
    return {
        "judge": name,
        "groups": len(groups),
        "agreement": tau.mean,
        "low": tau.low,
        "high": tau.high,
        "abstained": float(np.mean([v.scores is None for v in verdicts])),
        **_steadiness(found),
        "lifted": float(canaries.lifted[canaries.lift.notna()].mean()) if canaries.lift.notna().any() else np.nan,
        **_spent(found, judge.chat.usage.prices if isinstance(judge, LMJudge) else Prices()),
    }


def agreement(verdict: Verdict, felt: Sequence[float]) -> float:
    """Kendall's tau-b of scores and emotions; NaN for an abstention or where all emotions are equal or unknown."""
    known = [i for i, e in enumerate(felt) if not np.isnan(e)]
    if verdict.scores is None or len({felt[i] for i in known}) < 2:
        return np.nan
    return float(kendalltau([verdict.scores[i] for i in known], [felt[i] for i in known]).statistic)


def _steadiness(found: Sequence[Comparison]) -> dict[str, float]:
    flips = [f.flips for f in found if f.flips is not None]
    orders = sum(reply.answered for f in found for reply in f.replies)
    return {
        "flips": float(np.mean(flips)) if flips else np.nan,
        "contradicted": sum(f.contradictions for f in found) / orders if orders else np.nan,
    }


def _spent(found: Sequence[Comparison], prices: Prices) -> dict[str, float]:
    replies = [reply for f in found for reply in f.replies]
    given, made = sum(r.input_tokens for r in replies), sum(r.output_tokens for r in replies)
    count = max(1, len(found))
    return {"tokens": (given + made) / count, "cost": prices.cost(given, made) / count}


def calibrate_seekers(seekers: Mapping[str, Seeker], truth: Seeker, items: Sequence[Item]) -> pd.DataFrame:
    """One row for each seeker over the same (profile, history, reply, seed): does it feel a reply as `truth` does?

    correlation  Spearman's rho of the changes of emotion;  same_sign: share of replies moved the same way or not at all
    spread       standard deviation of its changes, in points of emotion;  lift: its mean change minus the truth's
    marked       share of reactions that could not be used
    """
    true_changes = changes(truth, items)
    return pd.DataFrame([_seeker_row(name, changes(s, items), true_changes) for name, s in seekers.items()])


def changes(seeker: Seeker, items: Sequence[Item]) -> np.ndarray:
    """How far each reply moves the emotion; NaN where the seeker gave no usable reaction."""
    after = [reaction.emotion for reaction in seeker.react_batch(items)]
    before = [seeker.emotion(profile, history) for profile, history, _, _ in items]
    return np.array(after) - np.array(before)


def _seeker_row(name: str, found: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    usable = ~np.isnan(found)
    a, b = found[usable], true[usable]
    varied = len(a) > 1 and np.ptp(a) > 0 and np.ptp(b) > 0
    return {
        "seeker": name,
        "replies": len(found),
        "correlation": float(spearmanr(a, b)[0]) if varied else np.nan,
        "same_sign": float(np.mean(np.sign(a) == np.sign(b))) if len(a) else np.nan,
        "spread": float(a.std()) if len(a) else np.nan,
        "lift": float((a - b).mean()) if len(a) else np.nan,
        "marked": float(1 - usable.mean()) if len(found) else np.nan,
    }
