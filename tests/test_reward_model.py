"""The reward model: its loss by hand, what it learns, and that a saved one is the same."""

from dataclasses import replace

import pytest
import torch
from trainers import tiny

from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.foresight.records import RewardRecord
from rapo_lib.foresight.reward_model import RewardModel, RewardModelConfig, reward_loss, train_reward_model
from rapo_lib.models import load_tokenizer, save_model
from rapo_lib.runs import RapoError

GOOD = ("What frightens you about it?", "What is it like for you?", "What would help you tonight?")
BAD = ("You should make a list.", "You must try harder.", "You need to calm down.")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "tiny"
    tokenizer = load_tokenizer()
    save_model(folder, tiny(tokenizer, hidden_size=32, intermediate_size=64), tokenizer)
    return RewardModelConfig(base=str(folder), rank=4, epochs=10, learning_rate=5e-3, histories=4, prompt_tokens=60)


def records_of(profiles):
    return [
        RewardRecord(p.id, (Turn("seeker", p.opening),), reply, 0.4 if reply in GOOD else -0.4, None, None, ())
        for p in profiles
        for reply in (*GOOD, *BAD)
    ]


@pytest.fixture(scope="module")
def trained(config):
    return train_reward_model(records_of(load_profiles("train")[:32]), config)


# ------------------------------------------------------------------------------------------- the loss


def test_the_loss_by_hand():
    scores, targets = torch.tensor([1.0, 0.0, 5.0]), torch.tensor([0.0, 1.0, 5.0])
    regression = (1 + 1 + 0) / 3
    apart = reward_loss(scores, targets, torch.tensor([0, 1, 2]), 1.0, 0.1)
    assert apart.item() == pytest.approx(regression), "replies to different histories are no pair"
    joined = reward_loss(scores, targets, torch.tensor([0, 0, 2]), 2.0, 0.1)
    pair = torch.log(1 + torch.exp(torch.tensor(1.0)))  # the second is better and scored 1 lower
    assert joined.item() == pytest.approx(regression + 2 * pair.item(), rel=1e-6)
    assert reward_loss(scores, targets, torch.tensor([0, 0, 2]), 2.0, 1.5).item() == pytest.approx(regression)
    assert reward_loss(scores, targets, torch.tensor([0, 0, 2]), 0.0, 0.1).item() == pytest.approx(regression)


def test_the_gradient_lifts_the_better_reply():
    scores = torch.zeros(2, requires_grad=True)
    reward_loss(scores, torch.tensor([1.0, -1.0]), torch.tensor([0, 0]), 1.0, 0.1).backward()
    assert scores.grad[0] < 0 < scores.grad[1]


# ------------------------------------------------------------------------------------------- learning


def test_learns_what_earns_and_knows_it_of_other_people(trained):
    model, losses = trained
    assert losses[-1] < 0.5 * losses[0]
    histories = [(Turn("seeker", p.opening),) for p in load_profiles("dev")[:5]]
    good = model.score_batch([(h, reply) for h in histories for reply in GOOD])
    bad = model.score_batch([(h, reply) for h in histories for reply in BAD])
    right = [g > b for g in good for b in bad]
    assert sum(right) > 0.9 * len(right)
    assert -1.5 < min(bad) < max(good) < 1.5, "on the scale of the rewards"


def test_a_history_is_shared_without_a_trace(trained):
    model, items = trained[0], [((Turn("seeker", p.opening),), r) for p in load_profiles("dev")[:3] for r in GOOD]
    together, alone = model.score_batch(items), [model.score_batch([item])[0] for item in items]
    assert together == pytest.approx(alone, abs=2e-2 if model.scorer.head.weight.dtype != torch.float64 else 0)


def test_saved_and_loaded_scores_are_identical(trained, tmp_path):
    model, items = trained[0], [((Turn("seeker", p.opening),), r) for p in load_profiles("dev") for r in (*GOOD, *BAD)]
    loaded = RewardModel.load(model.save(tmp_path / "reward_model"))
    assert loaded.score_batch(items) == model.score_batch(items)
    assert len(set(loaded.score_batch(items))) > len(items) / 2, "scores tell replies apart"
    names = {p.suffix for p in (tmp_path / "reward_model").rglob("*") if p.is_file()}
    assert ".safetensors" in names and not names & {".bin", ".pt", ".pkl"}


def test_training_is_deterministic(trained, config):
    again, losses = train_reward_model(records_of(load_profiles("train")[:32]), config)
    assert losses == trained[1]
    item = ((Turn("seeker", "I can't sleep."),), GOOD[0])
    assert again.score_batch([item]) == trained[0].score_batch([item])


def test_reads_words_only(trained):
    noted = Turn("seeker", "I can't sleep.", emotion=12.0, feedback=1)
    history = (noted, Turn("supporter", "Why?"), Turn("seeker", "Work."))
    plain = tuple(Turn(t.speaker, t.text) for t in history)
    assert trained[0].score_batch([(history, GOOD[0])]) == trained[0].score_batch([(plain, GOOD[0])])
    assert trained[0].score_batch([]) == []


def test_nothing_to_learn_is_an_error(config):
    flat = [replace(r, reward=0.1) for r in records_of(load_profiles("train")[:2])]
    with pytest.raises(RapoError, match="no difference to learn from"):
        train_reward_model(flat, config)


def test_a_folder_without_one_is_an_error(tmp_path):
    with pytest.raises(RapoError, match=r"reward_model\.json"):
        RewardModel.load(tmp_path)
