"""Fluency: the mean token log-probability of a text alone under the untouched embedded model."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rapo_lib.llama.forward import tree_logits
from rapo_lib.llama.tree import tree_of
from rapo_lib.llama.weights import Llama, fold
from rapo_lib.models import EMBEDDED, load_model
from rapo_lib.training.packing import pack

PREFIX = "<|im_start|>assistant\n"  # as if answering; no history
BATCH = 16
MAX_TOKENS = 160
REMEMBERED = 50_000  # texts
SILENCE = -20.0  # what an empty text scores

_memory: dict[str, float] = {}


@cache
def _load() -> tuple[PreTrainedModel, Llama | None, PreTrainedTokenizerBase, list[int]]:
    model, tokenizer = load_model(EMBEDDED)
    return model, fold(model, pack=False), tokenizer, tokenizer(PREFIX, add_special_tokens=False).input_ids


@torch.inference_mode()
def _score(texts: Sequence[str]) -> list[float]:
    """Mean over tokens t of log p(y_t | prefix, y_<t); every text branches off one prefix, unpadded."""
    model, llama, tokenizer, prefix = _load()
    replies = [tokenizer(text, add_special_tokens=False).input_ids[:MAX_TOKENS] for text in texts]
    prompts = [prefix] * len(replies)
    if llama is None:
        logits = _packed_logits(model, prompts, replies)
    else:
        logits = tree_logits(llama, tree_of(prompts, replies, len(replies)))
    said = torch.tensor([token for reply in replies for token in reply], device=logits.device)
    wide = logits.float()  # (M, V), M tokens of all replies
    chosen = wide.gather(-1, said[:, None]).squeeze(-1) - wide.logsumexp(-1)  # (M,)
    return [float(part.mean()) for part in chosen.split([len(reply) for reply in replies])]


def _packed_logits(model: PreTrainedModel, prompts: list[list[int]], replies: list[list[int]]) -> Tensor:
    """The same logits (M, V) from transformers' own forward pass, for an accelerator."""
    lengths = [len(reply) for reply in replies]
    row = pack(prompts, replies, [len(replies)], max(lengths))
    states = model.model(
        input_ids=row.input_ids.to(model.device),
        attention_mask=row.mask(model.dtype).to(model.device),
        position_ids=row.position_ids.to(model.device),
        use_cache=False,
    ).last_hidden_state[0]  # (S, H)
    places = torch.cat([row.predicts[n, :length] for n, length in enumerate(lengths)])  # (M,)
    return model.lm_head(states[places.to(model.device)])


def fluency_batch(texts: Sequence[str]) -> np.ndarray:
    """Mean log-probability per token of each text, shape (n,); a text without tokens scores -20."""
    wanted = {text for text in texts if text.strip()}
    if len(_memory) + len(wanted) > REMEMBERED:
        _memory.clear()
    new = sorted(wanted - _memory.keys(), key=lambda text: (len(text), text))  # neighbours in length: little padding
    for start in range(0, len(new), BATCH):
        chunk = new[start : start + BATCH]
        _memory.update(zip(chunk, _score(chunk), strict=True))
    return np.array([_memory.get(text, SILENCE) for text in texts], dtype=np.float64)
