"""Results of suites on disk: kept episode by episode, with a card that says under which protocol, and compared.

Episodes are kept as they are finished, so an interrupted evaluation goes on where it stopped and ends with the same
numbers; an episode that failed (an endpoint gave no answer) is marked, left out of the tables, and played again alone
by the same command. Results of different protocols are never put in one table: `leaderboard` refuses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from rapo_lib.dialogue import read_jsonl
from rapo_lib.measures.safety import NOTICE
from rapo_lib.measures.suites import HEADLINES, SUITES, Panel, Protocol, Subject, Suite, Tables
from rapo_lib.progress import Progress
from rapo_lib.runs import RapoError, device, library_hash, read_json, versions, write_csv, write_json, write_jsonl
from rapo_lib.stats import t_interval

AT_ONCE = 20  # episodes played side by side, and lost at most by an interruption
EPISODES = "episodes.jsonl"  # {"episode", "failed", "rows": {table: [...]}} a line


def evaluate(
    name: str,
    load: Callable[[], Subject],
    model: str,
    protocol: Protocol,
    folder: Path,
    panel: Panel | None = None,
) -> pd.DataFrame:
    """One suite into `folder`/`name`, as far as it is not there already; returns its summary.

    `load` makes the subject and is called only if something is to be done; `model` names it in the card.
    Raises RapoError where the folder holds a result with another card.
    """
    suite, panel, place = SUITES[name], panel or Panel(), folder / name
    card = protocol_card(name, model, protocol, panel)
    before = _same_card(place, card)
    episodes = _kept(place)
    units = suite.units(protocol)
    todo = [u for u in units if episodes.get(u.id, {"failed": "not played"})["failed"]]
    if before.get("finished") and not todo:
        return pd.read_csv(place / "summary.csv")
    cost = before.get("cost", {})
    write_json(place / "card.json", {**card, "finished": False, "cost": cost})
    with Progress(f"{model}: {name}", len(units), unit=f"{suite.unit} ") as shown:
        shown.done = len(units) - len(todo)
        for start in range(0, len(todo), AT_ONCE):
            part = todo[start : start + AT_ONCE]
            subject = load()
            spent = {"subject": dict(subject.spent()), "panel": dict(panel.spent())}
            tables, failed = suite.play(subject, protocol, panel, part)
            episodes |= {u.id: _episode(u.id, suite.unit, tables, failed) for u in part}
            write_jsonl(place / EPISODES, episodes.values())
            cost = _added(cost, spent, {"subject": subject.spent(), "panel": panel.spent()})
            write_json(place / "card.json", {**card, "finished": False, "cost": cost})
            shown.done += len(part)
    whole = _kept(place)  # read back, so that an interruption can change nothing
    return _write_result(suite, place, {u.id: whole[u.id] for u in units}, card, cost, protocol)


def _write_result(
    suite: Suite, place: Path, episodes: Mapping[str, dict], card: dict, cost: Mapping, protocol: Protocol
) -> pd.DataFrame:
    failed = {name: e["failed"] for name, e in episodes.items() if e["failed"]}
    if len(failed) == len(episodes):
        raise RapoError(f"{place}: every episode failed; first {next(iter(failed.values()))}")
    tables = suite.finish(_tables(episodes.values()), protocol)
    for table, rows in tables.items():
        write_csv(place / f"{table}.csv", rows)
    write_json(place / "card.json", {**card, "finished": True, "cost": cost, "failed": failed})
    return tables["summary"].reset_index(drop=True)


def failures(place: Path) -> dict[str, str]:
    """Why which episodes of a result failed."""
    return read_json(place / "card.json")["failed"]


def _same_card(place: Path, card: Mapping[str, Any]) -> dict[str, Any]:
    """The card that is there, {} for none; an error unless it says the same."""
    if not (place / "card.json").is_file():
        return {}
    found = read_json(place / "card.json")
    if differs := next((k for k in card if card[k] != found.get(k)), None):
        raise RapoError(f"{place} holds a result with another {differs}; choose another folder with --out")
    return found


def _kept(place: Path) -> dict[str, dict]:
    path = place / EPISODES
    return {record["episode"]: record for record in read_jsonl(path)} if path.is_file() else {}


def _episode(name: str, unit: str, tables: Tables, failed: Mapping[str, str]) -> dict:
    """One episode's rows, as they are kept."""
    own = {table: rows[rows[unit] == name].to_dict("records") for table, rows in tables.items() if len(rows)}
    return {"episode": name, "failed": failed.get(name, ""), "rows": {} if name in failed else own}


def _tables(episodes: Sequence[Mapping[str, Any]]) -> Tables:
    names = list(dict.fromkeys(table for e in episodes for table in e["rows"]))
    tables = {n: pd.DataFrame([row for e in episodes for row in e["rows"].get(n, ())]) for n in names}
    return {name: _numbers(table) for name, table in tables.items()}


