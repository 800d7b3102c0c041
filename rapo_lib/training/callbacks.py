"""What happens around an update: a broken one is dropped, the teacher follows, a collapse is noticed."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from peft import PeftModel
from transformers import TrainerCallback, TrainerControl, TrainerState

from rapo_lib.runs import RapoError
from rapo_lib.training import watch

log = logging.getLogger(__name__)


class FiniteUpdates(TrainerCallback):
    """Drops an update whose loss or gradient is not finite, counts it, and gives up after `limit` in a row.

    The loss says with `blame` which of its parts went wrong. Raises RapoError with the step and the cause.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.dropped = 0  # in the whole run
        self.in_a_row = 0
        self.causes: list[str] = []

    def blame(self, cause: str) -> None:
        """Name a part of this step's loss that is not finite."""
        if cause not in self.causes:
            self.causes.append(cause)

    def inspect(self, model: torch.nn.Module) -> None:
        """Look at the gradients; before they are clipped, since one that is not finite then spoils all of them."""
        if self.causes:
            return
        broken = [n for n, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        if broken:
            self.blame(f"the gradient of {broken[0]}" + (f" and {len(broken) - 1} others" if broken[1:] else ""))

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Forget the last step's causes."""
        self.causes = []

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, model: torch.nn.Module, **_: Any
    ) -> None:
        """Take the gradients away if they must not be used; an optimiser leaves parameters without one alone."""
        self.inspect(model)
        if not self.causes:
            self.in_a_row = 0
            return
        model.zero_grad(set_to_none=True)
        self.dropped += 1
        self.in_a_row += 1
        said = f"update {state.global_step + 1}: {' and '.join(self.causes)} is not finite"
        if state.is_world_process_zero:  # all processes know it
            log.warning("%s; the update is dropped", said)
        if self.in_a_row >= self.limit:
            raise RapoError(f"{said}, the {self.in_a_row}. time in a row; training stops. Try a lower learning rate")

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Put the count beside the step's other numbers."""
        if "loss" in state.log_history[-1]:
            state.log_history[-1]["rapo/dropped_updates"] = self.dropped


class EMATeacher(TrainerCallback):
    """The teacher q: a second LoRA adapter, a copy of the student's at the start, then q <- (1 - u) q + u pi.

    trl's own callback starts the copy at zero weights, so that A and B both creep up from zero; starting from the
    student's A (and B = 0) is the same function at step 0 and a true average of the student's weights afterwards.
    """

    def __init__(self, model: PeftModel, rate: float, updates: FiniteUpdates) -> None:
        model.add_adapter("teacher", model.peft_config["default"])
        self.pairs = _teacher_and_student(model)
        self.rate, self.updates = rate, updates
        for teacher, student in self.pairs:
            teacher.data.copy_(student.data)
            teacher.requires_grad_(False)

    def on_train_begin(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        """Look again: where a model is cut up over processes, its parameters are others now."""
        self.pairs = _teacher_and_student(model)

    @torch.no_grad()
    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Move the teacher after each update, but not after one that was dropped."""
        if self.updates.causes:
            return
        for teacher, student in self.pairs:
            teacher.lerp_(student, self.rate)


def _teacher_and_student(model: torch.nn.Module) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
    named = dict(model.named_parameters())
    return [(named[n.replace(".default.", ".teacher.")], p) for n, p in named.items() if ".default." in n]


class CollapseWatch(TrainerCallback):
    """Looks at every step's numbers for signs of collapse; warns in the log, and on request stops the training.

    Reads the log history alone, so a resumed run sees what an uninterrupted one would. A sign that lasts is told once.
    """

    def __init__(self, limits: watch.Limits, stop: bool, tell: Callable[[str], None] = log.warning) -> None:
        self.limits, self.stop, self.tell = limits, stop, tell

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Judge the last step by those before it."""
        steps = [entry for entry in state.log_history if "loss" in entry]
        if not steps or state.log_history[-1] is not steps[-1]:
            return
        readings = [watch.reading(entry) for entry in steps]
        signs = watch.signs(readings, self.limits)
        known = {sign.kind for sign in watch.signs(readings[:-1], self.limits)}
        steps[-1]["rapo/collapse"] = [sign.text for sign in signs]
        for sign in signs:
            if sign.kind not in known and state.is_world_process_zero:
                self.tell(f"step {state.global_step}: {sign.text}")
        if signs and self.stop:
            control.should_training_stop = True
