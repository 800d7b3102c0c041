"""The part of the trainer that goes on from a checkpoint as if it had never stopped; `checkpoints` has the files.

transformers resumes weights, optimiser, schedule, random states and its log; trl's trainer has more state than that.
"""

from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import Tensor
from torch.utils.data import Sampler
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from rapo_lib.runs import RapoError
from rapo_lib.training import checkpoints


class Recoverable:
    """Saves whole checkpoints, resumes from them, in one process or several."""

    def train(self, resume_from_checkpoint: str | Path | None = None) -> None:
        """Train to `max_steps`, from a checkpoint's state if one is given; one that is there already is only loaded."""
        if resume_from_checkpoint is None:
            super().train()
            return
        folder = str(resume_from_checkpoint)
        state = TrainerState.load_from_json(str(Path(folder) / TRAINER_STATE_NAME))
        if state.global_step < self.args.max_steps:
            super().train(resume_from_checkpoint=folder)
        else:  # transformers would make one update too many
            self._load_from_checkpoint(folder)
            self.state = state

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler:
        self._sampler = super()._get_train_sampler(dataset)
        return self._sampler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with checkpoints.staged(folder, self.args.should_save, self.accelerator.wait_for_everyone) as building:
            self.save_model(str(building), _internal_call=True)
            self._save_optimizer_and_scheduler(str(building))
            self._save_scaler(str(building))
            self._save_rng_state(str(building))
            if self.args.should_save:
                (building / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle that nothing reads
                self.state.save_to_json(str(building / TRAINER_STATE_NAME))
            checkpoints.save_rest(building, *self._rest(), self.args.process_index)
        if self.args.should_save:
            rotate_checkpoints(self.args.output_dir, self.args.save_total_limit)

    def _rest(self) -> tuple[dict[str, Any], list[dict[str, Tensor]]]:
        """What neither transformers nor trl saves: counters, and sampled batches that are not used up."""
        used_up = self._step % (self.args.steps_per_generation * self.num_iterations) == 0
        state = {"step": self._step, "dropped": self.updates.dropped, "in_a_row": self.updates.in_a_row,
                 "processes": self.args.world_size}  # fmt: skip
        return state, [] if used_up else self._buffered_inputs

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state, batches = checkpoints.load_rest(Path(checkpoint), self.args.process_index)
        if state["processes"] != self.args.world_size:
            raise RapoError(f"{checkpoint} is of {state['processes']} processes; these are {self.args.world_size}")
        self._step, self.updates.dropped, self.updates.in_a_row = state["step"], state["dropped"], state["in_a_row"]
        to = self.accelerator.device
        self._buffered_inputs = [{k: t.to(to) for k, t in batch.items()} for batch in batches] or None
        for _ in range(int(self.state.epoch)):  # every epoch's order is drawn after the one before
            next(iter(self._sampler))