def _numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Columns that hold nothing at all are numbers that are not known, as they were before they were JSON."""
    return table.astype({column: float for column in table if table[column].isna().all()})


def _added(cost: Mapping, before: Mapping, after: Mapping) -> dict[str, dict[str, float]]:
    """The counters with what was spent in between."""
    return {
        who: {n: cost.get(who, {}).get(n, 0) + v - before[who].get(n, 0) for n, v in counters.items()}
        for who, counters in after.items()
        if counters
    }


def protocol_card(suite: str, model: str, protocol: Protocol, panel: Panel | None = None) -> dict[str, Any]:
    """Everything that decided a result; `library` hashes our code, profiles, scenarios, cases, wordings and prompts."""
    judges = {"selfplay": "critic", "emoharbor": "user"}
    role = judges.get(suite)
    return {
        "suite": suite,
        "model": model,
        "protocol": asdict(protocol),
        "judge": {role: (panel or Panel()).card[role]} if role else "checks; no model judges",
        "library": library_hash(),
        "versions": versions(),
        "device": device(),
        "notice": NOTICE,
    }


# ------------------------------------------------------------------------------------------- comparing


def leaderboard(folders: Sequence[Path]) -> pd.DataFrame:
    """The summaries of several results of one suite, with the column `model`; RapoError if protocols differ."""
    cards = [read_json(folder / "card.json") for folder in folders]
    for folder, card in zip(folders, cards, strict=True):
        if not card.get("finished"):
            raise RapoError(f"{folder} is not finished; the command that began it goes on where it stopped")
        for key in ("suite", "protocol", "judge", "library"):
            if card[key] != cards[0][key]:
                raise RapoError(f"{folder} and {folders[0]} differ in {key}: their numbers cannot be compared")
    tables = [
        pd.read_csv(folder / "summary.csv").assign(model=c["model"]) for folder, c in zip(folders, cards, strict=True)
    ]
    return pd.concat(tables, ignore_index=True)


def compare(folders: Sequence[Path]) -> pd.DataFrame:
    """Everything that `evaluate` wrote into these folders in one tidy table: suite, model, measure, mean, low, high, n.

    Raises RapoError for a folder without a result, two results of one model, or protocols that differ in a suite.
    """
    found = {folder: sorted(card.parent for card in folder.glob("*/card.json")) for folder in folders}
    if empty := [folder for folder, places in found.items() if not places]:
        raise RapoError(f"{empty[0]} holds no result; give folders that `rapo evaluate --out` wrote")
    boards = []
    for suite in SUITES:
        if places := [place for own in found.values() for place in own if place.name == suite]:
            board = leaderboard(places).assign(suite=suite)
            if not (twice := board[board.duplicated(["model", "measure"])].model).empty:
                raise RapoError(f"two results of {twice.iloc[0]!r} in suite {suite}; compare one of them")
            boards.append(board)
    columns = ["suite", "model", "measure", "mean", "low", "high", "n"]
    return pd.concat(boards, ignore_index=True)[columns]


def as_text(board: pd.DataFrame) -> pd.Series:
    """ "mean [low, high]" of every row; a dash for what is not known."""
    shown = board[["mean", "low", "high"]].map("{:.2f}".format)
    text = shown["mean"] + " [" + shown.low + ", " + shown.high + "]"
    return text.where(board["mean"].notna(), "-").where(board.low.notna() | board["mean"].isna(), shown["mean"])


def headlines(board: pd.DataFrame) -> pd.DataFrame:
    """The one number of each suite, a row per model, from `compare`: "mean [low, high]" as text."""
    own = board[board.measure == board.suite.map(HEADLINES)]
    wide = own.assign(text=as_text(own), column=own.suite + ": " + own.measure)
    return wide.pivot(index="model", columns="column", values="text").reindex(own.model.unique()).fillna("")


def by_episode(place: Path) -> pd.Series:
    """The headline of one result by episode; of safety, whether a reply to a case of risk passes every check."""
    suite = place.name
    if suite == "safety":
        rows = pd.read_csv(place / "replies.csv")
        return rows[rows.kind != "benign"].groupby("case").passed.all().astype(float)
    table = {"selfplay": "outcomes", "emoharbor": "scores", "sotopia": "episodes"}[suite]
    return pd.read_csv(place / f"{table}.csv").set_index(SUITES[suite].unit)[HEADLINES[suite]]


def differences(folder: Path, reference: Path) -> pd.DataFrame:
    """Each suite's headline minus that of `reference`, paired by episode: suite, measure, mean, low, high, n.

    Raises RapoError where the two were not measured under one protocol.
    """
    rows = []
    for suite, measure in HEADLINES.items():
        if (folder / suite).is_dir() and (reference / suite).is_dir():
            leaderboard([folder / suite, reference / suite])
            i = t_interval(by_episode(folder / suite) - by_episode(reference / suite))
            rows.append({"suite": suite, "measure": measure, "mean": i.mean, "low": i.low, "high": i.high, "n": i.n})
    return pd.DataFrame(rows)
