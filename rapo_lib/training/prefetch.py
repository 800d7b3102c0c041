"""One update ahead: the feedback is asked about the next update's replies while this update trains.

Worth it where the answer takes long and costs this machine nothing: a language model behind an endpoint. The order is
that of steps; `|` are at the same time, [k] is the policy after k updates:

    off:       sample[0]  ask         train -> [1]           sample[1]  ask        train -> [2]
    prefetch:  sample[0]  ask   sample[0]  train -> [1] | ask      sample[1]  train -> [2] | ask

From the second update on the replies are one update old, so the clipped importance ratio compares with the policy
that sampled them. The last update before a checkpoint and the last of an epoch look at nothing ahead, so a resumed
run is the same as one that never stopped. The rule is ours.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_utils import SaveStrategy

from rapo_lib.feedback import Verdict
from rapo_lib.runs import RapoError
from rapo_lib.simulation import Row
from rapo_lib.training import losses


@dataclass(frozen=True, slots=True)
class Asked:
    """Replies of an update to come, and the verdicts that are being made about them."""

    batch: dict[str, Tensor]  # as trl's `sample_rollouts` returns it
    verdicts: Future[list[Verdict]]


class OneUpdateAhead:
    """The part of the trainer that looks ahead; without `args.prefetch` every method is trl's own."""

    _ahead: Sequence[list[Row]] = ()  # the next update's rows, as far as they are known
    _asked: Asked | None = None

    def train(self, resume_from_checkpoint: str | Path | None = None) -> None:
        """As the trainer's, with a thread for the questions."""
        self._ahead, self._asked = (), None
        with ThreadPoolExecutor(max_workers=1) as self._asking:
            super().train(resume_from_checkpoint)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """This update's rows; with prefetch the next one's are taken too, as far as the epoch goes."""
        if not self.args.prefetch:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        now = self._ahead or super().get_batch_samples(epoch_iterator, num_batches, device)[0]
        self._ahead = super().get_batch_samples(epoch_iterator, num_batches, device)[0]
        return now, None

    def _prepare_inputs(self, generation_batch: list[Row]) -> dict[str, Tensor]:
        known = self._buffered_inputs
        batch = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is not known and self._goes_on():
            self._ask_ahead(self._ahead[0])
        return batch

    def _goes_on(self) -> bool:
        """Whether the next update's replies may be sampled now: not before a checkpoint, which does not hold them."""
        done = self.state.global_step + 1
        saves = self.args.save_strategy == SaveStrategy.STEPS and done % self.state.save_steps == 0
        return bool(self._ahead) and done < self.state.max_steps and not saves

    def _ask_ahead(self, rows: list[Row]) -> None:
        """Sample replies to the next update's rows and ask the feedback about them in a thread of its own."""
        batch = super().sample_rollouts(rows)
        said = self.processing_class.batch_decode(batch["completion_ids"], skip_special_tokens=True)
        groups = in_groups(said, self.num_generations)
        self._asked = Asked(batch, self._asking.submit(self.feedback, rows[:: self.num_generations], groups))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self._asked:
            raise RapoError("with prefetch a checkpoint is made every save_steps updates, not in between")
        super()._save_checkpoint(model, trial)

    def sample_rollouts(self, inputs: list[Row]) -> dict[str, Tensor]:
        """Fresh replies as trl's batch, or those that the feedback has been asked about already."""
        return self._asked.batch if self._asked else super().sample_rollouts(inputs)

    def verdicts_on(self, rows: list[Row], groups: Sequence[Sequence[str]]) -> list[Verdict]:
        """What the feedback says about this update's groups; waits for it if it was asked ahead."""
        asked, self._asked = self._asked, None
        return asked.verdicts.result() if asked else self.feedback(rows, groups)

    def _compute_rollout_logps(self, **batch: Tensor) -> Tensor | None:
        """log pi(y_t) (N, T) of the policy that sampled, where another one will train on it."""
        if not self.args.prefetch:
            return super()._compute_rollout_logps(**batch)
        parts = zip(*(tensor.split(self.args.per_device_train_batch_size) for tensor in batch.values()), strict=True)
        with torch.no_grad(), self.compute_loss_context_manager():
            return torch.cat([self._logp(dict(zip(batch, part, strict=True))) for part in parts])

    def _logp(self, inputs: dict[str, Tensor]) -> Tensor:
        mask = inputs["completion_mask"]
        logits = self._reply_logits(self.model, inputs["prompt_ids"], inputs["prompt_mask"], inputs, self.student)
        return losses.spread(losses.token_logp(logits, inputs["completion_ids"][mask.bool()], self.temperature), mask)


def in_groups(texts: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Replies in a row as the groups of `size` that they are, without spaces around them."""
    clean = [text.strip() for text in texts]
    return [tuple(clean[i : i + size]) for i in range(0, len(clean), size)]
