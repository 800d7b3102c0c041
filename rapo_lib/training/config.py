"""The trainer's configuration: trl's, with the defaults of this project and what trl does not have."""

from dataclasses import dataclass, field
from typing import Any

import torch
from trl.experimental.sdpo import SDPOConfig

from rapo_lib.models import best_dtype, device
from rapo_lib.runs import RapoError
from rapo_lib.training.teacher import NOTES

MIXINGS = ("loss", "advantage")
FIXED = {  # options of trl that the loss here does not have; another value would change nothing, silently
    "loss_type": "grpo",
    "importance_sampling_level": "token",
    "distillation_mode": "topk_logits",
    "distillation_add_tail": True,
    "teacher_sync_steps": 1,
    "use_teacher_server": False,
}
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
    prefetch: bool = field(
        default=False,
        metadata={"help": "ask about the next update's replies while this one trains (one update old then)"},
    )
    fast: bool = field(default=True, metadata={"help": "share prompts within a group; False is trl's own path"})

    def __post_init__(self) -> None:
        for name, known in (("teacher_note", NOTES), ("mixing", MIXINGS)):
            if getattr(self, name) not in known:
                raise RapoError(f"unknown {name} {getattr(self, name)!r}; known: {', '.join(known)}")
        for name, value in (FIXED | FIXED_IN_SAMPLING if self.fast else FIXED).items():
            if getattr(self, name) != value:
                raise RapoError(f"{name}={getattr(self, name)!r} is not done here; leave it at {value!r}")
        super().__post_init__()
        if self.prefetch and self.steps_per_generation * self.num_iterations != self.gradient_accumulation_steps:
            raise RapoError("prefetch needs fresh replies for each update; leave steps_per_generation alone")
