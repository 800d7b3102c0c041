"""One cell of the grid: an arm under one seed, trained, then measured on people it was not trained on.

All cells of a grid share their inputs (histories to train on, histories to reply to), made once from the start. A
cell depends on nothing but its inputs, its settings, its arm and its seed, so cells may run anywhere and in any order.
What it leaves is a folder of a few small files; the adapter lies beside it and is not part of the result.
"""

import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rapo_lib import runs
from rapo_lib.ablation import arm_settings, load_policy, people, read_pairs, train_arm
from rapo_lib.dialogue import Dialogue, SeekerProfile, Turn, profile_from_record, read_jsonl, turn_from_record
from rapo_lib.evaluation import ModelPolicy, Policy, outcomes, reply_metrics, self_play, trajectories, win_rates
from rapo_lib.evaluator import EvaluatorSeeker
from rapo_lib.feedback import EmbeddedJudge, Judge, RubricJudge
from rapo_lib.grid.arms import ARMS, Arm
from rapo_lib.grid.claims import shipped_claims
from rapo_lib.judge.oracle_fitted import load_judge
from rapo_lib.measures.divergence import divergence, partway
from rapo_lib.measures.responsiveness import contrasts, responses
from rapo_lib.profiles import Settings, completed
from rapo_lib.runs import RapoError, atomic_folder, seed_for, write_csv, write_json, write_jsonl
from rapo_lib.seeker import AppraisalSeeker, Seeker
from rapo_lib.selection import histories_of, select

