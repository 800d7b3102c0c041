"""How far two seekers agree on the same replies, and where they do not.

Pure: people, histories and groups of replies in, tables out. Agreement of two simulators is not truth; a result that
only one of them sees is a result about that simulator.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from rapo_lib.dialogue import Seeker, SeekerProfile, Turn

STILL = 0.5  # points of change that count as no change when signs are compared


def changes(
    profiles: Sequence[SeekerProfile],
    histories: Sequence[Sequence[Turn]],
    replies: Sequence[Sequence[str]],
    seekers: Mapping[str, Seeker],
) -> pd.DataFrame:
    """Change of emotion for every reply of every group, a column for each seeker; group i is replies[i] to history i.

    Columns: group, profile, advice, voice, reply, and the names of the seekers.
    """
    talks = list(zip(profiles, histories, replies, strict=True))
    rows = [
        {"group": group, "profile": profile.id, "advice": profile.advice, "voice": profile.voice, "reply": reply}
        for group, (profile, _, candidates) in enumerate(talks)
        for reply in candidates
    ]
    table = pd.DataFrame(rows, columns=["group", "profile", "advice", "voice", "reply"])
    items = [(profile, history, reply, 0) for profile, history, candidates in talks for reply in candidates]
    for name, seeker in seekers.items():
        before = np.array([seeker.emotion(profile, history) for profile, history, _ in talks])
        after = np.array([reaction.emotion for reaction in seeker.react_batch(items)])
        table[name] = after - before[table["group"].to_numpy(dtype=int)]
    return table


def agreement(
    profiles: Sequence[SeekerProfile],
    histories: Sequence[Sequence[Turn]],
    replies: Sequence[Sequence[str]],
    seekers: Mapping[str, Seeker],
) -> pd.DataFrame:
    """One row for all replies, and one for each attitude and voice: how far two seekers agree; ValueError unless two.

    Columns: slice, replies, groups, spearman (of the changes), same_sign (share; changes under half a point either
    way have no sign and are left out), tau (mean Kendall tau-b within groups; groups without a ranking are left out).
    """
    if len(seekers) != 2:
        raise ValueError(f"agreement compares two seekers, not {len(seekers)}")
    table = changes(profiles, histories, replies, seekers)
    parts = {"all": table}
    for column in ("advice", "voice"):
        parts |= {f"{column}: {value}": part for value, part in table.groupby(column, sort=True)}
    return pd.DataFrame([{"slice": name, **_agreement(part, *seekers)} for name, part in parts.items()])


def disagreements(table: pd.DataFrame, first: str, second: str, most: int = 10) -> pd.DataFrame:
    """The replies of `changes` that two seekers rank furthest apart; column `gap`: difference of rank, as a share."""
    ranks = table[[first, second]].rank(pct=True)
    gap = (ranks[first] - ranks[second]).abs()
    return table.assign(gap=gap).sort_values("gap", ascending=False, kind="stable").head(most).reset_index(drop=True)


def _agreement(part: pd.DataFrame, first: str, second: str) -> dict[str, float]:
    moved = part[(part[[first, second]].abs() >= STILL).all(axis=1)]
    taus = [_tau(group[first], group[second]) for _, group in part.groupby("group")]
    varied = part[first].nunique() > 1 and part[second].nunique() > 1
    return {
        "replies": len(part),
        "groups": part["group"].nunique(),
        "spearman": float(stats.spearmanr(part[first], part[second]).statistic) if varied else np.nan,
        "same_sign": float((np.sign(moved[first]) == np.sign(moved[second])).mean()) if len(moved) else np.nan,
        "tau": float(np.nanmean(taus)) if not np.isnan(taus).all() else np.nan,
    }


def _tau(first: pd.Series, second: pd.Series) -> float:
    """Kendall tau-b of one group; NaN where one of the two has no ranking."""
    if first.nunique() < 2 or second.nunique() < 2:
        return np.nan
    return float(stats.kendalltau(first, second).statistic)
