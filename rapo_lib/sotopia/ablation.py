"""RAPO on social goals: arms trained in the train scenarios, compared by goal checks in the held-out ones.

Trainer, loss, teacher and arms are those of emotional support. What differs is the start (warmed up on our talks), the
prompt (a scene and a private goal), the partner in the seeker's place, whose next move is the reaction, and the judge.
Only the arms that change nothing but the judge's ears and w are meant here; the others belong to people in distress.

One training seed says nothing about the next: with several, intervals cross seeds and scenarios, with one they hold for
its policies only (`results`).
"""

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pandas as pd

from rapo_lib import runs
from rapo_lib.ablation import Domain, load_arm, read_pairs, train_arm
from rapo_lib.dialogue import Turn, to_record
from rapo_lib.grid.arms import ARMS, FULL, WARM, Arm
from rapo_lib.grid.cell import cell_folder, place_to_train
from rapo_lib.grid.run import LOG_EVERY, Plan, parse_arms
from rapo_lib.profiles import Settings
from rapo_lib.progress import Progress
from rapo_lib.runs import RapoError, atomic_folder, seed_for, write_csv, write_json, write_jsonl
from rapo_lib.sotopia.episode import Agent, Episode, ModelAgent, episodes_table, play, sotopia_row
from rapo_lib.sotopia.judge import SocialJudge
from rapo_lib.sotopia.lessons import social_start
from rapo_lib.sotopia.partner import SotopiaPartner
from rapo_lib.sotopia.scenarios import Scenario, load_scenarios

SOCIAL_ARMS = (FULL, "without_reactions", "without_distillation")
DEFAULTS: Mapping[str, Mapping[str, Any]] = {  # where a scenario needs other settings than a person; ours
    "smoke": {"prompt_tokens": 192},
    "cpu": {"prompt_tokens": 192, "reply_tokens": 36, "steps": 30, "groups": 4, "turns": 6},
    "gpu": {},
}
SOCIAL = Domain(social_start, sotopia_row, "scenarios")


def plan_of(
    folder: Path, profile: str, arms: str, seeds: Sequence[int], overrides: Mapping[str, Any] | None = None
) -> Plan:
    """The plan of `rapo ablate --domain sotopia`; `primary` are the arms meant here, another one is a RapoError."""
    names = SOCIAL_ARMS if arms == "primary" else parse_arms(arms)
    if wrong := [name for name in names if name not in (*SOCIAL_ARMS, WARM)]:
        raise RapoError(f"{wrong[0]} is no arm of the social domain; arms: {', '.join(SOCIAL_ARMS)}")
    given = {**DEFAULTS.get(profile, {}), **(overrides or {})}
    return Plan(folder=folder, profile=profile, arms=tuple(names), seeds=tuple(seeds), overrides=given)


def agent_of(chosen: Settings, trained: Path | None) -> ModelAgent:
    """The agent of a trained arm, or the start's."""
    model, tokenizer = load_arm(social_start(chosen), trained, chosen.quantization)
    return ModelAgent(
        model=model,
        tokenizer=tokenizer,
        prompt_tokens=chosen.prompt_tokens,
        reply_tokens=chosen.reply_tokens,
        temperature=chosen.temperature,
    )


# ------------------------------------------------------------------------------------------- inputs


def prepare(folder: Path, chosen: Settings, seed: int = 0) -> Path:
    """`folder/inputs/histories.jsonl`: what had been said before a turn of ours, as the start plays train scenarios."""
    place, made = folder / "inputs", {"settings": asdict(chosen), "seed": seed}
    if place.is_dir():
        if runs.read_json(place / "made.json") != runs.plain(made):
            raise RapoError(f"{place} was made with other settings; choose another --run, or remove {folder}")
        return place
    kept = histories(agent_of(chosen, None), load_scenarios("train"), chosen, seed)
    with atomic_folder(place) as building:
        write_jsonl(building / "histories.jsonl", [_record(s, history) for s, history in kept])
        write_json(building / "made.json", made)
    return place


def _record(scenario: Scenario, history: Sequence[Turn]) -> dict[str, Any]:
    return {"profile": scenario.id, "history": [{"speaker": t.speaker, "text": t.text} for t in history]}


