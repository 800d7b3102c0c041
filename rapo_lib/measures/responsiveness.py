"""Responsiveness: does a policy change what it does when the seeker's last words change?

RAPO's point is to adjust to the reaction. Here one history ends in two contrasting ways ("please, no advice" or "tell
me what to do"), and the reply to the second should do an act that the reply to the first should not. Pairs and measure
are ours (data/contrasts.jsonl):

    responsiveness = share of draws that change in the right direction - share that change in the wrong one

so that a policy which does things at random scores 0, as does one that never listens.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources

import pandas as pd

from rapo_lib.dialogue import Turn, from_record, turn_from_record
from rapo_lib.evaluation import Policy
from rapo_lib.person.perception import ACT_FIELDS, perceive_batch
from rapo_lib.runs import seed_for

DRAWS = 2  # replies to each ending; ours
CHANGED = 0.3  # strength of an act (0 to 1) by which two replies must differ; ours, half of what one clear act has


@dataclass(frozen=True, slots=True)
class Contrast:
    """One history with two endings; the reply to `second` should do `act`, the reply to `first` should not."""

    id: str
    act: str  # a field of Perception
    history: tuple[Turn, ...]  # before the seeker's last turn
    first: str
    second: str

    def __post_init__(self) -> None:
        if self.act not in ACT_FIELDS:
            raise ValueError(f"contrast {self.id}: act {self.act!r} is not one of {', '.join(ACT_FIELDS)}")

    def ending(self, last: str) -> tuple[Turn, ...]:
        """The history with these last words of the seeker."""
        return (*self.history, Turn("seeker", last))


@cache
def contrasts() -> tuple[Contrast, ...]:
    """The shipped pairs."""
    text = (resources.files("rapo_lib") / "data" / "contrasts.jsonl").read_text("utf-8")
    records = [json.loads(line) for line in text.splitlines() if line]
    return tuple(
        from_record(Contrast, {**record, "history": tuple(turn_from_record(t) for t in record["history"])})
        for record in records
    )


def responses(policy: Policy, pairs: Sequence[Contrast], seed: int = 0, draws: int = DRAWS) -> pd.DataFrame:
    """One row per contrast and draw: what was replied to either ending, and whether the act changed as it should.

    Columns: contrast, act, draw, first, second (the replies), before, after (strength of the act in them),
    responsiveness (1 for the right change, -1 for the wrong one, else 0).
    """
    endings = [pair.ending(last) for pair in pairs for last in (pair.first, pair.second)]
    rows = []
    for draw in range(draws):
        replies = policy(endings, seed_for(seed, "responses", draw))
        heard = [asdict(p) for p in perceive_batch(list(zip(endings, replies, strict=True)))]
        for i, pair in enumerate(pairs):
            before, after = (heard[k][pair.act] for k in (2 * i, 2 * i + 1))
            said = {"first": replies[2 * i], "second": replies[2 * i + 1], "before": before, "after": after}
            change = (after - before >= CHANGED) - (before - after >= CHANGED)
            rows.append({"contrast": pair.id, "act": pair.act, "draw": draw, **said, "responsiveness": change})
    return pd.DataFrame(rows)
