"""Arms: the same training with one thing changed, each a folder that is whole or not there.

A finished arm is never trained again; an interrupted one goes on from its last checkpoint. All arms share the start,
the histories and their order, the seeds and the number of tokens, so differences between them come from what the arm
changes.
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rapo_lib.cast import spread
from rapo_lib.dialogue import SeekerProfile, Turn, load_profiles, read_jsonl, to_record
from rapo_lib.evaluation import ModelPolicy, outcomes, reply_metrics, self_play, trajectories
from rapo_lib.feedback import Judge, RubricJudge
from rapo_lib.grid.arms import ARMS, LABELS, WARM, Arm
from rapo_lib.grid.controls import controlled_feedback, controlled_judge
from rapo_lib.judge.oracle_fitted import FIT_ON, OracleFittedJudge, fit_judge, save_judge
from rapo_lib.models import load_adapter, load_model, lora_config
from rapo_lib.profiles import Settings
from rapo_lib.runs import (
    RapoError,
    atomic_folder,
    library_hash,
    plain,
    read_json,
    seed_for,
    stable_hash,
    write_csv,
    write_json,
    write_jsonl,
)
from rapo_lib.sampling import fit
from rapo_lib.seeker import Seeker
from rapo_lib.simulation import Feedback, Rollout, Row, SimulatedFeedback, training_row
from rapo_lib.training import checkpoints, processes
from rapo_lib.training.dpo import judged_start, preference_pairs, train_dpo
from rapo_lib.training.rollouts import RolloutLog, known_rollouts, rollout_record
from rapo_lib.warmstart import WarmStartConfig, warm_start

__all__ = ["ARMS", "LABELS", "WARM", "Arm"]  # defined in `grid.arms`, and looked for here
log = logging.getLogger(__name__)


def start_model(chosen: Settings) -> str:
    """What every arm starts from: the warm-started folder, or the model itself."""
    if not chosen.warm_start:
        return chosen.model
    config = WarmStartConfig(
        epochs=chosen.warm_epochs,
        rank=chosen.lora_rank,
        pairs=chosen.warm_pairs,
    )
    return str(warm_start(config, chosen.model))


def people(split: str, count: int | None = None) -> list[SeekerProfile]:
    """`count` profiles of a split, evenly spaced, for they are listed by problem; None: all of them."""
    everyone = tuple(load_profiles(split))
    return spread(everyone, len(everyone) if count is None else count)


@dataclass(frozen=True, slots=True)
class Domain:
    """What training needs to know about its histories: the start, what the policy is prompted with, whose they are."""

    start: Callable[[Settings], str]  # folder (or name) of the model that every arm starts from
    row: Callable[[Any, Sequence[Turn]], dict[str, Any]]  # the trainer's row for one history
    whose: str = "people"


SUPPORT = Domain(start_model, training_row)


def training_rows(
    histories: Sequence[tuple[SeekerProfile, Sequence[Turn]]],
    tokenizer: PreTrainedTokenizerBase,
    limit: int,
    row: Callable[[Any, Sequence[Turn]], dict[str, Any]] = training_row,
) -> list[dict[str, Any]]:
    """The trainer's rows for (person, history) pairs, prompts cut to `limit` tokens by whole turns."""
    rows = [row(person, history) for person, history in histories]
    return [{**row, "prompt": fit(row["prompt"], tokenizer, limit)} for row in rows]


# ------------------------------------------------------------------------------------------ training


def arm_settings(arm: Arm, chosen: Settings) -> Settings:
    """The run's settings with what the arm changes in them."""
    return replace(chosen, **arm.overrides)


def arm_feedback(
    arm: Arm,
    seeker: Seeker,
    judge: Judge,
    people: Mapping[str, SeekerProfile],
    seed: int,
    watch: Callable[[Rollout], None] | None = None,
) -> Feedback:
    """What the arm's trainer asks: seeker and judge, joined and wrapped as the arm says.

    `judge` is the run's, or the fitted one for an arm that is judged by it. Rollouts keep what the judge wrote, also
    where a control hands something else to the trainer.
    """
    heard = RubricJudge() if arm.judge == "rubric" else controlled_judge(arm.control, judge, seed)
    feedback = SimulatedFeedback(seeker, heard, people, reactions=arm.reactions, seed=seed, watch=watch)
    return controlled_feedback(arm.control, feedback, seed)


