"""What a training's replies led to: as records, and kept on disk update by update, from all processes in one file."""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerState

from rapo_lib.dialogue import to_record, turn_from_record
from rapo_lib.runs import plain, write_text
from rapo_lib.simulation import Rollout

log = logging.getLogger(__name__)


def rollout_record(rollout: Rollout) -> dict[str, Any]:
    """A rollout as a JSON object; the history as turns without emotions."""
    return {**asdict(rollout), "history": [to_record(t) for t in rollout.history]}


def rollout_from_record(record: Mapping[str, Any]) -> Rollout:
    """The inverse of `rollout_record`; an unknown emotion, which JSON has as null, is NaN again."""
    emotion = math.nan if record["emotion"] is None else record["emotion"]
    history = tuple(turn_from_record(t) for t in record["history"])
    return Rollout(**{**record, "emotion": emotion, "history": history})


class RolloutLog(TrainerCallback):
    """Keeps the rollouts of each update before it is made, so that a checkpoint never knows more than the file.

    `watch` takes those of this process, at any time and from any thread; when trl says that the update's batch is
    built, those of all processes are put together in their order, that of one process with the whole batch.
    """

    def __init__(self, path: Path, known: list[Rollout]) -> None:
        self.path, self.rollouts = path, known
        self.fresh: list[Rollout] = []

    def watch(self, rollout: Rollout) -> None:
        """Take one."""
        self.fresh.append(rollout)

    def on_generation_batch_built(self, state: TrainerState, **_: Any) -> None:
        """The batch of an update is there (an event of trl's trainer)."""
        made, self.fresh = gather_object(self.fresh), []
        self.rollouts += made
        if state.is_world_process_zero:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(plain(rollout_record(r)), ensure_ascii=False) + "\n" for r in made)


def known_rollouts(path: Path, needed: int) -> list[Rollout] | None:
    """The first `needed` rollouts of the file, which keeps no more than those; None if some are lost."""
    lines = path.read_text("utf-8").splitlines(keepends=True)[:needed] if path.is_file() else []
    if len(lines) < needed:
        log.warning("%s has lost rollouts; the training starts anew", path.parent.name)
        write_text(path, "")
        return None
    write_text(path, "".join(lines))
    return [rollout_from_record(json.loads(line)) for line in lines]
