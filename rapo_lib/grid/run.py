"""The grid of arms by seeds: what is to do, one process a cell, what failed, and shards brought together.

A cell is done when its folder is there. A killed grid goes on where it stopped, a failed cell stops nothing else, and
cells of one grid may be spread over machines (`--shard i/n`) and merged afterwards.
"""

import multiprocessing
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from rapo_lib import runs
from rapo_lib.grid.arms import ARMS, WARM, known_arm
from rapo_lib.grid.claims import same_claims, shipped_claims
from rapo_lib.parameters import convert, suggestion
from rapo_lib.profiles import ROLES, Settings, completed, is_role_value, settings
from rapo_lib.progress import Progress
from rapo_lib.runs import RapoError, atomic_folder

LOG_EVERY = 60.0  # seconds between two progress lines in a log file
SPLITS = ("heldout", "dev")
EMBEDDED = dict.fromkeys(ROLES, "embedded")  # whoever measures must be the same in every grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a grid consists of."""

    folder: Path  # outputs/<run>/ablate
    profile: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    overrides: Mapping[str, Any] = field(default_factory=dict)  # "steps" for all arms, "full.learning_rate" for one
    split: str = "heldout"
    short: bool = False  # measured by the training seeker's self-play alone; such cells stand in a grid of their own

    def __post_init__(self) -> None:
        for name in self.arms:
            known_arm(name)
        for arm, _, setting in (key.partition(".") for key in self.overrides if "." in key):
            if setting in known_arm(arm).overrides:
                raise RapoError(f"{setting} is what makes the arm {arm}; it cannot be set")
        if self.split not in SPLITS:
            raise RapoError(f"people to evaluate on are {' or '.join(SPLITS)}, not {self.split!r}")
        if played := [key for key in self.overrides if is_role_value(key.rpartition(".")[2])]:
            raise RapoError(f"the grid trains with the embedded seeker and judge; {played[0]} cannot be set")
        for name in self.arms:
            self.settings_of(name)  # an unknown setting fails here

    def settings_of(self, arm: str | None = None) -> Settings:
        """The settings of one arm, or, for None, those that all arms share."""
        shared = {key: value for key, value in self.overrides.items() if "." not in key}
        if arm is None:
            return settings(self.profile, {**shared, **EMBEDDED})
        own = {key.removeprefix(f"{arm}."): v for key, v in self.overrides.items() if key.startswith(f"{arm}.")}
        return settings(self.profile, {**shared, **own, **ARMS[arm].overrides, **EMBEDDED})

    def cells(self) -> list[tuple[str, int]]:
        """(arm, seed), all arms of the first seed first, so that what is there can be compared; the start always."""
        names = (WARM, *(name for name in self.arms if name != WARM))
        return [(name, seed) for seed in self.seeds for name in names]


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that did not come to its end."""

    arm: str
    seed: int
    why: str
    log: Path


# ------------------------------------------------------------------------------------------ what is asked


def parse_arms(text: str) -> tuple[str, ...]:
    """Names of arms and tiers (`primary`, `exploratory`, `control`, `all`), each once, in the order of ARMS."""
    wanted: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        tier = [name for name, arm in ARMS.items() if part in ("all", arm.tier)]
        wanted |= set(tier) if tier else {known_arm(part).name}
    if not wanted:
        raise RapoError("name at least one arm, or a tier: primary, exploratory, control, all")
    return tuple(name for name in ARMS if name in wanted)


def parse_seeds(text: str) -> tuple[int, ...]:
    """`0-2,5` as numbers, each once."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:\s*-\s*(\d{1,6}))?\s*", part)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise RapoError(f"cannot read {part.strip()!r} as seeds; write, say, 0-2 or 0,3")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def typed_overrides(given: Mapping[str, str]) -> dict[str, Any]:
    """Values from the command line as the settings declare them; a wrong one is an error that names it."""
    kinds = {f.name: f.type for f in fields(Settings)}
    typed = {}
    for name, text in given.items():
        setting = name.rpartition(".")[2]
        if setting not in kinds:
            raise RapoError(f"unknown setting {setting!r}; {suggestion(setting, kinds)}")
        try:
            typed[name] = convert(text, annotation(kinds[setting]))
        except ValueError as error:
            raise RapoError(f"setting {name!r}: {error}") from None
    return typed


def annotation(kind: Any) -> str:
    """A field's type as it is written."""
    return kind if isinstance(kind, str) else kind.__name__ if isinstance(kind, type) else str(kind)


def shard(cells: Sequence[tuple[str, int]], text: str | None) -> list[tuple[str, int]]:
    """The i-th of n parts, `i/n` counted from 1; together the parts are all cells, once."""
    if text is None:
        return list(cells)
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise RapoError(f"cannot read {text!r} as a shard; write i/n with i from 1 to n, say 1/3")
    return list(cells)[int(match[1]) - 1 :: int(match[2])]


# ------------------------------------------------------------------------------------------ doing it


def run_grid(plan: Plan, part: str | None = None) -> list[Failure]:
    """Work through the cells of this shard that are not done; returns what failed.

    Raises RapoError where what is there does not fit the plan.
    """
    from rapo_lib.grid.cell import cell_folder, prepare  # torch is heavy

    todo = []
    for arm, seed in shard(plan.cells(), part):
        place = cell_folder(plan.folder, arm, seed)
        if place.is_dir():
            fits(place, plan, arm)
        else:
            todo.append((arm, seed))
    if not todo:
        return []
    with Progress("inputs", every=LOG_EVERY):
        prepare(plan.folder, plan.settings_of(), plan.split)
    failures = []
    with Progress("ablate", len(todo), every=LOG_EVERY) as shown:
        for arm, seed in todo:
            shown.label = f"ablate  {arm} seed {seed}"
            if failure := run_apart(plan, arm, seed):
                failures.append(failure)
            shown.done += 1
        shown.label = f"ablate  {len(todo) - len(failures)} of {len(todo)} cells"
    return failures


