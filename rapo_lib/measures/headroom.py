"""What there is to gain before anything is trained, and how much of it each judge finds.

Groups of replies lie on the table with the truth and every judge's scores beside them: how far the replies of a group
lie apart, how often a judge and the truth put two of them in another order, what choosing by each judge is worth, and
whether the best thing to do depends on the history at all. Pure: judged groups in, tidy tables out. All choices ours.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from rapo_lib.dialogue import Seeker, SeekerProfile, Turn
from rapo_lib.feedback import CandidateGroup, Judge
from rapo_lib.person.perception import Perception, perceive_batch
from rapo_lib.stats import clustered, paired

RANDOM, ORACLE = "random", "oracle"
CLEAR = 0.5  # an act this strong is what a reply does; as in `evaluation`
FEWEST = 10  # replies of other people with an act before it can be called best
Asked = Sequence[tuple[SeekerProfile, tuple[Turn, ...]]]


def reacted(
    seeker: Seeker, asked: Asked, replies: Sequence[Sequence[str]], seed: int = 0
) -> tuple[list[CandidateGroup], list[list[float]]]:
    """The groups with the seeker's words, and the true change of emotion after each reply."""
    items = [(p, h, reply, seed) for (p, h), group in zip(asked, replies, strict=True) for reply in group]
    told = iter(seeker.react_batch(items))
    groups, changes = [], []
    for (profile, history), group in zip(asked, replies, strict=True):
        heard, before = [next(told) for _ in group], seeker.emotion(profile, history)
        groups.append(CandidateGroup(tuple(history), tuple(group), tuple(r.text for r in heard)))
        changes.append([r.emotion - before for r in heard])
    return groups, changes


def judged(
    judges: Mapping[str, Judge],
    groups: Sequence[CandidateGroup],
    changes: Sequence[Sequence[float]],
    people: Sequence[str],
) -> pd.DataFrame:
    """One row per reply: group, profile, place, reply, truth (change of emotion, points), a column of scores a judge.

    A judge that abstains on a group has NaN there.
    """
    rows = [
        (i, person, place, reply, change)
        for i, (group, felt, person) in enumerate(zip(groups, changes, people, strict=True))
        for place, (reply, change) in enumerate(zip(group.replies, felt, strict=True))
    ]
    table = pd.DataFrame(rows, columns=["group", "profile", "place", "reply", "truth"])
    for name, judge in judges.items():
        verdicts = judge.compare_batch(groups)
        table[name] = [s for v, g in zip(verdicts, groups, strict=True) for s in v.scores or [np.nan] * len(g.replies)]
    return table


# ---------------------------------------------------------------------------------- judges and the truth


def taus(table: pd.DataFrame, judges: Sequence[str]) -> pd.DataFrame:
    """Kendall's tau-b of scores and truth within each group; columns judge, profile, group, tau.

    A group whose truth or whose scores are all equal has no ranking and is left out for that judge.
    """
    rows = [
        (judge, part.profile.iloc[0], group, float(kendalltau(part[judge], part.truth).statistic))
        for group, part in table.groupby("group")
        for judge in judges
        if part.truth.nunique() > 1 and part[judge].nunique() > 1
    ]
    return pd.DataFrame(rows, columns=["judge", "profile", "group", "tau"])


def rank_agreement(table: pd.DataFrame, judges: Sequence[str]) -> pd.DataFrame:
    """Mean tau of each judge with its interval over people: judge, tau, low, high, people, groups."""
    every = taus(table, judges)
    rows = []
    for judge in judges:
        part = every[every.judge == judge]
        i = clustered(part, "tau")
        rows.append({"judge": judge, "tau": i.mean, "low": i.low, "high": i.high, "people": i.n, "groups": len(part)})
    return pd.DataFrame(rows)


def misordered(table: pd.DataFrame, judge: str) -> pd.DataFrame:
    """Share of pairs of a group that the judge orders otherwise than the truth; a tie of the judge is half an error.

    Pairs that the truth ties, and groups without verdict, are left out. Columns profile, group, pairs, share.
    """
    rows = []
    for group, part in table.dropna(subset=[judge]).groupby("group"):
        a, b = np.triu_indices(len(part), 1)
        true, said = (np.sign(np.subtract(*part[c].to_numpy()[[a, b]])) for c in ("truth", judge))
        differ = true != 0
        if differ.any():
            wrong = (said[differ] == -true[differ]) + 0.5 * (said[differ] == 0)
            rows.append((part.profile.iloc[0], group, int(differ.sum()), float(wrong.mean())))
    return pd.DataFrame(rows, columns=["profile", "group", "pairs", "share"])


