"""Our policy in a seat of the `sotopia` package: what that package asks is read, and answered with one of its actions.

The package sends an agent one long text (who they are, the scene, their goal, all turns) and wants a JSON action. Our
policy knows a short system message and chat turns, so the text is taken apart and put together as in training; a scene
of ours is recognised by its words. The embedded partner can take the other seat, where the scenario has a game.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rapo_lib.dialogue import Message, Turn
from rapo_lib.runs import stable_hash
from rapo_lib.sampling import fit, sample_replies
from rapo_lib.sotopia.episode import ModelAgent
from rapo_lib.sotopia.hearing import Action, read_action
from rapo_lib.sotopia.partner import SotopiaPartner
from rapo_lib.sotopia.scenarios import OURS, PARTNER, Agent, Environment, Scenario, all_scenarios

AGENT, PARTNER_ROLE = "agent", "partner"  # the two models that are served
WHO = re.compile(r"Imagine you are (.+?), your task is")
SCENE = re.compile(r"^[ \t]*Scenario: (.*?)\n[ \t]*Participants: (.*?) and (.*?)\n", re.MULTILINE | re.DOTALL)
TURN = re.compile(r"^[ \t]*Turn #(\d+): ?", re.MULTILINE)
ENDS = re.compile(r"\s*\.\s*\n\s*You are at Turn #\d+\. Your available action types")


@dataclass(frozen=True, slots=True)
class Seen:
    """What an agent of the package is told."""

    name: str
    other: str
    first: bool  # whether this agent has the first seat, which opens
    scene: str
    goal: str
    background: str
    actions: tuple[tuple[str, Action], ...]  # who did what, in order; who did nothing is not mentioned


def read_prompt(text: str) -> Seen | None:
    """The package's question taken apart; None if this is no question to an agent of it."""
    who, scene, ends = WHO.search(text), SCENE.search(text), list(ENDS.finditer(text))
    if not who or not scene or not ends or who[1] not in (scene[2], scene[3]):
        return None
    names, name = (scene[2], scene[3]), who[1]
    told = text[scene.end() : ends[-1].start()]  # the last end: a speaker may have said such words
    head, turns = _turns(told)
    return Seen(
        name=name,
        other=names[1] if name == names[0] else names[0],
        first=name == names[0],
        scene=scene[1].strip(),
        goal=_field(head, name, "goal"),
        background=_field(head, name, "background"),
        actions=tuple(done for turn in turns for done in _actions(turn, names)),
    )


def _field(head: str, name: str, what: str) -> str:
    """One line of the context, up to the next of its kind."""
    found = re.search(
        rf"{re.escape(name)}'s {what}: (.*?)(?=\n[^\n]*'s (?:goal|background): |\nConversation|\Z)", head, re.S
    )
    return found[1].strip() if found else ""


def _turns(told: str) -> tuple[str, list[str]]:
    """What stands before the first turn, and the text of each; a number out of order is part of what was said."""
    starts = []
    for found in TURN.finditer(told):
        if int(found[1]) == len(starts):
            starts.append(found)
    ends = [*(s.start() for s in starts[1:]), len(told)]
    head = told[: starts[0].start()] if starts else told
    return head, [told[s.end() : end].strip() for s, end in zip(starts, ends, strict=True)] if starts else []


def _actions(turn: str, names: tuple[str, str]) -> list[tuple[str, Action]]:
    """Who did what in a turn: one agent, or both with a semicolon between."""
    who = "|".join(map(re.escape, names))
    parts = re.split(rf"(?:^|;)({who}) (?=said: |\[|left the conversation|did nothing)", turn)
    return [(name, read_action(done)) for name, done in zip(parts[1::2], parts[2::2], strict=True)]


# ------------------------------------------------------------------------------------------ both seats


