"""RAPO's optimiser: GRPO on the judge's scores, blended with distillation towards the critique-conditioned teacher.

A thin subclass of trl's experimental SDPOTrainer (this is the only module that imports it). Deviations, all ours:

1. Feedback is about *these* rollouts. In trl it is a dataset column, read before the rewards exist; here every group
   of fresh replies goes to a `Feedback`, its scores become the rewards and its critiques the teacher's context.
2. The teacher prompt is made for dialogue: the history as it is, the critique as a note behind the seeker's last
   words. The student's own reply is never shown to the teacher (it collapses entropy, SDPO's ablation).
3. An abstained verdict gives its group advantage 0 and no distillation, and is counted.
4. Prompts are computed once per group, in sampling, student and teacher (`training.packing`); with `fast=False` each
   reply has a row of its own and trl samples, as in trl.
5. `mixing="advantage"` is SDPO's rule, trl has the loss blend alone; and trl's SDPO takes a `beta` without using it:
   here it weighs GRPO's KL to the start, which is the model without the adapter.
6. A reply cut off at the token limit scores as the worst of its group.
7. A broken update is dropped, a checkpoint is whole and holds all the next step depends on (`training.checkpoints`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from torch.utils.data import Sampler
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from rapo_lib.dialogue import Message
from rapo_lib.feedback import Verdict
from rapo_lib.llama.policy import Policy
from rapo_lib.models import best_dtype, device, merged
from rapo_lib.runs import RapoError, atomic_folder, versions
from rapo_lib.sampling import grow, pad_left, prompt_ids, start_plain
from rapo_lib.simulation import Feedback
from rapo_lib.training import card, checkpoints, losses, watch
from rapo_lib.training.callbacks import CollapseWatch, EMATeacher, FiniteUpdates
from rapo_lib.training.packed import packed
from rapo_lib.training.packing import pack, runs_of_equal

NOTES = ("critique", "critique_and_reaction", "critique_and_sibling")
MIXINGS = ("loss", "advantage")
FIXED = {  # options of trl that the loss here does not have; another value would change nothing, silently
    "loss_type": "grpo",
    "importance_sampling_level": "token",
    "distillation_mode": "topk_logits",
    "distillation_add_tail": True,
    "teacher_sync_steps": 1,
    "use_teacher_server": False,
}
CARD = ("num_generations", "learning_rate", "temperature", "max_completion_length", "distillation_weight", "mixing",
        "policy_scale", "beta", "teacher_note", "teacher_update_rate", "seed")  # fmt: skip
FIXED_IN_SAMPLING = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}  # of the fast path


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
    mixing: str = field(default="loss", metadata={"help": "blend the losses (trl's rule) or the advantages (SDPO's)"})
    policy_scale: float = field(
        default=1.0, metadata={"help": "times the policy term; 1 - w at w = 0 is the full arm without its verbal half"}
    )
    beta: float = field(default=0.0, metadata={"help": "weight of the KL to the start"})
    kl_groups: int = field(
        default=1, metadata={"help": "groups an update on which the distance from the start is measured; with beta all"}
    )
    distillation_mode: str = field(default="topk_logits", metadata={"help": "SDPO's: student's top-k"})
    distillation_topk: int = field(default=50, metadata={"help": "k"})
    distillation_alpha: float = field(default=0.5, metadata={"help": "Jensen-Shannon; SDPO's default"})
    distillation_add_tail: bool = field(default=True, metadata={"help": "SDPO's"})
    teacher_model_kind: str = field(default="ema", metadata={"help": "SDPO's"})
    teacher_update_rate: float = field(default=0.05, metadata={"help": "SDPO's default"})
    teacher_note: str = field(default="critique", metadata={"help": f"what the teacher sees: {NOTES}"})
    use_successful_as_teacher: bool = field(default=False, metadata={"help": "a judge's ranking has no threshold"})
    diagnostics_warning_interval: int = field(
        default=0, metadata={"help": "trl's warnings are about a success threshold; a ranking has none"}
    )
    gradient_checkpointing: bool = field(
        default=False, metadata={"help": "off: short rows, and generation needs a cache"}
    )
    remove_unused_columns: bool = field(default=False, metadata={"help": "profile and history reach the feedback"})
    bf16: bool | None = field(default_factory=lambda: best_dtype() == torch.bfloat16, metadata={"help": ""})
    use_cpu: bool = field(default_factory=lambda: device().type == "cpu", metadata={"help": ""})
    report_to: Any = field(default="none", metadata={"help": "files only"})
    logging_steps: float = field(default=1, metadata={"help": ""})
    save_strategy: str = field(default="no", metadata={"help": "steps: a checkpoint every save_steps"})
    save_total_limit: int | None = field(default=1, metadata={"help": "the last whole one is enough to go on"})
    max_dropped_updates: int = field(default=3, metadata={"help": "in a row, then training stops"})
    stop_on_collapse: bool = field(default=False, metadata={"help": "stop at the first sign of it (see watch)"})
    disable_tqdm: bool | None = field(default=True, metadata={"help": ""})
    fast: bool = field(default=True, metadata={"help": "share prompts within a group; False is trl's own path"})

    def __post_init__(self) -> None:
        for name, known in (("teacher_note", NOTES), ("mixing", MIXINGS)):
            if getattr(self, name) not in known:
                raise RapoError(f"unknown {name} {getattr(self, name)!r}; known: {', '.join(known)}")
        for name, value in (FIXED | FIXED_IN_SAMPLING if self.fast else FIXED).items():
            if getattr(self, name) != value:
                raise RapoError(f"{name}={getattr(self, name)!r} is not done here; leave it at {value!r}")
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


class RAPOTrainer(SDPOTrainer):
    """Trains a LoRA policy on what a `Feedback` says about its own fresh replies.

    `train_dataset` has the columns of `simulation.training_row`. After `train()`, `save_adapter` writes the result.
    `fluency`, if given, scores every step's replies for the collapse watch (`fluency.fluency_batch`, at a cost).
    Raises RapoError if nothing is trainable, if there are too few histories for one batch, and from `train` if updates
    stay broken.
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
        fluency: Callable[[Sequence[str]], Sequence[float]] | None = None,
    ) -> None:
        needed = args.generation_batch_size // args.num_generations
        if len(train_dataset) < needed:
            raise RapoError(f"{len(train_dataset)} histories are too few: a batch has {needed} groups, one for each")
        self.feedback, self.fluency = feedback, fluency
        self.groups: list[tuple[str, ...]] = []  # this batch's replies, a tuple a group
        self.verdicts: list[Verdict] = []  # and what was said about them
        self.updates = FiniteUpdates(args.max_dropped_updates)
        super().__init__(
            model=model,
            reward_funcs=_asked_in_groups,
            args=args,
            train_dataset=train_dataset,
            processing_class=processing_class,
            peft_config=peft_config,
            callbacks=[self.updates, CollapseWatch(watch.Limits(), args.stop_on_collapse), *(callbacks or ())],
        )
        self.remove_callback(PrinterCallback)  # the log history is kept; nothing prints
        self.teacher_context_builder = CritiqueContext(self)
        self.student = Policy(self.accelerator.unwrap_model(self.model))
        if not any(p.requires_grad for p in self.model.parameters()):
            raise RapoError("no parameter is trainable; load the adapter with trainable=True or pass a LoraConfig")

    def _setup_teacher_model(self) -> None:
        for parameter in self.model.parameters():
            if parameter.requires_grad:  # trl makes a QLoRA adapter bfloat16, where small updates round to nothing
                parameter.data = parameter.data.float()
        if self.args.teacher_model_kind != "ema":
            return super()._setup_teacher_model()
        self.teacher_model = self.model
        self.add_callback(EMATeacher(self.model, self.args.teacher_update_rate, self.updates))
        return None

    # ------------------------------------------------------------------------------- rollouts and feedback

    def _generate_transformers(self, ids: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
        runs = runs_of_equal(ids)
        if not self.args.fast or len(set(runs)) != 1:
            return super()._generate_transformers(ids)
        prompts, length = ids[:: runs[0]], self.max_completion_length
        drawing = partial(
            grow,
            max_new_tokens=length,
            eos=self.eos_token_ids,
            pad=self.processing_class.pad_token_id,
            temperature=self.temperature,
        )
        replies = self.student.sample(prompts, runs[0], length, drawing)
        if replies is None:
            self.model.eval()
            with merged(self.model), packed(self.model):
                replies = drawing(*start_plain(self.model, prompts, runs[0], self.processing_class.pad_token_id))
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
        self._note("rapo/repetition", fmean(map(watch.repetition, texts)))
        self._note("rapo/sameness", watch.sameness(texts))
        if self.fluency:
            self._note("rapo/fluency", fmean(self.fluency(texts)))
        scores = [s for v in self.verdicts for s in (v.scores or [float("nan")] * size)]
        scores = lowest_if_cut(scores, [ids[-1] not in self.eos_token_ids for ids in completion_ids], size)
        return self.accelerator.gather(torch.tensor(scores, device=self.accelerator.device)[:, None])

    # ------------------------------------------------------------------------------- the loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """L = (1 - w) L_policy + w mean D_alpha + beta KL; with mixed advantages L = L_policy + beta KL."""
        if return_outputs:
            raise NotImplementedError("this loss has no outputs to return")
        mask, k = inputs["completion_mask"], self.args.distillation_topk
        tokens = inputs["completion_ids"][mask.bool()]  # (M,)
        student = self._reply_logits(model, inputs["prompt_ids"], inputs["prompt_mask"], inputs, self.student)  # (M, V)
        where = torch.cat([tokens[:, None], losses.top_tokens(student.detach(), k)], dim=1)  # (M, 1 + K)
        picked = losses.picked_logp(student, where, self.temperature)
        logp = losses.spread(picked[:, 0], mask)
        parts = self._hybrid_parts(model, picked, where, logp, inputs)
        if self.args.beta > 0:
            parts["kl_to_start"] = (self.args.beta, self._kl_to_start(model, logp, inputs))
        elif self.args.kl_groups > 0 and self._step % self.args.gradient_accumulation_steps == 0:
            with torch.no_grad():
                self._note("rapo/kl_to_start", self._kl_to_start(model, logp, inputs))
        for name, (_, value) in parts.items():
            if not isfinite(self._note(f"rapo/{name}", value)):
                self.updates.blame(name)
        with torch.no_grad():
            entropy = losses.spread(losses.entropy(student, self.temperature), mask)
            self._note("rapo/entropy", losses.reply_mean(entropy, mask))
        loss = sum(weight * value for weight, value in parts.values())
        return loss / (self.current_gradient_accumulation_steps if self.model.training else 1)

    def _clip_grad_norm(self, model: Any) -> Tensor:
        self.updates.inspect(model)
        return super()._clip_grad_norm(model)

    def _hybrid_parts(
        self, model: Any, picked: Tensor, where: Tensor, logp: Tensor, inputs: dict[str, Tensor]
    ) -> dict[str, tuple[float, Tensor]]:
        """The terms of the hybrid loss by name, each with its weight.

        `picked` (M, 1 + K) are the student's log-probabilities at `where`: the sampled token, then its top-k.
        """
        w, mask = self.args.distillation_weight, inputs["completion_mask"]
        old = inputs.get("old_per_token_logps", logp.detach())
        advantages = self.args.policy_scale * inputs["advantages"]
        heard = mask * inputs["self_distillation_mask"][:, None]
        teacher = None
        if w > 0 and heard.any():
            teacher = losses.picked_logp(self._teacher_logits(model, inputs), where, self.temperature)
        if self.args.mixing == "advantage":
            said = logp if teacher is None else losses.spread(teacher[:, 0], mask)
            advantages = losses.mixed_advantages(advantages, logp, said, weight=w, heard=heard)
        term = losses.policy_term(logp, old, advantages, (self.epsilon_low, self.epsilon_high))
        policy = losses.reply_mean(term, mask)
        if self.args.mixing == "advantage":
            return {"policy_loss": (1.0, policy)}
        if teacher is None:
            return {"policy_loss": (1 - w, policy)}
        term = losses.distillation_term(picked[:, 1:], teacher[:, 1:], self.args.distillation_alpha)
        trust = losses.clipped_importance(logp, old, self.args.distillation_is_clip or float("inf"))
        term = losses.spread(term, mask) * trust
        return {"policy_loss": (1 - w, policy), "distillation_loss": (w, losses.reply_mean(term, heard))}

    def _teacher_logits(self, model: Any, inputs: dict[str, Tensor]) -> Tensor:
        """The teacher's logits (M, V), without gradient."""
        width = inputs["completion_ids"].shape[1]
        ids, mask = inputs["teacher_input_ids"][:, :-width], inputs["teacher_attention_mask"][:, :-width]
        with torch.no_grad(), self._get_teacher_context_for_self_distillation():
            return self._reply_logits(model, ids, mask, inputs)

    def _kl_to_start(self, model: Any, logp: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Mean estimate of KL(pi || start) a token; over the whole batch if it counts in the loss, else over a part."""
        if self.args.beta == 0:
            count = sum(_runs(inputs)[: self.args.kl_groups])
            inputs, logp = {name: value[:count] for name, value in inputs.items()}, logp[:count]
        with torch.no_grad(), self.accelerator.unwrap_model(self.model).disable_adapter():
            logits = self._reply_logits(model, inputs["prompt_ids"], inputs["prompt_mask"], inputs)
            mask = inputs["completion_mask"]
            tokens = inputs["completion_ids"][mask.bool()]
            start = losses.spread(losses.token_logp(logits, tokens, self.temperature), mask)
        old = inputs.get("old_per_token_logps", logp.detach())
        return losses.reply_mean(losses.kl_term(logp, old, start), mask)

    def _reply_logits(
        self,
        model: Any,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        inputs: dict[str, Tensor],
        policy: Policy | None = None,
    ) -> Tensor:
        """Logits (M, V) that predict each real reply token after these prompts (N, P).

        `policy` knows the adapter that is active now; without it a new one is made, for this call.
        """
        ids, mask = inputs["completion_ids"], inputs["completion_mask"]
        width = ids.shape[1]
        if not self.args.fast:  # a row for each reply
            whole, whole_mask = torch.cat([prompt_ids, ids], dim=1), torch.cat([prompt_mask, mask], dim=1)
            return self._forward_logits(model, whole, whole_mask, width)[mask.bool()] * self.temperature  # undone
        prompts, replies, runs = _unpadded(prompt_ids, prompt_mask), _unpadded(ids, mask), _runs(inputs)
        if len(set(runs)) == 1:
            policy = policy or Policy(self.accelerator.unwrap_model(self.model))
            logits = policy.logits(prompts, replies, runs[0])
            if logits is not None:
                return logits
        rows = pack(prompts, replies, runs, width)
        causal = self.accelerator.unwrap_model(self.model).get_base_model()
        where = causal.get_input_embeddings().weight
        states = causal.model(
            input_ids=rows.input_ids.to(where.device),
            attention_mask=rows.mask(where.dtype).to(where.device),
            position_ids=rows.position_ids.to(where.device),
            use_cache=False,
        ).last_hidden_state
        wanted = states.flatten(0, 1)[rows.predicts.to(where.device)[mask.bool()]]  # (M, H): padding costs nothing here
        return causal.lm_head(wanted)

    def _note(self, name: str, value: Tensor | float) -> float:
        """Record a number of this step, its mean over processes, and return it."""
        mode = "train" if self.model.training else "eval"
        value = torch.as_tensor(value, dtype=torch.float32, device=self.accelerator.device).detach()
        mean = self.accelerator.gather(value).mean().item()
        self._metrics[mode][name].append(mean)
        return mean

    # ------------------------------------------------------------------------------- going on, and the result

    def train(self, resume_from_checkpoint: str | Path | None = None) -> None:
        """Train to `max_steps`, from a checkpoint's state if one is given; one that is there already is only loaded."""
        if resume_from_checkpoint is None:
            super().train()
            return
        folder = str(resume_from_checkpoint)
        state = TrainerState.load_from_json(str(Path(folder) / TRAINER_STATE_NAME))
        if state.global_step < self.args.max_steps:
            super().train(resume_from_checkpoint=folder)
        else:  # transformers would make one update too many
            self._load_from_checkpoint(folder)
            self.state = state

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler:
        self._sampler = super()._get_train_sampler(dataset)
        return self._sampler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with checkpoints.staged(folder, self.args.should_save, self.accelerator.wait_for_everyone) as building:
            self.save_model(str(building), _internal_call=True)
            self._save_optimizer_and_scheduler(str(building))
            self._save_scaler(str(building))
            self._save_rng_state(str(building))
            if self.args.should_save:
                (building / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle that nothing reads
                self.state.save_to_json(str(building / TRAINER_STATE_NAME))
                checkpoints.save_rest(building, *self._rest())
        if self.args.should_save:
            rotate_checkpoints(self.args.output_dir, self.args.save_total_limit)

    def _rest(self) -> tuple[dict[str, Any], list[dict[str, Tensor]]]:
        """What neither transformers nor trl saves: counters, and sampled batches that are not used up."""
        used_up = self._step % (self.args.steps_per_generation * self.num_iterations) == 0
        state = {"step": self._step, "dropped": self.updates.dropped, "in_a_row": self.updates.in_a_row}
        return state, [] if used_up else self._buffered_inputs

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state, batches = checkpoints.load_rest(Path(checkpoint))
        self._step, self.updates.dropped, self.updates.in_a_row = state["step"], state["dropped"], state["in_a_row"]
        to = self.accelerator.device
        self._buffered_inputs = [{k: t.to(to) for k, t in batch.items()} for batch in batches] or None
        for _ in range(int(self.state.epoch)):  # every epoch's order is drawn after the one before
            next(iter(self._sampler))

    def save_adapter(self, folder: Path, data: str = "", settings: Mapping[str, Any] | None = None) -> None:
        """Write the student's adapter (safetensors) and its model card, whole or not at all.

        `data` says in a sentence what it was trained on, `settings` what the card shall list beside this trainer's own.
        """
        model = self.accelerator.unwrap_model(self.model)
        config = model.peft_config["default"]
        config.base_model_name_or_path = base = card.shown_name(config.base_model_name_or_path)
        own = {name: getattr(self.args, name) for name in CARD} | {"rank": config.r, "updates": self.state.global_step}
        data = data or f"{len(self.train_dataset)} histories."
        text = card.model_card(base, data, own | dict(settings or {}), versions())
        with atomic_folder(folder) as building:
            model.save_pretrained(building, selected_adapters=["default"])
            (building / "README.md").write_text(text, encoding="utf-8")  # in place of peft's template


def _asked_in_groups(**_: Any) -> list[float]:
    raise AssertionError("rewards come from the feedback, see RAPOTrainer._calculate_rewards")


def lowest_if_cut(scores: Sequence[float], cut: Sequence[bool], size: int) -> list[float]:
    """A reply cut off at the token limit scores as the worst of its group of `size`: nobody is to learn to ramble.

    Where all are cut there is nothing to learn from that, and the scores stay.
    """
    ranked = []
    for start in range(0, len(scores), size):
        group, off = scores[start : start + size], cut[start : start + size]
        ranked += group if all(off) else [min(group) if c else s for s, c in zip(group, off, strict=True)]
    return ranked


def _unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Token lists without padding, from either side."""
    return [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]


def _runs(inputs: dict[str, Tensor]) -> list[int]:
    """Sizes of the groups in a batch: neighbours with one prompt."""
    return runs_of_equal(_unpadded(inputs["prompt_ids"], inputs["prompt_mask"]))
