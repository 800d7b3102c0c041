"""The whole series from one command: papermill behind checks for what papermill lets pass.

A notebook counts as finished only when papermill returned and its last cell set the stage's completion mark. What is
finished, and would come out the same, is skipped, so an interrupted run goes on where it stopped.
"""

import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapo_lib import report, runs
from rapo_lib.chat.endpoint import check_address, check_key_name
from rapo_lib.parameters import read_parameters, resolve, suggestion
from rapo_lib.profiles import PROFILES
from rapo_lib.progress import Progress, say
from rapo_lib.runs import ROOT, RapoError

if TYPE_CHECKING:
    from jupyter_client.manager import AsyncKernelManager

NOTEBOOKS = ROOT / "notebooks"
LAST = "05"  # the series ends here unless more is asked for; later notebooks build on it and are named to be run
CELL_TIMEOUT = 3600.0  # seconds; a profile's `cell_timeout` takes its place
START_TIMEOUT = 180  # seconds a kernel may take to start on a busy machine
KEEP_MEMORY = {  # glibc returns big tensors to the system, which zeroes them anew; keeping them is a quarter faster
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "67108864",
}
PLAN = ("notebook", "library", "parameters", "versions")  # what decides, with the inputs, whether a stage is up to date


def reproduce(
    profile: str = "cpu",
    run: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    notebooks: str | None = None,
    fresh: bool = False,
    cell_timeout: float | None = None,
    folder: Path = NOTEBOOKS,
) -> Path:
    """Execute the series in `folder`, or the selection `notebooks` ("01-03,05", "06"), and return the index page."""
    if profile not in PROFILES:
        raise RapoError(f"unknown profile {profile!r}: {suggestion(profile, PROFILES)}")
    limit = cell_timeout or PROFILES[profile].get("cell_timeout", CELL_TIMEOUT)
    if limit <= 0:
        raise RapoError(f"the time limit of a cell must be more than 0 seconds, not {limit:g}")
    for check, parameter in ((check_key_name, "lm_key"), (check_address, "lm_url")):
        check(str((overrides or {}).get(parameter) or ""))  # before a notebook could hold a key
    name = run or profile
    run_dir = runs.run_dir(name)
    every = discover(folder)
    chosen = select(every, notebooks)
    values = resolve({path.stem: read_parameters(path) for path in chosen}, overrides or {}, name, profile)
    with only_one(run_dir):
        for path in chosen:
            bring_up_to_date(path, run_dir, values[path.stem], fresh, limit)
        done = [path for path in every if _is_complete(run_dir / path.stem)]
        finished = [path.stem for path in done if (run_dir / path.name).exists()]  # not those run by hand
        index = report.write_index(run_dir, finished)
    say(f"the run is complete: {index}")
    return index


# ---------------------------------------------------------------------------------------------- which notebooks


def discover(folder: Path) -> list[Path]:
    """The numbered notebooks of the series, in order."""
    found = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not found:
        raise RapoError(f"no notebooks NN_name.ipynb in {folder}; run from a checkout (pip install -e .)")
    return found


def select(notebooks: list[Path], wanted: str | None) -> list[Path]:
    """Those that `wanted` names: numbers and ranges, such as "01,02" or "01-06"; None: the series up to 05."""
    if wanted is None:
        return [path for path in notebooks if path.name[:2] <= LAST]
    known = {path.name[:2] for path in notebooks}
    numbers: set[str] = set()
    for part in wanted.split(","):
        if not (found := re.fullmatch(r"\s*(\d{1,2})(?:\s*-\s*(\d{1,2}))?\s*", part)):
            raise RapoError(f"cannot read {part!r} as notebook numbers; write, say, 01,02 or 01-05")
        first, last = int(found[1]), int(found[2] or found[1])
        numbers |= {f"{n:02d}" for n in range(first, last + 1)}
        if first > last or not {f"{first:02d}", f"{last:02d}"} <= known:
            raise RapoError(f"no notebooks {part.strip()}; there are {', '.join(sorted(known))}")
    return [path for path in notebooks if path.name[:2] in numbers]