def scenario_of_seen(seen: Seen, known: Sequence[Scenario], seat: int) -> Scenario:
    """The scenario of ours in which this agent has `seat`, else one made of what the agent is told."""
    for scenario in known:
        names = [agent.name for agent in scenario.agents]
        if scenario.situation.strip() == seen.scene and names[seat] == seen.name and seen.other in names:
            return scenario
    agents = (_agent(seen.other, ""), _agent(seen.name, seen.background))
    environment = Environment(scenario=seen.scene, agent_goals=("", seen.goal))
    return Scenario(environment=environment, agents=agents)


def _agent(name: str, background: str) -> Agent:
    first, _, last = name.partition(" ")
    return Agent(first_name=first, last_name=last, public_info=background)


def turns_of(seen: Seen, ours: str) -> tuple[Turn, ...]:
    """The talk as turns: `ours` names the agent in the supporter's place."""
    return tuple(
        Turn("supporter" if who == ours else "seeker", done.argument if done.kind == "speak" else done.written())
        for who, done in seen.actions
    )


def partner_action(seen: Seen, scenario: Scenario, partner: SotopiaPartner, seed: int) -> Action:
    """The embedded partner's next action: the opening, a move, or leaving once the game is decided.

    Raises ValueError where the scenario has no game: then nobody but a language model can play.
    """
    if scenario.game is None:
        raise ValueError(f"{PARTNER_ROLE} is the first agent of our own scenarios only, which {seen.name} is not")
    history = with_silences(turns_of(seen, scenario.agents[OURS].name))
    if not history:
        return Action("speak", scenario.opening)
    *before, reply = history
    if partner.state(scenario, before).decided:
        return Action("leave")
    return Action("speak", partner.react_batch([(scenario, before, reply.text, seed)])[0].text)


def with_silences(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The talk with an empty turn of ours wherever the partner had to speak twice, and at its end if it is our turn."""
    whole: list[Turn] = []
    for turn in turns:
        if whole and whole[-1].speaker == turn.speaker == "seeker":
            whole.append(Turn("supporter", ""))
        whole.append(turn)
    if whole and whole[-1].speaker == "seeker":  # who does nothing is not in the text
        whole.append(Turn("supporter", ""))
    return tuple(whole)


@dataclass(frozen=True, slots=True)
class Seats:
    """Answers for both models; what is no question of the package is chat, and answered by the agent's model."""

    agent: ModelAgent
    partner: SotopiaPartner
    known: tuple[Scenario, ...]

    def __call__(self, model: str, messages: list[Message], options: Mapping[str, Any]) -> str:
        """The text of the answer, the same for the same question; a ValueError if it cannot be answered."""
        given = options.get("seed")
        seed = given if isinstance(given, int) else int(stable_hash([messages])[:8], 16) >> 1
        seen = read_prompt(messages[-1]["content"])
        if seen is None:
            if model == PARTNER_ROLE:
                raise ValueError(f"{PARTNER_ROLE} answers questions of the sotopia package only")
            return self._chat(messages, options, seed)
        scenario = scenario_of_seen(seen, self.known, PARTNER if model == PARTNER_ROLE else OURS)
        if model == PARTNER_ROLE:
            action = partner_action(seen, scenario, self.partner, seed)
        else:
            action = read_action(self.agent([(scenario, turns_of(seen, seen.name))], seed)[0])
        return json.dumps({"action_type": action.kind, "argument": action.argument})

    def _chat(self, messages: list[Message], options: Mapping[str, Any], seed: int) -> str:
        agent, limit, heat = self.agent, options.get("max_tokens"), options.get("temperature")
        prompt = fit(messages, agent.tokenizer, agent.prompt_tokens)
        groups = sample_replies(
            agent.model,
            agent.tokenizer,
            [prompt],
            max_new_tokens=limit if isinstance(limit, int) and 0 < limit <= 1024 else agent.reply_tokens,
            temperature=float(heat) if isinstance(heat, int | float) and 0 <= heat <= 2 else agent.temperature,
            seed=seed,
        )
        return groups[0][0]


def seats(agent: ModelAgent) -> Seats:
    """Both seats, with our own scenarios known."""
    return Seats(agent, SotopiaPartner(), all_scenarios())
