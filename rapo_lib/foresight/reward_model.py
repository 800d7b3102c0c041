"""The future-oriented reward model: from a history and a reply to the reward its futures would earn.

A language model with LoRA reads history and reply; a linear head on the state of the reply's last token says the
reward. RLFF-ESC's loss is not public; ours joins regression and ranking. With z the reward, standardised on the
training data, s the head's output and P the pairs of replies to one history with z_i - z_j > `margin`,

    L = mean_i (s_i - z_i)^2 + lambda mean_{(i, j) in P} log(1 + exp(-(s_i - s_j)))

Regression tells good moments from bad ones, ranking tells apart the replies that a policy can choose from. The replies
to a history share its tokens (`training.packing`), so a history is read once. No thought and no emotion goes in.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel, get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.functional import softplus
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, Trainer, TrainingArguments, set_seed

from rapo_lib.dialogue import Turn, to_messages
from rapo_lib.foresight.records import RewardRecord, by_history
from rapo_lib.models import EMBEDDED, best_dtype, device, load_adapter, load_model, lora_config
from rapo_lib.runs import RapoError, atomic_folder, read_json, write_bytes, write_json
from rapo_lib.sampling import fit, prompt_ids
from rapo_lib.training.packing import GroupRows, pack

Item = tuple[Sequence[Turn], str]  # history, reply
ADAPTER, HEAD, RECORD = "adapter", "head.safetensors", "reward_model.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelConfig:
    """How a reward model is made and trained; every value is ours, and none was searched for."""

    base: str = EMBEDDED  # "embedded", a folder (the warm start), or a hub name
    quantization: str = "none"  # "nf4" for a base that is too big otherwise
    prompt_tokens: int = 80  # system message and the latest whole turns
    reply_tokens: int = 48  # a longer reply is read so far
    rank: int = 16  # LoRA
    epochs: float = 3.0
    learning_rate: float = 3e-4
    histories: int = 8  # histories an update, with all their replies
    ranking: float = 1.0  # lambda
    margin: float = 0.1  # standard deviations by which rewards must differ to be a pair
    seed: int = 0


# ------------------------------------------------------------------------------------------- the loss


def reward_loss(scores: Tensor, targets: Tensor, groups: Tensor, ranking: float, margin: float) -> Tensor:
    """Regression plus ranking within a group, as above; `scores`, `targets` and `groups` (N,), returns a scalar."""
    regression = (scores - targets).pow(2).mean()
    better = (targets[:, None] - targets[None, :] > margin) & (groups[:, None] == groups[None, :])  # (N, N)
    if ranking == 0 or not better.any():
        return regression
    return regression + ranking * softplus(-(scores[:, None] - scores[None, :])[better]).mean()


# ------------------------------------------------------------------------------------------- the model


class Scorer(nn.Module):
    """A language model without its vocabulary, and one number for each reply of packed group rows."""

    def __init__(self, language: PeftModel) -> None:
        super().__init__()
        self.language = language
        width = language.get_base_model().config.hidden_size
        self.head = nn.Linear(width, 1)  # float32, for bfloat16 would round close scores together
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, position_ids: Tensor, segments: Tensor, ends: Tensor) -> Tensor:
        """Rows (B, S); `ends` (N,) indexes the last token of each reply in the flattened rows; returns (N,)."""
        decoder = self.language.get_base_model().get_decoder()
        where = decoder.get_input_embeddings().weight
        rows = GroupRows(input_ids, position_ids, segments, ends)
        states = decoder(
            input_ids=input_ids,
            attention_mask=rows.mask(where.dtype),
            position_ids=position_ids,
            use_cache=False,
        ).last_hidden_state
        last = states.flatten(0, 1)[ends]  # (N, H)
        with torch.autocast(last.device.type, enabled=False):
            return self.head(last.float()).squeeze(-1)


@dataclass(frozen=True, slots=True)
class RewardModel:
    """Scores replies to histories; `score_batch` gives rewards on the scale of D_r, about -1 to 1."""

    scorer: Scorer
    tokenizer: PreTrainedTokenizerBase
    config: RewardModelConfig
    mean: float  # of the rewards it was trained on
    scale: float  # and their standard deviation

    @torch.inference_mode()
    def score_batch(self, items: Sequence[Item]) -> list[float]:
        """The reward expected of each (history, reply without its thought); neighbours share their history's cost."""
        if not items:
            return []
        self.scorer.eval()
        groups = _tokens(items, self.tokenizer, self.config)
        scores: list[Tensor] = []
        for start in range(0, len(groups), self.config.histories):
            batch = _batch(groups[start : start + self.config.histories])
            where = self.scorer.head.weight.device
            scores.append(self.scorer(**{name: value.to(where) for name, value in batch.items()}))
        return (torch.cat(scores).double() * self.scale + self.mean).tolist()

    def save(self, folder: Path) -> Path:
        """Write adapter, head and record to `folder`, all or nothing; safetensors only."""
        with atomic_folder(folder) as building:
            self.scorer.language.save_pretrained(building / ADAPTER)
            head = {name: value.detach().cpu().contiguous() for name, value in self.scorer.head.state_dict().items()}
            write_bytes(building / HEAD, save(head))
            write_json(building / RECORD, {"config": asdict(self.config), "mean": self.mean, "scale": self.scale})
        return folder

    @classmethod
    def load(cls, folder: Path) -> "RewardModel":
        """The inverse of `save`; a folder that holds none, or a damaged one, is a RapoError."""
        record = read_json(folder / RECORD)
        try:
            config = RewardModelConfig(**record["config"])
            mean, scale = float(record["mean"]), float(record["scale"])
        except (KeyError, TypeError) as error:
            raise RapoError(f"{folder / RECORD} does not describe a reward model: {error}") from None
        base, tokenizer = load_model(config.base, quantization=config.quantization)
        scorer = _placed(Scorer(load_adapter(base, folder / ADAPTER)), base)
        try:
            scorer.head.load_state_dict(load_file(folder / HEAD))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise RapoError(f"cannot read the reward model's head {folder / HEAD}: {error}") from None
        return cls(scorer.eval(), tokenizer, config, mean, scale)


