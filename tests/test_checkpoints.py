"""Going on from a checkpoint as if nothing had happened, and updates that must not be made."""

import json
import math

import pytest
import torch
from trainers import G, Scripted, make

from rapo_lib.models import load_tokenizer
from rapo_lib.runs import RapoError
from rapo_lib.training import checkpoints

SPEED = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


def weights(trainer):
    """Both adapters."""
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters() if "lora_" in n}


def history(trainer):
    """The log without what depends on the clock."""
    return [{k: v for k, v in entry.items() if k not in SPEED} for entry in trainer.state.log_history]


@pytest.mark.parametrize(
    "options",
    [
        {},  # two steps an epoch, so the third is in the second epoch and the order is shuffled anew
        {"beta": 0.1, "mixing": "advantage", "lr_scheduler_type": "linear"},
        {"num_iterations": 2},  # each batch of replies serves two updates, and the checkpoint lies between them
        {"per_device_train_batch_size": G, "gradient_accumulation_steps": 2, "fast": False},
        {"per_device_train_batch_size": G, "steps_per_generation": 2},  # and two parts of it two updates
        {"per_device_train_batch_size": G, "prefetch": True},  # four updates an epoch, replies one update old
    ],
)
def test_three_and_three_steps_are_six(tokenizer, tmp_path, options):
    options = {"max_steps": 6, "learning_rate": 0.02, "warmup_steps": 2, **options}
    whole = make(tokenizer, tmp_path, save_strategy="steps", save_steps=3, save_total_limit=None, **options)
    whole.train()
    torch.manual_seed(99)  # whatever the process did in between
    again = make(tokenizer, tmp_path / "again", **options)
    again.train(tmp_path / "checkpoint-3")
    assert again.state.global_step == 6
    assert history(again) == history(whole)
    ours, wanted = weights(again), weights(whole)
    assert ours.keys() == wanted.keys() and all(torch.equal(ours[n], wanted[n]) for n in wanted)
    moments = [t.optimizer.state_dict()["state"] for t in (again, whole)]
    assert all(torch.equal(moments[0][i][k], moments[1][i][k]) for i in moments[1] for k in ("exp_avg", "exp_avg_sq"))
    optimised = {id(p) for group in again.optimizer.param_groups for p in group["params"]}
    assert not any(id(p) in optimised for n, p in again.model.named_parameters() if ".teacher." in n)


def test_a_run_of_three_steps_is_carried_on_to_six(tokenizer, tmp_path):
    short = make(tokenizer, tmp_path, max_steps=3, save_strategy="steps", save_steps=3)
    short.train()
    whole = make(tokenizer, tmp_path / "x", max_steps=6)
    whole.train()
    again = make(tokenizer, tmp_path / "x", max_steps=6)
    again.train(checkpoints.latest(tmp_path))
    assert history(again)[:6] == [e for e in history(whole) if "loss" in e]
    assert all(torch.equal(p, weights(whole)[n]) for n, p in weights(again).items())


def test_a_finished_run_is_only_loaded(tokenizer, tmp_path):
    done = make(tokenizer, tmp_path, max_steps=3, save_strategy="steps", save_steps=3)
    done.train()
    feedback = Scripted()
    again = make(tokenizer, tmp_path / "again", feedback, max_steps=3)
    again.train(checkpoints.latest(tmp_path))
    assert feedback.seen == [] and again.state.global_step == 3
    assert all(torch.equal(p, weights(done)[n]) for n, p in weights(again).items())


