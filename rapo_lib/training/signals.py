"""What the two signals say about each token of a reply: the scalar one by its advantage, the verbal one by the teacher.

On policy, the policy term moves log pi(y_t) along A_i, the same for every token of reply i. The distillation pulls
the whole next-token distribution towards q; of that, what is seen here is the part at the token that was said:

    scalar_t = A_i,    verbal_t = log q(y_t | h, c, y_<t) - log pi(y_t | h, y_<t)

Above zero a signal makes the token likelier, below zero less likely. The second is SDPO's advantage of that token.
"""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rapo_lib.dialogue import Message
from rapo_lib.feedback import Verdict
from rapo_lib.sampling import prompt_ids
from rapo_lib.simulation import Rollout
from rapo_lib.training import losses
from rapo_lib.training.teacher import teacher_messages, verdict_notes


def verdict_of(group: Sequence[Rollout]) -> Verdict:
    """The verdict that the rollouts of one group record."""
    scores = [r.score for r in group]
    reactions = [r.reaction for r in group]
    ranking = tuple(sorted(range(len(group)), key=lambda i: -(scores[i] or 0.0)))
    return Verdict(
        None if None in scores else tuple(scores),
        tuple(r.critique for r in group),
        None if None in reactions else tuple(reactions),
        ranking,
    )


def clearest_group(rollouts: Sequence[Rollout], size: int) -> list[Rollout]:
    """The group of `size` neighbours whose scores lie furthest apart; abstained ones only where all are."""
    groups = [list(rollouts[i : i + size]) for i in range(0, len(rollouts), size)]
    return max(groups, key=lambda group: _spread([r.score for r in group]))


def _spread(scores: Sequence[float | None]) -> float:
    return -1.0 if None in scores else max(scores) - min(scores)


def group_signals(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: list[Message],
    group: Sequence[Rollout],
    note: str,
    temperature: float = 1.0,
) -> pd.DataFrame:
    """A row per token of each reply: reply, place, token, scalar, verbal.

    `model` is student and teacher at once, as they are before the first update; `note` is the teacher note's kind. A
    reply without a note, and all of an abstained group, have zeros.
    """
    verdict, replies = verdict_of(group), [r.reply for r in group]
    advantages = _advantages(verdict)
    student = prompt_ids(prompt, tokenizer)
    rows = []
    for i, told in enumerate(verdict_notes(verdict, replies, note)):
        said = tokenizer(replies[i], add_special_tokens=False).input_ids
        own = reply_logp(model, student, said, temperature)
        teacher = prompt_ids(teacher_messages(prompt, *told), tokenizer) if told else student
        verbal = reply_logp(model, teacher, said, temperature) - own
        rows += [
            {"reply": i, "place": t, "token": tokenizer.decode([token]), "scalar": advantages[i], "verbal": float(v)}
            for t, (token, v) in enumerate(zip(said, verbal, strict=True))
        ]
    return pd.DataFrame(rows, columns=["reply", "place", "token", "scalar", "verbal"])


def _advantages(verdict: Verdict) -> list[float]:
    scores = verdict.scores or (0.0,) * len(verdict.critiques)
    return losses.group_advantages(torch.tensor([scores]))[0].tolist()


@torch.inference_mode()
def reply_logp(model: PreTrainedModel, prompt: Sequence[int], reply: Sequence[int], temperature: float) -> Tensor:
    """log pi(y_t | prompt, y_<t) of a reply's tokens, (T,)."""
    where = model.get_input_embeddings().weight.device
    logits = model(input_ids=torch.tensor([[*prompt, *reply]], device=where), use_cache=False).logits
    predicting = logits[0, len(prompt) - 1 : len(prompt) + len(reply) - 1].float() / temperature
    return losses.token_logp(predicting, torch.tensor(reply, device=where)).cpu()
