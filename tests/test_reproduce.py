"""The runner, on tiny notebooks through real papermill and real kernels."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from rapo_lib import report, runs
from rapo_lib.cli import main
from rapo_lib.parameters import convert, read_parameters, resolve
from rapo_lib.progress import Progress, duration
from rapo_lib.reproduce import discover, only_one, reproduce, select
from rapo_lib.runs import RapoError

PARAMETERS = """
run: str = "notebook"
profile: str = "smoke"
steps: int = 2  # how many
rate: float = 1e-3
fast: bool = True
"""
START = """
from rapo_lib.runs import run_dir, start_stage, write_text
stage = start_stage(run_dir(run), {name!r}, dict(profile=profile, steps=steps, rate=rate, fast=fast), inputs={inputs})
"""
FINISH = "stage.finish()"
DRAW = """
import matplotlib.pyplot as plt
fig, ax = plt.subplots(figsize=(1, 1))
fig.savefig(stage.path("figures/emotion_by_turn.png"))
write_text(stage.path("figures/emotion_by_turn.json"), '{"caption": "<script>alert(1)</script> &"}')
"""


def make_notebook(
    folder: Path, name: str, *body: str, inputs: str = "[]", kernel: str = "python3", finish: bool = True
) -> Path:
    """A notebook with our anatomy: title, parameters, start, `body`, finish."""
    cells = [nbformat.v4.new_markdown_cell(f"# {name}"), nbformat.v4.new_code_cell(PARAMETERS)]
    cells[1].metadata["tags"] = ["parameters"]
    sources = [START.format(name=name, inputs=inputs), *body, *([FINISH] if finish else [])]
    cells += [nbformat.v4.new_code_cell(textwrap.dedent(source).strip()) for source in sources]
    spec = {"name": kernel, "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec})
    folder.mkdir(exist_ok=True)
    nbformat.write(notebook, folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


@pytest.fixture
def notebooks(tmp_path):
    return tmp_path / "note {books}"  # papermill would take the braces for a placeholder


# ---------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        ("true", "bool", True), ("False", "bool", False), ("1", "bool", True), ("0", "bool", False),
        (True, "bool", True),
        ("7", "int", 7), ("-3", "int", -3), ("007", "int", 7),
        ("1e-5", "float", 1e-5), (".5", "float", 0.5), ("3", "float", 3.0), (3, "float", 3.0),
        ("true", "str", "true"), ("1e-5", "str", "1e-5"), ("a=b", "str", "a=b"),
        ("[1, 2]", "list[int]", [1, 2]), ((1, 2), "list[float]", [1.0, 2.0]), ('["a"]', "list", ["a"]),
        ('{"a": 1}', "dict", {"a": 1}),
        ("none", "int | None", None), ("4", "int | None", 4), ("x", "str | None", "x"), (None, "str | None", None),
    ],
)  # fmt: skip
def test_values_take_the_declared_type(given, kind, value):
    converted = convert(given, kind)
    assert converted == value and type(converted) is type(value)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("yes", "bool"), (1, "bool"), ("1.5", "int"), (1.0, "int"), (True, "int"), ("1_000", "int"), ("", "int"),
        ("nan", "float"), ("inf", "float"), (float("nan"), "float"), (True, "float"), (3, "str"),
        ("[1, x]", "list[int]"), ('["1"]', "list[int]"),
        ("1", "list"), ("x", "int | None"), ("1", "Path"), ("1", "tuple[int]"),
    ],
)  # fmt: skip
def test_values_of_another_type_are_errors(given, kind):
    with pytest.raises(ValueError, match=r"expected |annotation "):
        convert(given, kind)


def test_parameters_are_read_without_running_the_notebook(notebooks):
    found = read_parameters(make_notebook(notebooks, "01_a"))
    assert {name: (p.kind, p.default) for name, p in found.items()} == {
        "run": ("str", "notebook"), "profile": ("str", "smoke"), "steps": ("int", 2), "rate": ("float", 1e-3),
        "fast": ("bool", True),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("alpha: int = 2 * 3", "only a literal"),
        ("alpha: int = 'x'", "expected int, found 'x'"),
        ("import os", "is not `name: type = literal`"),
        ("alpha: int", "is not `name: type = literal`"),
        ("alpha =", "invalid syntax"),
        ("alpha: int = 1", "must declare `run: str`"),
    ],
)
def test_a_bad_parameters_cell_is_named(notebooks, source, complaint):
    path = make_notebook(notebooks, "01_a")
    notebook = nbformat.read(path, 4)
    notebook.cells[1].source = source
    nbformat.write(notebook, path)
    with pytest.raises(RapoError, match=rf"01_a\.ipynb.*{complaint}"):
        read_parameters(path)
    notebook.cells[1].metadata.clear()
    nbformat.write(notebook, path)
    with pytest.raises(RapoError, match="expected one code cell tagged 'parameters', found 0"):
        read_parameters(path)


def test_overrides_go_where_they_are_declared(notebooks):
    first = read_parameters(make_notebook(notebooks, "01_a"))
    second = {name: p for name, p in first.items() if name != "steps"}
    values = resolve({"01_a": first, "02_b": second}, {"steps": "5", "fast": "0"}, "mine", "gpu")
    assert values["01_a"] == {"run": "mine", "profile": "gpu", "steps": 5, "rate": 1e-3, "fast": False}
    assert values["02_b"] == {"run": "mine", "profile": "gpu", "rate": 1e-3, "fast": False}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--set", "step=5"], "unknown parameter 'step': did you mean 'steps'?"),
        (["--set", "steps=many"], "parameter 'steps' of 01_a: expected int, found 'many'"),
        (["--set", "fast=maybe"], "parameter 'fast' of 01_a: expected bool, found 'maybe'"),
        (["--set", "run=x"], "set 'run' with --run"),
        (["--profile", "smok"], "unknown profile 'smok': did you mean 'smoke'?"),
        (["--run", "../x"], "'../x' cannot name a run"),
        (["--notebooks", "01-09"], "no notebooks 01-09; there are 01"),
        (["--notebooks", "one"], "cannot read 'one' as notebook numbers"),
        (["--cell-timeout", "-1"], "the time limit of a cell must be more than 0 seconds"),
    ],
)
def test_bad_input_is_one_line_and_runs_nothing(notebooks, outputs, arguments, complaint, monkeypatch, capsys):
    make_notebook(notebooks, "01_a")
    monkeypatch.setattr("rapo_lib.reproduce.reproduce.__defaults__", (*reproduce.__defaults__[:-1], notebooks))
    assert main(["reproduce", *arguments]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"rapo: {complaint}") and message.count("\n") == 1
    assert not outputs.exists()


def test_selecting_notebooks(notebooks):
    for name in ("01_a", "02_b", "03_c", "05_e", "06_f"):
        make_notebook(notebooks, name)
    (notebooks / "draft.ipynb").write_text("{}", encoding="utf-8")
    every = discover(notebooks)
    assert [p.stem for p in every] == ["01_a", "02_b", "03_c", "05_e", "06_f"]
    assert [p.stem for p in select(every, "5, 01-02")] == ["01_a", "02_b", "05_e"]
    assert select(every, "01-06") == every and [p.stem for p in select(every, "6")] == ["06_f"]
    assert select(every, None) == every[:4], "what comes after 05 runs only when it is named"
    with pytest.raises(RapoError, match="no notebooks"):
        discover(notebooks / "nowhere")


# ---------------------------------------------------------------------------------------------- execution


def test_a_series_runs_is_skipped_and_is_redone_when_something_changed(notebooks, outputs, capsys):
    """Two notebooks: the second reads what the first wrote, draws, and shows a script tag."""
    make_notebook(notebooks, "01_a", "write_text(stage.path('a.txt'), f'{steps} {fast}')", kernel="conda-env-author")
    show = """
    from IPython.display import HTML
    print("<script>alert(2)</script>")
    HTML("<b onclick=x>bold</b><script>alert(3)</script>")
    """
    where = (
        "from pathlib import Path; import sys; write_text(stage.path('where.txt'), f'{Path.cwd()}\\n{sys.executable}')"
    )
    make_notebook(notebooks, "02_b", DRAW, show, where, "fig", inputs="[run_dir(run) / '01_a' / 'a.txt']")
    series = {"profile": "smoke", "run": "tiny", "folder": notebooks}

    index = reproduce(overrides={"fast": "false"}, **series)
    run = outputs / "tiny"
    assert (run / "01_a" / "a.txt").read_text("utf-8") == "2 False"
    assert (run / "02_b" / "where.txt").read_text("utf-8").splitlines() == [str(notebooks), sys.executable]
    assert runs.read_stage(run, "02_b")["parameters"]["profile"] == "smoke"
    assert not list(run.rglob("*.tmp"))
    page = (run / "02_b.html").read_text("utf-8")
    assert "&lt;script&gt;alert(2)" in page and "&lt;script&gt;alert(3)" in page and "<b>bold</b>" in page
    assert "<script>alert(" not in page and "onclick=x" not in page.split("<b>bold")[1][:99]
    assert "<h1" in page and "data:image/png;base64" in page
    listed = index.read_text("utf-8")
    assert '<a href="01_a.html">01_a</a>' in listed and '<img src="02_b/figures/emotion_by_turn.png"' in listed
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp;" in listed and "<script>" not in listed

    capsys.readouterr()
    stamps = {name: (run / f"{name}.ipynb").stat().st_mtime_ns for name in ("01_a", "02_b")}
    reproduce(overrides={"fast": "0"}, **series)
    assert capsys.readouterr().err.count("skipped: finished before, nothing changed") == 2
    assert stamps == {name: (run / f"{name}.ipynb").stat().st_mtime_ns for name in stamps}

    (run / "01_a" / "a.txt").write_text("cut", encoding="utf-8")
    reproduce(overrides={"fast": "0"}, **series)  # 01 is redone and comes out the same, so 02 still holds
    told = capsys.readouterr().err
    assert "01_a  again" in told and "a.txt is damaged: 3 bytes instead of 7" in told and "02_b  skipped" in told

    reproduce(overrides={"fast": "0"}, notebooks="01", fresh=True, **series)
    told = capsys.readouterr().err
    assert "01_a  again: --fresh" in told and "02_b" not in told

    reproduce(overrides={"fast": "1"}, notebooks="01", **series)
    assert "01_a  again: its parameters changed" in capsys.readouterr().err


def test_a_failing_cell_is_named_and_nothing_counts_as_finished(notebooks, outputs):
    make_notebook(notebooks, "01_a", "x = 1", "# divide\n\nx / 0")
    with pytest.raises(RapoError) as caught:
        reproduce("smoke", folder=notebooks)
    first, *tail = str(caught.value).splitlines()
    failed = outputs / "smoke" / "01_a.failed.ipynb"
    assert first == f"01_a.ipynb, cell 5 (`# divide`): ZeroDivisionError: division by zero; see {failed}"
    assert any("x / 0" in line for line in tail)
    assert "ZeroDivisionError" in failed.read_text("utf-8")
    assert not (outputs / "smoke" / "01_a.ipynb").exists() and not (outputs / "smoke" / "index.html").exists()


def test_a_killed_kernel_is_reported(notebooks, outputs, monkeypatch, capsys):
    make_notebook(notebooks, "01_a", "import os, signal", "os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr("rapo_lib.reproduce.reproduce.__defaults__", (*reproduce.__defaults__[:-1], notebooks))
    assert main(["reproduce", "--profile", "smoke"]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(
        "rapo: 01_a.ipynb, cell 5 (`os.kill(os.getpid(), signal.SIGKILL)`): kernel died (out of memory?)"
    )
    assert not (outputs / "smoke" / "01_a.ipynb").exists()


def test_a_cell_that_hangs_is_stopped(notebooks):
    make_notebook(notebooks, "01_a", "import time; time.sleep(600)")
    with pytest.raises(RapoError, match=r"01_a.ipynb, cell 4 .*: stopped after 3 s, the limit for a cell"):
        reproduce("smoke", cell_timeout=3, folder=notebooks)


def test_a_notebook_that_stops_early_without_an_error_is_not_finished(notebooks, outputs):
    make_notebook(notebooks, "01_a", finish=False)
    old = runs.start_stage(outputs / "smoke", "01_a", {})
    old.finish()  # the mark of an earlier execution must not count
    with pytest.raises(RapoError, match=r"01_a.ipynb ended without its completion mark"):
        reproduce("smoke", folder=notebooks)


def test_two_runners_cannot_share_a_run(notebooks, outputs):
    make_notebook(notebooks, "01_a")
    with (
        only_one(outputs / "smoke"),
        pytest.raises(RapoError, match=rf"process {os.getpid()} is already executing run 'smoke'"),
    ):
        reproduce("smoke", folder=notebooks)


# ---------------------------------------------------------------------------------------------- interruption

RUNNER = """
import sys
from pathlib import Path
from rapo_lib.reproduce import reproduce
reproduce("smoke", folder=Path(sys.argv[1]))
"""
WAIT = """
import os, time
if not stage.path("second_time").exists():
    write_text(stage.path("second_time"), "")
    write_text(run_dir(run) / "kernel.pid", str(os.getpid()))
    time.sleep(600)