def train_arm(
    arm: Arm,
    chosen: Settings,
    histories: Sequence[tuple[SeekerProfile, Sequence[Turn]]],
    seeker: Seeker,
    judge: Judge,
    folder: Path,
    seed: int = 0,
    domain: Domain = SUPPORT,
    judged_by: str = "",
    trainer_options: Mapping[str, Any] | None = None,
) -> Path:
    """Train one arm and write adapter, metrics.csv, rollouts.jsonl and arm.json to `folder`; returns `folder`.

    `judged_by` names a judge that settings and code do not tell apart, such as a learned one, by its hash.

    An interrupted training of the same arm, settings, histories and code goes on from its last checkpoint, kept beside
    `folder` until it is finished, and ends as it would have without the interruption. Several processes share the work
    and the folder (`rapo_lib.train`). `trainer_options` are options of `RAPOConfig` that a run's settings do not have.
    """
    if (folder / "arm.json").is_file():
        log.info("%s is trained already", arm.name)
        return folder
    if not histories:
        raise RapoError("no history to train on; 02_turn_selection selected none")
    chosen = arm_settings(arm, chosen)
    start = domain.start(chosen)
    model, tokenizer = load_model(start, quantization=chosen.quantization)
    rows = training_rows(histories, tokenizer, chosen.prompt_tokens, domain.row)
    job = _Job(arm, chosen, seed, start, model, tokenizer, rows, {p.id: p for p, _ in histories}, domain.whose)
    if arm.judge == "oracle_fitted":
        judge = oracle_judge(model, tokenizer, rows, chosen, histories, seeker, seed)
    if arm.trainer == "dpo":
        _train_on_pairs(job, seeker, judge, folder)
    else:
        _train_on_groups(job, seeker, judge, folder, {"judge": judged_by, "trainer": dict(trainer_options or {})})
    return folder


@dataclass(frozen=True, slots=True)
class _Job:
    """One training with everything that was loaded for it."""

    arm: Arm
    chosen: Settings  # with the arm's overrides
    seed: int
    start: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    rows: list[dict[str, Any]]
    people: Mapping[str, SeekerProfile]
    whose: str  # what people are called in the domain

    def record(self, **facts: Any) -> dict[str, Any]:
        """What arm.json says."""
        return plain({"arm": asdict(self.arm), "settings": asdict(self.chosen), "seed": self.seed, **facts})


def _train_on_pairs(job: _Job, seeker: Seeker, judge: Judge, folder: Path) -> None:
    """DPO on the best and the worst reply of the start to each history, by the arm's verdicts."""
    if processes.count() > 1:
        raise RapoError(f"the arm {job.arm.name} trains in one process")
    rollouts: list[Rollout] = []
    feedback = arm_feedback(job.arm, seeker, judge, job.people, job.seed, rollouts.append)
    with atomic_folder(folder) as building, TemporaryDirectory(prefix="rapo-") as scratch:
        replies = judged_start(job.model, job.tokenizer, job.rows, feedback, job.chosen, job.seed)
        metrics = train_dpo(
            job.model, job.tokenizer, preference_pairs(replies), job.chosen, scratch, building / "adapter", job.seed
        )
        write_csv(building / "metrics.csv", metrics)
        write_jsonl(building / ROLLOUTS, [rollout_record(r) for r in rollouts])
        write_json(building / "arm.json", job.record())


