"""Episodes between our agent and a partner, their outcome by the goal checks, and SOTOPIA's episode logs.

The limits are SOTOPIA's: 20 turns (here the partner's opening and ten of ours, each answered), and an end after more
than two actions in a row that do nothing. An episode also ends when somebody leaves or the goal is decided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rapo_lib.dialogue import Turn, to_messages
from rapo_lib.runs import seed_for, stable_hash
from rapo_lib.sampling import fit, sample_replies
from rapo_lib.seeker import Reaction
from rapo_lib.simulation import training_row
from rapo_lib.sotopia.games import Concerns
from rapo_lib.sotopia.goals import State, goal, progress
from rapo_lib.sotopia.hearing import Action, read_action
from rapo_lib.sotopia.partner import SotopiaPartner
from rapo_lib.sotopia.scenarios import OURS, PARTNER, Scenario, load_scenarios

TURNS = 20  # SOTOPIA's
STALE = 2  # SOTOPIA's


class Agent(Protocol):
    """Our side: one reply for each (scenario, history); it may read `scenario.prompt`, and nothing else of it."""

    def __call__(self, items: Sequence[tuple[Scenario, Sequence[Turn]]], seed: int) -> list[str]: ...


class Partner(Protocol):
    """The other side (`SotopiaPartner`): a seeker whose emotion is our progress, and who knows the game's state."""

    def react_batch(self, items: Sequence[tuple[Scenario, Sequence[Turn], str, int]]) -> list[Reaction]: ...

    def state(self, scenario: Scenario, history: Sequence[Turn]) -> State: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAgent:
    """A causal language model as our agent."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompt_tokens: int = 224  # ours: the longest scenario prompt has about 130, and some turns
    reply_tokens: int = 40
    temperature: float = 0.8

    def __call__(self, items: Sequence[tuple[Scenario, Sequence[Turn]]], seed: int) -> list[str]:
        prompts = [fit(prompt_messages(s, history), self.tokenizer, self.prompt_tokens) for s, history in items]
        groups = sample_replies(
            self.model,
            self.tokenizer,
            prompts,
            max_new_tokens=self.reply_tokens,
            temperature=self.temperature,
            seed=seed,
        )
        return [group[0] for group in groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One talk; the partner's turns ("seeker") carry our progress as their emotion."""

    scenario: Scenario
    turns: tuple[Turn, ...]
    state: State
    ended: str  # "agreed", "left", "stale" or "turns"
    number: int = 0  # which talk in this scenario

    @property
    def goal(self) -> float:
        """SOTOPIA's goal dimension, 0-10, by the check."""
        return goal(self.scenario.game, self.state)

    @property
    def secret(self) -> float | None:
        """SOTOPIA's secret dimension by the check: 0 kept, -10 said; None where there is none to keep."""
        game = self.scenario.game
        if not isinstance(game, Concerns) or not game.secret:
            return None
        return -10.0 if self.state.leaked else 0.0


