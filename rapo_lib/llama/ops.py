"""The few functions of a Llama block whose gradient is worth writing out: autograd would keep and compute more.

Rows are tokens: every x is (M, width).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rapo_lib.llama.weights import Product


class _Times(torch.autograd.Function):
    """y = x W'^T, W' = W + s B A; the adapter costs nothing in the forward and four thin products in the backward.

    dx = dy W'      dB = s dy^T (x A^T)      dA = s (dy B)^T x
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, known: Tensor | None, product: Product, *factors: Tensor) -> Tensor:
        ctx.product = product
        ctx.save_for_backward(x, *factors)
        return product(x) if known is None else known

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, *factors = ctx.saved_tensors
        product: Product = ctx.product
        dx = dy @ product.weight if ctx.needs_input_grad[0] else None
        return dx, None, None, *(_factor_gradients(product, x, dy, factors) if factors else ())


def _factor_gradients(product: Product, x: Tensor, dy: Tensor, factors: list[Tensor]) -> list[Tensor]:
    """dA, dB of each part in turn, float32 as the factors; the parts read one x, so A's products are stacked."""
    downs, ups = factors[::2], factors[1::2]
    ranks = [a.shape[0] for a in downs]
    inner = (x @ torch.cat(list(downs)).to(x.dtype).T).split(ranks, dim=1)
    backs, gradients = [], []
    for part, b, u in zip(product.parts, ups, inner, strict=True):
        own = dy[:, part.rows]
        gradients.append((own.T @ u).float().mul_(part.scale))
        backs.append((own @ b.to(dy.dtype)).mul_(part.scale))
    stacked = (torch.cat(backs, dim=1).T @ x).float().split(ranks)
    return [g for pair in zip(stacked, gradients, strict=True) for g in pair]


def times(product: Product, x: Tensor, known: Tensor | None = None) -> Tensor:
    """x W'^T with gradients for x and the adapter. `known` is the result where it has been computed before."""
    return _Times.apply(x, known, product, *(factor for part in product.parts for factor in (part.a, part.b)))


class _Norm(torch.autograd.Function):
    """w x / sqrt(mean x^2 + eps), in float32 inside; the weight w is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse).to(x.dtype) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse = ctx.saved_tensors
        normed, dn = x.float() * inverse, (dy * weight).float()
        dx = (dn - normed * (dn * normed).mean(-1, keepdim=True)) * inverse
        return dx.to(x.dtype), None, None


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis."""
    return _Norm.apply(x, weight, eps)


class _Gated(torch.autograd.Function):
    """silu(gate) * up of (M, 2 F) -> (M, F)."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.cat([torch.ops.aten.silu_backward(dy * up, gate), dy * torch.nn.functional.silu(gate)], dim=-1)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, the two halves of the last axis."""
    return _Gated.apply(gate_up)


class _Rotated(torch.autograd.Function):
    """Rotary positions; turning back is the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotate(dy, cos, -sin), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (M, heads, D) turned by each token's position; cos and sin (M, 1, D / 2)."""
    return _Rotated.apply(x, cos, sin)


class _Spread(torch.autograd.Function):
    """Tokens to the cells of rectangles; an empty cell shows some token and passes nothing back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, cells: Tensor) -> Tensor:
        ctx.save_for_backward(cells)
        return x[places]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return dy[ctx.saved_tensors[0]], None, None


def spread(x: Tensor, places: Tensor, cells: Tensor) -> Tensor:
    """x (M, ...) at the places of all cells, (cells, ...); `cells` (M,) says where each token went."""
    return _Spread.apply(x, places, cells)


class _Gathered(torch.autograd.Function):
    """Tokens back from their cells."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cells: Tensor) -> Tensor:
        ctx.save_for_backward(cells)
        ctx.shape = x.shape
        return x[cells]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx = dy.new_zeros(ctx.shape)
        dx[ctx.saved_tensors[0]] = dy
        return dx, None


def gathered(x: Tensor, cells: Tensor) -> Tensor:
    """x (cells, ...) at each token's own cell, (M, ...); no cell is wanted twice."""
    return _Gathered.apply(x, cells)
