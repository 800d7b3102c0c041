"""Groups of replies as trees of tokens: what a group's prompts share is the trunk, the rest of each prompt and its
reply a branch. Tokens lie in one flat list, all trunks first, without padding:

      trunk of group 1   trunk of group 2   branches 1 .. G of group 1   branches of group 2
    [ p p p p p        | p p p            | a a a | b b | c c c c      | d d | e e e | f     ]

Products with weights take the list as it is; attention alone needs rectangles, `trunks` (B, P) and `branches` (N, n).
A branch token sees its group's trunk and its own branch up to itself, so it gets exactly the state that it would have
in a row of its own, as with `training.packing`, but nothing is computed for pairs that may not see each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rapo_lib.training.packing import shared_prefix


@dataclass(frozen=True, slots=True)
class Tree:
    """B groups of G branches each, N = B G; M tokens."""

    ids: Tensor  # (M,)
    positions: Tensor  # (M,)
    trunks: Tensor  # (B, P) places in the list, 0 where there is no token
    trunk_lengths: Tensor  # (B,)
    branches: Tensor  # (N, n) places, 0 where there is no token
    cells: Tensor  # (M,) each token's cell in the two rectangles, trunks' cells first
    predicts: Tensor  # places whose states predict the reply tokens, reply after reply

    @property
    def places(self) -> Tensor:
        """The places of both rectangles, cell after cell."""
        return torch.cat([self.trunks.flatten(), self.branches.flatten()])

    @property
    def is_full(self) -> bool:
        """True if the rectangles have no empty cell: the list is the rectangles, row after row."""
        return len(self.ids) == self.trunks.numel() + self.branches.numel()


def tree_of(prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]], group: int) -> Tree:
    """The tree of groups of `group` neighbours; the last token of a reply predicts nothing and is left out."""
    starts = range(0, len(prompts), group)
    trunks = [list(prompts[s][: _trunk(prompts[s : s + group])]) for s in starts]
    tails = [
        [*prompt[len(trunks[i // group]) :], *reply[:-1]]
        for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True))
    ]
    trunk_cells, trunk_places = _rectangle([len(t) for t in trunks], 0)
    branch_cells, branch_places = _rectangle([len(t) for t in tails], sum(map(len, trunks)))
    predicts = []
    for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        shared = len(trunks[i // group])
        for p in range(len(prompt) - 1, len(prompt) - 1 + len(reply)):
            predicts.append(trunk_places[i // group][p] if p < shared else branch_places[i][p - shared])
    positions = [p for t in trunks for p in range(len(t))]
    for i, tail in enumerate(tails):
        positions += range(len(trunks[i // group]), len(trunks[i // group]) + len(tail))
    cells = trunk_cells + [cell + trunk_places.numel() for cell in branch_cells]
    return Tree(
        ids=torch.tensor([t for row in [*trunks, *tails] for t in row]),
        positions=torch.tensor(positions),
        trunks=trunk_places,
        trunk_lengths=torch.tensor([len(t) for t in trunks]),
        branches=branch_places,
        cells=torch.tensor(cells),
        predicts=torch.tensor([int(p) for p in predicts]),
    )


def _trunk(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens the prompts share; all of them if they are equal."""
    return len(prompts[0]) if all(list(p) == list(prompts[0]) for p in prompts) else shared_prefix(prompts)


def _rectangle(lengths: Sequence[int], first: int) -> tuple[list[int], Tensor]:
    """Cells that rows of these lengths fill in a rectangle, and the rectangle of places, counted from `first`."""
    width = max(lengths)
    places = torch.zeros(len(lengths), width, dtype=torch.long)
    cells: list[int] = []
    for row, length in enumerate(lengths):
        places[row, :length] = torch.arange(first + len(cells), first + len(cells) + length)
        cells += range(row * width, row * width + length)
    return cells, places
