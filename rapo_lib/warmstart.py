"""The warm start: a short supervised fine-tuning, so that reinforcement begins from a plausible supporter.

Ours; neither paper needs it at 7B. The dialogues are written by us, in plain words that stay with the seeker's own:
from witty ones this small model learns to make things up. They mix what supporters do (reflect, ask, advise,
reassure), because ranking needs replies that differ, and every supporter turn of a dialogue is learned from. LoRA,
merged into the weights afterwards: the RL adapter then starts at zero, and with it the self-distillation teacher
starts exactly at the warm start.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from rapo_lib.dialogue import Message, Turn, to_messages, turn_from_record
from rapo_lib.models import EMBEDDED, best_dtype, device, is_whole, load_model, lora_config, save_model
from rapo_lib.runs import cache_dir, stable_hash
from rapo_lib.sampling import fit, prompt_ids

log = logging.getLogger(__name__)
Lesson = tuple[tuple[Message, ...], str]  # what is asked (system message, history), and the reply to learn
AT_ONCE = 4  # dialogues in memory; the logits over 49k tokens are what costs


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartConfig:
    """How the warm start is trained; every value is ours."""

    epochs: float = 1.0  # passes over the dialogues
    learning_rate: float = 6e-4  # LoRA's, linear decay after a short warm-up
    rank: int = 16  # LoRA rank
    batch: int = 8  # dialogues an update
    tokens: int = 200  # longer histories lose their oldest whole exchanges
    pairs: int | None = None  # use only the first so many (smoke scale)
    seed: int = 0


@cache
def warmstart_pairs() -> tuple[tuple[tuple[Turn, ...], str], ...]:
    """The shipped (history, reply) pairs."""
    text = (resources.files("rapo_lib") / "data" / "warmstart.jsonl").read_text("utf-8")
    records = [json.loads(line) for line in text.splitlines() if line]
    return tuple((tuple(turn_from_record(t) for t in r["history"]), r["reply"]) for r in records)


def _dataset(lessons: Sequence[Lesson], config: WarmStartConfig, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    return Dataset.from_list([_example(lesson, tokenizer, config.tokens) for lesson in lessons[: config.pairs]])


def _example(lesson: Lesson, tokenizer: PreTrainedTokenizerBase, limit: int) -> dict[str, list[int]]:
    """Token ids of one dialogue; `completion_mask` is 1 on every supporter turn, for the earlier ones teach too."""
    prompt, reply = lesson
    messages = [*fit(list(prompt), tokenizer, limit), {"role": "assistant", "content": reply}]
    ids = chat_ids(messages, tokenizer)
    mask = [0] * len(ids)
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            start, end = len(prompt_ids(messages[:place], tokenizer)), len(chat_ids(messages[: place + 1], tokenizer))
            mask[start:end] = [1] * (end - start)
    return {"input_ids": ids, "completion_mask": mask}


def chat_ids(messages: list[Message], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a whole chat, its last message ended."""
    return tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]


def warm_start(config: WarmStartConfig, model: str = EMBEDDED) -> Path:
    """Folder of the warm-started model; trained once for each model, data and configuration, then reused."""
    key = stable_hash(
        [model, asdict(config), [[[t.text for t in h], r] for h, r in warmstart_pairs()], str(best_dtype())]
    )
    lessons = [(tuple(to_messages(h)), r) for h, r in warmstart_pairs()]
    return fine_tuned(f"warmstart-{key[:16]}", config, model, lambda tokenizer: _dataset(lessons, config, tokenizer))


def warm_start_on(lessons: Sequence[Lesson], config: WarmStartConfig, model: str = EMBEDDED) -> Path:
    """`warm_start` on dialogues of another kind, under a name of their own."""
    key = stable_hash([model, asdict(config), list(lessons), str(best_dtype())])
    return fine_tuned(f"warmstart-{key[:16]}", config, model, lambda tokenizer: _dataset(lessons, config, tokenizer))


def fine_tuned(
    name: str, config: WarmStartConfig, model: str, examples: Callable[[PreTrainedTokenizerBase], Dataset]
) -> Path:
    """The cached folder `name` of `model` after one fine-tuning on `examples` (input_ids, completion_mask)."""
    folder = cache_dir() / "models" / name
    if is_whole(folder):
        return folder
    base, tokenizer = load_model(model)
    data = examples(tokenizer)
    log.info("%s: fine-tuning %s on %d dialogues", name, model, len(data))
    with TemporaryDirectory(prefix="rapo-sft-") as scratch:
        trainer = SFTTrainer(
            model=base,
            args=_sft_config(config, scratch),
            train_dataset=data,
            processing_class=tokenizer,
            peft_config=lora_config(config.rank, 2 * config.rank),
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        tuned = trainer.model.merge_and_unload()
    tuned.config.use_cache = True
    save_model(folder, tuned, tokenizer, {"config": asdict(config), "base": model, "losses": losses})
    return folder


def _sft_config(config: WarmStartConfig, scratch: str) -> SFTConfig:
    return SFTConfig(
        output_dir=scratch,
        num_train_epochs=config.epochs,
        learning_rate=config.learning_rate,
        warmup_steps=4,
        per_device_train_batch_size=AT_ONCE,
        gradient_accumulation_steps=max(1, config.batch // AT_ONCE),
        train_sampling_strategy="group_by_length",  # a third less time spent on padding
        completion_only_loss=True,
        max_length=None,
        gradient_checkpointing=False,
        use_cpu=device().type == "cpu",
        bf16=best_dtype() == torch.bfloat16,
        seed=config.seed,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
