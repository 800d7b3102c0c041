"""Runs on disk: where they live, whole files, stages with a record, hashes and seeds.

A run is a folder `outputs/<run>/`; each notebook owns one stage folder in it and says in `run.json` what it did.
Everything is written to a temporary neighbour and renamed, so what exists under its own name is whole.
"""

import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import platformdirs

from rapo_lib import __version__

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
KEY_PACKAGES = ("torch", "transformers", "trl", "peft", "bitsandbytes", "numpy", "papermill")
OURS = ("run.json", "record.json")  # bookkeeping inside a stage folder, not artefacts


class RapoError(Exception):
    """Something the user can act on; the command line shows it as one line, without a traceback."""


# ---------------------------------------------------------------------------------------------- places


def outputs_dir() -> Path:
    """`outputs/` of the checkout, or RAPO_OUTPUTS (a relative value counts from the checkout)."""
    if override := os.environ.get("RAPO_OUTPUTS"):
        return (ROOT / Path(override).expanduser()).resolve()
    if not (ROOT / "pyproject.toml").exists():
        raise RapoError("rapo_lib runs outside its checkout; set RAPO_OUTPUTS to the folder that should hold the runs")
    return ROOT / "outputs"


def cache_dir() -> Path:
    """The per-user cache for converted models, or RAPO_CACHE."""
    if override := os.environ.get("RAPO_CACHE"):
        return (ROOT / Path(override).expanduser()).resolve()
    return platformdirs.user_cache_path("rapo", appauthor=False)


