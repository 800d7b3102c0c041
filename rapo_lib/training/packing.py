"""Group rows: a prompt is stored once and its replies branch off it, so shared text is computed once.

A row holds the common prefix of one group's prompts followed by the G branches (rest of each prompt, then the
reply). The attention mask lets a branch see the prefix and itself, positions restart after the prefix, so every
token gets exactly the hidden state it would have had in a row of its own:

        prefix   branch 1   branch 2
      [ p p p p | a a a    | b b b   ]
        a sees p and a, b sees p and b, never each other
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

PREFIX, PADDING = 0, -1  # segment numbers; branches count from 1


@dataclass(frozen=True, slots=True)
class GroupRows:
    """What one forward pass over groups takes, and where each reply token's prediction comes out."""

    input_ids: Tensor  # (B, S)
    position_ids: Tensor  # (B, S)
    segments: Tensor  # (B, S) PREFIX, branch number or PADDING
    predicts: Tensor  # (N, T) index into the flattened (B * S) states that predict each reply token

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Additive attention mask (B, 1, S, S): 0 where attention is allowed, the lowest number where not."""
        s = self.segments
        length = s.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=s.device).tril()
        same = (s[:, :, None] == s[:, None, :]) | (s[:, None, :] == PREFIX)  # (B, query, key)
        itself = torch.eye(length, dtype=torch.bool, device=s.device)  # a padding row must see something, or it is NaN
        allowed = (causal & same & (s[:, None, :] != PADDING)) | itself
        return torch.zeros(allowed.shape, dtype=dtype, device=s.device).masked_fill(~allowed, torch.finfo(dtype).min)[
            :, None
        ]


def runs_of_equal(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Lengths of the runs of neighbouring equal prompts: the groups, whatever the batch was cut into."""
    return [len(list(run)) for _, run in groupby(map(tuple, prompts))]


def shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """How many leading tokens all prompts share, at least one token of each left over (it predicts the reply)."""
    shortest, longest = min(prompts), max(prompts)  # in lexicographic order the two extremes differ first
    limit = min(len(p) for p in prompts) - 1
    same = next((i for i, (a, b) in enumerate(zip(shortest, longest, strict=False)) if a != b), limit)
    return min(same, limit)


def pack(
    prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]], runs: Sequence[int], width: int
) -> GroupRows:
    """Build the rows of the groups whose sizes `runs` gives; replies are padded to `width` = T tokens.

    The last token of a reply predicts nothing, so it is not fed in.
    """
    rows, start = [], 0
    for size in runs:
        rows.append(_row(prompts[start : start + size], replies[start : start + size]))
        start += size
    length = max(len(ids) for ids, *_ in rows)
    shape = (len(rows), length)
    ids, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    segments = torch.full(shape, PADDING)
    predicts = torch.zeros(len(prompts), width, dtype=torch.long)
    n = 0
    for b, (row_ids, row_positions, row_segments, firsts) in enumerate(rows):
        used = len(row_ids)
        ids[b, :used] = torch.tensor(row_ids)
        positions[b, :used] = torch.tensor(row_positions)
        segments[b, :used] = torch.tensor(row_segments)
        for first in firsts:
            count = len(replies[n])
            predicts[n, :count] = torch.arange(first, first + count) + b * length
            n += 1
    return GroupRows(ids, positions, segments, predicts)


def _row(
    prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Ids, positions and segments of one row, and where each branch's first prediction comes out."""
    prefix = shared_prefix(prompts)
    ids = list(prompts[0][:prefix])
    positions, segments, firsts = list(range(prefix)), [PREFIX] * prefix, []
    for branch, (prompt, reply) in enumerate(zip(prompts, replies, strict=True), start=1):
        tail = [*prompt[prefix:], *reply[:-1]]
        firsts.append(len(ids) + len(prompt) - prefix - 1)
        ids += tail
        positions += range(prefix, prefix + len(tail))
        segments += [branch] * len(tail)
    return ids, positions, segments, firsts
