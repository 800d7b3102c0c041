"""How well a score of a reply foretells what follows: the reward model beside three baselines, and its calibration.

The baselines are the reply's length, the one-step reaction (the relief that the judge hears in the seeker's next words)
and the rubric's mark. Tables are tidy, a row a reply; agreement is a value per person, so that `stats` gives intervals
over people and differences are paired:

* spearman: over all replies; per person the jackknife pseudo-value  P rho - (P - 1) rho_without_this_person
* pairs: share of the pairs of replies to one history that the score puts in the right order, ties counting half

Everything here is evaluation, so it may read the true emotion where the table carries it.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from rapo_lib.dialogue import Dialogue, Turn
from rapo_lib.feedback import relief_heard
from rapo_lib.foresight.critic import Critic
from rapo_lib.foresight.records import RewardRecord
from rapo_lib.foresight.reward import true_state
from rapo_lib.judge.reading import read_batch
from rapo_lib.judge.rubric import read_replies, rubric_score
from rapo_lib.stats import clustered, t_interval

LENGTH, REACTION, RUBRIC = "length", "one-step reaction", "rubric"
BASELINES = (LENGTH, REACTION, RUBRIC)
MODEL = "reward model"


# ------------------------------------------------------------------------------------------- tables


def record_table(records: Sequence[RewardRecord], scores: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """A row per record: profile, history (a number), what came of it (reward, oracle, final), scores and baselines.

    The one-step reaction is the mean over the first reactions of the futures.
    """
    numbers = {key: i for i, key in enumerate(dict.fromkeys((r.profile, r.history) for r in records))}
    table = pd.DataFrame(
        {
            "profile": [r.profile for r in records],
            "history": [numbers[r.profile, r.history] for r in records],
            "reward": [r.reward for r in records],
            "oracle": [np.nan if r.oracle is None else r.oracle for r in records],
            "final": [np.nan if r.final is None else r.final for r in records],
        }
    )
    items = [(r.history, r.reply) for r in records]
    first = [[f.turns[1].text for f in r.futures] for r in records]
    return table.assign(**scores, **_baselines(items, first))


def dialogue_items(dialogues: Sequence[Dialogue]) -> list[tuple[Dialogue, int]]:
    """Every supporter turn that the seeker answers at once, as (dialogue, place)."""
    return [
        (d, place)
        for d in dialogues
        for place, (turn, after) in enumerate(zip(d.turns, d.turns[1:], strict=False))
        if place and turn.speaker == "supporter" and after.speaker == "seeker"
    ]


def dialogue_table(items: Sequence[tuple[Dialogue, int]], scores: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """A row per item of `dialogue_items`: profile, history (a number), `final` (the last emotion of all), scores."""
    rows = {
        "profile": [d.id for d, _ in items],
        "history": range(len(items)),
        "final": [d.turns[-1].emotion for d, _ in items],
    }
    replies = [(d.turns[:place], d.turns[place].text) for d, place in items]
    reactions = [[d.turns[place + 1].text] for d, place in items]
    return pd.DataFrame(rows).assign(**scores, **_baselines(replies, reactions))


def _baselines(
    items: Sequence[tuple[Sequence[Turn], str]], reactions: Sequence[Sequence[str]]
) -> dict[str, list[float]]:
    """Each baseline's score of each reply; several reactions to a reply count as their mean."""
    asked = [(history, reply, said) for (history, reply), each in zip(items, reactions, strict=True) for said in each]
    heard = iter(map(relief_heard, read_batch(asked)))
    return {
        LENGTH: [float(len(reply.split())) for _, reply in items],
        REACTION: [fmean(next(heard) for _ in each) for each in reactions],
        RUBRIC: [rubric_score(h, t) for (h, _), t in zip(items, read_replies(items), strict=True)],
    }


