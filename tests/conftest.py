"""Every test writes its runs to a folder of its own, draws without a display and stays off the network."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The outputs folder of this test."""
    folder = tmp_path / "outputs"
    monkeypatch.setenv("RAPO_OUTPUTS", str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny_llama():
    """A two-layer Llama with random weights, for equalities that hold for any weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()
