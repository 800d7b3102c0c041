"""RAPO's optimiser: GRPO on the judge's scores, blended with distillation towards the critique-conditioned teacher.

A thin subclass of trl's experimental SDPOTrainer (this is the only module that imports it; `training.config` has its
configuration). Deviations, all ours:

1. Feedback is about *these* rollouts. In trl it is a dataset column, read before the rewards exist; here every group
   of fresh replies goes to a `Feedback`, its scores become the rewards and its critiques the teacher's context.
2. The teacher prompt is made for dialogue: the history as it is, the critique as a note behind the seeker's last
   words. The student's own reply is never shown to the teacher (it collapses entropy, SDPO's ablation).
3. An abstained verdict gives its group advantage 0 and no distillation, and is counted.
4. Prompts are computed once per group, in sampling, student and teacher: as group rows (`training.packing`), and a
   Llama on a CPU as trees, where the student's forward pass is taken from sampling (`rapo_lib.llama`). With
   `fast=False` each reply has a row of its own and trl samples, as in trl.
5. `mixing="advantage"` is SDPO's rule, trl has the loss blend alone; and trl's SDPO takes a `beta` without using it:
   here it weighs GRPO's KL to the start, which is the model without the adapter.
6. A reply cut off at the token limit scores as the worst of its group.
7. `prefetch` samples an update early and asks about it while the one before trains; the clipped importance ratio
   then compares with the policy that sampled.
8. In several processes each samples and asks about whole groups of its own (`training.processes`).
9. A broken update is dropped, a checkpoint is whole and holds all the next step depends on (`training.checkpoints`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate.utils import set_seed
from bitsandbytes.nn import Linear4bit
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from transformers.trainer_utils import SchedulerType
from trl.experimental.sdpo import SDPOTrainer

from rapo_lib.dialogue import Message
from rapo_lib.feedback import Verdict
from rapo_lib.llama.policy import Policy
from rapo_lib.models import merged
from rapo_lib.runs import RapoError, atomic_folder, versions
from rapo_lib.sampling import grow, pad_left, prompt_ids, start_plain
from rapo_lib.simulation import Feedback
from rapo_lib.training import card, losses, processes, watch
from rapo_lib.training.callbacks import CollapseWatch, EMATeacher, FiniteUpdates
from rapo_lib.training.config import RAPOConfig
from rapo_lib.training.packed import packed
from rapo_lib.training.packing import pack, runs_of_equal
from rapo_lib.training.prefetch import OneUpdateAhead, in_groups
from rapo_lib.training.recovery import Recoverable
from rapo_lib.training.teacher import teacher_prompts

CARD = ("num_generations", "learning_rate", "temperature", "max_completion_length", "distillation_weight", "mixing",
        "policy_scale", "beta", "teacher_note", "teacher_update_rate", "seed")  # fmt: skip


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
        read, noted = teacher_prompts(prompts, trainer.verdicts, trainer.groups, trainer.args.teacher_note)
        active = torch.tensor(noted, dtype=torch.float32, device=rewards.device)
        self.last_metrics = {
            "self_distillation/reprompt_sample_fraction": trainer.everywhere(active.mean()),
            "rapo/abstained": trainer.everywhere(fmean(v.scores is None for v in trainer.verdicts)),
        }
        tokenizer = trainer.processing_class
        ids, mask = pad_left([prompt_ids(m, tokenizer) for m in read], tokenizer.pad_token_id)
        return {
            "teacher_input_ids": torch.cat([ids.to(rewards.device), output["completion_ids"]], dim=1),
            "teacher_attention_mask": torch.cat([mask.to(rewards.device), output["completion_mask"]], dim=1),
            "self_distillation_mask": active,
        }


class RAPOTrainer(OneUpdateAhead, Recoverable, SDPOTrainer):
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
        processes.check_groups(
            args.per_device_train_batch_size * args.steps_per_generation, args.num_generations, args.world_size
        )
        if args.use_vllm and any(isinstance(module, Linear4bit) for module in model.modules()):
            raise RapoError(
                "use_vllm sends merged weights to vLLM, and 4-bit weights cannot be merged; load them whole"
            )
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
        self._replicated = args.world_size > 1  # every process holds the whole model
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            self._replicated = False
            if args.fast:
                raise RapoError("FSDP and DeepSpeed cut up the layers that group rows are read by; set fast=False")
        if self._replicated:
            set_seed(args.seed, device_specific=True)  # draws of its own for each process

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

    def _generate_vllm(self, ids: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
        """trl sends the merged weights and subtracts the adapter again; the weights as they were come back instead."""
        with merged(self.model):
            return super()._generate_vllm(ids)

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: Any, completions: list[list[Message]], completion_ids: Any
    ) -> Tensor:
        """Scores (N, 1) of all groups from one call to the feedback; an abstained group gets NaN."""
        size = self.num_generations if self.model.training else self.num_generations_eval
        texts = [c[0]["content"] for c in completions]
        self.groups = in_groups(texts, size)
        self.verdicts = self.verdicts_on(inputs[::size], self.groups)
        self._note("rapo/repetition", fmean(map(watch.repetition, texts)))
        self._note("rapo/sameness", watch.sameness(texts))
        if self.fluency:
            self._note("rapo/fluency", fmean(self.fluency([text for group in self.groups for text in group])))
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

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of a micro-batch; at an update's last one, gradients are averaged over processes."""
        if not self._replicated:
            return super().training_step(model, inputs, num_items_in_batch)
        with self.accelerator.no_sync(model):
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            processes.average_gradients(self.model.parameters())
        return loss

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
        if teacher is None:  # every process notes the same terms
            return {"policy_loss": (1 - w, policy)} | ({"distillation_loss": (w, policy.new_zeros(()))} if w else {})
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
        mean = self.everywhere(value)
        self._metrics[mode][name].append(mean)
        return mean

    def everywhere(self, value: Tensor | float) -> float:
        """The mean of a number over all processes; every process must ask, in the same order."""
        value = torch.as_tensor(value, dtype=torch.float32, device=self.accelerator.device).detach()
        return self.accelerator.gather(value).mean().item()

    # ------------------------------------------------------------------------------- going on, and the result

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The warm-up rises from above 0: transformers' begins at 0, and the first update's replies taught nothing."""
        if self.args.lr_scheduler_type != SchedulerType.CONSTANT_WITH_WARMUP or self.lr_scheduler is not None:
            return super().create_scheduler(num_training_steps, optimizer)
        rising = self.args.get_warmup_steps(num_training_steps) + 1
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda done: min(1.0, (done + 1) / rising))
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def save_adapter(self, folder: Path, data: str = "", settings: Mapping[str, Any] | None = None) -> None:
        """Write the student's adapter (safetensors) and its model card, whole or not at all; the first process does it.

        `data` says in a sentence what it was trained on, `settings` what the card shall list beside this trainer's own.
        """
        if not self.accelerator.is_main_process:
            return
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
