"""DPO on the best and the worst reply of each verdict: what preference pairs make of the same feedback.

RAPO's human evaluation compares with CPO, whose details are not public; DPO stands in for it, and is labelled so.
Offline: as many replies as another arm would train on are sampled from the start, judged once, and paired. The
reference model is the start itself (the adapter switched off). trl's DPOTrainer does the rest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback

from rapo_lib.feedback import Verdict
from rapo_lib.models import best_dtype, device, lora_config
from rapo_lib.profiles import Settings
from rapo_lib.runs import RapoError, atomic_folder, seed_for
from rapo_lib.sampling import sample_replies
from rapo_lib.simulation import Feedback, Row

BETA = 0.1  # DPO's usual value; ours here


@dataclass(frozen=True, slots=True)
class Judged:
    """Replies of the start to training histories, and what was said about them."""

    rows: tuple[Row, ...]
    replies: tuple[tuple[str, ...], ...]
    verdicts: tuple[Verdict, ...]


def judged_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    feedback: Feedback,
    chosen: Settings,
    seed: int,
    fewest: int = 0,
) -> Judged:
    """As many groups of the start's replies as a training run asks about (steps x groups), histories in turn.

    At least `fewest` replies, where something must be fitted on them.
    """
    groups = max(chosen.steps * chosen.groups, math.ceil(fewest / chosen.group))
    wanted = [rows[i % len(rows)] for i in range(groups)]
    replies = sample_replies(
        model,
        tokenizer,
        [row["prompt"] for row in wanted],
        group=chosen.group,
        max_new_tokens=chosen.reply_tokens,
        temperature=chosen.temperature,
        seed=seed_for(seed, "start replies"),
    )
    verdicts: list[Verdict] = []
    for start in range(0, len(wanted), chosen.groups):  # a step at a time, as in training
        part = slice(start, start + chosen.groups)
        verdicts += feedback(wanted[part], replies[part])
    return Judged(tuple(wanted), tuple(replies), tuple(verdicts))


def preference_pairs(judged: Judged) -> list[dict[str, Any]]:
    """One row (prompt, chosen, rejected) for each group whose best and worst reply differ in score and in words."""
    pairs = []
    for row, group, verdict in zip(judged.rows, judged.replies, judged.verdicts, strict=True):
        best, worst = verdict.ranking[0], verdict.ranking[-1]
        if verdict.scores is None or verdict.scores[best] <= verdict.scores[worst] or group[best] == group[worst]:
            continue
        said = {"chosen": group[best], "rejected": group[worst]}
        pairs.append(
            {"prompt": row["prompt"], **{k: [{"role": "assistant", "content": text}] for k, text in said.items()}}
        )
    return pairs


def train_dpo(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[dict[str, Any]],
    chosen: Settings,
    scratch: str,
    adapter: Path,
    seed: int,
) -> pd.DataFrame:
    """Train a LoRA adapter on the pairs, write it to `adapter`, and return one row of numbers per update."""
    from trl import DPOConfig, DPOTrainer  # heavy; only this arm needs it

    if not pairs:
        raise RapoError("the judge preferred no reply to another, so there is no pair to train on")
    trainer = DPOTrainer(
        model=model,
        args=DPOConfig(
            output_dir=scratch,
            seed=seed,
            beta=BETA,
            max_steps=chosen.steps,
            learning_rate=chosen.learning_rate,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=2,
            per_device_train_batch_size=chosen.groups,
            max_length=None,
            gradient_checkpointing=False,
            use_cpu=device().type == "cpu",
            bf16=str(best_dtype()) == "torch.bfloat16",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(list(pairs)),
        processing_class=tokenizer,
        peft_config=lora_config(chosen.lora_rank, 2 * chosen.lora_rank),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    with atomic_folder(adapter) as building:
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(building, selected_adapters=["default"])
    return dpo_metrics(trainer.state.log_history)


DPO_COLUMNS = {"loss": "loss", "rewards/accuracies": "accuracy", "rewards/margins": "margin", "grad_norm": "grad_norm"}


def dpo_metrics(logged: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row per update."""
    steps = pd.DataFrame([{new: e.get(old) for old, new in DPO_COLUMNS.items()} for e in logged if "loss" in e])
    steps.insert(0, "step", range(1, len(steps) + 1))
    return steps.astype(float)
