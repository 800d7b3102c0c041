"""Checks on what other people recorded: ratings that seekers gave themselves, emotions that another simulator knew.

Nothing is fitted here and nothing of these files is kept; a file is read, a small table comes out.

1. Ratings (ESConv's 1 to 5, given by the seeker to the supporter turns before): Spearman's rho of the rating with our
   reading of (reply, the seeker's next words), beside readings of the reply alone and plain lengths. The interval
   comes from drawing dialogues anew, for the ratings of one person belong together.
2. Emotions (SAGE's points after every turn): how far the emotion moves at the turns that our selection finds, against
   the largest one-step change and random turns of the same dialogues. Our reader knows English only; dialogues in
   other languages are counted and not read.

`rapo check FILE` prints both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from rapo_lib.corpora import load_dialogues
from rapo_lib.dialogue import Dialogue, Turn
from rapo_lib.feedback import CHANCE, MARK_SHARE
from rapo_lib.judge.reading import polarity, read_batch, sound, words
from rapo_lib.judge.rubric import read_replies, rubric_score
from rapo_lib.runs import RapoError
from rapo_lib.selection import PivotalTurn, emotions, exchanges, levels, readable, select
from rapo_lib.stats import t_interval

DRAWS = 1000  # of dialogues, for an interval


# ------------------------------------------------------------------------------------------------ ratings


@dataclass(frozen=True, slots=True)
class Rated:
    """One rating: what had been said, the supporter turns it is about, and the seeker turns it came with."""

    dialogue: str
    history: tuple[Turn, ...]
    reply: str
    reaction: str
    rating: int


def rated_spans(dialogues: Sequence[Dialogue]) -> list[Rated]:
    """Every rating with the supporter's words just before it and the seeker's own around it, each joined."""
    found = []
    for dialogue in dialogues:
        turns = dialogue.turns
        for i, turn in enumerate(turns):
            start = _last(turns, i, "supporter") + 1  # of the seeker's words
            if turn.feedback is None or start == 0:
                continue
            first = _last(turns, start, "seeker") + 1  # of the reply
            end = next((j for j in range(i, len(turns)) if turns[j].speaker == "supporter"), len(turns))
            reply, reaction = (" ".join(t.text for t in part) for part in (turns[first:start], turns[start:end]))
            found.append(Rated(dialogue.id, turns[:first], reply, reaction, turn.feedback))
    return found


def _last(turns: Sequence[Turn], before: int, speaker: str) -> int:
    """Index of the last turn of `speaker` before index `before`, or -1."""
    return next((j for j in range(before - 1, -1, -1) if turns[j].speaker == speaker), -1)


def readings(spans: Sequence[Rated]) -> pd.DataFrame:
    """One row per rating: dialogue, rating, and what each way of reading makes of it."""
    heard = read_batch([(s.history, s.reply, s.reaction) for s in spans])
    relief = np.array([r.relief - CHANCE * r.causes.get("question", 0.0) for r in heard])
    marks = [
        rubric_score(s.history, t)
        for s, t in zip(spans, read_replies([(s.history, s.reply) for s in spans]), strict=True)
    ]
    return pd.DataFrame(
        {
            "dialogue": [s.dialogue for s in spans],
            "rating": [s.rating for s in spans],
            "relief in the next words": [r.relief for r in heard],
            "judge: relief and mark": relief + MARK_SHARE * np.array(marks),
            "tone of the next words": sound([s.reaction for s in spans]),
            "good and bad words in them": [polarity(s.reaction) for s in spans],
            "length of the next words": [len(words(s.reaction)) for s in spans],
            "reply: rubric mark": marks,
            "reply: tone": sound([s.reply for s in spans]),
            "length of the reply": [len(words(s.reply)) for s in spans],
        }
    )


def rating_table(dialogues: Sequence[Dialogue], draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """Spearman's rho of each reading with the rating: reading, rho, low, high, ratings, dialogues."""
    table = readings(rated_spans(dialogues))
    rows = []
    for reading in table.columns[2:]:
        rho, low, high = clustered_rho(table, reading, "rating", "dialogue", draws, seed)
        rows.append({"reading": reading, "rho": rho, "low": low, "high": high})
    return pd.DataFrame(rows).assign(ratings=len(table), dialogues=table.dialogue.nunique())


def clustered_rho(
    table: pd.DataFrame, a: str, b: str, by: str, draws: int = DRAWS, seed: int = 0
) -> tuple[float, float, float]:
    """Spearman's rho of two columns and its 95 % interval from drawing whole units `by` with replacement."""
    parts = [part[[a, b]].to_numpy(dtype=float) for _, part in table.groupby(by)]
    rng = np.random.default_rng(seed)
    drawn = [_rho(np.vstack([parts[i] for i in rng.integers(len(parts), size=len(parts))])) for _ in range(draws)]
    known = [rho for rho in drawn if not np.isnan(rho)] or [float("nan")]
    low, high = np.quantile(known, [0.025, 0.975])
    return _rho(np.vstack(parts)), float(low), float(high)


