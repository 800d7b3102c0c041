"""Checkpoints from which a training goes on as if it had never stopped: whole or not there, and with nothing left out.

transformers saves adapters, optimiser, schedule, random states and the log, file by file under the final name; a kill
in between leaves half a folder that looks like a checkpoint. trl's trainer adds state that nobody saves: how many
batches it has seen, replies that were sampled for more than one update, how far its sampler's shuffling has come.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.trainer_utils import get_last_checkpoint

from rapo_lib.runs import RapoError, read_json, write_json

STATE = "rapo.json"
ROLLOUTS = "rollouts-{}.safetensors"  # of each process


@contextmanager
def staged(folder: Path, leads: bool, wait: Any) -> Iterator[Path]:
    """Yield a neighbour that becomes `folder` if the block succeeds; every process writes its part into it.

    `leads` is true in the one process that makes and renames it, `wait` is a barrier between them.
    """
    building = folder.with_name(f".{folder.name}.tmp")
    if leads:
        shutil.rmtree(building, ignore_errors=True)  # what a kill left
        building.mkdir(parents=True)
    wait()
    yield building
    wait()
    if leads:
        shutil.rmtree(folder, ignore_errors=True)
        building.replace(folder)
    wait()


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint in a folder of checkpoints."""
    found = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    return Path(found) if found else None


def step_of(checkpoint: Path) -> int:
    """After how many updates a checkpoint was made; its name says so."""
    return int(checkpoint.name.rsplit("-", 1)[1])


def save_rest(
    folder: Path, state: Mapping[str, Any], batches: Sequence[Mapping[str, Tensor]], process: int = 0
) -> None:
    """Write counters (the first process), and the sampled batches that later updates of this process still need."""
    if process == 0:
        write_json(folder / STATE, state)
    if batches:
        named = {f"{i}/{name}": t.contiguous().cpu() for i, batch in enumerate(batches) for name, t in batch.items()}
        save_file(named, folder / ROLLOUTS.format(process))


def load_rest(folder: Path, process: int = 0) -> tuple[dict[str, Any], list[dict[str, Tensor]]]:
    """What `save_rest` wrote. Raises RapoError for a checkpoint that is not this trainer's."""
    if not (folder / STATE).is_file():
        raise RapoError(f"{folder} is no checkpoint of this trainer: {STATE} is missing")
    batches: list[dict[str, Tensor]] = []
    if (path := folder / ROLLOUTS.format(process)).is_file():
        for key, tensor in sorted(load_file(path).items(), key=lambda item: int(item[0].split("/")[0])):
            number, name = key.split("/", 1)
            if int(number) == len(batches):
                batches.append({})
            batches[int(number)][name] = tensor
    return read_json(folder / STATE), batches
