"""Reading prompts once a group and growing their replies token by token, remembering what training needs again.

On policy, the student's forward pass over its own replies is what sampling has just computed. `Memory` keeps the
results of all products with weights, which are nearly all of the work; from them the training step takes the forward
pass for the price of the rest, and its backward pass is the usual one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import embedding

from rapo_lib.llama.forward import block_forward, branch_attention, by_group, causal_attention, rope, trunk_gaps
from rapo_lib.llama.ops import norm
from rapo_lib.llama.tree import Tree, tree_of
from rapo_lib.llama.weights import Llama, Product


@dataclass(frozen=True, slots=True)
class Memory:
    """What products gave while N replies to B prompts were sampled, n tokens fed to each."""

    llama: Llama  # what was multiplied with
    prompts: tuple[tuple[int, ...], ...]  # B
    replies: tuple[tuple[int, ...], ...]  # N
    results: tuple[Tensor, ...]  # product after product: the prompts' tokens, then N times n, by width
    logits: Tensor  # (N, n + 1, V), for each token of a reply

    def recall(
        self, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]], group: int
    ) -> "Recalled | None":
        """What is known about groups of `group` equal prompts and their replies; None if they were not sampled here."""
        size = len(self.replies) // len(self.prompts)
        known = {(p, self.replies[b * size : (b + 1) * size]): b for b, p in enumerate(self.prompts)}
        starts = range(0, len(prompts), group)
        wanted = [(tuple(prompts[i]), tuple(map(tuple, replies[i : i + group]))) for i in starts]
        if any(one not in known for one in wanted):
            return None
        return self._recalled([known[one] for one in wanted], size)

    def _recalled(self, chosen: Sequence[int], size: int) -> "Recalled":
        starts = [0, *accumulate(map(len, self.prompts))]
        steps, places = (len(self.results[0]) - starts[-1]) // len(self.replies), self.logits.shape[1]
        rows = [b * size + i for b in chosen for i in range(size)]
        tokens = [p for b in chosen for p in range(starts[b], starts[b + 1])]
        tokens += [starts[-1] + row * steps + t for row in rows for t in range(len(self.replies[row]) - 1)]
        predicted = [row * places + t for row in rows for t in range(len(self.replies[row]))]
        tree = tree_of([self.prompts[row // size] for row in rows], [self.replies[row] for row in rows], size)
        return Recalled(tree, self.results, tokens, self.logits.flatten(0, 1), predicted)


@dataclass(frozen=True, slots=True)
class Recalled:
    """A tree, and where to find what is known about it."""

    tree: Tree
    results: tuple[Tensor, ...]
    tokens: Sequence[int]  # rows of each result, for each token of the tree
    logits: Tensor
    predicted: Sequence[int]  # rows of the logits, for each token of the replies

    def known(self) -> Iterator[Tensor]:
        """The results in the order of the forward pass."""
        for result in self.results:
            yield _rows(result, self.tokens)
        yield _rows(self.logits, self.predicted)


def _rows(x: Tensor, wanted: Sequence[int]) -> Tensor:
    """These rows; no copy if they are all, in order."""
    return x if wanted == list(range(len(x))) else x[torch.tensor(wanted)]


class Growing:
    """Replies in the making: holds keys and values of prompts and replies, takes a token for each, gives logits.

    With `remember` everything that products give is kept: `kept_bytes`.
    """

    def __init__(
        self, llama: Llama, prompts: Sequence[Sequence[int]], group: int, max_new_tokens: int, *, remember: bool = False
    ) -> None:
        self.llama, self.group, self.step = llama, group, 0
        self.prompts = tuple(map(tuple, prompts))
        self.steps = max_new_tokens - 1  # the last token is not fed in
        self.replies = len(prompts) * group
        tree = tree_of(prompts, [[0]] * len(prompts), 1)
        self.lengths, self.read = tree.trunk_lengths, len(tree.ids)
        self.gaps = trunk_gaps(self.lengths, tree.trunks.shape[1], llama.embedding.dtype)
        self.trunks: list[tuple[Tensor, Tensor]] = []  # a block's keys and values, (B, kv heads, P, D) each
        shape = (len(llama.blocks), len(prompts), llama.kv_heads, group, self.steps, llama.head_dim)
        self.keys, self.values = llama.embedding.new_empty(shape), llama.embedding.new_empty(shape)
        self.results: list[Tensor] = []
        self.later: list[Tensor] = []
        self.remember = remember
        self.first = self._read(tree).repeat_interleave(group, dim=0)  # (N, V) logits of each reply's first token

    @torch.no_grad()
    def _read(self, tree: Tree) -> Tensor:
        """Read the prompts, whose tree is all trunk; logits (B, V) of what comes next."""
        llama = self.llama
        x, angles = embedding(tree.ids, llama.embedding), rope(llama, tree.positions)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (t[tree.trunks] for t in (q, k, v))
            self.trunks.append((k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()))
            return causal_attention(q, k, v).flatten(0, 1)[tree.cells]

        def product(weights: Product, x: Tensor) -> Tensor:
            result = weights(x)
            if self.remember:
                kept = result.new_empty(self.read + self.replies * self.steps, result.shape[1])
                kept[: self.read] = result
                self.results.append(kept)
            return result

        for block in llama.blocks:
            x = block_forward(llama, block, x, angles, attend, product)
        return llama.head(norm(x[tree.predicts], llama.norm, llama.eps))

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        """Append a token to each reply; tokens (N,), returns logits (N, V) of what comes next."""
        llama, t = self.llama, self.step
        x = embedding(tokens, llama.embedding)
        angles = rope(llama, (self.lengths + t).repeat_interleave(self.group))
        place = 0

        def product(weights: Product, x: Tensor) -> Tensor:
            nonlocal place
            result = weights(x)
            if self.remember:
                self.results[place][self.read :].view(self.replies, self.steps, -1)[:, t] = result
                place += 1
            return result

        for i, block in enumerate(llama.blocks):

            def attend(q: Tensor, k: Tensor, v: Tensor, i: int = i) -> Tensor:
                for kept, new in ((self.keys[i], k), (self.values[i], v)):
                    kept[..., t : t + 1, :] = by_group(new[:, None], len(self.prompts))
                own = self.keys[i][..., : t + 1, :], self.values[i][..., : t + 1, :]
                return branch_attention(q[:, None], *self.trunks[i], self.gaps, *own, None).flatten(0, 1)

            x = block_forward(llama, block, x, angles, attend, product)
        self.step += 1
        logits = llama.head(norm(x, llama.norm, llama.eps))
        if self.remember:
            self.later.append(logits)
        return logits

    @torch.no_grad()
    def memory(self, replies: Sequence[Sequence[int]]) -> Memory:
        """What is remembered, once the replies are known."""
        logits = torch.stack([self.first, *self.later], dim=1)
        return Memory(self.llama.unpacked(), self.prompts, tuple(map(tuple, replies)), tuple(self.results), logits)


def kept_bytes(llama: Llama, tokens: int) -> int:
    """Bytes that are remembered for so many tokens, logits aside."""
    products = [p for b in llama.blocks for p in (b.qkv, b.out, b.gate_up, b.down)]
    return tokens * sum(len(p.weight) for p in products) * llama.embedding.element_size()
