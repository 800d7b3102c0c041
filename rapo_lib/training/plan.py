"""How much memory a training needs, part by part, before any weight is loaded.

The model is built from its config on torch's meta device: every tensor has a shape and none has memory, so parameters,
what the forward keeps for the backward, and the cache are counted rather than estimated. Estimated are only how many
tensors of the logits' size live at once, and an allowance for the driver and for fragments; both are ours.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PretrainedConfig, PreTrainedModel

from rapo_lib.models import EMBEDDED, lora_config
from rapo_lib.profiles import Settings
from rapo_lib.runs import RapoError

GIB = 2**30
CARDS = (16, 24, 80)  # GiB
BLOCK, OUTER = 64, 256  # weights a constant in NF4, constants a constant of theirs (QLoRA's double quantisation)
TABLES = 4 * (16 + 256) + 4  # a layer's code books and offset, bytes
LOGITS_AT_ONCE = 4  # tensors of the student's logits' size: itself, and three while its entropy is taken
ALLOWANCE = 0.75 * GIB, 1.1  # driver and kernels, and a factor for fragments

# config.json of the models, as published with them: only what decides sizes
SMOL = {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
        "tie_word_embeddings": True}  # fmt: skip


def _qwen(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocab: int, tied: bool) -> dict:
    return {"model_type": "qwen2", "hidden_size": hidden, "intermediate_size": intermediate,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "vocab_size": vocab, "tie_word_embeddings": tied}  # fmt: skip


KNOWN: Mapping[str, dict[str, Any]] = {
    EMBEDDED: SMOL,
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen(896, 4864, 24, 14, 2, 151936, True),
    "Qwen/Qwen2.5-1.5B-Instruct": _qwen(1536, 8960, 28, 12, 2, 151936, True),
    "Qwen/Qwen2.5-3B-Instruct": _qwen(2048, 11008, 36, 16, 2, 151936, True),
    "Qwen/Qwen2.5-7B-Instruct": _qwen(3584, 18944, 28, 28, 4, 152064, False),
    "Qwen/Qwen2.5-14B-Instruct": _qwen(5120, 13824, 48, 40, 8, 152064, False),
}


def architecture(model: str) -> PretrainedConfig:
    """The config of a known model or of a local folder, without touching the network."""
    if model in KNOWN:
        values = dict(KNOWN[model])
        return AutoConfig.for_model(values.pop("model_type"), **values)
    if (Path(model).expanduser() / "config.json").is_file():
        return AutoConfig.from_pretrained(Path(model).expanduser())
    raise RapoError(f"no sizes for {model!r}: give a folder with its config.json, or one of {', '.join(KNOWN)}")


def on_meta(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The model without memory."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


# ------------------------------------------------------------------------------------------------- parts


def weight_bytes(model: PreTrainedModel, quantization: str) -> dict[str, int]:
    """Bytes of the base weights: 4-bit values, their constants, and what stays in the model's dtype."""
    four_bit = block_layers(model) if quantization == "nf4" else []
    sizes = [layer.weight.numel() for layer in four_bit]
    plain = sum(p.numel() * p.element_size() for p in model.parameters())  # a tied head counts once
    plain -= sum(layer.weight.numel() * layer.weight.element_size() for layer in four_bit)
    constants = sum(_ceil(n, BLOCK) + 4 * _ceil(_ceil(n, BLOCK), OUTER) + TABLES for n in sizes)
    return {"weights, 4 bit": sum(_ceil(n, 2) for n in sizes), "their constants": constants, "other weights": plain}


def block_layers(model: PreTrainedModel) -> list[nn.Linear]:
    """The linear layers of the blocks, which bitsandbytes quantises; the output head stays as it is."""
    head = model.get_output_embeddings()
    return [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]


