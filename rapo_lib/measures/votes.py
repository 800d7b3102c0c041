"""What people answered on preference sheets: read with every problem named, checked per annotator, and summed up.

Repeats and obvious items check the annotators; only first showings of real pairs count towards the results.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse.csgraph import connected_components
from scipy.stats import binomtest, t

from rapo_lib.measures.sheets import BETTER, CHOICES, KEY_FORMAT, inert
from rapo_lib.runs import RapoError, read_json, write_csv
from rapo_lib.stats import clustered, verdict

SPELLINGS = {choice.lower(): choice for choice in CHOICES}
PRIOR = 0.5  # wins added to either side of every two compared arms (ours, after Haldane): keeps a clean sweep finite
KEYED = {"pair", "kind", "A", "B"}  # what the key says of an item
COLUMNS = ("annotator", "item", "pair", "kind", "A", "B", "choice", "preferred", "seconds", "comment")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the answers that could not be used, or was used only in part."""

    where: str  # file, or annotator
    item: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}{f', item {self.item}' if self.item else ''}: {self.what}"


@dataclass(frozen=True, slots=True)
class Votes:
    """Usable answers, one row each (columns COLUMNS; `preferred` is an arm or "tie"), and every problem met."""

    table: pd.DataFrame
    problems: tuple[Problem, ...]


# ---------------------------------------------------------------------------------------------- reading


def read_key(path: Path) -> dict[str, Any]:
    """The key that was written with the sheets."""
    key = read_json(path)
    items = key.get("items") if isinstance(key, dict) and key.get("format") == KEY_FORMAT else None
    if not isinstance(items, dict) or not all(isinstance(i, dict) and set(i) == KEYED for i in items.values()):
        raise RapoError(f"{path} is not a key of preference sheets ({KEY_FORMAT})")
    return key


def read_votes(paths: Sequence[Path], key: Mapping[str, Any]) -> Votes:
    """The answers in JSON and CSV files against the key.

    A problem never stops the reading: the answer concerned is left out and named. Two different answers of one
    annotator to one item are both left out. RapoError if nothing is usable.
    """
    problems: list[Problem] = []
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    disputed: set[tuple[str, str]] = set()
    for path in paths:
        for raw in _answers(path, problems):
            row = _checked(raw, path.name, key["items"], problems)
            if row is None:
                continue
            who = (row["annotator"], row["item"])
            if who in rows:
                same = rows[who]["choice"] == row["choice"]
                what = "the same answer twice, counted once" if same else "two different answers, both left out"
                problems.append(Problem(path.name, row["item"], f"{row['annotator']} gave {what}"))
                disputed |= set() if same else {who}
            rows.setdefault(who, row)
    usable = [row for who, row in rows.items() if who not in disputed]
    problems += _missing(set(rows), key["items"])
    usable = _once_a_pair(usable, problems)
    if not usable:
        raise RapoError("\n".join(["no usable answer", *map(str, problems)]))
    return Votes(pd.DataFrame(usable, columns=list(COLUMNS)), tuple(problems))


def _answers(path: Path, problems: list[Problem]) -> Iterator[dict[str, Any]]:
    """The raw answers of one file; a file that is none becomes a problem."""
    try:
        text = path.read_text("utf-8-sig")
        found = _csv_answers(text) if path.suffix.lower() == ".csv" else _json_answers(text)
    except OSError as error:
        problems.append(Problem(path.name, "", f"cannot be read: {error.strerror or error}"))
    except (ValueError, RecursionError) as error:
        problems.append(Problem(path.name, "", f"is no answer file: {error}"))
    else:
        yield from found


def _json_answers(text: str) -> list[dict[str, Any]]:
    value = json.loads(text)
    answers = value.get("answers") if isinstance(value, dict) else None
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise ValueError('expected {"answers": [objects]}')
    return answers


def _csv_answers(text: str) -> list[dict[str, Any]]:
    """Rows of a filled-in CSV sheet; some spreadsheets save with semicolons."""
    head = text.partition("\n")[0]
    rows = csv.DictReader(StringIO(text, newline=""), delimiter=";" if head.count(";") > head.count(",") else ",")
    if missing := {"item", "annotator", "choice"} - set(rows.fieldnames or ()):
        raise ValueError(f"the column {sorted(missing)[0]!r} is missing")
    return list(rows)


