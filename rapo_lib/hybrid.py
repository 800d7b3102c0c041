"""RAPO's optimiser: GRPO on the judge's scores, blended with distillation towards the critique-conditioned teacher.

A thin subclass of trl's experimental SDPOTrainer (this is the only module that imports it). Deviations, all ours:

1. Feedback is about *these* rollouts. In trl it is a dataset column, read before the rewards exist; here every group
   of fresh replies goes to a `Feedback`, its scores become the rewards and its critiques the teacher's context.
2. The teacher prompt is made for dialogue: the history as it is, the critique as a note behind the seeker's last
   words. The student's own reply is never shown to the teacher (it collapses entropy, SDPO's ablation).
3. An abstained verdict gives its group advantage 0 and no distillation, and is counted.
4. Prompts are computed once per group, in sampling, student and teacher (see `packing`); `fast=False` is trl's path.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from rapo_lib import losses
from rapo_lib.dialogue import Message
from rapo_lib.feedback import Verdict
from rapo_lib.models import best_dtype, device, merged
from rapo_lib.packed import packed
from rapo_lib.packing import pack, runs_of_equal
from rapo_lib.runs import RapoError, atomic_folder
from rapo_lib.sampling import pad_left, prompt_ids, sample_ids
from rapo_lib.simulation import Feedback

NOTES = ("critique", "critique_and_reaction", "critique_and_sibling")


@dataclass
class RAPOConfig(SDPOConfig):
    """trl's SDPOConfig with the defaults of this project; every value is ours unless marked."""

    per_device_train_batch_size: int = field(default=16, metadata={"help": "replies a step: groups x G"})
    num_generations: int = field(default=4, metadata={"help": "G, replies in a group"})
    max_completion_length: int = field(default=32, metadata={"help": "tokens of a reply"})
    max_prompt_length: int | None = field(default=None, metadata={"help": "histories are cut by whole turns before"})
    temperature: float = field(default=1.0, metadata={"help": "of sampling, and of the logits in the loss"})
    learning_rate: float = field(default=3e-4, metadata={"help": "LoRA's"})
    lr_scheduler_type: str = field(default="constant_with_warmup", metadata={"help": ""})
    warmup_steps: float = field(default=2, metadata={"help": "steps"})
    loss_type: str = field(
        default="grpo", metadata={"help": "mean over tokens, then over replies, as the distillation"}
    )
    scale_rewards: str = field(default="group", metadata={"help": "advantage = (s - mean) / (std + eps)"})
    distillation_weight: float = field(default=0.5, metadata={"help": "w: 0 is GRPO alone, 1 distillation alone"})
    distillation_mode: str = field(default="topk_logits", metadata={"help": "SDPO's: student's top-k"})
    distillation_topk: int = field(default=50, metadata={"help": "k"})
    distillation_alpha: float = field(default=0.5, metadata={"help": "Jensen-Shannon; SDPO's default"})
    distillation_add_tail: bool = field(default=True, metadata={"help": "SDPO's"})
    teacher_model_kind: str = field(default="ema", metadata={"help": "SDPO's"})
    teacher_update_rate: float = field(default=0.05, metadata={"help": "SDPO's default"})
    teacher_note: str = field(default="critique", metadata={"help": f"what the teacher sees: {NOTES}"})
    use_successful_as_teacher: bool = field(default=False, metadata={"help": "a judge's ranking has no threshold"})
    gradient_checkpointing: bool = field(
        default=False, metadata={"help": "off: short rows, and generation needs a cache"}
    )
    remove_unused_columns: bool = field(default=False, metadata={"help": "profile and history reach the feedback"})
    bf16: bool | None = field(default_factory=lambda: best_dtype() == torch.bfloat16, metadata={"help": ""})
    use_cpu: bool = field(default_factory=lambda: device().type == "cpu", metadata={"help": ""})
    report_to: Any = field(default="none", metadata={"help": "files only"})
    logging_steps: float = field(default=1, metadata={"help": ""})
    save_strategy: str = field(default="no", metadata={"help": ""})
    disable_tqdm: bool | None = field(default=True, metadata={"help": ""})
    fast: bool = field(default=True, metadata={"help": "share prompts within a group; False is trl's own path"})

    def __post_init__(self) -> None:
        if self.teacher_note not in NOTES:
            raise RapoError(f"unknown teacher_note {self.teacher_note!r}; known: {', '.join(NOTES)}")
        super().__post_init__()


def teacher_messages(prompt: list[Message], critique: str, reaction: str | None, sibling: str | None) -> list[Message]:
    """The student's prompt with a note behind the seeker's last words; nothing else changes.

    Placed last, the whole history stays a common prefix of the group (computed once), and the note moves this
    small model more than one in the system message (+0.25 against +0.17 nats a token for a listening reply).
    """
    parts = [critique.strip()]
    if reaction:
        parts.insert(0, f'An earlier reply got this answer: "{reaction.strip()}"')
    if sibling:
        parts.append(f'A reply that was received better: "{sibling.strip()}"')
    last = prompt[-1]
    note = f"{last['content']}\n\n(Note to the supporter: {' '.join(parts)})"
    return [*prompt[:-1], {**last, "content": note}]