def _train_on_groups(job: _Job, seeker: Seeker, judge: Judge, folder: Path, facts: Mapping[str, Any]) -> None:
    """The hybrid trainer, going on from the last checkpoint of the same training if there is one."""
    from rapo_lib.hybrid import RAPOTrainer  # trl is heavy; only training needs it

    going = folder.with_name(f"{folder.name}.training")
    made_of = [job.record(), job.rows, Path(job.start).name, library_hash(), dict(facts)]
    with processes.one_by_one():
        _open_training(going, stable_hash(made_of))
        last, rollouts = _last_state(going, job.chosen.group * job.chosen.groups)
    kept = RolloutLog(going / ROLLOUTS, rollouts)
    trainer = RAPOTrainer(
        job.model,
        arm_feedback(job.arm, seeker, judge, job.people, job.seed, kept.watch),
        args=_config(job.chosen, str(going), job.seed, facts["trainer"]),
        train_dataset=Dataset.from_list(job.rows),
        processing_class=job.tokenizer,
        peft_config=lora_config(job.chosen.lora_rank, 2 * job.chosen.lora_rank),
        callbacks=[kept],
    )
    trainer.train(last)
    if not processes.first():
        return
    logged = trainer.state.log_history
    with atomic_folder(folder) as building:
        trainer.save_adapter(
            building / "adapter",
            f"{len(job.rows)} histories of {len(job.people)} {job.whose}.",
            {"arm": job.arm.label, "the judge hears reactions": job.arm.reactions},
        )
        if isinstance(judge, OracleFittedJudge):
            save_judge(judge, building / "judge.safetensors")
        write_csv(building / "metrics.csv", step_metrics(logged, rollouts, job.chosen))
        write_jsonl(building / ROLLOUTS, [rollout_record(r) for r in rollouts])
        signs = {e["step"]: e["rapo/collapse"] for e in logged if e.get("rapo/collapse")}
        write_json(building / "arm.json", job.record(**facts, collapse=signs, processes=processes.count()))
    shutil.rmtree(going)


ROLLOUTS = "rollouts.jsonl"


def _open_training(going: Path, key: str) -> None:
    """Make the folder of an unfinished training, emptied unless it belongs to the training with this key."""
    marker = going / "training.json"
    if going.is_dir() and (not marker.is_file() or read_json(marker) != {"key": key}):
        shutil.rmtree(going)
    write_json(marker, {"key": key})


def _last_state(going: Path, size: int) -> tuple[Path | None, list[Rollout]]:
    """The last checkpoint and the rollouts up to it, `size` an update; later ones will be made again, the same."""
    last = checkpoints.latest(going)
    known = known_rollouts(going / ROLLOUTS, checkpoints.step_of(last) * size if last else 0)
    return (None, []) if known is None else (last, known)


def oracle_judge(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    chosen: Settings,
    histories: Sequence[tuple[SeekerProfile, Sequence[Turn]]],
    seeker: Seeker,
    seed: int,
) -> OracleFittedJudge:
    """The reaction-free judge fitted on how the start's replies to the training histories really felt."""
    felt: list[Rollout] = []
    feedback = SimulatedFeedback(
        seeker, RubricJudge(), {p.id: p for p, _ in histories}, reactions=False, seed=seed, watch=felt.append
    )
    judged_start(model, tokenizer, rows, feedback, chosen, seed_for(seed, "oracle"), fewest=FIT_ON)
    return fit_judge(felt)


