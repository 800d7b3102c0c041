"""What RLFF-ESC reports: success rate, average turns and emotion gained, of every policy by every seeker.

Success and turns follow PPDPP (eight turns at most, a failure counts as all of them); the threshold is ours. Policies
meet our own people from their opening, or the people of a corpus file from the middle of their dialogue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from transformers import PreTrainedTokenizerBase

from rapo_lib.cast import Cast
from rapo_lib.dialogue import SeekerProfile, Turn
from rapo_lib.evaluation import Policy, outcomes, play_on
from rapo_lib.foresight.thoughts import ThinkingPolicy, spent
from rapo_lib.grid.cell import played
from rapo_lib.runs import atomic_folder, write_csv, write_json
from rapo_lib.seeker import Seeker
from rapo_lib.stats import clustered

Begun = tuple[SeekerProfile, tuple[Turn, ...]]  # a person, and a history that ends with them


def evaluate_policy(
    policy: ThinkingPolicy,
    tokenizer: PreTrainedTokenizerBase,
    profiles: Sequence[SeekerProfile],
    seekers: Mapping[str, Seeker],
    turns: int,
    folder: Path,
    seed: int = 0,
) -> Path:
    """Self-play with every seeker; writes trajectories.csv, outcomes.csv, replies.csv and spent.json to `folder`.

    spent.json holds the tokens of thoughts and replies and the share of well-formed texts, over all seekers.
    """
    if folder.is_dir():
        return folder
    before = len(policy.said)
    tables = played(policy, profiles, seekers, turns, seed)
    cost = spent(policy.said[before:], lambda text: len(tokenizer(text, add_special_tokens=False).input_ids))
    with atomic_folder(folder) as building:
        for name, table in tables.items():
            write_csv(building / f"{name}.csv", table)
        write_json(building / "spent.json", asdict(cost))
    return folder


def side_by_side(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Success rate, average turns and emotion gained of each arm by each seeker, with 95 % intervals over people.

    `outcomes`: rows of `evaluation.outcomes` with columns `arm` and `seeker`. Failures count with all their turns.
    """
    rows = []
    for (arm, seeker), table in outcomes.groupby(["arm", "seeker"], sort=False):
        numbers = table.astype({"success": float})
        row = {"arm": arm, "seeker": seeker, "people": numbers.profile.nunique()}
        for column in ("success", "turns", "gained"):
            mean = clustered(numbers, column)
            row |= {column: mean.mean, f"{column}_low": mean.low, f"{column}_high": mean.high}
        rows.append(row)
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------ histories of a corpus


def halfway(cast: Cast) -> list[Begun]:
    """Every dialogue of a corpus up to its middle, with the person behind it; where the seeker has spoken last."""
    known = {person.id: person for person in cast.people}
    found = []
    for dialogue in cast.dialogues:
        places = [i for i, t in enumerate(dialogue.turns) if t.speaker == "seeker"]
        place = min(places, key=lambda i: abs(i + 1 - len(dialogue.turns) / 2))
        found.append((known[dialogue.id], dialogue.turns[: place + 1]))
    return found


def outcomes_from(
    policy: Policy, begun: Sequence[Begun], seekers: Mapping[str, Seeker], turns: int, seed: int = 0
) -> pd.DataFrame:
    """`evaluation.outcomes` of going on from these histories, with a column `seeker`."""
    parts = [
        outcomes(play_on(policy, begun, seeker, turns=turns, seed=seed)).assign(seeker=name)
        for name, seeker in seekers.items()
    ]
    return pd.concat(parts, ignore_index=True)