def _ceil(n: int, size: int) -> int:
    return -(-n // size)


def adapter_parameters(model: PreTrainedModel, rank: int) -> int:
    """Parameters of one LoRA adapter."""
    return sum(p.numel() for n, p in _with_lora(model, rank).named_parameters() if "lora_" in n)


def _with_lora(model: PreTrainedModel, rank: int) -> PeftModel:
    with torch.device("meta"):
        return get_peft_model(model, lora_config(rank, 2 * rank))


def cache_bytes(model: PreTrainedModel, rows: int, length: int) -> int:
    """Bytes of the key-value cache of `rows` sequences of `length` tokens."""
    cache = DynamicCache(config=model.config)
    ids = torch.zeros(1, 1, dtype=torch.long, device="meta")
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    return rows * length * sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def activation_bytes(
    config: PretrainedConfig, dtype: torch.dtype, rank: int, rows: int, length: int, checkpointing: bool
) -> int:
    """Bytes that the forward of group rows (rows, length) keeps for the backward, logits aside.

    Counted with one layer and with two; all layers being alike, that gives any number of them. With checkpointing
    each layer keeps its input, and one at a time what it computes again.
    """
    once, layer = layer_costs(config, dtype, rank, rows, length)
    sizes = config.get_text_config()
    inputs = rows * length * sizes.hidden_size * dtype.itemsize
    return once + (sizes.num_hidden_layers * inputs + layer if checkpointing else sizes.num_hidden_layers * layer)


def layer_costs(config: PretrainedConfig, dtype: torch.dtype, rank: int, rows: int, length: int) -> tuple[int, int]:
    """Bytes kept once for the whole forward, and by each layer."""
    one, two = (_kept(config, dtype, rank, rows, length, layers) for layers in (1, 2))
    return 2 * one - two, two - one


class _FusedAttention(torch.autograd.Function):
    """Keeps what the fused kernels keep (inputs, mask, output, a sum for each query), not the attention weights."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        out, sums = torch.empty_like(query), query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, *others, out, sums)
        return out


class _Fused(TorchFunctionMode):
    """Inside, attention is fused; on the meta device torch would choose the plain form."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is nn.functional.scaled_dot_product_attention:
            return _FusedAttention.apply(*args, kwargs["attn_mask"])
        return function(*args, **(kwargs or {}))


def _kept(config: PretrainedConfig, dtype: torch.dtype, rank: int, rows: int, length: int, layers: int) -> int:
    """Bytes of the distinct tensors that autograd saves in one forward, parameters aside."""
    model = on_meta(config, dtype)
    model.model.layers = model.model.layers[:layers]
    model = _with_lora(model, rank).get_base_model().train()
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage
        return tensor

    ids = torch.zeros(rows, length, dtype=torch.long, device="meta")
    mask = torch.zeros(rows, 1, length, length, dtype=dtype, device="meta")
    with _Fused(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = model.model(input_ids=ids, attention_mask=mask, position_ids=ids, use_cache=False).last_hidden_state
    assert states.requires_grad  # or nothing was kept
    return sum(storage.nbytes() for storage in saved.values())


# ------------------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bytes by part: held all the time, while training on a micro-batch, while sampling a batch."""

    held: Mapping[str, int]
    training: Mapping[str, int]
    sampling: Mapping[str, int]

    @property
    def peak(self) -> float:
        """Bytes at the worst moment, with the allowance."""
        fixed, factor = ALLOWANCE
        return fixed + factor * (sum(self.held.values()) + max(sum(p.values()) for p in (self.training, self.sampling)))

    def fits(self, gib: float) -> bool:
        """Whether a card with so many GiB is enough."""
        return self.peak <= gib * GIB


def plan(chosen: Settings, dtype: torch.dtype) -> Plan:
    """The memory of an arm's training with these settings; the seeker and the judge are not in it."""
    config = architecture(chosen.model)
    model = on_meta(config, dtype)
    held = weight_bytes(model, chosen.quantization)
    cache = cache_bytes(model, chosen.group * chosen.groups, chosen.prompt_tokens + chosen.reply_tokens - 1)
    biggest = max(layer.weight.numel() for layer in block_layers(model))
    adapter = 4 * adapter_parameters(model, chosen.lora_rank)  # float32
    at_once = chosen.groups_at_once
    length = chosen.prompt_tokens + chosen.group * chosen.reply_tokens  # a group row
    kept = activation_bytes(config, dtype, chosen.lora_rank, at_once, length, chosen.gradient_checkpointing)
    logits = 4 * at_once * chosen.group * chosen.reply_tokens * config.get_text_config().vocab_size
    prompts = layer_costs(config, dtype, chosen.lora_rank, chosen.groups, chosen.prompt_tokens)[1]  # an upper bound
    scores = chosen.group * chosen.groups * config.get_text_config().vocab_size * (dtype.itemsize + 4 + 2 * 8)
    return Plan(
        held={
            **held,
            "adapters (student, teacher)": 2 * adapter,
            "gradients": adapter,
            "optimiser (AdamW)": 2 * adapter,
        },
        training={
            "activations": kept,
            "logits": LOGITS_AT_ONCE * logits,
            "one layer's weights, unpacked": biggest * dtype.itemsize if chosen.quantization == "nf4" else 0,
        },
        sampling={
            "key-value cache": cache,
            "one layer's reading of the prompts": prompts,
            "next-token scores": scores,
        },
    )


def describe(chosen: Settings, found: Plan) -> str:
    """The settings and the plan as a table, in GiB."""
    lines = [f"{name:26}{value}" for name, value in asdict(chosen).items()]
    for title, parts in (("held", found.held), ("training", found.training), ("sampling", found.sampling)):
        lines += ["", f"{title:38}{sum(parts.values()) / GIB:8.2f} GiB"]
        lines += [f"  {name:36}{size / GIB:8.2f}" for name, size in parts.items() if size]
    fixed, factor = ALLOWANCE
    lines += ["", f"{'worst moment':38}{found.peak / GIB:8.2f} GiB with {fixed / GIB} GiB and {factor - 1:.0%} allowed"]
    lines += [f"  {card} GB card: {'fits' if found.fits(card) else 'does not fit'}" for card in CARDS]
    return "\n".join([*lines, "", "Planned, not measured; a seeker or judge on the same card comes on top."])