def _config(chosen: Settings, folder: str, seed: int, given: Mapping[str, Any] | None = None) -> Any:
    """The trainer's configuration; the groups of an update are shared among the processes."""
    from rapo_lib.training.config import RAPOConfig

    if chosen.groups % processes.count():
        raise RapoError(f"{chosen.groups} groups an update cannot be shared by {processes.count()} processes evenly")
    share = replace(chosen, groups=chosen.groups // processes.count())
    options = {
        "output_dir": folder,
        "seed": seed,
        "max_steps": chosen.steps,
        "per_device_train_batch_size": chosen.group * share.groups_at_once,
        "gradient_accumulation_steps": share.groups // share.groups_at_once,
        "gradient_checkpointing": chosen.gradient_checkpointing,
        "num_generations": chosen.group,
        "max_completion_length": chosen.reply_tokens,
        "temperature": chosen.temperature,
        "learning_rate": chosen.learning_rate,
        "distillation_weight": chosen.weight,
        "teacher_note": chosen.teacher_note,
        "beta": chosen.beta,
        "policy_scale": chosen.policy_scale,
        "save_strategy": "steps" if chosen.save_steps else "no",
        "save_steps": chosen.save_steps or 1,
        "prefetch": chosen.prefetch,
    }
    return RAPOConfig(**{**options, **(given or {})})


STEP_COLUMNS = {
    "rapo/policy_loss": "policy_loss",
    "rapo/distillation_loss": "distillation_loss",
    "rapo/entropy": "entropy",
    "rapo/kl_to_start": "kl_to_start",
    "rapo/repetition": "repetition",
    "rapo/sameness": "sameness",
    "rapo/abstained": "abstained",
    "rapo/dropped_updates": "dropped_updates",
    "grad_norm": "grad_norm",
    "completions/mean_length": "reply_tokens",
    "self_distillation/flat_group_fraction": "flat_groups",
}


def step_metrics(logged: Sequence[Mapping[str, Any]], rollouts: Sequence[Rollout], chosen: Settings) -> pd.DataFrame:
    """One row per update: the trainer's numbers, and how that step's replies changed the true emotion."""
    steps = pd.DataFrame([{new: e.get(old) for old, new in STEP_COLUMNS.items()} for e in logged if "loss" in e])
    size = chosen.group * chosen.groups
    felt = [r.emotion - r.before for r in rollouts]
    steps.insert(0, "step", range(1, len(steps) + 1))
    steps["change"] = [pd.Series(felt[i * size : (i + 1) * size]).mean() for i in range(len(steps))]
    return steps.astype(float)


# ---------------------------------------------------------------------------------------- evaluation


def load_policy(chosen: Settings, arm_folder: Path | None) -> ModelPolicy:
    """The policy of a trained arm, or the start itself for None."""
    return policy_of(*load_arm(start_model(chosen), arm_folder, chosen.quantization), chosen)


def load_arm(start: str, arm_folder: Path | None, quantization: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of a trained arm and its tokenizer; the start itself for None."""
    model, tokenizer = load_model(start, quantization=quantization)
    if arm_folder is not None:
        model = load_adapter(model, arm_folder / "adapter").eval()
    return model, tokenizer


def policy_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, chosen: Settings) -> ModelPolicy:
    """A model as a policy with the run's limits."""
    return ModelPolicy(
        model=model,
        tokenizer=tokenizer,
        prompt_tokens=chosen.prompt_tokens,
        reply_tokens=chosen.reply_tokens,
        temperature=chosen.temperature,
    )


def evaluate(
    policy: ModelPolicy, profiles: Sequence[SeekerProfile], seeker: Seeker, turns: int, folder: Path, seed: int = 0
) -> Path:
    """Self-play with `profiles`; writes dialogues.jsonl, trajectories.csv, outcomes.csv and replies.csv to `folder`."""
    if folder.is_dir():
        log.info("%s is evaluated already", folder.name)
        return folder
    dialogues = self_play(policy, profiles, seeker, turns=turns, seed=seed)
    with atomic_folder(folder) as building:
        write_jsonl(building / "dialogues.jsonl", [to_record(d) for d in dialogues])
        write_csv(building / "trajectories.csv", trajectories(dialogues))
        write_csv(building / "outcomes.csv", outcomes(dialogues))
        write_csv(building / "replies.csv", reply_metrics(dialogues))
    return folder


def gather(folders: Mapping[str, Path], table: str) -> pd.DataFrame:
    """The same table of several evaluations in one, with the arm's name in column `arm`."""
    frames = [pd.read_csv(folder / f"{table}.csv").assign(arm=name) for name, folder in folders.items()]
    return pd.concat(frames, ignore_index=True)


def read_pairs(path: Path, people: Mapping[str, SeekerProfile]) -> list[tuple[SeekerProfile, tuple[Turn, ...]]]:
    """(person, history) pairs as 02 writes them: {"profile": id, "history": [turns]}."""
    pairs = []
    for number, record in enumerate(read_jsonl(path), start=1):
        if record["profile"] not in people:
            raise RapoError(f"{path}, record {number}: unknown profile {record['profile']!r}; run 01 and 02 again")
        pairs.append((people[record["profile"]], tuple(Turn(t["speaker"], t["text"]) for t in record["history"])))
    return pairs