def _checked(
    raw: Mapping[str, Any], where: str, items: Mapping[str, Any], problems: list[Problem]
) -> dict[str, Any] | None:
    """One answer as a row, or None and the problem; an empty choice is no answer."""
    item, annotator, choice = (_text(raw.get(name)) for name in ("item", "annotator", "choice"))
    if not choice:
        return None  # named as missing, unless it is answered elsewhere
    if item not in items:
        problems.append(Problem(where, item, "no such item in this key; is it the answer to another sheet?"))
    elif not annotator:
        problems.append(Problem(where, item, "no annotator"))
    elif choice.lower() not in SPELLINGS:
        problems.append(Problem(where, item, f"choice {choice!r} is not one of {', '.join(CHOICES)}"))
    else:
        known, choice = items[item], SPELLINGS[choice.lower()]
        return {
            "annotator": annotator,
            "item": item,
            **known,
            "choice": choice,
            "preferred": known.get(choice, "tie"),
            "seconds": _number(raw.get("seconds")),
            "comment": inert(_text(raw.get("comment"))),
        }
    return None


def _text(value: Any) -> str:
    return str(value).strip() if isinstance(value, str | int | float) else ""


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan


def _missing(answered: set[tuple[str, str]], items: Mapping[str, Any]) -> list[Problem]:
    """Every item of a sheet that an annotator began but did not answer."""
    begun = sorted({(annotator, _sheet(item)) for annotator, item in answered})
    return [
        Problem(annotator, item, "not answered")
        for annotator, sheet in begun
        for item in items
        if _sheet(item) == sheet and (annotator, item) not in answered
    ]


def _once_a_pair(rows: list[dict[str, Any]], problems: list[Problem]) -> list[dict[str, Any]]:
    """A pair that one annotator judged on two sheets counts once: two votes of one person are not independent."""
    kept, seen = [], set()
    for row in rows:
        judged = (row["annotator"], row["pair"])
        if row["kind"] == "pair" and judged in seen:
            problems.append(Problem(row["annotator"], row["item"], "the same pair was judged on another sheet already"))
            continue
        if row["kind"] == "pair":
            seen.add(judged)
        kept.append(row)
    return kept


def _sheet(item: str) -> str:
    return item.partition("-")[0]


# ------------------------------------------------------------------------------------------- annotators


def annotators(table: pd.DataFrame) -> pd.DataFrame:
    """One row per annotator: attention, self-consistency, side, ties and pace.

    `side_p` tests (two-sided binomial) whether A was chosen as often as B: sides are balanced, so it should be.
    `failed`: missed an obvious item (ours).
    """
    rows = []
    for name, own in table.groupby("annotator"):
        pairs, sides = own[own.kind == "pair"], own[(own.kind == "pair") & (own.choice != "tie")].choice
        obvious = own[own.kind == "obvious"].preferred.eq(BETTER)
        first = pairs.set_index(_pair_on_sheet(pairs)).preferred
        again = own[own.kind == "repeat"]
        again = again.set_index(_pair_on_sheet(again)).preferred
        both = again.index.intersection(first.index)
        rows.append(
            {
                "annotator": name,
                "judged": len(pairs),
                "obvious": len(obvious),
                "obvious_right": int(obvious.sum()),
                "repeats": len(both),
                "repeats_same": int(sum(first[k] == again[k] for k in both)),
                "chose_A": sides.eq("A").mean(),
                "side_p": binomtest(int(sides.eq("A").sum()), len(sides)).pvalue if len(sides) else np.nan,
                "ties": pairs.choice.eq("tie").mean(),
                "seconds": pairs.seconds.median(),
                "failed": not obvious.all(),
            }
        )
    return pd.DataFrame(rows)


def _pair_on_sheet(rows: pd.DataFrame) -> pd.Series:
    return rows.item.map(_sheet) + "/" + rows.pair


def attentive(table: pd.DataFrame) -> pd.DataFrame:
    """The answers of annotators who failed no obvious item."""
    checked = annotators(table)
    return table[table.annotator.isin(checked[~checked.failed].annotator)]


# ---------------------------------------------------------------------------------------------- results


def rates(table: pd.DataFrame, by: str = "pair") -> pd.DataFrame:
    """Win, tie and loss of every two arms, and the net (win - loss), with t intervals over units.

    `by` is the unit: "pair" (what the arms would do on other histories) or "annotator" (what other people would
    say). Columns: arm, other, measure, mean, low, high, n (units), judgements, claim ("arm is better": see
    `stats.verdict`; net only).
    """
    rows = []
    judged = table[table.kind == "pair"]
    judged = judged.assign(arms=[tuple(sorted(two)) for two in zip(judged.A, judged.B, strict=True)])
    for (arm, other), votes in judged.groupby("arms"):
        win, loss, tie = (votes.preferred.eq(name).astype(float) for name in (arm, other, "tie"))
        for measure, value in (("win", win), ("tie", tie), ("loss", loss), ("net", win - loss)):
            interval = clustered(votes.assign(value=value), "value", by)
            rows.append(
                {
                    "arm": arm,
                    "other": other,
                    "measure": measure,
                    **{name: getattr(interval, name) for name in ("mean", "low", "high", "n")},
                    "judgements": len(votes),
                    "claim": verdict(interval) if measure == "net" else "",
                }
            )
    return pd.DataFrame(rows)


