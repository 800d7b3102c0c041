"""A Llama's weights as the fast path uses them: LoRA folded in, layers that read the same input stacked.

    W' = W + s B A      y = x W'^T

Made once for an update and used for sampling and training alike. The base weights stay untouched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from peft import PeftModel
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from rapo_lib.training.packed import Packed, can_pack


@dataclass(frozen=True, slots=True)
class Part:
    """One layer's adapter: its rows of the stacked product, and the factors A (r, in), B (out, r) and s."""

    rows: slice
    a: nn.Parameter
    b: nn.Parameter
    scale: float


@dataclass(frozen=True, slots=True)
class Product:
    """Linear layers that read the same input, as one product."""

    weight: Tensor  # (out, in)
    packed: Packed | None  # the same, laid out for oneDNN; for products without gradient
    parts: tuple[Part, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight) if self.packed is None else self.packed(x)


@dataclass(frozen=True, slots=True)
class Block:
    """The weights of one transformer block."""

    norm_in: Tensor
    qkv: Product
    out: Product
    norm_mid: Tensor
    gate_up: Product
    down: Product

    def unpacked(self) -> "Block":
        """The same without packed copies."""
        bare = {name: replace(getattr(self, name), packed=None) for name in ("qkv", "out", "gate_up", "down")}
        return replace(self, **bare)


@dataclass(frozen=True, slots=True)
class Llama:
    """All weights, and what they were folded from."""

    embedding: Tensor  # (V, H)
    blocks: tuple[Block, ...]
    norm: Tensor
    head: Product
    rotary: nn.Module
    eps: float
    heads: int
    kv_heads: int
    head_dim: int
    folded: tuple[tuple[nn.Parameter, Tensor], ...]  # each A and B, and a copy of what it was

    @property
    def is_packed(self) -> bool:
        """True if the weights are also laid out for products of few rows."""
        return self.head.packed is not None

    def unpacked(self) -> "Llama":
        """The same without those copies, which only sampling needs."""
        return replace(self, blocks=tuple(b.unpacked() for b in self.blocks), head=replace(self.head, packed=None))

    def is_current(self) -> bool:
        """True while the adapter's numbers are those that were folded in."""
        return all(torch.equal(now, then) for now, then in self.folded)


def knows(model: nn.Module) -> bool:
    """True for a plain Llama on a CPU, its linear layers bare or under plain LoRA with one active adapter."""
    causal = _base(model)
    if type(causal) is not LlamaForCausalLM or causal.model.gradient_checkpointing:
        return False
    config = causal.config
    plain = config.hidden_act == "silu" and not config.attention_bias and not config.mlp_bias
    if not plain or config.rope_parameters["rope_type"] != "default":
        return False
    layers = [layer for block in causal.model.layers for layer in _linears(block)]
    return can_pack(causal.lm_head) and all(map(_is_plain, layers))


def _base(model: nn.Module) -> nn.Module:
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _linears(block: nn.Module) -> list[nn.Module]:
    a, m = block.self_attn, block.mlp
    return [a.q_proj, a.k_proj, a.v_proj, a.o_proj, m.gate_proj, m.up_proj, m.down_proj]


def _is_plain(layer: nn.Module) -> bool:
    if type(layer) is not LoraLinear:
        return can_pack(layer)
    active = layer.active_adapters
    return (
        can_pack(layer.base_layer)
        and not layer.merged
        and not layer.fan_in_fan_out
        and len(active) <= 1
        and not any(name in layer.lora_variant or layer.lora_bias.get(name) for name in active)
        and all(type(layer.lora_dropout[name]) is nn.Identity for name in active if name in layer.lora_A)
    )


@torch.no_grad()
def fold(model: PreTrainedModel | PeftModel, *, pack: bool) -> Llama | None:
    """The model with the adapter that is active now folded in, or None if it is not one that `knows` knows.

    `pack` lays the weights out for products of few rows too, which sampling repeats at every token.
    """
    if not knows(model):
        return None
    causal = _base(model)
    config = causal.config
    blocks = tuple(_block(block, pack) for block in causal.model.layers)
    products = [p for b in blocks for p in (b.qkv, b.out, b.gate_up, b.down)]
    factors = [factor for product in products for part in product.parts for factor in (part.a, part.b)]
    head = causal.lm_head.weight.detach()
    return Llama(
        embedding=causal.model.embed_tokens.weight.detach(),
        blocks=blocks,
        norm=causal.model.norm.weight.detach(),
        head=Product(head, Packed(head, None) if pack else None),
        rotary=causal.model.rotary_emb,
        eps=config.rms_norm_eps,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=causal.model.layers[0].self_attn.head_dim,
        folded=tuple((factor, factor.detach().clone()) for factor in factors),
    )


def _block(block: nn.Module, pack: bool) -> Block:
    q, k, v, out, gate, up, down = _linears(block)
    return Block(
        norm_in=block.input_layernorm.weight.detach(),
        qkv=_product([q, k, v], pack),
        out=_product([out], pack),
        norm_mid=block.post_attention_layernorm.weight.detach(),
        gate_up=_product([gate, up], pack),
        down=_product([down], pack),
    )


def _product(layers: Sequence[nn.Module], pack: bool) -> Product:
    sizes = [layer.weight.shape[0] for layer in layers]
    weight = layers[0].weight.new_empty(sum(sizes), layers[0].weight.shape[1])
    parts, start = [], 0
    for layer, size in zip(layers, sizes, strict=True):
        rows = slice(start, start + size)
        start += size
        part = _part(layer, rows)
        if part is None:
            weight[rows] = layer.weight
        else:
            a, b = part.a.to(weight.dtype), part.b.to(weight.dtype)
            torch.addmm(layer.weight, b, a, alpha=part.scale, out=weight[rows])
            parts.append(part)
    return Product(weight, Packed(weight, None) if pack else None, tuple(parts))


def _part(layer: nn.Module, rows: slice) -> Part | None:
    if type(layer) is not LoraLinear or layer.disable_adapters:
        return None
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if not active:
        return None
    name = active[0]
    return Part(rows, layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name])
