"""The hybrid loss, as pure functions on tensors (DESIGN's symbols; papers.md D for the distillation).

    L = (1 - w) * L_policy(A) + w * mean_t D_alpha( pi(.|h, y_<t) || stopgrad q(.|h, c, y_<t) )

RAPO's own equations are not public; the forms are those of GRPO and SDPO, the blend and every default are ours.
The other rule mixes advantages instead of losses and is SDPO's (its section 4.5): `mixed_advantages`.
Shapes: N replies of at most T tokens, M real tokens in all, V the vocabulary, K the student's top-k.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 4  # of logits that a CPU works on at once
BLOCK = 64  # neighbouring tokens that are looked at as one first
STD_EPS = 1e-4  # as trl's GRPO


def group_advantages(scores: Tensor, eps: float = STD_EPS) -> Tensor:
    """A_i = (s_i - mean) / (std + eps) within each group; `scores` (B, G), returns (B, G).

    A group whose scores are all equal, or that holds a NaN (an abstention), gets exactly zero.
    """
    centred = scores - scores.mean(dim=1, keepdim=True)
    advantages = centred / (scores.std(dim=1, keepdim=True) + eps)
    flat = scores.amax(dim=1, keepdim=True) == scores.amin(dim=1, keepdim=True)
    silent = scores.isnan().any(dim=1, keepdim=True)
    return advantages.masked_fill(flat | silent, 0.0)


def policy_term(logp: Tensor, old_logp: Tensor, advantages: Tensor, clip: tuple[float, float]) -> Tensor:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A) per token, rho = pi / pi_old; (N, T) -> (N, T).

    `advantages` is (N,), one for a whole reply, or (N, T).
    """
    ratio = torch.exp(logp - old_logp)
    low, high = clip
    a = advantages[:, None] if advantages.dim() == 1 else advantages
    return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


def mixed_advantages(advantages: Tensor, logp: Tensor, teacher_logp: Tensor, *, weight: float, heard: Tensor) -> Tensor:
    """A_t = lambda A_GRPO + (1 - lambda) A_SDPO_t, per token and without gradient; (N, T).

        A_SDPO_t = log q(y_t | h, c, y_<t) - log pi(y_t | h, y_<t),    lambda = 1 - w

    The mixing rule of SDPO's hybrid, on the token that was sampled: SDPO has an advantage for every entry of the
    vocabulary, and this one is an estimate of their mean. `advantages` (N,) are GRPO's; `weight` is w; `heard` (N, T)
    is 0 where no critique reached the teacher, and there A_SDPO is 0.
    """
    verbal = (teacher_logp - logp).detach() * heard
    return (1 - weight) * advantages[:, None] + weight * verbal


def kl_term(logp: Tensor, old_logp: Tensor, start_logp: Tensor) -> Tensor:
    """rho (r - 1 - log r) per token, r = pi_start / pi, rho = pi / pi_old; (N, T) -> (N, T).

    GRPO's estimate of KL(pi || pi_start) from the token that was sampled: never negative, exactly 0 where both agree.
    On policy rho is 1, yet it carries gradient: value and gradient are right in the mean over y_t ~ pi_old (as trl).
    """
    log_ratio = start_logp.detach() - logp
    return torch.exp(logp - old_logp) * (torch.exp(log_ratio) - 1 - log_ratio)


def with_tail(logp: Tensor) -> Tensor:
    """Append log(1 - sum p): the probability that top-k leaves out, as one bucket; (..., K) -> (..., K + 1)."""
    captured = torch.logsumexp(logp, dim=-1, keepdim=True).clamp(max=-1e-7)
    return torch.cat([logp, torch.log(-torch.expm1(captured))], dim=-1)


def jensen_shannon(s: Tensor, q: Tensor, alpha: float) -> Tensor:
    """Generalised JSD of log-distributions over the last axis: (1-a) KL(s || m) + a KL(q || m), m = (1-a) s + a q.

    The limits are a = 0: KL(q || s) and a = 1: KL(s || q), as SDPO's code defines them.
    """
    if alpha == 0.0:
        return (q.exp() * (q - s)).sum(-1)
    if alpha == 1.0:
        return (s.exp() * (s - q)).sum(-1)
    weights = torch.tensor([1 - alpha, alpha], dtype=s.dtype, device=s.device).log()
    m = torch.logsumexp(torch.stack([s + weights[0], q + weights[1]]), dim=0)
    return (1 - alpha) * (s.exp() * (s - m)).sum(-1) + alpha * (q.exp() * (q - m)).sum(-1)


