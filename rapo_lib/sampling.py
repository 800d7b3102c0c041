"""Sampling replies: every prompt is read once, then its group of replies grows from the shared cache."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from rapo_lib.dialogue import Message, fit_messages
from rapo_lib.llama.sampling import Growing
from rapo_lib.llama.weights import Llama, fold
from rapo_lib.models import merged
from rapo_lib.training.packed import packed


def prompt_ids(messages: list[Message], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a chat prompt that ends where the assistant begins to speak."""
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]


def fit(messages: list[Message], tokenizer: PreTrainedTokenizerBase, limit: int) -> list[Message]:
    """The system message and the latest whole turns that fit in `limit` prompt tokens."""
    return fit_messages(messages, limit, lambda m: len(prompt_ids(m, tokenizer)))


def pad_left(rows: Sequence[Sequence[int]], value: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack token lists of different lengths; returns ids and mask, both (B, longest)."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), value, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(row)
        mask[i, width - len(row) :] = 1
    return ids, mask


def draw(logits: torch.Tensor, temperature: float, generator: torch.Generator | None) -> torch.Tensor:
    """One token per row of logits (B, V), by the inverse of the cumulative distribution; temperature 0 is greedy.

    `torch.multinomial` does the same ten times slower for a vocabulary of 49k on a CPU.
    """
    if temperature == 0:
        return logits.argmax(-1)
    cumulative = torch.softmax(logits.float() / temperature, dim=-1).double().cumsum(-1)  # (B, V)
    u = torch.rand(logits.shape[0], 1, generator=generator, dtype=torch.float64, device="cpu").to(logits.device)
    u = (u * cumulative[:, -1:]).clamp(min=torch.finfo(torch.float64).tiny)  # u = 0 would pick a token of probability 0
    return torch.searchsorted(cumulative, u).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def sample_ids(
    model: PreTrainedModel | Llama,
    prompts: Sequence[Sequence[int]],
    *,
    group: int,
    max_new_tokens: int,
    eos: Sequence[int],
    pad: int,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Sample `group` completions for each prompt; returns len(prompts) * group token lists, eos included.

    The prompt is forwarded once and shared by the group, so the cost of long histories is paid once.
    """
    if isinstance(model, Llama):
        feed = Growing(model, prompts, group, max_new_tokens)
        logits = feed.first
    else:
        logits, feed = start_plain(model, prompts, group, pad)
    return grow(
        logits,
        feed,
        max_new_tokens=max_new_tokens,
        eos=eos,
        pad=pad,
        temperature=temperature,
        generator=generator,
    )


Feed = Callable[[torch.Tensor], torch.Tensor]  # the next token of each row (N,) -> logits of the one after (N, V)


@torch.no_grad()
def grow(
    logits: torch.Tensor,
    feed: Feed,
    *,
    max_new_tokens: int,
    eos: Sequence[int],
    pad: int,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Draw and feed until every row has ended. Rows that have ended keep their place but no longer count."""
    ends = torch.tensor(list(eos), device=logits.device)
    done = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    columns: list[torch.Tensor] = []
    for step in range(max_new_tokens):
        token = draw(logits, temperature, generator).masked_fill(done, pad)
        columns.append(torch.where(done, -1, token))
        done |= torch.isin(token, ends)
        if done.all() or step == max_new_tokens - 1:
            break
        logits = feed(token)
    return [[t for t in row if t >= 0] for row in torch.stack(columns, dim=1).tolist()]


@torch.no_grad()
def start_plain(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], group: int, pad: int
) -> tuple[torch.Tensor, Feed]:
    """Read the prompts with transformers' own forward, repeat the cache over the group; first logits, how to go on."""
    where = model.get_input_embeddings().weight.device
    ids, mask = (t.to(where) for t in pad_left(prompts, pad))  # (B, P)
    cache = DynamicCache(config=model.config)
    position = (mask.cumsum(-1) - 1).clamp(min=0)
    out = model(
        input_ids=ids, attention_mask=mask, position_ids=position, cache=cache, use_cache=True, logits_to_keep=1
    )
    cache.batch_repeat_interleave(group)
    mask, position = (t.repeat_interleave(group, dim=0) for t in (mask, position[:, -1:]))

    def feed(token: torch.Tensor) -> torch.Tensor:
        nonlocal mask, position
        mask, position = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1), position + 1
        return model(
            input_ids=token[:, None], attention_mask=mask, position_ids=position, cache=cache, use_cache=True
        ).logits[:, -1]

    return out.logits[:, -1].repeat_interleave(group, dim=0), feed


def sample_replies(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[Message]],
    *,
    group: int = 1,
    max_new_tokens: int = 32,
    temperature: float = 1.0,
    seed: int = 0,
    batch: int = 32,
    begun: Sequence[str] | None = None,
) -> list[tuple[str, ...]]:
    """`group` reply texts for each chat prompt, with the adapter folded in while sampling.

    Prompts are processed `batch` at a time, longest first, so that little is spent on padding; the result
    keeps the caller's order. The same seed and the same call give the same replies. `begun`, if given, is how each
    prompt's replies already begin, for the model to go on from; the result is what follows, with its leading space.
    """
    tokens = [prompt_ids(m, tokenizer) for m in prompts]
    if begun is not None:
        starts = (tokenizer(text, add_special_tokens=False).input_ids for text in begun)
        tokens = [prompt + start for prompt, start in zip(tokens, starts, strict=True)]
    order = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
    generator = torch.Generator().manual_seed(seed)
    replies: list[tuple[str, ...]] = [()] * len(tokens)
    with folded(model) as best:
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            drawn = sample_ids(
                best,
                [tokens[i] for i in chosen],
                group=group,
                max_new_tokens=max_new_tokens,
                eos=eos_ids(model, tokenizer),
                pad=tokenizer.pad_token_id,
                temperature=temperature,
                generator=generator,
            )
            texts = tokenizer.batch_decode(drawn, skip_special_tokens=True)
            texts = [t.strip() if begun is None else t.rstrip() for t in texts]
            for k, i in enumerate(chosen):
                replies[i] = tuple(texts[k * group : (k + 1) * group])
    return replies


@contextmanager
def folded(model: PreTrainedModel) -> Iterator[PreTrainedModel | Llama]:
    """The quickest form of a model to sample from, the adapter folded in; inside, leave the model itself alone."""
    llama = fold(model, pack=True)
    if llama is not None:
        yield llama
        return
    with merged(model), packed(model):
        yield model


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a reply: the tokenizer's and all that the model declares."""
    declared = model.generation_config.eos_token_id
    known = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    return sorted({tokenizer.eos_token_id, *known})