Note = tuple[str, str | None, str | None]  # critique, reaction, better sibling


def verdict_notes(verdict: Verdict, replies: Sequence[str], kind: str) -> list[Note | None]:
    """What the teacher is told about each reply of a group, or None where it sits out (an abstention)."""
    if verdict.scores is None:
        return [None] * len(replies)
    best = max(range(len(replies)), key=lambda i: verdict.scores[i])
    notes: list[Note | None] = []
    for i, critique in enumerate(verdict.critiques):
        reaction = verdict.reactions[i] if kind == "critique_and_reaction" and verdict.reactions else None
        sibling = replies[best] if kind == "critique_and_sibling" and verdict.scores[best] > verdict.scores[i] else None
        notes.append((critique, reaction, sibling) if critique.strip() else None)
    return notes


class CritiqueContext:
    """Stands in for trl's teacher context builder: prompts from the verdicts that the trainer holds for this batch."""

    def __init__(self, trainer: "RAPOTrainer") -> None:
        self.trainer = trainer
        self.last_metrics: dict[str, float] = {}

    def build(
        self, output: dict[str, Tensor], prompts: list[list[Message]], rewards: Tensor, feedbacks: Any = None
    ) -> dict[str, Tensor]:
        """Teacher ids and mask, left-padded prompts followed by the student's own replies, and who takes part."""
        trainer = self.trainer
        notes = [
            note
            for verdict, replies in zip(trainer.verdicts, trainer.groups, strict=True)
            for note in verdict_notes(verdict, replies, trainer.args.teacher_note)
        ]
        messages = [teacher_messages(p, *note) if note else p for p, note in zip(prompts, notes, strict=True)]
        active = torch.tensor([float(note is not None) for note in notes], device=rewards.device)
        self.last_metrics = {
            "self_distillation/reprompt_sample_fraction": active.mean().item(),
            "rapo/abstained": sum(v.scores is None for v in trainer.verdicts) / len(trainer.verdicts),
        }
        tokenizer = trainer.processing_class
        ids, mask = pad_left([prompt_ids(m, tokenizer) for m in messages], tokenizer.pad_token_id)
        return {
            "teacher_input_ids": torch.cat([ids.to(rewards.device), output["completion_ids"]], dim=1),
            "teacher_attention_mask": torch.cat([mask.to(rewards.device), output["completion_mask"]], dim=1),
            "self_distillation_mask": active,
        }