def distillation_term(s: Tensor, q: Tensor, alpha: float) -> Tensor:
    """D_alpha on the student's top-k tokens plus a tail bucket; log-probabilities (..., K) of both -> (...).

    The teacher's q carries no gradient. The support is the student's, so what the student would say decides
    where it listens.
    """
    return jensen_shannon(with_tail(s), with_tail(q.detach()), alpha)


def clipped_importance(logp: Tensor, old_logp: Tensor, limit: float) -> Tensor:
    """min(pi / pi_old, limit) without gradient, for tokens sampled by an older policy; (N, T)."""
    return torch.exp((logp - old_logp).detach().clamp(-20.0, 20.0)).clamp(max=limit)


def picked_logp(logits: Tensor, where: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of chosen tokens; logits (..., V), indices (..., K) -> (..., K), float32 at least.

    All terms of the loss pick at once, so that there is one log-sum-exp over V, which on a CPU costs like a layer.
    """
    return _Picked.apply(logits, where, temperature)


class _Picked(torch.autograd.Function):
    """z_k - log sum exp z, z = logits / temperature; a few rows at a time.

    The gradient by the logits is (scatter(dy) - softmax(z) sum dy) / temperature, in their own precision.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, where: Tensor, temperature: float) -> Tensor:
        rows, chosen = logits.flatten(0, -2), where.flatten(0, -2)
        total = torch.cat([torch.logsumexp(z, -1, keepdim=True) for z in _pieces(rows, temperature)])
        ctx.save_for_backward(rows, chosen, total)
        ctx.temperature, ctx.shape = temperature, logits.shape
        return (_wide(rows.gather(-1, chosen)) / temperature - total).view(where.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        rows, chosen, total = ctx.saved_tensors
        dy = dy.reshape(chosen.shape) / ctx.temperature
        out = torch.empty_like(rows)
        pieces = zip(*(t.split(_at_once(rows)) for t in (out, chosen, total, dy)), strict=True)
        for z, (piece, k, norm, d) in zip(_pieces(rows, ctx.temperature), pieces, strict=True):
            softmax = (z - norm).exp_()
            piece.copy_(softmax.mul_(-d.sum(-1, keepdim=True)).scatter_add_(-1, k, d))
        return out.view(ctx.shape), None, None


def _pieces(rows: Tensor, temperature: float = 1.0) -> Iterator[Tensor]:
    """A few rows of logits at a time, over the temperature."""
    return (_wide(piece) / temperature for piece in rows.split(_at_once(rows)))


def _at_once(rows: Tensor) -> int:
    """So few on a CPU that they stay in a core's cache; an accelerator takes them all."""
    return ROWS if rows.device.type == "cpu" else max(1, len(rows))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def top_tokens(logits: Tensor, k: int) -> Tensor:
    """Indices (..., k) of the k largest logits (..., V).

    The largest lie in the k blocks whose maxima are the largest, so only those are sorted.
    """
    size = logits.shape[-1]
    if size % BLOCK or size // BLOCK <= k:
        return logits.topk(k).indices
    blocks = logits.unflatten(-1, (-1, BLOCK))
    best = blocks.amax(-1).topk(k).indices  # (..., k) blocks
    places = (best[..., None] * BLOCK + torch.arange(BLOCK, device=logits.device)).flatten(-2)
    return places.gather(-1, logits.gather(-1, places).topk(k).indices)


def token_logp(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """log pi(y_t); logits (..., V), tokens (...) -> (...)."""
    return picked_logp(logits, tokens[..., None], temperature).squeeze(-1)


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """Values (M,) of the real reply tokens, in order, at their places in (N, T); 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask.bool(), values)


def reply_mean(per_token: Tensor, mask: Tensor) -> Tensor:
    """Mean over a reply's tokens, then over replies (trl's loss_type "grpo"); a fully masked reply counts as zero."""
    return ((per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()


def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy in nats of each next-token distribution; (..., V) -> (...)."""
    found = []
    for z in _pieces(logits.flatten(0, -2), temperature):
        logp = torch.log_softmax(z, dim=-1)
        found.append(-(logp.exp() * logp).sum(-1))
    return torch.cat(found).view(logits.shape[:-1])