"""


def wait_until(happened: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_goes_on_where_it_stopped(notebooks, outputs, tmp_path, how):
    make_notebook(notebooks, "01_a", "write_text(stage.path('a.txt'), 'a')")
    make_notebook(notebooks, "02_b", WAIT)
    shutil.copytree(runs.ROOT / "rapo_lib", tmp_path / "rapo_lib")  # a library that nobody edits meanwhile
    command = [sys.executable, "-c", RUNNER, notebooks]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    mark = outputs / "smoke" / "kernel.pid"
    wait_until(lambda: mark.exists() or process.poll() is not None)
    kernel = int(mark.read_text("utf-8"))
    os.killpg(process.pid, how)
    process.communicate(timeout=30)
    assert process.returncode != 0
    wait_until(lambda: not alive(kernel))
    assert not alive(kernel)  # no orphan goes on writing into the run
    assert not (outputs / "smoke" / "02_b.ipynb").exists()
    first = (outputs / "smoke" / "01_a.ipynb").stat().st_mtime_ns

    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "01_a  skipped" in again.stderr
    assert (outputs / "smoke" / "01_a.ipynb").stat().st_mtime_ns == first
    assert runs.read_stage(outputs / "smoke", "02_b")["completed"]
    left = [p.name for p in (outputs / "smoke").rglob("*") if p.name.endswith((".tmp", ".partial.ipynb"))]
    assert left == []


# ---------------------------------------------------------------------------------------------- what is shown


def test_html_keeps_tables_and_drops_what_runs():
    table = '<style scoped>th {color: red}</style><table class="dataframe"><thead><tr><th>a</th></tr></thead></table>'
    assert report.safe_html(table) == '<table class="dataframe"><thead><tr><th>a</th></tr></thead></table>'
    assert report.safe_html('<a href="javascript:x">a</a><img src=x onerror=y>') == '<a>a</a><img src="x">'
    assert "<script" not in report.safe_html("<style>a</style><scr<style>b</style>ipt>x</script>")


def test_progress_is_plain_lines_in_a_log(tmp_path):
    path = tmp_path / "log"
    with (
        path.open("w", encoding="utf-8") as stream,
        Progress("04_train", 10, expected=90, unit="cell ", stream=stream) as shown,
    ):
        shown.done = 5
        assert shown.line() == "04_train  cell 5/10  0s of about 1m30s"
        shown.expected, shown.started = None, shown.started - 60
        assert shown.line() == "04_train  cell 5/10  1m00s of about 2m00s"
    assert path.read_text("utf-8") == "04_train  done in 1m00s\n"
    assert [duration(s) for s in (0.4, 59, 60, 3725)] == ["0s", "59s", "1m00s", "1h02m"]
