"""Looking one update ahead: who sampled what, at the same time as what, and with which importance ratio."""

import threading

import pytest
import torch
from trainers import G, Scripted, make

from rapo_lib.hybrid import RAPOConfig, RAPOTrainer
from rapo_lib.models import load_tokenizer
from rapo_lib.runs import RapoError
from rapo_lib.training.prefetch import in_groups


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


class Noted(RAPOTrainer):
    """Notes after how many updates replies were sampled, and the log-ratios that each update trained on."""

    def __init__(self, *args, **options):
        self.sampled, self.ratios = [], []
        super().__init__(*args, **options)

    def _generate(self, ids):
        self.sampled.append(self.state.global_step)
        return super()._generate(ids)

    def _hybrid_parts(self, model, picked, where, logp, inputs):
        old = inputs.get("old_per_token_logps", logp)
        self.ratios.append(((logp - old) * inputs["completion_mask"]).abs().max().item())
        return super()._hybrid_parts(model, picked, where, logp, inputs)


def noted(tokenizer, folder, feedback=None, **options):
    """One group an update, four updates an epoch."""
    options = {"per_device_train_batch_size": G, "max_steps": 5, **options}
    trainer = make(tokenizer, folder, feedback, kind=Noted, **options)
    trainer.train()
    return trainer


def test_replies_are_one_update_old_but_for_an_epochs_first(tokenizer, tmp_path):
    assert noted(tokenizer, tmp_path).sampled == [0, 1, 2, 3, 4]
    assert noted(tokenizer, tmp_path, prefetch=True).sampled == [0, 0, 1, 2, 4]


def test_nothing_is_sampled_ahead_of_a_checkpoint(tokenizer, tmp_path):
    trainer = noted(tokenizer, tmp_path, prefetch=True, save_strategy="steps", save_steps=2)
    assert trainer.sampled == [0, 0, 2, 2, 4]


@pytest.mark.parametrize("parts", [1, 2])
def test_the_ratio_compares_with_the_policy_that_sampled(tokenizer, tmp_path, parts):
    options = {"gradient_accumulation_steps": parts, "per_device_train_batch_size": 2 * G // parts, "max_steps": 2,
               "temperature": 0.7}  # fmt: skip
    off = noted(tokenizer, tmp_path, **options)
    on = noted(tokenizer, tmp_path, prefetch=True, **options)
    assert max(off.ratios) == 0.0  # on policy
    assert max(on.ratios[:parts]) < 1e-6 and min(on.ratios[parts:]) > 1e-2


def test_the_first_update_is_the_same_with_and_without(tokenizer, tmp_path):
    one, other = (noted(tokenizer, tmp_path, prefetch=p, max_steps=1) for p in (False, True))
    named = dict(other.model.named_parameters())
    assert all(torch.allclose(p, named[n], atol=1e-6) for n, p in one.model.named_parameters() if "lora_" in n)


def test_two_runs_with_prefetch_agree_in_every_bit(tokenizer, tmp_path):
    one, other = (noted(tokenizer, tmp_path, Scripted(), prefetch=True) for _ in range(2))
    named = dict(other.model.named_parameters())
    assert all(torch.equal(p, named[n]) for n, p in one.model.named_parameters() if "lora_" in n)
    assert one.feedback.seen == other.feedback.seen and len(one.feedback.seen) == 5


class AtTheSameTime(Scripted):
    """From the second update on, answers only once the update before has been trained on."""

    def __init__(self):
        super().__init__()
        self.trained = threading.Semaphore(0)

    def __call__(self, rows, replies):
        if self.seen:
            assert self.trained.acquire(timeout=60), "nobody trained while this was asked"
        return super().__call__(rows, replies)


def test_the_feedback_is_asked_while_the_update_before_trains(tokenizer, tmp_path):
    feedback = AtTheSameTime()

    class Told(Noted):
        def training_step(self, *args, **options):
            loss = super().training_step(*args, **options)
            feedback.trained.release()
            return loss

    trainer = make(tokenizer, tmp_path, feedback, kind=Told, per_device_train_batch_size=G, max_steps=4, prefetch=True)
    trainer.train()
    assert len(feedback.seen) == 4 and trainer.state.global_step == 4


class Broken(Scripted):
    """Fails at the second question."""

    def __call__(self, rows, replies):
        if self.seen:
            raise RapoError("the endpoint is gone")
        return super().__call__(rows, replies)


def test_what_goes_wrong_in_the_thread_stops_the_training(tokenizer, tmp_path):
    with pytest.raises(RapoError, match="the endpoint is gone"):
        noted(tokenizer, tmp_path, Broken(), prefetch=True)


def test_a_batch_that_serves_two_updates_cannot_be_looked_past(tmp_path):
    for options in ({"steps_per_generation": 2}, {"num_iterations": 2}):
        with pytest.raises(RapoError, match="prefetch needs fresh replies"):
            RAPOConfig(output_dir=str(tmp_path), prefetch=True, **options)


def test_groups_of_stripped_replies():
    assert in_groups([" a", "b ", "c", "d"], 2) == [("a", "b"), ("c", "d")]