@contextmanager
def only_one(run_dir: Path) -> Iterator[None]:
    """Hold the run for this process; the system lets go of the lock when a process dies, however it dies."""
    from filelock import FileLock, Timeout

    owner = run_dir / ".owner"
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = FileLock(run_dir / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        pid = owner.read_text("utf-8") if owner.exists() else "unknown"
        raise RapoError(
            f"process {pid} is already executing run {run_dir.name!r}; wait for it, or choose another name with --run"
        ) from None
    except OSError as error:
        raise RapoError(f"cannot write in {run_dir}: {error.strerror or error}") from error
    try:
        runs.write_text(owner, str(os.getpid()))
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


# ---------------------------------------------------------------------------------------------- one notebook


def bring_up_to_date(source: Path, run_dir: Path, values: dict[str, Any], fresh: bool, limit: float) -> None:
    """Skip a notebook that is finished and unchanged, else execute it and record that."""
    folder = run_dir / source.stem
    plan = {
        "notebook": runs.hash_path(source),
        "library": runs.library_hash(),
        "parameters": runs.plain(values),
        "versions": runs.versions(),
    }
    before = _record(folder)
    reason = "--fresh" if fresh else why_redo(run_dir, source.stem, plan, before)
    if reason is None:
        say(f"{source.stem}  skipped: finished before, nothing changed")
        return
    if before:
        say(f"{source.stem}  again: {reason}")
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    _invalidate(folder)
    seconds = _execute(source, run_dir, values, limit, plan["notebook"], before.get("seconds"))
    _require_completion(source, folder)
    report.write_notebook_html(run_dir / source.name)
    runs.write_json(
        folder / "record.json", {**plan, "run_json": runs.hash_path(folder / "run.json"), "seconds": seconds}
    )


def _record(folder: Path) -> dict[str, Any]:
    """What the runner noted when it last finished this stage; nothing if it never did."""
    path = folder / "record.json"
    return runs.read_json(path) if path.exists() else {}


def _is_complete(folder: Path) -> bool:
    marker = folder / "run.json"
    return marker.exists() and bool(runs.read_json(marker).get("completed"))


def why_redo(run_dir: Path, name: str, plan: dict[str, Any], record: dict[str, Any]) -> str | None:
    """Why a stage must be executed, in words, or None if its finished record still holds."""
    if not record:
        return "not finished"
    for part in PLAN:
        if record.get(part) != plan[part]:
            return f"its {part} changed"
    try:
        stage = runs.read_stage(run_dir, name)
    except RapoError as error:
        return str(error)
    if runs.hash_path(run_dir / name / "run.json") != record.get("run_json"):
        return "executed since by hand"
    for written, digest in stage["inputs"].items():
        path = run_dir / written
        if not path.exists() or runs.hash_path(path) != digest:
            return f"its input {written} changed"
    whole = all((run_dir / f"{name}{ending}").exists() for ending in (".ipynb", ".html"))
    return None if whole else "its executed notebook is missing"


def _invalidate(folder: Path) -> None:
    """Take the completion mark of an earlier execution away."""
    marker = folder / "run.json"
    if marker.exists():
        try:
            earlier = runs.read_json(marker)
        except RapoError:
            marker.unlink()
        else:
            runs.write_json(marker, {**earlier, "completed": False})


def _require_completion(source: Path, folder: Path) -> None:
    if not _is_complete(folder):
        raise RapoError(f"{source.name} ended without its completion mark: its last cell must call stage.finish()")


@dataclass
class Place:
    """Where an execution is: the cell in papermill's copy, which has one injected cell after the parameters."""

    cells: list[dict[str, Any]]
    index: int = 0

    def words(self, name: str) -> str:
        """Notebook, cell number (counted from 1 in the notebook as stored) and the cell's first line."""
        number = min(self.index, len(self.cells) - 1)
        lines = "".join(self.cells[number]["source"]).strip().splitlines()
        return f"{name}, cell {number + 1} (`{lines[0] if lines else ''}`)"


def _execute(
    source: Path, run_dir: Path, values: dict[str, Any], limit: float, notebook_hash: str, expected: float | None
) -> float:
    """Run one notebook through papermill; its executed copy takes its name only when it went through."""
    cells = runs.read_json(source)["cells"]
    injected = 1 + next(i for i, c in enumerate(cells) if "parameters" in c.get("metadata", {}).get("tags", ()))
    place, partial = Place(cells), run_dir / f".{source.stem}.partial.ipynb"
    failed, target = run_dir / f"{source.stem}.failed.ipynb", run_dir / source.name
    started = time.monotonic()
    with Progress(source.stem, len(cells), expected, unit="cell ") as shown:

        def on_cell_start(cell: dict[str, Any], cell_index: int) -> None:
            place.index = cell_index - (cell_index >= injected)
            shown.done = place.index

        try:
            _papermill(
                source,
                partial,
                parameters=values,
                execution_timeout=limit,
                on_cell_start=on_cell_start,
                kernel_manager_class=own_kernel({"RAPO_NOTEBOOK_HASH": notebook_hash}),
            )
        except RapoError as error:
            kept = f"; see {failed}" if _keep(partial, failed) else ""
            summary, *tail = str(error).split("\n", 1)
            raise RapoError("\n".join([f"{place.words(source.name)}: {summary}{kept}", *tail])) from error.__cause__
    os.replace(partial, target)
    failed.unlink(missing_ok=True)
    return round(time.monotonic() - started, 2)


def _keep(partial: Path, failed: Path) -> bool:
    """Give a failed execution's notebook its name if it is whole (on a full disk it is not)."""
    failed.unlink(missing_ok=True)
    if not partial.exists():
        return False
    try:
        runs.read_json(partial)
    except RapoError:
        partial.unlink()
        return False
    os.replace(partial, failed)
    return True


def _papermill(source: Path, partial: Path, **options: Any) -> None:
    """papermill.execute_notebook, with what can go wrong told in one line."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").setLevel(logging.ERROR)
    try:
        papermill.execute_notebook(
            _literal(source),
            _literal(partial),
            kernel_name="python3",
            language="python",
            progress_bar=False,
            cwd=str(source.parent),
            start_timeout=START_TIMEOUT,
            iopub_timeout=60,
            **options,
        )
    except PapermillExecutionError as error:
        raise RapoError(_failure(error)) from error
    except CellTimeoutError as error:
        raise RapoError(
            f"stopped after {options['execution_timeout']:g} s, the limit for a cell (--cell-timeout)"
        ) from error
    except DeadKernelError as error:
        raise RapoError("kernel died (out of memory?)") from error
    except RuntimeError as error:
        raise RapoError(f"the kernel did not start: {error}") from error
    except OSError as error:
        raise RapoError(f"cannot write {partial}: {error.strerror or error}") from error


def _literal(path: Path) -> str:
    """A path in which papermill finds no {placeholders} to fill."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _failure(error: Any) -> str:
    """An exception in a cell: its name and text, then the end of its traceback."""
    summary = f"{error.ename}: {error.evalue}"
    if error.ename == RapoError.__name__:
        return str(error.evalue)  # already says what and where
    lines = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback)).rstrip().splitlines()
    return "\n".join([summary.splitlines()[0], *(f"    {line}" for line in lines[-8:-1])])


def own_kernel(env: dict[str, str]) -> "type[AsyncKernelManager]":
    """A kernel that is this very Python with this very rapo_lib, whatever kernelspecs the machine has."""
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # no history database (it locks on network drives), and no log lines between our progress lines
    quiet = ["--HistoryManager.enabled=False", "--IPKernelApp.log_level=ERROR"]
    spec = KernelSpec(
        **get_kernel_dict(extra_arguments=quiet),  # starts sys.executable
        env={
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "PYTHONPATH": os.pathsep.join(paths),
            **KEEP_MEMORY,
            **env,
        },
    )

    class OwnKernel(AsyncKernelManager):
        kernel_spec = property(lambda self: spec)

    return OwnKernel