def critic_table(critic: Critic, dialogues: Sequence[Dialogue]) -> pd.DataFrame:
    """What the critic says after every answer of the seeker beside the truth, a row each.

    Columns profile, turn, value (-1 to 1), said (the commonest vote), change (of the true emotion since the opening),
    true (the state that a perfect critic would name). Dialogues whose emotions are not known have no rows.
    """
    asked = [
        (d, place)
        for d in dialogues
        for place, turn in enumerate(d.turns)
        if turn.speaker == "seeker" and place and None not in (turn.emotion, d.turns[0].emotion)
    ]
    rows = []
    assessed = critic.assess_batch([(d.situation, d.turns[: place + 1]) for d, place in asked])
    for (d, place), said in zip(asked, assessed, strict=True):
        start, felt = d.turns[0].emotion, d.turns[place].emotion
        state = max(said.votes, key=said.votes.__getitem__)
        turn = sum(t.speaker == "supporter" for t in d.turns[:place])
        row = {"value": said.value, "said": state, "change": felt - start, "true": true_state(start, felt)}
        rows.append({"profile": d.id, "turn": turn, **row})
    return pd.DataFrame(rows, columns=["profile", "turn", "value", "said", "change", "true"])


# ------------------------------------------------------------------------------------------- agreement


def agreement(table: pd.DataFrame, target: str, predictors: Sequence[str]) -> pd.DataFrame:
    """Columns arm (the predictor), measure, profile, value; a row per person, see above.

    A person none of whose histories has a pair of different outcomes has no row for "pairs".
    """
    known = table[table[target].notna()]
    rows = []
    for name in predictors:
        rows += [{"arm": name, "measure": "spearman", **row} for row in _spearman(known, name, target)]
        rows += [{"arm": name, "measure": "pairs", **row} for row in _pairs(known, name, target)]
    return pd.DataFrame(rows, columns=["arm", "measure", "profile", "value"])


def summary(agreed: pd.DataFrame) -> pd.DataFrame:
    """Mean and 95 % interval over people of each predictor and measure."""
    rows = []
    for (name, measure), part in agreed.groupby(["arm", "measure"], sort=False):
        interval = clustered(part, "value")
        row = {"mean": interval.mean, "low": interval.low, "high": interval.high, "people": interval.n}
        rows.append({"arm": name, "measure": measure, **row})
    return pd.DataFrame(rows)


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rho, NaN where one side does not vary."""
    a, b = rankdata(x), rankdata(y)
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _spearman(table: pd.DataFrame, name: str, target: str) -> list[dict[str, object]]:
    x, y, who = table[name].to_numpy(), table[target].to_numpy(), table.profile.to_numpy()
    people, whole = list(dict.fromkeys(who)), spearman(x, y)
    if len(people) < 2:
        return [{"profile": person, "value": whole} for person in people]
    without = {person: spearman(x[who != person], y[who != person]) for person in people}
    return [{"profile": p, "value": len(people) * whole - (len(people) - 1) * without[p]} for p in people]


def _pairs(table: pd.DataFrame, name: str, target: str) -> list[dict[str, object]]:
    rows = []
    for profile, part in table.groupby("profile", sort=False):
        right = []
        for _, replies in part.groupby("history", sort=False):
            for (x, y), (u, v) in combinations(zip(replies[name], replies[target], strict=True), 2):
                if y != v:
                    right.append((np.sign(x - u) * np.sign(y - v) + 1) / 2)
        if right:
            rows.append({"profile": profile, "value": float(np.mean(right))})
    return rows


# ------------------------------------------------------------------------------------------- calibration


def calibration(table: pd.DataFrame, predicted: str, observed: str, bins: int = 5) -> pd.DataFrame:
    """Mean prediction and outcome in `bins` equally filled bins, the outcome with its interval over people."""
    order = rankdata(table[predicted], method="ordinal") - 1
    rows = []
    for _, part in table.assign(bin=(order * bins // len(table)).astype(int)).groupby("bin"):
        interval = t_interval(part.groupby("profile")[observed].mean())
        row = {"low": interval.low, "high": interval.high, "replies": len(part)}
        rows.append({"predicted": part[predicted].mean(), "observed": interval.mean, **row})
    return pd.DataFrame(rows)
