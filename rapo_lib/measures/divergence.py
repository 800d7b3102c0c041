"""How far a trained policy has moved from its start, in nats a token of what it says, and stops on the way there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer

from rapo_lib.dialogue import Turn, to_messages
from rapo_lib.evaluation import ModelPolicy
from rapo_lib.sampling import fit, prompt_ids


@contextmanager
def partway(model: torch.nn.Module, share: float) -> Iterator[None]:
    """Inside, the adapter counts by this share: 0 is the start, 1 the trained policy, a straight line between."""
    layers = [m for m in model.modules() if isinstance(m, LoraLayer)]
    scales = [dict(layer.scaling) for layer in layers]
    try:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling = {name: share * value for name, value in scale.items()}
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling = scale


@torch.inference_mode()
def divergence(
    policy: ModelPolicy, histories: Sequence[Sequence[Turn]], replies: Sequence[str], batch: int = 16
) -> np.ndarray:
    """KL(pi || pi0) between the next-token distributions along each reply, mean over its tokens; (n,), in nats.

    pi0 is the same model without its adapter, both at the policy's temperature. Over replies that pi sampled its mean
    is that of log pi - log pi0 per token, with far less noise and never negative. NaN for a reply without tokens, 0
    for a model without an adapter; the end token is left out.
    """
    if not isinstance(policy.model, PeftModel):
        return np.zeros(len(replies))
    tokenizer = policy.tokenizer
    prompts = [prompt_ids(fit(to_messages(h), tokenizer, policy.prompt_tokens), tokenizer) for h in histories]
    said = [tokenizer(reply, add_special_tokens=False)["input_ids"] for reply in replies]
    order = sorted((i for i in range(len(said)) if said[i]), key=lambda i: len(prompts[i]) + len(said[i]))
    found = np.full(len(said), np.nan)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        found[chosen] = _batch_kl(policy, [prompts[i] for i in chosen], [said[i] for i in chosen])
    return found


def _batch_kl(policy: ModelPolicy, prompts: Sequence[list[int]], said: Sequence[list[int]]) -> np.ndarray:
    """Right-padded, so that padding is never attended to; only the logits that predict a reply are kept."""
    where, pad = policy.model.get_input_embeddings().weight.device, policy.tokenizer.pad_token_id
    rows = [[*p, *r] for p, r in zip(prompts, said, strict=True)]
    width, longest = max(map(len, rows)), max(map(len, said))
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=where)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=where)
    places = torch.tensor([[min(len(p) - 1 + t, width - 1) for t in range(longest)] for p in prompts], device=where)

    def logp() -> torch.Tensor:
        logits = policy.model(input_ids=ids, attention_mask=mask, use_cache=False).logits  # (B, W, V)
        wanted = logits.gather(1, places[..., None].expand(-1, -1, logits.shape[-1]))  # (B, T, V)
        return torch.log_softmax(wanted.float() / (policy.temperature or 1.0), dim=-1)

    tuned = logp()
    with policy.model.disable_adapter():
        start = logp()
    kl = (tuned.exp() * (tuned - start)).sum(-1)  # (B, T)
    kept = torch.tensor([[1.0] * len(r) + [0.0] * (longest - len(r)) for r in said], device=where)
    return ((kl * kept).sum(1) / kept.sum(1)).cpu().numpy()