def _placed(scorer: Scorer, base: PreTrainedModel) -> Scorer:
    scorer.head.to(base.get_input_embeddings().weight.device)
    return scorer


# ------------------------------------------------------------------------------------------- rows


def _tokens(
    items: Sequence[Item], tokenizer: PreTrainedTokenizerBase, config: RewardModelConfig
) -> list[tuple[list[int], list[list[int]]]]:
    """(prompt, replies) in tokens for each run of neighbours with one history."""
    found = []
    for history, run in groupby(items, key=lambda item: tuple((t.speaker, t.text) for t in item[0])):
        messages = fit(to_messages([Turn(*said) for said in history]), tokenizer, config.prompt_tokens)
        replies = [tokenizer(reply, add_special_tokens=False).input_ids[: config.reply_tokens] for _, reply in run]
        found.append((prompt_ids(messages, tokenizer), [[*reply, tokenizer.eos_token_id] for reply in replies]))
    return found


def _batch(groups: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]) -> dict[str, Tensor]:
    """Packed rows of the groups, and where each reply ends."""
    prompts = [prompt for prompt, replies in groups for _ in replies]
    replies = [[*reply, 0] for _, each in groups for reply in each]  # `pack` leaves the last token out
    rows = pack(prompts, replies, [len(each) for _, each in groups], width=max(map(len, replies)))
    places = torch.tensor([len(reply) - 1 for reply in replies])
    ends = rows.predicts[torch.arange(len(replies)), places]  # (N,): the state that would predict what is left out
    return {"input_ids": rows.input_ids, "position_ids": rows.position_ids, "segments": rows.segments, "ends": ends}


# ------------------------------------------------------------------------------------------- training


def train_reward_model(
    records: Sequence[RewardRecord], config: RewardModelConfig | None = None
) -> tuple[RewardModel, list[float]]:
    """A reward model trained on D_r, and its loss at every update; deterministic by `config.seed`.

    Raises RapoError if there is nothing to learn from.
    """
    config = config or RewardModelConfig()
    groups = by_history(records)
    rewards = torch.tensor([r.reward for r in records], dtype=torch.float64)
    if len(records) < 2 or rewards.max() == rewards.min():
        raise RapoError(f"{len(records)} reward records hold no difference to learn from; imagine more futures")
    mean, scale = float(rewards.mean()), float(rewards.std())
    base, tokenizer = load_model(config.base, quantization=config.quantization)
    set_seed(config.seed)
    scorer = _placed(Scorer(get_peft_model(base, lora_config(config.rank, 2 * config.rank))), base)
    tokens = [_tokens([(r.history, r.reply) for r in group], tokenizer, config)[0] for group in groups]
    rows = [
        {"prompt": prompt, "replies": replies, "targets": [(r.reward - mean) / scale for r in group]}
        for (prompt, replies), group in zip(tokens, groups, strict=True)
    ]
    with TemporaryDirectory(prefix="rapo-rm-") as scratch:
        trainer = _RewardTrainer(
            model=scorer,
            args=_arguments(config, scratch),
            train_dataset=Dataset.from_list(rows),
            data_collator=_collate,
            config=config,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        trainer.accelerator.unwrap_model(scorer, keep_fp32_wrapper=False)  # else it would go on in autocast's rounding
    return RewardModel(scorer.eval(), tokenizer, config, mean, scale), losses


class _RewardTrainer(Trainer):
    def __init__(self, *args: Any, config: RewardModelConfig, **options: Any) -> None:
        super().__init__(*args, **options)
        self.config = config

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """`reward_loss` of a batch of histories."""
        targets, groups = inputs.pop("targets"), inputs.pop("groups")
        return reward_loss(model(**inputs), targets, groups, self.config.ranking, self.config.margin)


def _collate(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    targets = [z for row in rows for z in row["targets"]]
    groups = [i for i, row in enumerate(rows) for _ in row["targets"]]
    batch = _batch([(row["prompt"], row["replies"]) for row in rows])
    return {**batch, "targets": torch.tensor(targets, dtype=torch.float32), "groups": torch.tensor(groups)}


def _arguments(config: RewardModelConfig, scratch: str) -> TrainingArguments:
    return TrainingArguments(
        output_dir=scratch,
        num_train_epochs=config.epochs,
        learning_rate=config.learning_rate,
        warmup_steps=4,
        per_device_train_batch_size=config.histories,
        remove_unused_columns=False,
        use_cpu=device().type == "cpu",
        bf16=best_dtype() == torch.bfloat16,
        seed=config.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