def test_a_checkpoint_holds_no_pickle_that_is_read_unguarded_and_no_leftover(tokenizer, tmp_path):
    (tmp_path / ".checkpoint-2.tmp").mkdir()  # what a kill left
    (tmp_path / ".checkpoint-2.tmp" / "half").touch()
    trainer = make(tokenizer, tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-2"]  # the limit is one
    names = {p.relative_to(tmp_path / "checkpoint-2").as_posix() for p in (tmp_path / "checkpoint-2").rglob("*")}
    adapters = {"adapter_model.safetensors", "teacher/adapter_model.safetensors"}
    assert adapters | {"optimizer.pt", checkpoints.STATE} <= names
    assert "half" not in names and "training_args.bin" not in names
    for name in ("optimizer.pt", "scheduler.pt"):
        torch.load(tmp_path / "checkpoint-2" / name, weights_only=True)


def test_what_is_no_checkpoint_is_one_clear_line(tokenizer, tmp_path):
    assert checkpoints.latest(tmp_path / "nowhere") is None
    trainer = make(tokenizer, tmp_path, max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    (tmp_path / "checkpoint-1" / checkpoints.STATE).unlink()
    with pytest.raises(RapoError, match="no checkpoint of this trainer"):
        make(tokenizer, tmp_path, max_steps=2).train(tmp_path / "checkpoint-1")


def test_the_rest_survives_the_disk(tmp_path):
    batches = [{"b/c": torch.arange(3) + i, "a": torch.ones(2, 2)} for i in range(11)]
    checkpoints.save_rest(tmp_path, {"step": 4}, batches)
    state, read = checkpoints.load_rest(tmp_path)
    assert state == {"step": 4} and len(read) == 11
    assert all(torch.equal(x[k], y[k]) for x, y in zip(batches, read, strict=True) for k in x)


# --------------------------------------------------------------------------------- updates that are not made


class Poisoned:
    """A trainer hook that makes chosen steps' loss or gradient infinite, as an overflow would."""

    def __init__(self, trainer, steps, what):
        self.trainer, self.steps, self.what, self.inner = trainer, steps, what, trainer._hybrid_parts
        trainer._hybrid_parts = self

    def __call__(self, *args):
        parts = self.inner(*args)
        if self.trainer.state.global_step + 1 in self.steps:
            if self.what == "gradient":
                weight = dict(self.trainer.model.named_parameters())[LAST]
                weight.register_hook(lambda g: torch.full_like(g, math.nan)) if not weight._backward_hooks else None
            else:
                share, value = parts[self.what]
                parts[self.what] = (share, value + math.inf)
        return parts


LAST = "base_model.model.model.layers.1.mlp.down_proj.lora_B.default.weight"


@pytest.mark.parametrize("what", ["policy_loss", "distillation_loss"])
def test_a_broken_update_is_dropped_and_counted(tokenizer, tmp_path, what):
    only_first = make(tokenizer, tmp_path, max_steps=1)
    only_first.train()
    trainer = make(tokenizer, tmp_path, max_steps=2)
    Poisoned(trainer, {2}, what)
    trainer.train()
    assert all(torch.equal(p, weights(only_first)[n]) for n, p in weights(trainer).items())  # the teacher included
    assert [e["rapo/dropped_updates"] for e in trainer.state.log_history if "loss" in e] == [0, 1]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("policy_loss", "update 4: policy_loss is not finite, the 3. time in a row"),
        ("distillation_loss", "update 4: distillation_loss is not finite"),
        ("gradient", f"update 4: the gradient of {LAST}"),
    ],
)
def test_training_stops_with_the_cause_when_it_stays_broken(tokenizer, tmp_path, what, says):
    trainer = make(tokenizer, tmp_path, max_steps=9)
    Poisoned(trainer, {2, 3, 4}, what)
    with pytest.raises(RapoError, match=says):
        trainer.train()
    assert all(p.isfinite().all() for p in weights(trainer).values()) and trainer.state.global_step == 3


def test_the_count_starts_again_after_a_good_update(tokenizer, tmp_path):
    trainer = make(tokenizer, tmp_path, max_steps=6)
    Poisoned(trainer, {1, 2, 4, 5}, "policy_loss")
    trainer.train()
    assert trainer.updates.dropped == 4
    assert "NaN" not in json.dumps([e["loss"] for e in trainer.state.log_history if "loss" in e])
