"""A model in this process, through transformers, writing by the schema: llguidance masks what would break it.

Every row of a batch draws with its own seed and reads its own mask, so a batch gives what its questions would give one
by one: exactly so under greedy decoding in float32, while other dtypes round differently with the batch's shape.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from rapo_lib.chat.parsing import closed
from rapo_lib.chat.request import Answer, Ask, Failure
from rapo_lib.dialogue import Message
from rapo_lib.runs import RapoError, hash_path, stable_hash

if TYPE_CHECKING:
    import torch
    from llguidance import LLMatcher
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MISSING = "the llguidance package is not installed; install the language-model extra: pip install 'rapo-lib[lm]'"
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # JSON as models write it


class LocalModel:
    """A causal language model by name, loaded on first use: 'embedded', a folder, or a hub name.

    `revision` tells apart in the cache what the name does not, say the versions of a hub model.
    """

    def __init__(
        self,
        name: str = "embedded",
        *,
        revision: str = "",
        dtype: str = "",
        quantization: str = "none",
        batch: int = 16,
    ) -> None:
        if batch < 1:
            raise RapoError(f"batch must be 1 or more, not {batch}")
        self.name, self.batch = name, batch
        self._revision, self._dtype, self._quantization = revision, dtype, quantization
        self._lock = Lock()  # one generation at a time
        self._grammars: dict[str, LLMatcher] = {}

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Name, revision of the weights, precision."""
        return {
            "model": self.name,
            "revision": self._revision or _revision(self.name),
            "dtype": self._dtype or "best",
            "quantization": self._quantization,
        }

    def answers(self, asks: Iterable[Ask]) -> Iterator[tuple[Ask, Answer | Failure]]:
        """Every answer, a batch at a time; a prompt that does not fit the model is a Failure of its own."""
        waiting = iter(asks)
        while some := list(islice(waiting, self.batch)):
            with self._lock:
                answered = self._answer(some)
            yield from zip(some, answered, strict=True)

    @cached_property
    def _loaded(self) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
        import torch

        from rapo_lib.models import load_model

        dtype = {"": None, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
        if self._dtype not in dtype:
            raise RapoError(f"unknown dtype {self._dtype!r}; known: float32, bfloat16, float16")
        return load_model(self.name, dtype=dtype[self._dtype], quantization=self._quantization)

    @cached_property
    def _vocabulary(self) -> Any:
        try:
            import llguidance.hf
        except ImportError as error:
            raise RapoError(MISSING) from error
        from rapo_lib.sampling import eos_ids

        model, tokenizer = self._loaded
        size = model.get_output_embeddings().weight.shape[0]
        return llguidance.hf.from_tokenizer(tokenizer, n_vocab=size, eos_token=eos_ids(model, tokenizer))

    def _matcher(self, schema: Any) -> "LLMatcher":
        """A fresh reader of the schema's grammar, compiled once."""
        vocabulary = self._vocabulary  # first: it says what to do where llguidance is missing
        from llguidance import LLMatcher

        text = json.dumps(closed(schema))  # in the schema's own order: what comes first is written first
        if text not in self._grammars:
            matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_json_schema(text, overrides=SPACED))
            if matcher.is_error():
                raise RapoError(f"the schema cannot be written by: {matcher.get_error()}")
            self._grammars[text] = matcher
        return self._grammars[text].deep_copy()

    def _answer(self, asks: Sequence[Ask]) -> list[Answer | Failure]:
        model, tokenizer = self._loaded
        prompts = [chat_ids(ask.request.messages, tokenizer) for ask in asks]
        room = model.config.get_text_config().max_position_embeddings
        found: dict[int, Answer | Failure] = {
            i: Failure(f"{len(p)} tokens of prompt and {a.request.max_tokens} more do not fit the model's {room}")
            for i, (p, a) in enumerate(zip(prompts, asks, strict=True))
            if len(p) + a.request.max_tokens > room
        }
        fitting = [i for i in range(len(asks)) if i not in found]
        if fitting:
            rows = [self._row(asks[i]) for i in fitting]
            texts = generate(model, tokenizer, [prompts[i] for i in fitting], rows)
            for i, row, text in zip(fitting, rows, texts, strict=True):
                finish = "length" if row.cut else "stop"
                found[i] = Answer(text, finish, len(prompts[i]), row.written)
        return [found[i] for i in range(len(asks))]

    def _row(self, ask: Ask) -> "Row":
        request = ask.request
        return Row(
            limit=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            rng=random.Random(ask.seed),
            matcher=None if request.schema is None else self._matcher(request.schema),
        )


