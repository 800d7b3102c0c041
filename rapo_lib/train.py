"""Train one arm in several processes: `accelerate launch --config_file FILE -m rapo_lib.train`, or in one without it.

Reads the histories that notebook 02 left in a run and writes `outputs/<run>/trained/<arm>-seed-<n>/`, as notebook 04
does for its one arm: adapter with its card, metrics, rollouts. `rapo evaluate --adapter` measures it. Ready files for
`--config_file` are in `rapo_lib/data/accelerate/`; stopped, the same command goes on from the last checkpoint.
"""

import argparse
import logging
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rapo_lib.cli import override
from rapo_lib.parameters import convert, suggestion
from rapo_lib.runs import RapoError, require, run_dir


def trainer_options(given: Mapping[str, str]) -> dict[str, Any]:
    """Options of the trainer, trl's own among them, from text; a RapoError names what is unknown or wrong."""
    from rapo_lib.training.config import RAPOConfig

    kinds = {f.name: getattr(f.type, "__name__", str(f.type)) for f in fields(RAPOConfig)}
    found = {}
    for name, text in given.items():
        if name not in kinds:
            raise RapoError(f"unknown trainer option {name!r}; {suggestion(name, kinds)}")
        try:
            found[name] = convert(text, kinds[name])
        except ValueError as error:
            raise RapoError(f"trainer option {name!r}: {error}") from None
    return found


def train(options: argparse.Namespace) -> Path:
    """Train as the command line says; returns the arm's folder."""
    from accelerate import PartialState

    from rapo_lib import ablation
    from rapo_lib.cast import people_of
    from rapo_lib.lm.roles import make_roles
    from rapo_lib.models import device
    from rapo_lib.profiles import settings_from_text
    from rapo_lib.training import processes

    PartialState(cpu=device().type == "cpu")  # each process takes its own GPU before a model is loaded
    chosen = settings_from_text(options.profile, dict(options.overrides))
    folder = run_dir(options.run or options.profile)
    source = require(folder / "02_turn_selection" / "histories.jsonl", made_by="02_turn_selection")
    with processes.one_by_one():
        ablation.start_model(chosen)  # made once, then found
    roles = make_roles(chosen, folder)
    return ablation.train_arm(
        ablation.ARMS[options.arm],
        chosen,
        ablation.read_pairs(source, people_of(folder)),
        roles.seeker,
        roles.judge,
        folder / "trained" / f"{options.arm}-seed-{options.seed}",
        options.seed,
        trainer_options(dict(options.trainer)),
    )


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    from rapo_lib.grid.arms import ARMS

    cli = argparse.ArgumentParser(prog="python -m rapo_lib.train", description=__doc__)
    cli.add_argument("--profile", default="gpu", help="smoke, cpu or gpu (default)")
    cli.add_argument("--run", help="folder under outputs/ (default: the profile's name)")
    cli.add_argument("--arm", default="full", choices=[n for n, a in ARMS.items() if a.trainer == "hybrid"])
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--set", dest="overrides", type=override, action="append", default=[], metavar="NAME=VALUE",
                     help="a setting of the run, as for rapo reproduce; several times")  # fmt: skip
    cli.add_argument("--trainer", type=override, action="append", default=[], metavar="NAME=VALUE",
                     help="an option of RAPOConfig, e.g. use_vllm=true vllm_mode=server; several times")  # fmt: skip
    return cli


def main(arguments: list[str] | None = None) -> int:
    """0 on success, 1 when something the user can mend is wrong."""
    options = build_parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    try:
        train(options)
    except RapoError as error:
        sys.stderr.write(f"rapo: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