def run_dir(run: str) -> Path:
    """The folder of one run; its name must be a plain folder name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run):
        raise RapoError(f"{run!r} cannot name a run: use letters, digits, '.', '_' and '-', a letter or digit first")
    return outputs_dir() / run


def published_dir(name: str) -> Path:
    """The results `name` that come with the checkout; RapoError where the package was installed without it."""
    place = ROOT / "outputs" / "published" / name
    if not place.is_dir():
        raise RapoError(f"{place} is missing; published results come with a checkout of the repository (git clone)")
    return place


# ---------------------------------------------------------------------------------------------- whole files


def _neighbour(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")


def write_bytes(path: Path, content: bytes) -> Path:
    """Write the whole file or nothing; a full disk or a missing right is one clear error."""
    temporary = _neighbour(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise RapoError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text, whole or not at all."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> Path:
    """Write one JSON value, readably; what is not a finite number becomes null."""
    return write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path, records: Iterable[Any]) -> Path:
    """Write one JSON object a line."""
    lines = (json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n" for record in records)
    return write_text(path, "".join(lines))


def write_csv(path: Path, table: "pd.DataFrame | Sequence[Mapping[str, Any]]") -> Path:
    """Write a table with a header and without row numbers."""
    import pandas as pd

    return write_text(path, pd.DataFrame(table).to_csv(index=False, lineterminator="\n"))


def read_json(path: Path) -> Any:
    """Read one JSON file; a missing or broken one is one clear error."""
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise RapoError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise RapoError(f"{path} is damaged: {error}") from error


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path`, replacing what was there, only if the block succeeds."""
    temporary, previous = _neighbour(path), _neighbour(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
    except OSError as error:
        raise RapoError(f"cannot write {path}: {error}") from error
    finally:
        for leftover in (temporary, previous):
            shutil.rmtree(leftover, ignore_errors=True)


# ---------------------------------------------------------------------------------------------- hashes and seeds


def plain(value: Any) -> Any:
    """`value` as JSON knows it: dataclasses, paths, tuples and numpy numbers converted, NaN and infinity as None."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def stable_hash(value: Any) -> str:
    """SHA-256 of the value's canonical JSON: the same for equal values on every machine."""
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def seed_for(root: int, *names: str | int) -> int:
    """A seed (31 bits) for one named use of randomness, independent of every other name under the same root."""
    return int(stable_hash([root, *names])[:8], 16) >> 1


def hash_path(path: Path) -> str:
    """SHA-256 of a file, or of a folder's names and contents."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        return stable_hash({p.relative_to(path).as_posix(): hash_path(p) for p in files})
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def library_hash() -> str:
    """Hash of the package's own code and data, as they were when this process first asked."""
    package = Path(__file__).parent
    files = sorted(p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return stable_hash({p.relative_to(package).as_posix(): hash_path(p) for p in files})


# ---------------------------------------------------------------------------------------------- what ran where


def versions() -> dict[str, str]:
    """Versions of Python, this package and the packages that decide the numbers."""
    found = {"python": platform.python_version(), "rapo-lib": __version__}
    for name in KEY_PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def device() -> str:
    """The GPU's name if torch is in use and sees one, else the processor's kind."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"cpu ({platform.machine()}, {os.cpu_count()} cores)"


def git_state() -> dict[str, Any] | None:
    """Commit of the checkout and whether it holds changes; None outside a git checkout."""
    if not (ROOT / ".git").exists():
        return None
    commit, status = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return {"commit": commit, "dirty": bool(status)} if commit else None


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None  # git is not installed, or this is no repository of the user's
    return done.stdout.strip()


# ---------------------------------------------------------------------------------------------- stages


@dataclass
class Stage:
    """One notebook's part of a run: its folder, and the record that `finish` completes."""

    folder: Path
    record: dict[str, Any]
    started: float = field(default_factory=time.monotonic)

    def path(self, name: str) -> Path:
        """Where an artefact of this stage goes, e.g. `path("figures/emotion.png")`; its folder is made."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def finish(self, **facts: Any) -> Path:
        """Hash the artefacts and set the completion mark; `facts` (say, which profiles were evaluated) are kept."""
        self.record |= {
            "completed": True,
            "finished": _now(),
            "seconds": round(time.monotonic() - self.started, 2),
            "versions": versions(),
            "device": device(),
            "git": git_state(),
            "facts": facts,
            "artefacts": _artefacts(self.folder),
        }
        return write_json(self.folder / "run.json", self.record)


def start_stage(
    run_dir: Path,
    name: str,
    parameters: Mapping[str, Any],
    inputs: Sequence[Path] = (),
    seeds: Mapping[str, int] | None = None,
) -> Stage:
    """Open the stage folder `run_dir/name` and hash its inputs.

    What an interrupted execution left there stays if it had the same parameters, inputs and code (so a notebook can
    go on where it stopped), and is removed if not.
    """
    folder = run_dir / name
    record = {
        "stage": name,
        "completed": False,
        "started": _now(),
        "parameters": plain(parameters),
        "seeds": dict(seeds or {}),
        "inputs": {label(path, run_dir): hash_input(path) for path in inputs},
        "notebook": os.environ.get("RAPO_NOTEBOOK_HASH"),  # set by the runner
        "library": library_hash(),
    }
    record["key"] = stable_hash([record[k] for k in ("parameters", "seeds", "inputs", "notebook", "library")])
    _clear(folder, record["key"])
    write_json(folder / "run.json", record)
    return Stage(folder, record)


def label(path: Path, run_dir: Path) -> str:
    """How a record names a file: relative to the run if it lies inside, else in full."""
    path = path.resolve()
    inside = path.is_relative_to(run_dir.resolve())
    return path.relative_to(run_dir.resolve()).as_posix() if inside else path.as_posix()


def hash_input(path: Path) -> str:
    """`hash_path`, where a missing input is the user's to mend."""
    if not path.exists():
        raise RapoError(f"input {path} is missing")
    return hash_path(path)


def _clear(folder: Path, key: str) -> None:
    """Remove what an execution under another key left, and temporary files in any case."""
    marker = folder / "run.json"
    same = not marker.exists() or _key_of(marker) == key
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        if path.name == "record.json" or (same and not path.name.endswith(".tmp")):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _key_of(marker: Path) -> str | None:
    with suppress(RapoError):
        return read_json(marker).get("key")
    return None


def _artefacts(folder: Path) -> dict[str, dict[str, Any]]:
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    names = ((p, p.relative_to(folder)) for p in files)
    kept = ((p, n) for p, n in names if str(n) not in OURS and not any(part.startswith(".") for part in n.parts))
    return {n.as_posix(): {"bytes": p.stat().st_size, "sha256": hash_path(p)} for p, n in kept}


def read_stage(run_dir: Path, name: str) -> dict[str, Any]:
    """The record of a finished stage, after checking that its artefacts are whole."""
    record = _finished(run_dir, name)
    for artefact in record["artefacts"]:
        _check(run_dir, record, artefact)
    return record


def require(path: Path, made_by: str) -> Path:
    """`path` if the notebook `made_by` finished it and it is whole, else an error that says what to run."""
    folder = next((p for p in (path, *path.parents) if p.name == made_by), None)
    if not path.exists():
        raise RapoError(f"{path} is missing; notebook {made_by} makes it: {_redo(path, made_by)}")
    if folder is None or not (folder / "run.json").exists():
        return path  # not part of a run: the user's own file in its place
    record = _finished(folder.parent, made_by)
    wanted = path.relative_to(folder)
    for artefact in record["artefacts"]:
        if Path(artefact).is_relative_to(wanted):
            _check(folder.parent, record, artefact)
    return path


def _finished(run_dir: Path, name: str) -> dict[str, Any]:
    marker = run_dir / name / "run.json"
    if not marker.exists() or not (record := read_json(marker)).get("completed"):
        raise RapoError(f"{run_dir / name} is not finished; {_redo(marker, name)}")
    return record


def _check(run_dir: Path, record: dict[str, Any], artefact: str) -> None:
    path, expected = run_dir / record["stage"] / artefact, record["artefacts"][artefact]
    if not path.exists():
        raise RapoError(f"{path} is missing; {_redo(path, record['stage'])}")
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise RapoError(
            f"{path} is damaged: {size} bytes instead of {expected['bytes']}; {_redo(path, record['stage'])}"
        )
    if hash_path(path) != expected["sha256"]:
        raise RapoError(f"{path} was changed after its stage finished; {_redo(path, record['stage'])}")


def _redo(path: Path, name: str) -> str:
    run = next((p.parent.name for p in (path, *path.parents) if p.name == name), "NAME")
    return f"run `rapo reproduce --run {run} --notebooks {name[:2]}`"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