class EMATeacher(TrainerCallback):
    """The teacher q: a second LoRA adapter, a copy of the student's at the start, then q <- (1 - u) q + u pi.

    trl's own callback starts the copy at zero weights, so that A and B both creep up from zero; starting from the
    student's A (and B = 0) is the same function at step 0 and a true average of the student's weights afterwards.
    """

    def __init__(self, model: PeftModel, rate: float) -> None:
        model.add_adapter("teacher", model.peft_config["default"])
        named = dict(model.named_parameters())
        self.pairs = [(named[n.replace(".default.", ".teacher.")], p) for n, p in named.items() if ".default." in n]
        self.rate = rate
        for teacher, student in self.pairs:
            teacher.data.copy_(student.data)
            teacher.requires_grad_(False)

    @torch.no_grad()
    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Move the teacher after each update."""
        for teacher, student in self.pairs:
            teacher.lerp_(student, self.rate)


class RAPOTrainer(SDPOTrainer):
    """Trains a LoRA policy on what a `Feedback` says about its own fresh replies.

    `train_dataset` has the columns of `simulation.training_row`. After `train()`, `save_adapter` writes the result.
    Raises RapoError if nothing is trainable or the group size does not divide the batch.
    """

    _tag_names = ["trl", "rapo"]

    def __init__(
        self,
        model: PreTrainedModel,
        feedback: Feedback,
        args: RAPOConfig,
        train_dataset: Dataset,
        processing_class: PreTrainedTokenizerBase,
        peft_config: LoraConfig,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        self.feedback = feedback
        self.groups: list[tuple[str, ...]] = []  # this batch's replies, a tuple a group
        self.verdicts: list[Verdict] = []  # and what was said about them
        super().__init__(
            model=model,
            reward_funcs=_asked_in_groups,
            args=args,
            train_dataset=train_dataset,
            processing_class=processing_class,
            peft_config=peft_config,
            callbacks=callbacks,
        )
        self.remove_callback(PrinterCallback)  # the log history is kept; nothing prints
        self.teacher_context_builder = CritiqueContext(self)
        if not any(p.requires_grad for p in self.model.parameters()):
            raise RapoError("no parameter is trainable; load the adapter with trainable=True or pass a LoraConfig")

    def _setup_teacher_model(self) -> None:
        if self.args.teacher_model_kind != "ema":
            return super()._setup_teacher_model()
        self.teacher_model = self.model
        self.add_callback(EMATeacher(self.model, self.args.teacher_update_rate))
        return None

    # ------------------------------------------------------------------------------- rollouts and feedback

    def _generate_transformers(self, ids: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
        runs = runs_of_equal(ids)
        if not self.args.fast or len(set(runs)) != 1:
            return super()._generate_transformers(ids)
        self.model.eval()
        with merged(self.model), packed(self.model):
            replies = sample_ids(
                self.model,
                ids[:: runs[0]],
                group=runs[0],
                max_new_tokens=self.max_completion_length,
                eos=self.eos_token_ids,
                pad=self.processing_class.pad_token_id,
                temperature=self.temperature,
            )
        self.model.train()
        return ids, replies

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: Any, completions: list[list[Message]], completion_ids: Any
    ) -> Tensor:
        """Scores (N, 1) of all groups from one call to the feedback; an abstained group gets NaN."""
        size = self.num_generations if self.model.training else self.num_generations_eval
        texts = [c[0]["content"].strip() for c in completions]
        self.groups = [tuple(texts[i : i + size]) for i in range(0, len(texts), size)]
        self.verdicts = self.feedback(inputs[::size], self.groups)
        scores = [s for v in self.verdicts for s in (v.scores or [float("nan")] * size)]
        return self.accelerator.gather(torch.tensor(scores, device=self.accelerator.device)[:, None])

    # ------------------------------------------------------------------------------- the loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """L = (1 - w) L_policy + w mean D_alpha; computed on group rows unless `fast=False`."""
        if not self.args.fast or return_outputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        w, ids, mask = self.args.distillation_weight, inputs["completion_ids"], inputs["completion_mask"]
        prompts = _unpadded(inputs["prompt_ids"], inputs["prompt_mask"])
        runs = runs_of_equal(prompts)
        student = self._group_logits(prompts, inputs, runs)
        logp = losses.token_logp(student, ids)
        old = inputs.get("old_per_token_logps", logp.detach())
        clip = (self.epsilon_low, self.epsilon_high)
        policy = losses.reply_mean(losses.policy_term(logp, old, inputs["advantages"], clip), mask)
        loss = (1 - w) * policy
        heard = mask * inputs["self_distillation_mask"][:, None]
        if w > 0 and heard.any():
            distillation = losses.reply_mean(self._distillation(student, logp, old, inputs, runs), heard)
            loss = loss + w * distillation
            self._note("rapo/distillation_loss", distillation)
        self._note("rapo/policy_loss", policy)
        with torch.no_grad():
            self._note("rapo/entropy", losses.reply_mean(losses.entropy(student), mask))
        return loss / (self.current_gradient_accumulation_steps if self.model.training else 1)

    def _distillation(
        self, student: Tensor, logp: Tensor, old: Tensor, inputs: dict[str, Tensor], runs: list[int]
    ) -> Tensor:
        """D_alpha per token (N, T), importance-clipped where the replies came from an older policy."""
        width = inputs["completion_ids"].shape[1]
        prompts = _unpadded(inputs["teacher_input_ids"][:, :-width], inputs["teacher_attention_mask"][:, :-width])
        with torch.no_grad(), self._get_teacher_context_for_self_distillation():
            teacher = self._group_logits(prompts, inputs, runs)
        term = losses.distillation_term(
            student, teacher, top_k=self.args.distillation_topk, alpha=self.args.distillation_alpha
        )
        return term * losses.clipped_importance(logp, old, self.args.distillation_is_clip or float("inf"))

    def _group_logits(self, prompts: list[list[int]], inputs: dict[str, Tensor], runs: list[int]) -> Tensor:
        """Logits (N, T, V) that predict each reply token, from one row per group."""
        replies = _unpadded(inputs["completion_ids"], inputs["completion_mask"])
        width = inputs["completion_ids"].shape[1]
        rows = pack(prompts, replies, runs, width)
        causal = self.accelerator.unwrap_model(self.model).get_base_model()
        where = causal.get_input_embeddings().weight
        states = causal.model(
            input_ids=rows.input_ids.to(where.device),
            attention_mask=rows.mask(where.dtype).to(where.device),
            position_ids=rows.position_ids.to(where.device),
            use_cache=False,
        ).last_hidden_state
        wanted = states.flatten(0, 1)[rows.predicts.to(where.device)]  # (N, T, H)
        return causal.lm_head(wanted).float() / self.temperature

    def _note(self, name: str, value: Tensor) -> None:
        mode = "train" if self.model.training else "eval"
        self._metrics[mode][name].append(self.accelerator.gather(value.detach()).mean().item())

    def save_adapter(self, folder: Path) -> None:
        """Write the student's adapter (safetensors), whole or not at all."""
        with atomic_folder(folder) as building:
            self.accelerator.unwrap_model(self.model).save_pretrained(building, selected_adapters=["default"])


def _asked_in_groups(**_: Any) -> list[float]:
    raise AssertionError("rewards come from the feedback, see RAPOTrainer._calculate_rewards")


def _unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Token lists without padding, from either side."""
    return [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]
