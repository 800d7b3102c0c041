"""The forward pass: one block, attention over a tree, and the states that predict reply tokens."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention

from rapo_lib.llama.ops import gated, gathered, norm, rotated, spread, times
from rapo_lib.llama.tree import Tree
from rapo_lib.llama.weights import Block, Llama, Product

Times: TypeAlias = Callable[[Product, Tensor], Tensor]
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]  # q (M, heads, D), k and v (M, kv heads, D) -> (M, H)
Rope: TypeAlias = tuple[Tensor, Tensor]  # cos and sin, (M, 1, D / 2)


def rope(llama: Llama, positions: Tensor) -> Rope:
    """The angles of positions (M,), rounded as transformers does."""
    cos, sin = llama.rotary(llama.embedding, positions[None])  # (1, M, D), the two halves equal
    half = llama.head_dim // 2
    return cos[0, :, None, :half], sin[0, :, None, :half]


def block_forward(llama: Llama, block: Block, x: Tensor, angles: Rope, attend: Attend, product: Times) -> Tensor:
    """One transformer block on tokens x (M, H); `product` multiplies with a weight, `attend` mixes tokens."""
    heads = product(block.qkv, norm(x, block.norm_in, llama.eps)).unflatten(-1, (-1, llama.head_dim))
    turning = llama.heads + llama.kv_heads
    q, k = rotated(heads[:, :turning], *angles).split([llama.heads, llama.kv_heads], dim=1)
    x = x + product(block.out, attend(q, k, heads[:, turning:]))
    return x + product(block.down, gated(product(block.gate_up, norm(x, block.norm_mid, llama.eps))))


def tree_states(llama: Llama, tree: Tree, product: Times) -> Tensor:
    """Normed last states (R, H) that predict the tree's reply tokens."""
    x = embedding(tree.ids, llama.embedding)
    angles = rope(llama, tree.positions)
    attend = tree_attention(tree, llama.embedding.dtype)
    for block in llama.blocks:
        x = block_forward(llama, block, x, angles, attend, product)
    return norm(x.index_select(0, tree.predicts), llama.norm, llama.eps)


def tree_logits(llama: Llama, tree: Tree, known: Iterator[Tensor] | None = None) -> Tensor:
    """Logits (R, V) of the tree's reply tokens. `known` are results that sampling kept, product after product."""

    def product(weights: Product, x: Tensor) -> Tensor:
        return times(weights, x, None if known is None else next(known))

    with torch.autocast("cpu", enabled=False):
        return product(llama.head, tree_states(llama, tree, product))


# ---------------------------------------------------------------------------------------------- attention


def tree_attention(tree: Tree, dtype: torch.dtype) -> Attend:
    """Trunks see themselves up to each token, branches their trunk and themselves up to each token."""
    size, (count, length) = tree.trunks.numel(), tree.branches.shape
    gaps = trunk_gaps(tree.trunk_lengths, tree.trunks.shape[1], dtype)
    future = torch.full((length, length), float("-inf"), dtype=dtype).triu(1)

    def rectangles(x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x if tree.is_full else spread(x, tree.places, tree.cells)
        return whole[:size].unflatten(0, tree.trunks.shape), whole[size:].unflatten(0, (count, length))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (trunk_q, branch_q), (trunk_k, branch_k), (trunk_v, branch_v) = map(rectangles, (q, k, v))
        out = causal_attention(trunk_q, trunk_k, trunk_v).flatten(0, 1)
        if length:
            far = trunk_k.transpose(1, 2), trunk_v.transpose(1, 2)
            near = by_group(branch_k, len(tree.trunks)), by_group(branch_v, len(tree.trunks))
            branch = branch_attention(branch_q, *far, gaps, *near, future)
            out = torch.cat([out, branch.flatten(0, 1)])
        return out if tree.is_full else gathered(out, tree.cells)

    return attend


def trunk_gaps(lengths: Tensor, width: int, dtype: torch.dtype) -> Tensor | None:
    """Additive mask (B, 1, 1, P) over trunks' empty cells, None if there are none."""
    empty = torch.arange(width) >= lengths[:, None]
    return (
        torch.zeros(empty.shape, dtype=dtype).masked_fill(empty, float("-inf"))[:, None, None] if empty.any() else None
    )


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q (B, P, heads, D), k and v (B, P, kv heads, D) -> (B, P, heads * D); what follows a token does not reach it."""
    repeat = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(repeat, dim=2).transpose(1, 2) for t in (k, v))
    return scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True).transpose(1, 2).flatten(2)


def by_group(x: Tensor, groups: int) -> Tensor:
    """Keys or values of branches (N, n, kv heads, D) -> (B, kv heads, G, n, D)."""
    return x.unflatten(0, (groups, -1)).permute(0, 3, 1, 2, 4)


def branch_attention(
    q: Tensor, trunk_k: Tensor, trunk_v: Tensor, gaps: Tensor | None, k: Tensor, v: Tensor, future: Tensor | None
) -> Tensor:
    """Attention of branches q (N, n, heads, D) to trunks (B, kv heads, P, D) and own k and v (B, kv heads, G, t, D).

    The queries of a group's branches and of the heads that share keys lie side by side, so that no key is repeated.
    `future` (n, t) is added to scores within a branch. Returns (N, n, heads * D).
    """
    (count, n, heads, width), (groups, kv, long, _) = q.shape, trunk_k.shape
    size, shared = count // groups, heads // kv
    q = (q * width**-0.5).view(groups, size, n, kv, shared, width).permute(0, 3, 1, 2, 4, 5)  # (B, kv, G, n, R, D)
    q = q.reshape(groups, kv, size * n * shared, width)
    far = q @ trunk_k.transpose(-1, -2)  # (B, kv, G n R, P)
    if gaps is not None:
        far = far + gaps
    near = q.view(groups, kv, size, n * shared, width) @ k.transpose(-1, -2)  # (B, kv, G, n R, t)
    if future is not None:
        near = near + future.repeat_interleave(shared, dim=0)
    weights = torch.cat([far.view(groups, kv, size, n * shared, long), near], dim=-1).softmax(-1)
    far = weights[..., :long].reshape(groups, kv, size * n * shared, long) @ trunk_v
    out = far.view(groups, kv, size, n, shared, width) + (weights[..., long:] @ v).view(
        groups, kv, size, n, shared, width
    )
    return out.permute(0, 2, 3, 1, 4, 5).reshape(count, n, heads * width)