def wins_matrix(votes: pd.DataFrame, arms: Sequence[str]) -> np.ndarray:
    """[i, j]: how often arm i was preferred to arm j; a tie is half a win for either."""
    place = {arm: k for k, arm in enumerate(arms)}
    wins = np.zeros((len(arms), len(arms)))
    for a, b, preferred in zip(votes.A, votes.B, votes.preferred, strict=True):
        share = 0.5 if preferred == "tie" else float(preferred == a)
        wins[place[a], place[b]] += share
        wins[place[b], place[a]] += 1 - share
    return wins


def bradley_terry(wins: np.ndarray) -> np.ndarray:
    """Strengths (mean 0): P(i beats j) = 1 / (1 + exp(s_j - s_i)); PRIOR wins are added where arms were compared."""
    import choix

    compared = (wins + wins.T) > 0
    if connected_components(compared, directed=False)[0] > 1:
        raise RapoError("some arms were never compared, not even through others: they have no common scale")
    return choix.ilsr_pairwise_dense(wins + PRIOR * compared)


def strengths(table: pd.DataFrame, by: str = "pair", level: float = 0.95) -> pd.DataFrame:
    """Bradley-Terry strength of every arm, strongest first, with a delete-one-unit jackknife t interval.

    Columns: arm, strength, low, high, n (units); no interval (NaN) with one unit or when one unit holds the arms
    together.
    """
    votes = table[table.kind == "pair"]
    arms = sorted({*votes.A, *votes.B})
    wins = wins_matrix(votes, arms)
    strength = bradley_terry(wins)
    units = [wins_matrix(own, arms) for _, own in votes.groupby(by)]
    half = np.full(len(arms), np.nan)
    if len(units) > 1 and all(_connected(wins - own) for own in units):
        left_out = np.array([bradley_terry(wins - own) for own in units])  # (units, arms)
        variance = (len(units) - 1) / len(units) * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0)
        half = t.ppf((1 + level) / 2, len(units) - 1) * np.sqrt(variance)
    found = pd.DataFrame(
        {"arm": arms, "strength": strength, "low": strength - half, "high": strength + half, "n": len(units)}
    )
    return found.sort_values("strength", ascending=False, ignore_index=True)


def _connected(wins: np.ndarray) -> bool:
    return connected_components((wins + wins.T) > 0, directed=False)[0] == 1


def agreement(table: pd.DataFrame) -> float:
    """Krippendorff's alpha (nominal) of the preferred arm over pairs that two people or more judged.

    1 is full agreement, 0 chance; NaN where it is undefined: nobody shares a pair, or only one value occurs.
    """
    from nltk.metrics.agreement import AnnotationTask

    judged = table[table.kind == "pair"]
    shared = judged[judged.groupby("pair").annotator.transform("nunique") > 1]
    if shared.preferred.nunique() < 2:
        return float("nan")
    return float(AnnotationTask(list(zip(shared.annotator, shared.pair, shared.preferred, strict=True))).alpha())


def summary(votes: Votes, by: str = "pair", keep_failed: bool = False) -> dict[str, pd.DataFrame]:
    """Every table of a reading by name; annotators who failed a check count only with `keep_failed`."""
    counted = votes.table if keep_failed else attentive(votes.table)
    if not (counted.kind == "pair").any():
        raise RapoError("no vote is left: every annotator missed an obvious item (--keep-failed counts them)")
    return {
        "answers": votes.table,
        "problems": pd.DataFrame(
            [(p.where, p.item, p.what) for p in votes.problems], columns=["where", "item", "what"]
        ),
        "annotators": annotators(votes.table),
        "rates": rates(counted, by),
        "strengths": strengths(counted, by),
        "agreement": pd.DataFrame({"krippendorff_alpha": [agreement(counted)]}),
    }


def write_summary(tables: Mapping[str, pd.DataFrame], folder: Path) -> Path:
    """One CSV file a table in `folder`; other files there stay."""
    for name, table in tables.items():
        write_csv(folder / f"{name}.csv", table)
    return folder
