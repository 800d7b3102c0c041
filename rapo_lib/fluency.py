"""Fluency: the mean token log-probability of a text alone under the untouched embedded model."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rapo_lib.models import EMBEDDED, load_model

PREFIX = "<|im_start|>assistant\n"  # as if answering; no history
BATCH = 16
MAX_TOKENS = 160
REMEMBERED = 50_000  # texts
SILENCE = -20.0  # what an empty text scores

_memory: dict[str, float] = {}


@cache
def _load() -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list[int]]:
    model, tokenizer = load_model(EMBEDDED, dtype=torch.float32)
    return model, tokenizer, tokenizer(PREFIX, add_special_tokens=False).input_ids


@torch.inference_mode()
def _score(texts: Sequence[str]) -> list[float]:
    """Mean over tokens t of log p(y_t | prefix, y_<t); padded right, so that padding is never attended to."""
    model, tokenizer, prefix = _load()
    rows = [tokenizer(text, add_special_tokens=False).input_ids[:MAX_TOKENS] for text in texts]
    width, head = max(map(len, rows)), len(prefix)
    tokens = torch.full((len(rows), head + width), tokenizer.pad_token_id)
    mask = torch.zeros_like(tokens)
    for place, row in enumerate(rows):
        tokens[place, : head + len(row)] = torch.tensor(prefix + row)
        mask[place, : head + len(row)] = 1
    tokens, mask = tokens.to(model.device), mask.to(model.device)
    # the last `width + 1` positions: from the prefix's last token on
    logits = model(tokens, attention_mask=mask, use_cache=False, logits_to_keep=width + 1).logits[:, :-1]
    chosen = logits.gather(-1, tokens[:, head:, None]).squeeze(-1) - logits.logsumexp(-1)  # (B, width)
    kept = mask[:, head:].to(chosen.dtype)
    return ((chosen * kept).sum(1) / kept.sum(1)).tolist()


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