def _revision(name: str) -> str:
    """What tells one set of weights from another: a hash, or a folder's files; nothing for a hub name."""
    from rapo_lib.models import EMBEDDED, GGUF_SHA256, HASHES

    folder = Path(name).expanduser()
    if name == EMBEDDED:
        return GGUF_SHA256[:16]
    if not folder.is_dir():
        return ""
    if (folder / HASHES).is_file():  # saved by us: the same wherever it is copied
        return hash_path(folder / HASHES)[:16]
    files = sorted(p for p in folder.iterdir() if p.is_file())
    return stable_hash([[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files])[:16]


# ---------------------------------------------------------------------------------------------- generation


def chat_ids(messages: Sequence[Message], tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """Token ids of the prompt; thinking off where the template knows it, system folded in where it knows no system."""
    import jinja2

    def ids(rendered: Sequence[Message]) -> list[int]:
        return tokenizer.apply_chat_template(
            list(rendered), add_generation_prompt=True, return_dict=True, enable_thinking=False
        )["input_ids"]

    try:
        return ids(messages)
    except jinja2.TemplateError:
        system, first, *rest = messages
        return ids([{"role": "user", "content": f"{system['content']}\n\n{first['content']}"}, *rest])


@dataclass(slots=True, kw_only=True)
class Row:
    """One answer while it is written."""

    limit: int
    temperature: float
    top_p: float
    rng: random.Random
    matcher: "LLMatcher | None" = None
    written: int = 0  # tokens
    cut: bool = False  # stopped at the limit
    ids: list[int] = field(default_factory=list)


def generate(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompts: Sequence[Sequence[int]],
    rows: Sequence[Row],
) -> list[str]:
    """The text of every row; fills in what the rows record."""
    import torch
    from transformers import GenerationConfig, LogitsProcessorList

    from rapo_lib.sampling import eos_ids, pad_left

    ids, mask = (t.to(model.device) for t in pad_left(prompts, tokenizer.pad_token_id))  # (B, P)
    ends = eos_ids(model, tokenizer)
    plain = GenerationConfig(  # spelt out: a model's own defaults would fill what is left open
        do_sample=False,
        num_beams=1,
        temperature=1.0,
        top_p=1.0,
        top_k=50,
        repetition_penalty=1.0,
        max_new_tokens=max(row.limit for row in rows) + 1,
        eos_token_id=ends,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.inference_mode():
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=plain,
            logits_processor=LogitsProcessorList([Writer(rows, ends)]),
        )
    return [tokenizer.decode(row.ids, skip_special_tokens=True).strip() for row in rows]


class Writer:
    """Chooses each row's next token: what its grammar allows, drawn with its own randomness, ended at its own limit.

    The choice is made here and left as the only finite score, so that greedy generation follows it.
    """

    def __init__(self, rows: Sequence[Row], ends: Sequence[int]) -> None:
        self.rows, self.ends = rows, ends
        self.open = list(range(len(rows)))  # rows that are still being written

    def __call__(self, input_ids: "torch.Tensor", scores: "torch.Tensor") -> "torch.Tensor":
        """Scores (B, V) with one finite entry a row."""
        import torch

        chosen = torch.full((len(self.rows),), self.ends[0], dtype=torch.long)
        if self.open:
            allowed = self._masked(scores[self.open].float())  # (open, V)
            for i, row_scores in zip(list(self.open), allowed, strict=True):
                chosen[i] = self._next(i, row_scores)
        return torch.full_like(scores, float("-inf")).scatter_(1, chosen[:, None].to(scores.device), 0.0)

    def _masked(self, scores: "torch.Tensor") -> "torch.Tensor":
        """Scores with -inf where a row's grammar does not allow the token."""
        bound = [k for k, i in enumerate(self.open) if self.rows[i].matcher is not None]
        if not bound:
            return scores
        import torch
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        bits = allocate_token_bitmask(len(self.open), scores.shape[1])
        for k in bound:
            fill_next_token_bitmask(self.rows[self.open[k]].matcher, bits, k)
        flags = (
            torch.from_numpy(bits.view("uint8"))[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1
        )  # (open, bytes, 8)
        allowed = flags.flatten(1)[:, : scores.shape[1]].bool()
        return scores.masked_fill(~allowed.to(scores.device), float("-inf"))

    def _next(self, i: int, scores: "torch.Tensor") -> int:
        row = self.rows[i]
        if row.written == row.limit:
            row.cut = True
        token = self.ends[0] if row.cut else pick(scores, row)
        if row.cut or token in self.ends:
            self.open.remove(i)
            return token
        row.ids.append(token)
        row.written += 1
        if row.matcher is not None and not row.matcher.consume_token(token):
            raise RapoError(f"the grammar lost its place: {row.matcher.get_error()}")
        return token


def pick(scores: "torch.Tensor", row: Row) -> int:
    """One token from scores (V,): the likeliest at temperature 0, else by inverse CDF over the top_p nucleus."""
    import torch

    if row.temperature == 0:
        return int(scores.argmax())
    likely, order = torch.softmax(scores / row.temperature, dim=-1).double().sort(descending=True)
    total = likely.cumsum(-1)
    nucleus = int((total < row.top_p).sum()) + 1  # the smallest set that holds top_p
    place = torch.searchsorted(total[:nucleus], row.rng.random() * float(total[:nucleus][-1]), right=True)
    return int(order[min(int(place), nucleus - 1)])
