"""Training in several processes: each samples whole groups and asks about them, and all make the same update.

Every process holds the model, so the only thing to exchange is the adapter's gradient, once an update and in one piece.
torch's DistributedDataParallel would do it while the backward runs, but only after a forward through its wrapper, and
group rows are read by the layers inside; its own exchange is therefore off, and this one does it on every path. All
of it is ours.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rapo_lib.runs import RapoError


def check_groups(replies: int, group: int, processes: int) -> None:
    """Raise a RapoError unless the replies that one process samples at a time are whole groups."""
    if replies % group:
        raise RapoError(
            f"each of {processes} processes samples {replies} replies at a time, which are no whole groups of {group}; "
            "make per_device_train_batch_size x gradient_accumulation_steps a multiple of num_generations"
        )


def count() -> int:
    """How many processes there are; 1 before they know of each other."""
    return dist.get_world_size() if _several() else 1


def first() -> bool:
    """Whether this is the process that writes what is made once."""
    return not _several() or dist.get_rank() == 0


@contextmanager
def one_by_one() -> Iterator[None]:
    """The block is run by the first process, then by the others."""
    if not first():
        dist.barrier()
    yield
    if _several() and first():
        dist.barrier()


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Make every trainable parameter's gradient its mean over all processes; a missing one counts as zero.

    With as many replies on each process, the mean of their losses is the loss of the whole batch, and so are the
    gradients, up to the order in which numbers are added.
    """
    held = [p for p in parameters if p.requires_grad]
    flat = torch.cat([_gradient(p).flatten() for p in held])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, mean in zip(held, flat.split([p.numel() for p in held]), strict=True):
        parameter.grad = mean.view_as(parameter)


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