def _rho(pairs: np.ndarray) -> float:
    ranks = rankdata(pairs, axis=0)
    if (np.ptp(ranks, axis=0) == 0).any():
        return float("nan")
    return float(np.corrcoef(ranks.T)[0, 1])


# ------------------------------------------------------------------------------------------------ emotions


def moves(dialogue: Dialogue) -> dict[int, float]:
    """How far the true emotion moved over each exchange, by the index of the supporter turn; points, signed."""
    felt = emotions(dialogue)
    return {e.turn: felt[k] - felt[k - 1] for k, e in enumerate(exchanges(dialogue.turns)) if k}


def largest_steps(dialogue: Dialogue, count: int) -> list[int]:
    """The turns after which the level read changes most from one seeker turn to the next: the naive rule."""
    talk, level = exchanges(dialogue.turns), levels(dialogue)
    order = np.argsort(-np.abs(np.diff(level)), kind="stable")[:count]
    return [talk[1 + int(k)].turn for k in order]


def selection_table(dialogues: Sequence[Dialogue], pivots: Sequence[PivotalTurn]) -> pd.DataFrame:
    """Size of the true change at the selected turns, by the naive rule, at random: dialogue, arm, change (points).

    Every rule takes as many turns of a dialogue as were selected there; `random` is the mean over all its turns, and
    `by the truth` the largest moves there were. Dialogues without a selected turn, or without emotions, are left out.
    """
    rows = []
    for dialogue in dialogues:
        sizes = {turn: abs(move) for turn, move in moves(dialogue).items()}
        taken = [p.turn for p in pivots if p.dialogue_id == dialogue.id and p.turn in sizes]
        if not taken or np.isnan(list(sizes.values())).any():
            continue
        arms = {
            "selected": [sizes[turn] for turn in taken],
            "largest step": [sizes[turn] for turn in largest_steps(dialogue, len(taken))],
            "random": list(sizes.values()),
            "by the truth": sorted(sizes.values(), reverse=True)[: len(taken)],
        }
        rows += [{"dialogue": dialogue.id, "arm": arm, "change": float(np.mean(x))} for arm, x in arms.items()]
    return pd.DataFrame(rows, columns=["dialogue", "arm", "change"])


@dataclass(frozen=True, slots=True)
class Unread:
    """How many dialogues there were, and how many our reader cannot read."""

    dialogues: int
    unread: int


def emotion_table(dialogues: Sequence[Dialogue], per_dialogue: int = 2) -> tuple[pd.DataFrame, Unread]:
    """Size of the true change at selected turns and at others, with intervals over dialogues, and what was not read.

    Columns arm, change, low, high, dialogues; empty where no dialogue is in English.
    """
    english = [d for d in dialogues if readable(d)]
    table = selection_table(english, select(english, per_dialogue=per_dialogue))
    rows = []
    for arm, part in table.groupby("arm", sort=False):
        i = t_interval(part.change)
        rows.append({"arm": arm, "change": i.mean, "low": i.low, "high": i.high, "dialogues": i.n})
    columns = ["arm", "change", "low", "high", "dialogues"]
    return pd.DataFrame(rows, columns=columns), Unread(len(dialogues), len(dialogues) - len(english))


def report(path: Path) -> str:
    """Both tables of one file, as far as it has ratings or emotions; raises RapoError where it has neither."""
    dialogues = load_dialogues(path).dialogues
    rated = any(turn.feedback is not None for d in dialogues for turn in d.turns)
    felt = [d for d in dialogues if (known := list(moves(d).values())) and not np.isnan(known).any()]
    if not (rated or felt):
        raise RapoError(f"{path}: no turn carries a rating or an emotion, so there is nothing to check our reading on")
    parts = []
    if rated:
        table = rating_table(dialogues).drop(columns=["ratings", "dialogues"])
        count = len(rated_spans(dialogues))
        parts.append(f"{path}: {count} ratings of supporter turns by the seekers themselves")
        parts.append(f"Spearman's rho with the rating\n{table.to_string(index=False, float_format='%.2f')}")
    if felt:
        table, unread = emotion_table(felt)
        parts.append(
            f"{path}: {len(felt)} dialogues with emotions, {unread.unread} of them not in English and not read"
        )
        if not table.empty:
            parts.append(f"size of the change at selected turns\n{table.to_string(index=False, float_format='%.2f')}")
    return "\n".join(parts)