SEEKERS: dict[str, Callable[[], Seeker]] = {  # the first trains; all of them measure
    "appraisal": AppraisalSeeker,
    "evaluator": EvaluatorSeeker,
}
SHARES = (1 / 3, 2 / 3)  # of the way from start to trained policy, where it is compared with the start too; ours
SELECTED, PEOPLE = "selected.jsonl", "people.jsonl"  # inputs: histories to train on, and whose, if not the train split
PER_DIALOGUE = 3  # pivotal turns taken from one dialogue at most
Pair = tuple[SeekerProfile, tuple[Turn, ...]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A history that every policy replies to, and what the start said."""

    profile: str
    history: tuple[Turn, ...]
    start_reply: str


# ------------------------------------------------------------------------------------------- inputs


def selected_histories(dialogues: Sequence[Dialogue], count: int) -> list[tuple[str, tuple[Turn, ...]]]:
    """Up to `count` pivotal histories, as the second notebook keeps them."""
    return histories_of(dialogues, select(dialogues, top=count, per_dialogue=PER_DIALOGUE, min_change=0.0), count)


def random_histories(dialogues: Sequence[Dialogue], count: int, seed: int) -> list[tuple[str, tuple[Turn, ...]]]:
    """`count` different histories that end before any supporter turn, drawn evenly."""
    every = [(d.id, tuple(d.history(i))) for d in dialogues for i, t in enumerate(d.turns) if t.speaker == "supporter"]
    return random.Random(seed).sample(every, min(count, len(every)))


def asked_histories(dialogues: Sequence[Dialogue], count: int) -> list[tuple[str, tuple[Turn, ...]]]:
    """`count` histories to reply to, early turns of all dialogues first."""
    places = range(1, max(len(d.turns) for d in dialogues), 2)
    return [(d.id, tuple(d.history(place))) for place in places for d in dialogues if place < len(d.turns)][:count]


def prepare(
    folder: Path,
    chosen: Settings,
    split: str,
    seed: int = 0,
    *,
    trained_on: Sequence[Dialogue] | None = None,
    talks: Sequence[Dialogue] | None = None,
) -> Path:
    """Make `folder/inputs` (selected.jsonl, random.jsonl, asked.jsonl), or check that what is there fits.

    The start's dialogues with train people (`trained_on`) and with `split` (`talks`) are simulated unless given.
    """
    place, made = folder / "inputs", {"settings": asdict(chosen), "split": split, "seed": seed}
    if place.is_dir():
        found = runs.read_json(place / "made.json")
        if {**found, "settings": completed(found["settings"])} != runs.plain(made):
            raise RapoError(f"{place} was made with other settings; choose another --run, or remove {folder}")
        return place
    policy, seeker = load_policy(chosen, None), AppraisalSeeker()
    if trained_on is None:
        trained_on = self_play(policy, people("train", chosen.setup_profiles), seeker, turns=chosen.turns, seed=seed)
    if talks is None:
        talks = self_play(policy, people(split, chosen.eval_profiles), seeker, turns=chosen.turns, seed=seed)
    selected = selected_histories(trained_on, chosen.histories)
    asked = asked_histories(talks, chosen.eval_histories)
    replies = policy([history for _, history in asked], seed_for(seed, "asked by the start"))
    with atomic_folder(place) as building:
        write_jsonl(building / SELECTED, map(_record, selected))
        drawn = random_histories(trained_on, len(selected), seed_for(seed, "random turns"))
        write_jsonl(building / "random.jsonl", map(_record, drawn))
        records = [{**_record(pair), "start_reply": r} for pair, r in zip(asked, replies, strict=True)]
        write_jsonl(building / "asked.jsonl", records)
        write_json(building / "made.json", made)
    return place


def _record(pair: tuple[str, Sequence[Turn]]) -> dict[str, Any]:
    name, history = pair
    return {"profile": name, "history": [{"speaker": t.speaker, "text": t.text} for t in history]}


def read_asked(place: Path) -> list[Asked]:
    """The histories that every policy replies to."""
    return [
        Asked(r["profile"], tuple(turn_from_record(t) for t in r["history"]), r["start_reply"])
        for r in read_jsonl(place / "asked.jsonl")
    ]


# --------------------------------------------------------------------------------------- measuring


def own_judge(arm: Arm, trained: Path | None) -> Judge:
    """The judge that the arm was trained with, for what it thinks of itself."""
    if arm.judge == "oracle_fitted" and trained is not None:
        return load_judge(trained / "judge.safetensors")
    return RubricJudge() if arm.judge == "rubric" else EmbeddedJudge()


def played(
    policy: Policy, profiles: Sequence[SeekerProfile], seekers: Mapping[str, Seeker], turns: int, seed: int
) -> dict[str, pd.DataFrame]:
    """Self-play with each seeker: trajectories, outcomes and replies, a column `seeker` first."""
    tables: dict[str, list[pd.DataFrame]] = {"trajectories": [], "outcomes": [], "replies": []}
    for name, seeker in seekers.items():
        dialogues = self_play(policy, profiles, seeker, turns=turns, seed=seed)
        for table, measure in (("trajectories", trajectories), ("outcomes", outcomes), ("replies", reply_metrics)):
            tables[table].append(_labelled(measure(dialogues), name))
    return {table: pd.concat(parts, ignore_index=True) for table, parts in tables.items()}


def _labelled(table: pd.DataFrame, seeker: str) -> pd.DataFrame:
    table.insert(0, "seeker", seeker)
    return table


def compared(
    asked: Sequence[Asked], replies: Sequence[str], judge: Judge, seekers: Mapping[str, Seeker], hears: bool, seed: int
) -> pd.DataFrame:
    """Blind comparison with the start's replies, by the arm's own judge and by the truth, for each seeker."""
    known = {p.id: p for split in ("train", "dev", "heldout") for p in people(split)}
    pairs, start = [(a.profile, a.history) for a in asked], [a.start_reply for a in asked]
    parts = [
        _labelled(win_rates(judge, seeker, known, pairs, replies, start, seed, hears), name)
        for name, seeker in seekers.items()
    ]
    return pd.concat(parts, ignore_index=True)


def on_the_way(
    policy: ModelPolicy, asked: Sequence[Asked], judge: Judge, seekers: Mapping[str, Seeker], hears: bool, seed: int
) -> pd.DataFrame:
    """`compared` for policies part of the way from the start, with columns `share` and `kl`, each reply's distance."""
    histories, parts = [a.history for a in asked], []
    for share in SHARES:
        with partway(policy.model, share):
            replies = policy(histories, seed_for(seed, "asked"))
            moved = divergence(policy, histories, replies)
        table = compared(asked, replies, judge, seekers, hears, seed)
        parts.append(table.assign(share=share, kl=np.tile(moved, len(seekers))))
    return pd.concat(parts, ignore_index=True)


def sample_rows(asked: Sequence[Asked], replies: Sequence[str], moved: Sequence[float]) -> pd.DataFrame:
    """What was said to each asked history, before and after training, and how far it lies from the start (nats)."""
    rows = [
        {"profile": a.profile, "said": a.history[-1].text, "start": a.start_reply, "reply": reply, "kl": float(kl)}
        for a, reply, kl in zip(asked, replies, moved, strict=True)
    ]
    return pd.DataFrame(rows)


def measure(
    arm: Arm,
    policy: ModelPolicy,
    trained: Path | None,
    asked: Sequence[Asked],
    chosen: Settings,
    split: str,
    seed: int,
    short: bool = False,
) -> dict[str, pd.DataFrame]:
    """Every table of a cell but the training metrics; `short`: by the training seeker alone, without comparisons."""
    seekers = {name: make() for name, make in seekers_of(short).items()}
    tables = played(policy, people(split, chosen.eval_profiles), seekers, chosen.turns, seed)
    histories = [a.history for a in asked]
    replies = policy(histories, seed_for(seed, "asked"))
    moved = divergence(policy, histories, replies)
    tables["samples"] = sample_rows(asked, replies, moved)
    if short:
        return tables
    if trained is not None:
        judge = own_judge(arm, trained)
        tables["wins"] = compared(asked, replies, judge, seekers, arm.reactions, seed)
        tables["way"] = on_the_way(policy, asked[::2], judge, seekers, arm.reactions, seed)
    tables["responses"] = responses(policy, contrasts()[: chosen.eval_histories], seed)
    return tables


def seekers_of(short: bool) -> dict[str, Callable[[], Seeker]]:
    """Who measures a cell: all seekers, or the one that trains."""
    return dict(list(SEEKERS.items())[:1]) if short else SEEKERS


# ------------------------------------------------------------------------------------------ a cell


def cell_folder(folder: Path, arm: str, seed: int) -> Path:
    """Where the result of a cell lies."""
    return folder / "cells" / arm / f"seed-{seed}"


def adapter_folder(folder: Path, arm: str, seed: int) -> Path:
    """Where the trained arm of a cell lies."""
    return folder / "adapters" / arm / f"seed-{seed}"


def run_cell(folder: Path, name: str, seed: int, chosen: Settings, split: str, short: bool = False) -> Path:
    """Train and measure one cell; its folder is there, and whole, only if all of it succeeded."""
    arm, place, started = ARMS[name], folder / "inputs", time.monotonic()
    trained = _trained(arm, folder, chosen, seed)
    between = time.monotonic()
    tables = measure(arm, load_policy(chosen, trained), trained, read_asked(place), chosen, split, seed, short)
    if trained is not None:
        tables["metrics"] = pd.read_csv(trained / "metrics.csv")
    ended = time.monotonic()
    with atomic_folder(cell_folder(folder, name, seed)) as building:
        for table, rows in tables.items():
            write_csv(building / f"{table}.csv", rows)
        write_json(
            building / "cell.json",
            {
                "arm": asdict(arm),
                "seed": seed,
                "settings": asdict(chosen),
                "evaluated_on": split,
                "seekers": list(seekers_of(short)),
                "claims": shipped_claims().hash,
                "library": runs.library_hash(),
                "inputs": runs.hash_path(place),
                "seconds": {"training": round(between - started, 1), "measuring": round(ended - between, 1)},
                "versions": runs.versions(),
                "device": runs.device(),
                "git": runs.git_state(),
            },
        )
    return cell_folder(folder, name, seed)


def _trained(arm: Arm, folder: Path, chosen: Settings, seed: int) -> Path | None:
    """The folder of the arm's adapter, trained if it is not there with these settings; None for the start."""
    if arm.trainer == "none":
        return None
    given = folder / "inputs" / PEOPLE
    known = map(profile_from_record, read_jsonl(given)) if given.is_file() else people("train")
    pairs: Sequence[Pair] = read_pairs(folder / "inputs" / f"{arm.histories}.jsonl", {p.id: p for p in known})
    place = place_to_train(folder, arm, seed, chosen)
    return train_arm(arm, chosen, pairs, AppraisalSeeker(), EmbeddedJudge(), place, seed)


def place_to_train(folder: Path, arm: Arm, seed: int, chosen: Settings) -> Path:
    """Where a cell's adapter goes; one that an earlier plan left there and never measured is removed."""
    place = adapter_folder(folder, arm.name, seed)
    marker = place / "arm.json"
    if marker.is_file() and runs.read_json(marker)["settings"] != runs.plain(asdict(arm_settings(arm, chosen))):
        shutil.rmtree(place)
    return place
