"""Evaluation suites behind one command: a policy in, tidy tables out, and a card that says under which protocol.

A suite is a function of a `Subject`. Its tables are written whole to a folder of its own, beside `card.json`; a folder
with the same card is kept, so an interrupted evaluation goes on where it stopped. Results of different protocols are
never put in one table: `leaderboard` refuses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from rapo_lib.dialogue import load_profiles
from rapo_lib.evaluation import ModelPolicy, Policy, outcomes, reply_metrics, self_play
from rapo_lib.measures.safety import NOTICE, load_cases, safety, safety_rates
from rapo_lib.runs import RapoError, atomic_folder, device, library_hash, read_json, versions, write_csv, write_json
from rapo_lib.seeker import AppraisalSeeker
from rapo_lib.sotopia.episode import Agent, ModelAgent, episodes_table, play
from rapo_lib.sotopia.scenarios import load_scenarios
from rapo_lib.stats import Interval, clustered, t_interval

Tables = dict[str, pd.DataFrame]  # rows by name, and "summary": measure, mean, low, high, n


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is evaluated: as a supporter, and as an agent with a goal of its own."""

    policy: Policy
    agent: Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What two results must share to be compared."""

    seed: int = 0
    turns: int = 8  # supporter turns of self-play (PPDPP's)
    episode_turns: int = 20  # of a social episode (SOTOPIA's)
    limit: int | None = None  # the first so many people, scenarios or cases; None: all held-out ones
    prompt_tokens: int = 80  # of a supporter; an agent's prompt is longer by its goal
    reply_tokens: int = 40
    temperature: float = 0.8

    def __post_init__(self) -> None:
        if self.turns < 1 or self.episode_turns < 2 or (self.limit is not None and self.limit < 1):
            raise RapoError("turns and limit must be 1 or more, episode turns 2 or more")


# ------------------------------------------------------------------------------------------------ suites


def selfplay_suite(subject: Subject, protocol: Protocol) -> Tables:
    """Self-play with held-out people and the embedded seeker."""
    people = load_profiles("heldout")[: protocol.limit]
    dialogues = self_play(subject.policy, people, AppraisalSeeker(), turns=protocol.turns, seed=protocol.seed)
    ends, replies = outcomes(dialogues), reply_metrics(dialogues)
    found = {name: t_interval(ends[name].astype(float)) for name in ("gained", "end", "success", "turns")}
    doing = ("suggestion", "premature", "open_question", "reflection", "stock", "repetition", "words", "fluency")
    found |= {name: clustered(replies.assign(**{name: replies[name].astype(float)}), name) for name in doing}
    return {"outcomes": ends, "replies": replies, "summary": _summary(found)}


def sotopia_suite(subject: Subject, protocol: Protocol) -> Tables:
    """Held-out social scenarios with the embedded partner; goals by check."""
    scenarios = load_scenarios("heldout")[: protocol.limit]
    episodes = episodes_table(play(subject.agent, scenarios, turns=protocol.episode_turns, seed=protocol.seed))
    found = {name: t_interval(episodes[name].astype(float)) for name in ("goal", "progress", "turns")}
    found |= {f"goal, {family}": t_interval(own.goal) for family, own in episodes.groupby("family")}
    return {"episodes": episodes, "summary": _summary(found)}


def safety_suite(subject: Subject, protocol: Protocol) -> Tables:
    """Safety cases; the summary has every check over all cases of risk, and the look-alikes apart."""
    rows = safety(subject.policy, load_cases()[: protocol.limit], protocol.seed)
    rates = safety_rates(rows)
    whole = rates[(rates.kind == "every kind") | ((rates.kind == "benign") & (rates.check == "all"))]
    measure = whole.check.where(whole.kind != "benign", "all, benign look-alikes")
    summary = whole.assign(measure=measure).rename(columns={"rate": "mean"})
    return {"replies": rows, "rates": rates, "summary": summary[["measure", "mean", "low", "high", "n"]]}


SUITES: Mapping[str, Callable[[Subject, Protocol], Tables]] = {
    "selfplay": selfplay_suite,
    "sotopia": sotopia_suite,
    "safety": safety_suite,
}


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


def evaluate(name: str, load: Callable[[], Subject], model: str, protocol: Protocol, folder: Path) -> pd.DataFrame:
    """One suite into `folder`/`name`, unless it is there with the same card; returns its summary.

    `load` makes the subject and is called only if something is to be done; `model` names it in the card.
    """
    place, card = folder / name, protocol_card(name, model, protocol)
    if (place / "card.json").is_file():
        if (found := read_json(place / "card.json")) != card:
            differs = next(k for k in sorted({*card, *found}) if card.get(k) != found.get(k))
            raise RapoError(f"{place} holds a result with another {differs}; choose another folder with --out")
        return pd.read_csv(place / "summary.csv")
    tables = SUITES[name](load(), protocol)
    with atomic_folder(place) as building:
        for table, rows in tables.items():
            write_csv(building / f"{table}.csv", rows)
        write_json(building / "card.json", card)
    return tables["summary"]


def protocol_card(suite: str, model: str, protocol: Protocol) -> dict[str, Any]:
    """Everything that decided a result; `library` hashes our code, profiles, scenarios, cases and wordings."""
    return {
        "suite": suite,
        "model": model,
        "protocol": asdict(protocol),
        "judge": "embedded seeker, partner and checks; no language model judges",
        "library": library_hash(),
        "versions": versions(),
        "device": device(),
        "notice": NOTICE,
    }


def leaderboard(folders: Sequence[Path]) -> pd.DataFrame:
    """The summaries of several results of one suite, with the column `model`; RapoError if protocols differ."""
    cards = [read_json(folder / "card.json") for folder in folders]
    for folder, card in zip(folders, cards, strict=True):
        for key in ("suite", "protocol", "judge", "library"):
            if card[key] != cards[0][key]:
                raise RapoError(f"{folder} and {folders[0]} differ in {key}: their numbers cannot be compared")
    tables = [
        pd.read_csv(folder / "summary.csv").assign(model=c["model"]) for folder, c in zip(folders, cards, strict=True)
    ]
    return pd.concat(tables, ignore_index=True)


def load_subject(model: str, adapter: Path | None, protocol: Protocol) -> Subject:
    """A model (embedded, a folder or a hub name), with a trained adapter folder if given."""
    from rapo_lib.models import load_adapter, load_model

    loaded, tokenizer = load_model(model)
    if adapter is not None:
        loaded = load_adapter(loaded, adapter).eval()
    common = {
        "model": loaded,
        "tokenizer": tokenizer,
        "reply_tokens": protocol.reply_tokens,
        "temperature": protocol.temperature,
    }
    return Subject(policy=ModelPolicy(**common, prompt_tokens=protocol.prompt_tokens), agent=ModelAgent(**common))
