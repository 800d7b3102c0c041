"""Whole talks that show how a social goal is reached, for a warm start: scripts of ours, played with the partner.

Train scenarios only. Each script is played with several wordings of the partner; one that the partner ends early is cut
there. Ours; SOTOPIA's agents are prompted, not taught.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources

from rapo_lib.dialogue import Turn
from rapo_lib.profiles import Settings
from rapo_lib.sotopia.episode import play, prompt_messages
from rapo_lib.sotopia.goals import goal
from rapo_lib.sotopia.partner import SotopiaPartner
from rapo_lib.sotopia.scenarios import Scenario, load_scenarios

WORDINGS = 2  # times each script is played
REACHED = 5.0  # goal (0-10) from which a talk is worth learning from
TOKENS = 320  # of a talk; the longest has about 350


@cache
def scripts() -> tuple[tuple[Scenario, tuple[str, ...]], ...]:
    """(train scenario, our lines): the scenario's own demonstration, and two more ways to go about it."""
    text = (resources.files("rapo_lib") / "data" / "sotopia" / "demonstrations.jsonl").read_text("utf-8")
    scenarios = {s.id: s for s in load_scenarios("train")}
    more = [json.loads(line) for line in text.splitlines() if line]
    own = [(s, s.demonstration) for s in scenarios.values()]
    return tuple(own + [(scenarios[r["scenario"]], tuple(r["lines"])) for r in more])


def shown(scenario: Scenario, lines: Sequence[str], seed: int = 0) -> tuple[Turn, ...]:
    """The talk in which our side says `lines`, one after the other, until it is over."""

    def agent(items: Sequence[tuple[Scenario, Sequence[Turn]]], seed: int) -> list[str]:
        return [lines[sum(t.speaker == "supporter" for t in history)] for _, history in items]

    return play(agent, [scenario], turns=2 * len(lines), seed=seed)[0].turns


def lessons() -> list[tuple[tuple[dict[str, str], ...], str]]:
    """Prompt and last reply of every talk that reached its goal; the earlier replies are learned from as well."""
    found, partner = [], SotopiaPartner()
    for seed in range(WORDINGS):
        for scenario, lines in scripts():
            talk = shown(scenario, lines, seed)
            if goal(scenario.game, partner.state(scenario, talk)) >= REACHED:
                last = max(place for place, turn in enumerate(talk) if turn.speaker == "supporter")
                found.append((tuple(prompt_messages(scenario, talk[:last])), talk[last].text))
    return found


def social_start(chosen: Settings) -> str:
    """What every social arm starts from: the model warmed up on our talks, or the model itself."""
    if not chosen.warm_start:
        return chosen.model
    from rapo_lib.warmstart import WarmStartConfig, warm_start_on  # trl is heavy; only training needs it

    config = WarmStartConfig(epochs=chosen.warm_epochs, rank=chosen.lora_rank, tokens=TOKENS, pairs=chosen.warm_pairs)
    return str(warm_start_on(lessons(), config, chosen.model))
