"""SOTOPIA's profiles as its files have them, and our scenarios: two agents, private goals, a game that decides.

Names and meaning of the fields follow SOTOPIA's own profiles (arXiv 2310.11667); unknown fields of a user's file are
kept and written back. Our agent is the second of an environment, its partner the first, who also opens; a user's
scenario has no game, so it needs a language model as partner and judge.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from rapo_lib.dialogue import read_jsonl
from rapo_lib.runs import RapoError, write_jsonl
from rapo_lib.sotopia.games import Game, game_from_record
from rapo_lib.sotopia.goals import beginning, progress

T = TypeVar("T", "Agent", "Environment")
FAMILIES = ("negotiation", "competition", "cooperation", "persuasion", "accommodation")
SPLITS = ("train", "heldout")
PARTNER, OURS = 0, 1  # seats


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """SOTOPIA's AgentProfile."""

    pk: str = ""
    first_name: str
    last_name: str
    age: int = 0
    occupation: str = ""
    gender: str = ""
    gender_pronoun: str = ""
    public_info: str = ""
    big_five: str = ""
    moral_values: tuple[str, ...] = ()
    schwartz_personal_values: tuple[str, ...] = ()
    personality_and_values: str = ""
    decision_making_style: str = ""
    secret: str = ""
    model_id: str = ""
    mbti: str = ""
    tag: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields we do not know, as they were

    @property
    def name(self) -> str:
        """First and last name, as episode logs use it."""
        return f"{self.first_name} {self.last_name}".strip()

    @property
    def told(self) -> dict[str, Any]:
        """What there is to say about this person, their secret included: the fields that are filled in."""
        shown = ("age", "occupation", "public_info", "personality_and_values", "secret")
        return {name: value for name in shown if (value := getattr(self, name))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """SOTOPIA's EnvironmentProfile."""

    pk: str = ""
    codename: str = ""
    source: str = ""
    scenario: str
    agent_goals: tuple[str, ...]
    relationship: int = 0  # 0 stranger, 1 known by name, 2 acquaintance, 3 friend, 4 romantic, 5 family
    age_constraint: str | None = None
    occupation_constraint: str | None = None
    agent_constraint: list[list[str]] | None = None
    game_metadata: Mapping[str, Any] | None = None  # ours: {"family", "split", "opening", "game", "demonstration"}
    tag: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.agent_goals) != 2:
            raise ValueError(f"environment {self.pk or self.codename!r}: {len(self.agent_goals)} goals for two agents")
        if self.relationship not in range(6):
            raise ValueError(f"environment {self.pk or self.codename!r}: relationship {self.relationship!r} is not 0-5")


def profile_from_record(kind: type[T], record: Mapping[str, Any]) -> T:
    """An agent or environment from a record of SOTOPIA's; a missing field is a ValueError, an unknown one is kept."""
    if not isinstance(record, Mapping):
        raise ValueError(f"{kind.__name__}: expected an object, found {type(record).__name__}")
    known = {f.name for f in fields(kind)} - {"extra"}
    given = {k: tuple(v) if isinstance(v, list) and k != "agent_constraint" else v for k, v in record.items()}
    try:
        return kind(
            **{k: v for k, v in given.items() if k in known},
            extra={k: v for k, v in record.items() if k not in known},
        )
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from None


def profile_record(profile: Agent | Environment) -> dict[str, Any]:
    """The inverse: a record that SOTOPIA reads."""
    record = asdict(profile)
    extra = record.pop("extra")
    return {**record, **extra}


# --------------------------------------------------------------------------------------------- scenarios


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An environment with its two agents; stands where the seams expect a profile (`id`, `opening`, `start`, ...)."""

    environment: Environment
    agents: tuple[Agent, Agent]  # the partner, who opens; then ours
    opening: str = ""
    family: str = ""
    split: str = ""
    game: Game | None = None
    demonstration: tuple[str, ...] = ()  # what a good agent might say, turn by turn (written by us)

    @property
    def id(self) -> str:
        """The environment's key."""
        return self.environment.pk or self.environment.codename

    @property
    def situation(self) -> str:
        """The scene, as both know it."""
        return self.environment.scenario

    @property
    def problem(self) -> str:
        """The family, where a dialogue has its kind of problem."""
        return self.family

    @property
    def emotion_type(self) -> str:
        """Nobody's: progress towards the goal stands where the emotion would."""
        return ""

    @property
    def start(self) -> float:
        """Progress at the opening, 0-100."""
        if self.game is None:
            raise RapoError(f"scenario {self.id} has no goal check: it needs a language model as partner and judge")
        return progress(self.game, beginning(self.game))

    @property
    def prompt(self) -> str:
        """The system message of our agent: the scene, who they are and their own goal, nothing of the partner's."""
        partner, ours = self.agents
        about = f" {ours.public_info}" if ours.public_info else ""
        return (
            f"You are {ours.name}.{about} {self.environment.scenario} Your private goal: "
            f"{self.environment.agent_goals[OURS]} You talk with {partner.name}. "
            f"Answer as {ours.first_name}, in one or two short sentences."
        )


