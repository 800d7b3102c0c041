"""Evaluation suites behind one command: a policy in, tidy tables out, and a card that says under which protocol.

A suite plays episodes (one a person, scenario or case) with a `Subject`. They are kept as they are finished, so an
interrupted evaluation goes on where it stopped and ends with the same numbers; an episode that failed (an endpoint gave
no answer) is marked, left out of the tables, and played again alone by the same command. Results of different
protocols are never put in one table: `leaderboard` refuses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from rapo_lib.cast import spread
from rapo_lib.chat import Failure
from rapo_lib.dialogue import SPLITS, Dialogue, SeekerProfile, load_profiles, read_jsonl
from rapo_lib.evaluation import (
    assess,
    critic_outcomes,
    outcomes,
    reply_metrics,
    reply_quality,
    self_play,
)
from rapo_lib.foresight.critic import EmbeddedCritic
from rapo_lib.lm.critic import Critic
from rapo_lib.measures.emoharbor import (
    DIMENSIONS,
    Answers,
    EmbeddedUser,
    User,
    moments_table,
    scores_table,
    stays,
    stays_table,
)
from rapo_lib.measures.safety import NOTICE, Case, load_cases, safety, safety_rates
from rapo_lib.progress import Progress
from rapo_lib.runs import RapoError, device, library_hash, read_json, versions, write_csv, write_json, write_jsonl
from rapo_lib.seeker import AppraisalSeeker, Seeker
from rapo_lib.sotopia.episode import episodes_table, play
from rapo_lib.sotopia.scenarios import Scenario, load_scenarios
from rapo_lib.stats import Interval, t_interval

Tables = dict[str, pd.DataFrame]  # rows by name, and "summary": measure, mean, low, high, n
HEADLINES = {"selfplay": "gained", "emoharbor": "overall", "sotopia": "goal", "safety": "all"}
AT_ONCE = 20  # episodes played side by side, and lost at most by an interruption


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is evaluated: as a supporter, and as an agent with a goal of its own."""

    policy: Answers
    agent: Callable[[Sequence[tuple[Scenario, Sequence]], int], Sequence[str | Failure]]
    spent: Callable[[], Mapping[str, float]] = dict  # what its answers have cost so far, by counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Who plays and judges beside the subject; `card` names them, their models and prompts."""

    seeker: Seeker = field(default_factory=AppraisalSeeker)
    user: User = field(default_factory=EmbeddedUser)
    critic: Critic | None = field(default_factory=EmbeddedCritic)
    card: Mapping[str, Any] = field(default_factory=lambda: {"user": "embedded", "critic": "embedded"})
    spent: Callable[[], Mapping[str, float]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What two results must share to be compared."""

    seed: int = 0
    turns: int = 8  # supporter turns of self-play (PPDPP's)
    harbor_turns: int = 15  # at most, of an EmoHarbor-style talk (EmoHarbor's)
    episode_turns: int = 20  # of a social episode (SOTOPIA's)
    people: Literal["heldout", "all"] = "heldout"  # all 100 are for models that were trained on none of them
    limit: int | None = None  # so many people, scenarios or cases, evenly spaced; None: all of them
    prompt_tokens: int = 80  # of a supporter; an agent's prompt is longer by its goal
    reply_tokens: int = 40
    temperature: float = 0.8

    def __post_init__(self) -> None:
        limit = 1 if self.limit is None else self.limit
        if min(self.turns, self.harbor_turns, limit) < 1 or self.episode_turns < 2:
            raise RapoError("turns and limit must be 1 or more, episode turns 2 or more")
        if self.people not in ("heldout", "all"):
            raise RapoError(f"people must be 'heldout' or 'all', not {self.people!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Episodes to play and what to make of them; `unit` is the column that tells episodes apart."""

    unit: str
    units: Callable[[Protocol], list]  # each has an `id`
    play: Callable[[Subject, Protocol, Panel, list], tuple[Tables, dict[str, str]]]  # tables; why an episode failed
    sums: Callable[[Tables, Protocol], Tables]  # "summary", and what else is computed over all episodes

    def __call__(self, subject: Subject, protocol: Protocol, panel: Panel | None = None) -> Tables:
        """All of it at once, nothing kept."""
        tables, _ = self.play(subject, protocol, panel or Panel(), self.units(protocol))
        return self.finish(tables, protocol)

    def finish(self, tables: Tables, protocol: Protocol) -> Tables:
        """The tables of all episodes with what is computed over them."""
        return tables | self.sums(tables, protocol)


# ------------------------------------------------------------------------------------------------ suites


def people_of(protocol: Protocol) -> list[SeekerProfile]:
    """Whom a protocol is about."""
    splits = SPLITS if protocol.people == "all" else ("heldout",)
    return _some([p for split in splits for p in load_profiles(split)], protocol)


def _some(units: Sequence[Any], protocol: Protocol) -> list:
    return spread(tuple(units), protocol.limit or len(units))


def play_selfplay(
    subject: Subject, protocol: Protocol, panel: Panel, people: list[SeekerProfile]
) -> tuple[Tables, dict[str, str]]:
    """Self-play with the embedded seeker in PPDPP's protocol: the truth, and the critic's labels beside it."""
    named = {p.opening: p.id for p in people}
    policy, failed = until_failure(subject.policy, lambda history: named[history[0].text])
    dialogues = self_play(policy, people, panel.seeker, turns=protocol.turns, seed=protocol.seed)
    dialogues = [d for d in dialogues if d.id not in failed]
    if not dialogues:
        return {}, failed
    tables = {
        "outcomes": outcomes(dialogues),
        "replies": reply_metrics(dialogues),
        "dialogues": spoken_table(dialogues),
    }
    return tables | ({"critic": assess(dialogues, panel.critic)} if panel.critic else {}), failed


def spoken_table(dialogues: Sequence[Dialogue]) -> pd.DataFrame:
    """One row per turn: profile, speaker, text, emotion."""
    return pd.DataFrame(
        {"profile": d.id, "speaker": t.speaker, "text": t.text, "emotion": t.emotion}
        for d in dialogues
        for t in d.turns
    )


def sum_selfplay(tables: Tables, protocol: Protocol) -> Tables:
    """Outcomes by the truth (failures count as all turns) and by the critic, their agreement, and reply quality."""
    ends = tables["outcomes"]
    found = {name: t_interval(ends[name].astype(float)) for name in ("gained", "end", "success", "turns")}
    if "critic" not in tables:
        return {"summary": _summary(found | reply_quality(tables["replies"]))}
    seen = critic_outcomes(tables["critic"], protocol.turns)
    found |= {f"critic: {n.removeprefix('critic_')}": t_interval(seen[n].astype(float)) for n in seen.columns[1:]}
    return {"critic_outcomes": seen, "summary": _summary(found | reply_quality(tables["replies"]))}


def play_emoharbor(
    subject: Subject, protocol: Protocol, panel: Panel, people: list[SeekerProfile]
) -> tuple[Tables, dict[str, str]]:
    """Talks of up to 15 turns that the simulated person judges afterwards, in ten dimensions of our own."""
    found = stays(subject.policy, people, panel.user, turns=protocol.harbor_turns, seed=protocol.seed)
    failed, whole = {s.profile.id: s.failed for s in found if s.failed}, [s for s in found if not s.failed]
    if not whole:
        return {}, failed
    tables = {
        "scores": scores_table(whole),
        "outcomes": stays_table(whole),
        "moments": moments_table(whole),
        "replies": reply_metrics([s.dialogue for s in whole]),
    }
    return tables, failed


def sum_emoharbor(tables: Tables, protocol: Protocol) -> Tables:
    """The mean of the dimensions, each of them, how the talks ended, and reply quality."""
    scores, ends = tables["scores"], tables["outcomes"]
    found = {name: t_interval(scores[name].astype(float)) for name in ("overall", *DIMENSIONS)}
    found |= {"turns": t_interval(ends.turns.astype(float)), "end": t_interval(ends.end.astype(float))}
    found |= {why: t_interval((ends.ended == why).astype(float)) for why in ("relieved", "overwhelmed")}
    found["abstained"] = t_interval(scores.overall.isna().astype(float))
    return {"summary": _summary(found | reply_quality(tables["replies"]))}


def play_sotopia(
    subject: Subject, protocol: Protocol, panel: Panel, scenarios: list[Scenario]
) -> tuple[Tables, dict[str, str]]:
    """Held-out social scenarios with the embedded partner; goals by check."""
    agent, failed = until_failure(subject.agent, lambda item: item[0].id)
    episodes = episodes_table(play(agent, scenarios, turns=protocol.episode_turns, seed=protocol.seed))
    return {"episodes": episodes[~episodes.scenario.isin(list(failed))]}, failed


def sum_sotopia(tables: Tables, protocol: Protocol) -> Tables:
    """Goal completion over all and by family."""
    episodes = tables["episodes"]
    found = {name: t_interval(episodes[name].astype(float)) for name in ("goal", "progress", "turns")}
    found |= {f"goal, {family}": t_interval(own.goal) for family, own in episodes.groupby("family")}
    return {"summary": _summary(found)}


def play_safety(subject: Subject, protocol: Protocol, panel: Panel, cases: list[Case]) -> tuple[Tables, dict[str, str]]:
    """One reply to each safety case, checked by rule."""
    said = subject.policy([case.history for case in cases], protocol.seed)
    failed = {c.id: r.reason for c, r in zip(cases, said, strict=True) if isinstance(r, Failure)}
    answered = [(c, r) for c, r in zip(cases, said, strict=True) if c.id not in failed]
    rows = safety(lambda *_: [reply for _, reply in answered], [case for case, _ in answered], protocol.seed)
    return {"replies": rows}, failed


def sum_safety(tables: Tables, protocol: Protocol) -> Tables:
    """Every check over all cases of risk, every check at once by kind, and the look-alikes apart."""
    rates = safety_rates(tables["replies"])
    everything = rates.check == "all"
    measure = rates.check.where(~everything | (rates.kind == "every kind"), "all, " + rates.kind)
    summary = rates.assign(measure=measure).rename(columns={"rate": "mean"})
    whole = summary[everything | (rates.kind == "every kind")]
    return {"rates": rates, "summary": whole[["measure", "mean", "low", "high", "n"]]}


SUITES: Mapping[str, Suite] = {
    "selfplay": Suite(unit="profile", units=people_of, play=play_selfplay, sums=sum_selfplay),
    "emoharbor": Suite(unit="profile", units=people_of, play=play_emoharbor, sums=sum_emoharbor),
    "sotopia": Suite(
        unit="scenario",
        units=lambda protocol: _some(load_scenarios("heldout"), protocol),
        play=play_sotopia,
        sums=sum_sotopia,
    ),
    "safety": Suite(
        unit="case", units=lambda protocol: _some(load_cases(), protocol), play=play_safety, sums=sum_safety
    ),
}


def until_failure(
    ask: Callable[[Sequence, int], Sequence[str | Failure]], episode: Callable[[Any], str]
) -> tuple[Callable[[Sequence, int], list[str]], dict[str, str]]:
    """The same policy or agent, silent in an episode from its first failure on; and the reasons by episode."""
    failed: dict[str, str] = {}

    def answer(items: Sequence, seed: int) -> list[str]:
        going = [item for item in items if episode(item) not in failed]
        replies = dict(zip(map(episode, going), ask(going, seed) if going else [], strict=True))
        failed.update({name: r.reason for name, r in replies.items() if isinstance(r, Failure)})
        return ["" if episode(item) in failed else replies[episode(item)] for item in items]

    return answer, failed


def _summary(found: Mapping[str, Interval]) -> pd.DataFrame:
    rows = [{"measure": name, "mean": i.mean, "low": i.low, "high": i.high, "n": i.n} for name, i in found.items()]
    return pd.DataFrame(rows)


# ----------------------------------------------------------------------------------------------- running


def suites_named(text: str) -> list[str]:
    """The suites of a comma-separated list."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in SUITES]:
        raise RapoError(f"unknown suite {unknown[0]!r}; suites: {', '.join(SUITES)}")
    if not names:
        raise RapoError(f"no suite named; suites: {', '.join(SUITES)}")
    return names


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


EPISODES = "episodes.jsonl"  # {"episode", "failed", "rows": {table: [...]}} a line


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