def fits(place: Path, plan: Plan, arm: str) -> None:
    """Raise a RapoError unless the finished cell at `place` is one that this plan would make."""
    from rapo_lib.grid.cell import seekers_of

    record = runs.read_json(place / "cell.json")
    same_claims(record["claims"], shipped_claims(), place)
    wanted, found = runs.plain(asdict(plan.settings_of(arm))), completed(record["settings"])
    if changed := [name for name in wanted if found[name] != wanted[name]]:
        name = changed[0]
        raise RapoError(
            f"{place} was made with {name} = {found[name]}, not {wanted[name]}; "
            "choose another --run, or remove that folder"
        )
    if record["evaluated_on"] != plan.split:
        raise RapoError(f"{place} was evaluated on {record['evaluated_on']}, not {plan.split}; choose another --run")
    if record["seekers"] != list(seekers_of(plan.short)):
        raise RapoError(f"{place} was measured by {', '.join(record['seekers'])} only; choose another --run")


def run_apart(plan: Plan, arm: str, seed: int) -> Failure | None:
    """One cell in a process of its own: no cell can disturb another, whatever happens to it."""
    log = plan.folder / "logs" / f"{arm}-seed-{seed}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    job = multiprocessing.get_context("spawn").Process(target=_in_child, args=(plan, arm, seed, log))
    job.start()
    try:
        job.join()
    finally:
        if job.is_alive():  # Ctrl-C here
            job.terminate()
            job.join()
    if job.exitcode == 0:
        log.unlink(missing_ok=True)
        return None
    return Failure(arm, seed, _why(job.exitcode, log), log)


def _why(code: int | None, log: Path) -> str:
    """The last line of the log, or which signal ended the process."""
    if code is not None and code < 0:
        return f"ended by signal {-code}" + (" (out of memory?)" if code == -9 else "")
    lines = [line for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"ended with code {code}"


def _in_child(plan: Plan, arm: str, seed: int, log: Path) -> None:
    """Run the cell with all output in the log; leave with the parent, so that no orphan competes with a new run."""
    with log.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    from filelock import FileLock, Timeout

    from rapo_lib.grid.cell import cell_folder, run_cell

    place = cell_folder(plan.folder, arm, seed)
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(place.with_name(f".{place.name}.lock"), timeout=0):
            for left in place.parent.glob(f".{place.name}.*.tmp"):  # of a killed run
                shutil.rmtree(left)
            run_cell(plan.folder, arm, seed, plan.settings_of(arm), plan.split, plan.short)
    except Timeout:
        sys.exit(f"another process is working on {place}")
    except RapoError as error:
        sys.exit(str(error))


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


# -------------------------------------------------------------------------------------------- merging


def finished_cells(folder: Path) -> list[Path]:
    """The folders of all finished cells, in the order of ARMS, then by seed."""
    found = [place for place in (folder / "cells").glob("*/seed-*") if (place / "cell.json").is_file()]
    order = {name: i for i, name in enumerate(ARMS)}
    return sorted(found, key=lambda p: (order.get(p.parent.name, len(order)), int(p.name.removeprefix("seed-"))))


def merge(folder: Path, sources: Iterable[Path]) -> int:
    """Copy the finished cells of other grids into this one; returns how many are new.

    Raises RapoError if a source holds no cell, if cells do not belong together, or if the same cell differs.
    """
    added = 0
    for source in sources:
        grid = source / "ablate" if (source / "ablate").is_dir() else source
        cells = finished_cells(grid)
        if not cells:
            raise RapoError(f"{source} holds no finished cell; give the folder of a run, or its ablate/ folder")
        belong_together([*finished_cells(folder), *cells])
        added += sum(_copy(place, folder / place.relative_to(grid)) for place in cells)
        if not (folder / "inputs").is_dir() and (grid / "inputs").is_dir():
            with atomic_folder(folder / "inputs") as building:
                shutil.copytree(grid / "inputs", building, dirs_exist_ok=True)
    return added


def _copy(place: Path, target: Path) -> bool:
    if target.is_dir():
        if _tables(place) != _tables(target):
            raise RapoError(f"{place} and {target} are the same cell with different results; remove one of them")
        return False
    with atomic_folder(target) as building:
        shutil.copytree(place, building, dirs_exist_ok=True)
    return True


def _tables(place: Path) -> dict[str, str]:
    """Hashes of a cell's tables; its record holds times, which always differ."""
    return {path.name: runs.hash_path(path) for path in sorted(place.glob("*.csv"))}


def belong_together(cells: Sequence[Path]) -> None:
    """Raise a RapoError unless all cells share claims, inputs and people, and the cells of an arm its settings."""
    first: dict[str, tuple[Any, Path]] = {}
    for place in cells:
        record = runs.read_json(place / "cell.json")
        same_claims(record["claims"], shipped_claims(), place)
        shared = {name: record[name] for name in ("inputs", "evaluated_on", "seekers")}
        for name, value in {**shared, f"settings of {place.parent.name}": completed(record["settings"])}.items():
            known, where = first.setdefault(name, (value, place))
            if value != known:
                raise RapoError(f"{place} and {where} do not belong together: their {name} differ")