def play(
    agent: Agent,
    scenarios: Sequence[Scenario],
    partner: Partner | None = None,
    *,
    turns: int = TURNS,
    stale: int = STALE,
    seed: int = 0,
    episodes: int = 1,
) -> list[Episode]:
    """`episodes` talks in every scenario, all of them a turn at a time; the partner's wording follows from the seed."""
    partner = partner or SotopiaPartner()
    cast = [(s, number) for s in scenarios for number in range(episodes)]
    talks: list[tuple[Turn, ...]] = [(Turn("seeker", s.opening, emotion=s.start),) for s, _ in cast]
    ended = ["turns"] * len(cast)
    running = list(range(len(cast)))
    for turn in range(turns // 2):
        if not running:
            break
        replies = agent([(cast[i][0], talks[i]) for i in running], seed_for(seed, "reply", turn))
        seeds = [seed_for(seed, cast[i][0].id, cast[i][1], turn) for i in running]
        items = [(cast[i][0], talks[i], reply, own) for i, reply, own in zip(running, replies, seeds, strict=True)]
        for i, reply, reaction in zip(running, replies, partner.react_batch(items), strict=True):
            answer = Turn("seeker", reaction.text, emotion=reaction.emotion)
            talks[i] = (*talks[i], Turn("supporter", reply), answer)
            ended[i] = _ending(partner.state(cast[i][0], talks[i]), talks[i], stale) or "turns"
        running = [i for i in running if ended[i] == "turns"]
    return [
        Episode(scenario=s, number=number, turns=talk, state=partner.state(s, talk), ended=why)
        for (s, number), talk, why in zip(cast, talks, ended, strict=True)
    ]


def _ending(state: State, turns: Sequence[Turn], stale: int) -> str:
    """Why the talk is over, "" if it goes on; only our own turns can do nothing, since the partner always speaks."""
    if state.left:
        return "left"
    if state.agreed is not None:
        return "agreed"
    ours = [read_action(t.text).kind == "none" for t in turns if t.speaker == "supporter"][-stale - 1 :]
    return "stale" if len(ours) > stale and all(ours) else ""


# ----------------------------------------------------------------------------------------------- results


def episodes_table(episodes: Sequence[Episode]) -> pd.DataFrame:
    """One row per episode: scenario, episode, family, split, goal (0-10), progress, secret, turns (ours), ended."""
    return pd.DataFrame(
        {
            "scenario": e.scenario.id,
            "episode": e.number,
            "family": e.scenario.family,
            "split": e.scenario.split,
            "goal": e.goal,
            "progress": progress(e.scenario.game, e.state),
            "secret": e.secret,
            "turns": sum(t.speaker == "supporter" for t in e.turns),
            "ended": e.ended,
        }
        for e in episodes
    )


def sotopia(agent: Agent, split: str = "heldout", *, turns: int = TURNS, seed: int = 0) -> pd.DataFrame:
    """The suite: our scenarios of a split with the embedded partner, as `episodes_table`."""
    return episodes_table(play(agent, load_scenarios(split), turns=turns, seed=seed))


def sotopia_row(scenario: Scenario, history: Sequence[Turn]) -> dict[str, Any]:
    """A training row for RAPOTrainer: the scenario's prompt as system message; the partner finds it by its id."""
    return training_row(scenario, history, system=scenario.prompt)


def prompt_messages(scenario: Scenario, history: Sequence[Turn]) -> list[dict[str, str]]:
    """What a chat model is asked as our agent."""
    return to_messages(history, scenario.prompt)


# -------------------------------------------------------------------------------------------------- logs


def episode_log(
    episode: Episode, models: Sequence[str] = ("rules", "partner", "agent"), tag: str = "rapo"
) -> dict[str, Any]:
    """SOTOPIA's EpisodeLog: messages by turn as [sender, receiver, text]; rewards hold our goal check alone.

    `models` are environment, partner and agent. The partner's own goal has no check, so its reward is 0.
    """
    partner, ours = episode.scenario.agents
    rows = [
        [["Environment", name, _context(episode.scenario, seat)] for seat, name in enumerate((partner.name, ours.name))]
    ]
    for who, action in acted(episode.scenario, episode.turns):
        other = ours.name if who == partner.name else partner.name
        rows.append([[who, "Environment", action.written()], [other, "Environment", Action("none").written()]])
    return {
        "pk": stable_hash([episode.scenario.id, rows])[:26],
        "environment": episode.scenario.environment.pk,
        "agents": [partner.pk, ours.pk],
        "tag": tag,
        "models": list(models),
        "messages": rows,
        "reasoning": f"Goal check without a model: {episode.ended}.",
        "rewards": [0.0, episode.goal],
        "rewards_prompt": "",
    }


def acted(scenario: Scenario, turns: Sequence[Turn]) -> list[tuple[str, Action]]:
    """Who did what, by name; the partner always speaks."""
    partner, ours = scenario.agents
    return [
        (partner.name, Action("speak", turn.text)) if turn.speaker == "seeker" else (ours.name, read_action(turn.text))
        for turn in turns
    ]


def _context(scenario: Scenario, seat: int) -> str:
    """What an agent knows at the start: the scene, both names, its own goal; the other's is Unknown, as in SOTOPIA."""
    names = [agent.name for agent in scenario.agents]
    goals = [scenario.environment.agent_goals[k] if k == seat else "Unknown" for k in (PARTNER, OURS)]
    told = "\n".join(f"{name}'s goal: {wanted}" for name, wanted in zip(names, goals, strict=True))
    scene = f"Scenario: {scenario.situation}\nParticipants: {' and '.join(names)}"
    return f"Here is the context of this interaction:\n{scene}\n{told}"
