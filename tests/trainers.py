"""A tiny random Llama under the real trainer and tokenizer, and a feedback with known scores."""

import os
import signal

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from rapo_lib.ablation import ARMS, train_arm
from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.feedback import Verdict
from rapo_lib.hybrid import RAPOConfig, RAPOTrainer
from rapo_lib.models import lora_config
from rapo_lib.profiles import Settings
from rapo_lib.seeker import ProbeSeeker
from rapo_lib.simulation import training_row

CRITIQUE = "Zebra crossing: name the feeling and ask one open question."
G = 3


def tiny(tokenizer, **sizes):
    """Two layers, the same weights every time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **{"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32, "initializer_range": 0.2, **sizes},
    )
    return LlamaForCausalLM(config)


class Scripted:
    """A feedback with known scores: longer replies are better; rows whose profile is in `silent` are abstained on."""

    def __init__(self, flat=False, silent=()):
        self.flat, self.silent, self.seen = flat, set(silent), []

    def __call__(self, rows, replies):
        self.seen.append((list(rows), [tuple(r) for r in replies]))
        return [self.verdict(row, group) for row, group in zip(rows, replies, strict=True)]

    def verdict(self, row, group):
        scores = None if row["profile"] in self.silent else tuple(0.0 if self.flat else float(len(r)) for r in group)
        reactions = tuple(f"Quokka answer {i}." for i in range(len(group)))
        return Verdict(scores, (CRITIQUE,) * len(group), reactions, tuple(range(len(group))))


def rows():
    """Four people and what they open with, of different lengths."""
    people = load_profiles("train")[:4]
    return [training_row(p, [Turn("seeker", p.opening[: 30 + 10 * i])]) for i, p in enumerate(people)]


def make(tokenizer, tmp_path, feedback=None, fluency=None, model=None, kind=RAPOTrainer, **options):
    """The trainer on the tiny model; two groups of G a step."""
    settings = {"max_steps": 2, "per_device_train_batch_size": 2 * G, "num_generations": G, "max_completion_length": 6,
                "learning_rate": 0.1, "warmup_steps": 0, "bf16": False, "seed": 3, **options}  # fmt: skip
    return kind(
        model or tiny(tokenizer),
        feedback or Scripted(),
        args=RAPOConfig(output_dir=str(tmp_path), **settings),
        train_dataset=Dataset.from_list(rows()),
        processing_class=tokenizer,
        peft_config=lora_config(4, 8),
        fluency=fluency,
    )


def batch_of(trainer):
    """The first batch: sampled replies, advantages, teacher prompts."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    data = next(iter(trainer.get_train_dataloader()))
    return trainer._prepare_training_batch(data)


def gradients(trainer, batch, loss_of=None):
    """The loss on a batch and the gradient of every parameter that has one."""
    trainer.model.zero_grad()
    loss = (loss_of or trainer.compute_loss)(trainer.model, batch)
    loss.backward()
    found = {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
    return loss.detach(), found


def stir(trainer):
    """Move LoRA's B and the teacher away from zero, so that every path carries a gradient."""
    torch.manual_seed(1)
    for name, p in trainer.model.named_parameters():
        if "lora_" in name:
            p.data += 0.1 * torch.randn_like(p)


class LengthJudge:
    """A judge with a known taste: the longest reply is the best."""

    def compare_batch(self, groups):
        """A verdict for each group."""
        return [Scripted().verdict({"profile": ""}, group.replies) for group in groups]


def train_tiny_arm(folder, model_folder, die_in_step=None):
    """The full arm on a saved tiny model, five updates; killed in the middle of a checkpoint if asked."""
    chosen = Settings(model=str(model_folder), warm_start=False, reply_tokens=6, group=G, groups=2, steps=5,
                      save_steps=2, learning_rate=0.05, lora_rank=4)  # fmt: skip
    if die_in_step is not None:
        save = RAPOTrainer._save_rng_state

        def die(trainer, folder):
            if trainer.state.global_step == die_in_step:
                os.kill(os.getpid(), signal.SIGKILL)
            save(trainer, folder)

        RAPOTrainer._save_rng_state = die
    histories = [(p, (Turn("seeker", p.opening),)) for p in load_profiles("train")[:4]]
    return train_arm(ARMS["full"], chosen, histories, ProbeSeeker(), LengthJudge(), folder)


class Hears(ProbeSeeker):
    """A probe seeker that remembers every word it was given."""

    def __init__(self):
        self.heard = []

    def react_batch(self, items):
        """As the probe seeker."""
        self.heard += [text for _, history, reply, _ in items for text in (*(t.text for t in history), reply)]
        return super().react_batch(items)