def histories(
    agent: Agent, scenarios: Sequence[Scenario], chosen: Settings, seed: int
) -> list[tuple[Scenario, tuple[Turn, ...]]]:
    """Up to `chosen.histories` different histories from `chosen.setup_profiles` talks."""
    scenes = scenarios[: chosen.setup_profiles]
    episodes = max(1, chosen.setup_profiles // len(scenes))
    talks = play(agent, scenes, turns=2 * chosen.turns, seed=seed, episodes=episodes)
    every = {
        json.dumps(_record(e.scenario, e.turns[:place])): (e.scenario, e.turns[:place])
        for e in talks
        for place, turn in enumerate(e.turns)
        if turn.speaker == "supporter"
    }
    return evenly(list(every.values()), chosen.histories, seed_for(seed, "histories"))


def evenly(
    pairs: Sequence[tuple[Scenario, tuple[Turn, ...]]], count: int, seed: int
) -> list[tuple[Scenario, tuple[Turn, ...]]]:
    """Up to `count` pairs in random order, as many from each scenario as the shortest supply allows."""
    own: dict[str, list[tuple[Scenario, tuple[Turn, ...]]]] = {}
    for pair in random.Random(seed).sample(pairs, len(pairs)):
        own.setdefault(pair[0].id, []).append(pair)
    return [pair for row in zip_longest(*own.values()) for pair in row if pair is not None][:count]


# ------------------------------------------------------------------------------------------ cells


def run_arms(plan: Plan) -> None:
    """Train and measure every cell of the plan that is not there; a finished one of other settings is a RapoError."""
    todo = []
    for name, seed in plan.cells():
        place = cell_folder(plan.folder, name, seed)
        if not place.is_dir():
            todo.append((name, seed))
        elif runs.read_json(place / "cell.json")["settings"] != runs.plain(asdict(plan.settings_of(name))):
            raise RapoError(f"{place} was made with other settings; choose another --run, or remove that folder")
    if not todo:
        return
    with Progress("inputs", every=LOG_EVERY):
        prepare(plan.folder, plan.settings_of())
    with Progress("sotopia", len(todo), every=LOG_EVERY) as progress:
        for name, seed in todo:
            progress.label = f"sotopia  {name} seed {seed}"
            run_cell(plan.folder, ARMS[name], seed, plan.settings_of(name))
            progress.done += 1


def run_cell(folder: Path, arm: Arm, seed: int, chosen: Settings) -> Path:
    """One arm under one seed, trained and measured; its folder is there, and whole, only if all of it succeeded."""
    started, trained = time.monotonic(), None
    if arm.trainer != "none":
        pairs = read_pairs(folder / "inputs" / "histories.jsonl", {s.id: s for s in load_scenarios("train")})
        place = place_to_train(folder, arm, seed, chosen)
        trained = train_arm(arm, chosen, pairs, SotopiaPartner(), SocialJudge(), place, seed, SOCIAL)
    between = time.monotonic()
    talks = measured(agent_of(chosen, trained), chosen, seed)
    with atomic_folder(cell_folder(folder, arm.name, seed)) as building:
        write_csv(building / "episodes.csv", episodes_table(talks))
        write_jsonl(building / "episodes.jsonl", [talk_record(e) for e in talks])
        if trained is not None:
            write_csv(building / "metrics.csv", pd.read_csv(trained / "metrics.csv"))
        write_json(
            building / "cell.json",
            {
                "arm": asdict(arm),
                "seed": seed,
                "settings": asdict(chosen),
                "start": Path(social_start(chosen)).name,
                "evaluated_on": sorted({e.scenario.id for e in talks}),
                "library": runs.library_hash(),
                "inputs": runs.hash_path(folder / "inputs"),
                "seconds": {
                    "training": round(between - started, 1),
                    "measuring": round(time.monotonic() - between, 1),
                },
                "versions": runs.versions(),
                "device": runs.device(),
                "git": runs.git_state(),
            },
        )
    return cell_folder(folder, arm.name, seed)


def measured(agent: Agent, chosen: Settings, seed: int) -> list[Episode]:
    """`chosen.eval_profiles` talks in the held-out scenarios, several in each, at SOTOPIA's length."""
    scenes = load_scenarios("heldout")[: chosen.eval_profiles]
    return play(agent, scenes, seed=seed_for(seed, "heldout"), episodes=max(1, chosen.eval_profiles // len(scenes)))


def talk_record(episode: Episode) -> dict[str, Any]:
    """A talk as a JSON object."""
    turns = [to_record(turn) for turn in episode.turns]
    return {"scenario": episode.scenario.id, "episode": episode.number, "ended": episode.ended, "turns": turns}
