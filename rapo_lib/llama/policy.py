"""A policy between two updates: its folded weights and what its sampling computed, kept while they hold."""

from collections.abc import Callable, Sequence

from peft import PeftModel
from torch import Tensor

from rapo_lib.llama.forward import tree_logits
from rapo_lib.llama.sampling import Growing, Memory, kept_bytes
from rapo_lib.llama.tree import tree_of
from rapo_lib.llama.weights import Llama, fold

MOST_KEPT = 2**30  # bytes of a sampling's results; larger batches compute them again, a micro-batch at a time


class Policy:
    """Samples and scores with the active adapter of a model that `weights.knows` knows."""

    def __init__(self, model: PeftModel) -> None:
        self.model = model
        self._llama: Llama | None = None
        self._memory: Memory | None = None
        self.has_remembered = False  # whether the last logits came from memory

    def forget(self) -> None:
        """Drop what the last sampling computed."""
        self._memory = None

    def weights(self, *, pack: bool = False) -> Llama | None:
        """The folded weights, made anew after an update; None for a model that is not known."""
        kept = self._llama
        if kept is None or not kept.is_current() or (pack and not kept.is_packed):
            self._llama = kept = fold(self.model, pack=pack)
        return kept

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        max_new_tokens: int,
        draw: Callable[[Tensor, Growing], list[list[int]]],
    ) -> list[list[int]] | None:
        """Replies that `draw` makes from the first logits and a feed, see `sampling.grow`; None if not known."""
        self.forget()
        llama = self.weights(pack=True)
        if llama is None:
            return None
        tokens = sum(map(len, prompts)) + len(prompts) * group * max_new_tokens
        growing = Growing(llama, prompts, group, max_new_tokens, remember=kept_bytes(llama, tokens) <= MOST_KEPT)
        replies = draw(growing.first, growing)
        self._llama = llama.unpacked()  # the packed copies have served
        if growing.remember:
            self._memory = growing.memory(replies)
        return replies

    def logits(self, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]], group: int) -> Tensor | None:
        """Logits (R, V) that predict the reply tokens, with gradients for the adapter; None if not known.

        Taken from the sampling's memory where these are its replies and the adapter has not moved since.
        """
        llama = self.weights()
        if llama is None:
            return None
        recalled = None
        if self._memory is not None and self._memory.llama.folded is llama.folded:
            recalled = self._memory.recall(prompts, replies, group)
        self.has_remembered = recalled is not None
        if recalled is None:
            return tree_logits(llama, tree_of(prompts, replies, group))
        return tree_logits(llama, recalled.tree, recalled.known())
