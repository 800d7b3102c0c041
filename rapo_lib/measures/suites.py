"""Evaluation suites: a policy in, tidy tables out.

A suite plays episodes (one a person, scenario or case) with a `Subject`, and says which of them failed because nobody
answered. `results` keeps what was played and compares it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from rapo_lib.cast import spread
from rapo_lib.chat import Failure
from rapo_lib.dialogue import SPLITS, Dialogue, SeekerProfile, load_profiles
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
from rapo_lib.measures.safety import Case, load_cases, safety, safety_rates
from rapo_lib.runs import RapoError
from rapo_lib.seeker import AppraisalSeeker, Seeker
from rapo_lib.sotopia.episode import episodes_table, play
from rapo_lib.sotopia.scenarios import Scenario, load_scenarios
from rapo_lib.stats import Interval, t_interval

Tables = dict[str, pd.DataFrame]  # rows by name, and "summary": measure, mean, low, high, n
HEADLINES = {"selfplay": "gained", "emoharbor": "overall", "sotopia": "goal", "safety": "all"}


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


def suites_named(text: str) -> list[str]:
    """The suites of a comma-separated list."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in SUITES]:
        raise RapoError(f"unknown suite {unknown[0]!r}; suites: {', '.join(SUITES)}")
    if not names:
        raise RapoError(f"no suite named; suites: {', '.join(SUITES)}")
    return names
