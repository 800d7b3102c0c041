"""Linear layers with weights laid out for oneDNN: the same products, faster where a CPU reads them again and again.

Sampling multiplies a few rows by every weight at every token, so it waits for memory; packed weights are read once
and in order. The operator is private to torch, hence the check, and the plain layer wherever it does not apply.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rapo_lib.models import best_dtype

ROWS = 16  # rows a call has typically; a hint for the layout


def can_pack(layer: nn.Module) -> bool:
    """True for a plain linear layer on a CPU whose torch has oneDNN, in a precision that the CPU multiplies."""
    return (
        type(layer) is nn.Linear
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype in (torch.float32, best_dtype())
        and torch.backends.mkldnn.is_available()
    )


class Packed:
    """A weight (out, in) laid out for oneDNN, and a bias; called, it stands in for a linear layer's forward."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.bias = bias
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Inside, the model's plain linear layers use packed copies of their weights; no gradient flows through them."""
    layers = [layer for layer in model.modules() if can_pack(layer)]
    for layer in layers:
        layer.forward = Packed(layer.weight, layer.bias)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own forward shows again