def scenario_of(environment: Environment, agents: Sequence[Agent]) -> Scenario:
    """A scenario; ours carry game, opening, family and split in `game_metadata`."""
    if len(agents) != 2:
        raise ValueError(f"environment {environment.pk or environment.codename!r}: {len(agents)} agents, expected two")
    ours = environment.game_metadata or {}
    if "game" not in ours:
        return Scenario(environment=environment, agents=tuple(agents))
    if ours["family"] not in FAMILIES or ours["split"] not in SPLITS:
        raise ValueError(f"environment {environment.pk!r}: unknown family or split")
    return Scenario(
        environment=environment,
        agents=tuple(agents),
        game=game_from_record(ours["game"]),
        demonstration=tuple(ours.get("demonstration", ())),
        **{name: ours[name] for name in ("opening", "family", "split")},
    )


@cache
def all_scenarios() -> tuple[Scenario, ...]:
    """Every scenario that we wrote."""
    text = (resources.files("rapo_lib") / "data" / "sotopia" / "scenarios.jsonl").read_text("utf-8")
    records = [json.loads(line) for line in text.splitlines() if line]
    return tuple(
        scenario_of(
            profile_from_record(Environment, record["environment"]),
            [profile_from_record(Agent, agent) for agent in record["agents"]],
        )
        for record in records
    )


def load_scenarios(split: str) -> list[Scenario]:
    """Our scenarios of one split: 'train' or 'heldout'."""
    if split not in SPLITS:
        raise RapoError(f"unknown split {split!r}; splits: {', '.join(SPLITS)}")
    return [scenario for scenario in all_scenarios() if scenario.split == split]


# ------------------------------------------------------------------------------------------------- files


def read_profiles(kind: type[T], path: Path) -> list[T]:
    """SOTOPIA's agents or environments from a JSON list or JSONL; an error names file and record."""
    profiles = []
    for number, record in enumerate(_records(path), start=1):
        try:
            profiles.append(profile_from_record(kind, record))
        except ValueError as error:
            raise RapoError(f"{path}, record {number}: {error}") from None
    return profiles


def _records(path: Path) -> list[Any]:
    try:
        if path.suffix == ".jsonl":
            return list(read_jsonl(path))
        found = json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise RapoError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise RapoError(f"{path}: {error}") from None
    return found if isinstance(found, list) else [found]


def read_scenarios(environments: Path, agents: Path, combos: Iterable[Mapping[str, Any]]) -> list[Scenario]:
    """A user's scenarios: SOTOPIA's environments and agents, joined by combinations {"env_id", "agent_ids"}."""
    known_environments = {e.pk: e for e in read_profiles(Environment, environments)}
    known_agents = {a.pk: a for a in read_profiles(Agent, agents)}
    found = []
    for combo in combos:
        missing = {combo["env_id"]} - set(known_environments) | set(combo["agent_ids"]) - set(known_agents)
        if missing:
            raise RapoError(f"a combination names {sorted(missing)[0]!r}, which is in neither file")
        found.append(scenario_of(known_environments[combo["env_id"]], [known_agents[k] for k in combo["agent_ids"]]))
    return found


def write_scenarios(scenarios: Sequence[Scenario], folder: Path) -> Path:
    """environments.jsonl, agents.jsonl and combos.jsonl in SOTOPIA's schemas."""
    agents = {agent.pk: agent for scenario in scenarios for agent in scenario.agents}
    write_jsonl(folder / "environments.jsonl", [profile_record(s.environment) for s in scenarios])
    write_jsonl(folder / "agents.jsonl", [profile_record(agent) for agent in agents.values()])
    combos = [{"env_id": s.environment.pk, "agent_ids": [a.pk for a in s.agents]} for s in scenarios]
    write_jsonl(folder / "combos.jsonl", combos)
    return folder