def spread(table: pd.DataFrame) -> pd.DataFrame:
    """How far the truth of a group's replies lies apart: profile, group, sd, range (points)."""
    by = table.groupby(["profile", "group"]).truth
    return pd.DataFrame({"sd": by.std(ddof=0), "range": by.max() - by.min()}).reset_index()


# ------------------------------------------------------------------------------------------------ choosing


def choices(table: pd.DataFrame, judges: Sequence[str]) -> pd.DataFrame:
    """True change reached by taking each chooser's first reply of every group: arm, profile, group, change.

    Choosers are `random` (the group's mean), the judges, and `oracle`. Replies that share the first place count with
    their mean; where a judge abstains, one takes any.
    """
    rows = []
    for group, part in table.groupby("group"):
        person, truth = part.profile.iloc[0], part.truth
        reached = {RANDOM: truth.mean(), **{j: _first(truth, part[j]) for j in judges}, ORACLE: truth.max()}
        rows += [(name, person, group, float(change)) for name, change in reached.items()]
    return pd.DataFrame(rows, columns=["arm", "profile", "group", "change"])


def _first(truth: pd.Series, scores: pd.Series) -> float:
    return truth.mean() if scores.isna().any() else truth[scores == scores.max()].mean()


def worth(chosen: pd.DataFrame, over: str = RANDOM) -> pd.DataFrame:
    """What each chooser gains over another one, paired by person: arm, mean, low, high, n."""
    rows = [(arm, paired(chosen, "change", arm, over)) for arm in chosen.arm.unique() if arm != over]
    return pd.DataFrame([{"arm": arm, "mean": i.mean, "low": i.low, "high": i.high, "n": i.n} for arm, i in rows])


# -------------------------------------------------------------------------------------------------- acts


def main_act(acts: Perception) -> str:
    """The one thing that a reply does, as the person hears it; two where it reflects and asks."""
    if acts.fault:
        return "no reply"
    if acts.understands >= CLEAR:
        return "reflection and question" if acts.asks >= CLEAR else "reflection"
    strength = {
        "open question": acts.asks,
        "advice": acts.suggests,
        "information": acts.informs,
        "reassurance": acts.reassures,
        "own story": acts.discloses,
        "validation": acts.validates,
        "dismissal": acts.dismisses,
    }
    act = max(strength, key=lambda name: strength[name])
    return act if strength[act] >= CLEAR else "little"


def acts_of(groups: Sequence[CandidateGroup]) -> list[str]:
    """The main act of every reply of every group, in a row."""
    return [main_act(p) for p in perceive_batch([(g.history, reply) for g in groups for reply in g.replies])]


def act_choices(table: pd.DataFrame) -> pd.DataFrame:
    """What knowing the best act is worth: arm, profile, group, change; needs a column `act`.

    context-free   the act that served the other people best, on average over their groups
    given history  the act that served this history best among every second reply, tried on the replies between
    A group that lacks the act counts with its mean, for then one has to take what comes; so does `random`.
    """
    table = table.assign(gain=table.truth - table.groupby("group").truth.transform("mean"))
    rows = []
    for person, mine in table.groupby("profile"):
        act = _best_act(table[table.profile != person], FEWEST)
        for group, part in mine.groupby("group"):
            halves = [part[part.place % 2 == k] for k in (0, 1)]
            tried = [_with_act(b, _best_act(a, 1)) for a, b in (halves, halves[::-1])]
            reached = {RANDOM: part.truth.mean(), "context-free": _with_act(part, act), "given history": np.mean(tried)}
            rows += [(arm, person, group, float(change)) for arm, change in reached.items()]
    return pd.DataFrame(rows, columns=["arm", "profile", "group", "change"])


def _best_act(table: pd.DataFrame, fewest: int) -> str:
    by = table.groupby("act").gain.agg(["mean", "size"])
    return str(by[by["size"] >= fewest]["mean"].idxmax()) if (by["size"] >= fewest).any() else ""


def _with_act(part: pd.DataFrame, act: str) -> float:
    found = part[part.act == act].truth
    return float(part.truth.mean() if found.empty else found.mean())


def seen_by_act(table: pd.DataFrame, judges: Sequence[str]) -> pd.DataFrame:
    """Where replies of each act stand in their group, by the truth and by each judge; needs a column `act`.

    Standing is the centred rank in the group, -1 (last) to 1 (first), ties sharing theirs. Columns act, who, standing,
    replies; groups on which the judge abstains are left out.
    """
    rows = []
    for who in ("truth", *judges):
        known = table.dropna(subset=[who])
        by = known.groupby("group")[who]
        size = by.transform("size")
        place = (2 * (by.rank() - 1) / (size - 1) - 1).where(size > 1, 0.0)
        for act, standing in place.groupby(known.act):
            rows.append((act, who, float(standing.mean()), len(standing)))
    return pd.DataFrame(rows, columns=["act", "who", "standing", "replies"])
