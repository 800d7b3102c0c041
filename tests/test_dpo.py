"""DPO on a tiny random Llama: which pairs are made, and that training moves towards the preferred replies."""

import pytest
from trainers import tiny

from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.feedback import Verdict
from rapo_lib.models import load_adapter, load_tokenizer
from rapo_lib.profiles import settings
from rapo_lib.runs import RapoError
from rapo_lib.simulation import training_row
from rapo_lib.training.dpo import Judged, judged_start, preference_pairs, train_dpo

CHOSEN = settings("smoke", {"steps": 3, "group": 3, "groups": 2, "reply_tokens": 6, "learning_rate": 0.02})
ROWS = [training_row(p, [Turn("seeker", p.opening[:40])]) for p in load_profiles("train")[:4]]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


class LongerIsBetter:
    """A feedback with known scores that keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, rows, replies):
        self.asked.append(len(rows))
        return [self.verdict(group) for group in replies]

    def verdict(self, group):
        scores = tuple(float(len(reply)) for reply in group)
        return Verdict(scores, ("",) * len(group), None, tuple(sorted(range(len(group)), key=lambda i: -scores[i])))


def verdict(scores, ranking, status="ok"):
    return Verdict(scores, ("",) * len(ranking), None, ranking, status)


def test_pairs_are_the_best_and_the_worst_where_they_differ():
    replies = (("a", "b", "c"), ("d", "e", "f"), ("g", "h", "i"), ("j", "k", "j"))
    verdicts = (
        verdict((0.1, 0.9, -0.5), (1, 0, 2)),
        verdict(None, (0, 1, 2), "abstained: silence"),
        verdict((0.2, 0.2, 0.2), (0, 1, 2)),
        verdict((0.9, 0.5, 0.1), (0, 1, 2)),
    )
    (pair,) = preference_pairs(Judged(tuple(ROWS), replies, verdicts))
    assert pair["prompt"] == ROWS[0]["prompt"]
    assert pair["chosen"] == [{"role": "assistant", "content": "b"}]
    assert pair["rejected"] == [{"role": "assistant", "content": "c"}]


def test_the_start_is_asked_as_often_as_a_training_run_asks(tokenizer):
    feedback = LongerIsBetter()
    judged = judged_start(tiny(tokenizer), tokenizer, ROWS, feedback, CHOSEN, seed=0)
    assert feedback.asked == [2, 2, 2]  # groups a step, steps times
    assert [len(group) for group in judged.replies] == [3] * 6
    assert [row["profile"] for row in judged.rows] == [ROWS[i % 4]["profile"] for i in range(6)]
    again = judged_start(tiny(tokenizer), tokenizer, ROWS, LongerIsBetter(), CHOSEN, seed=0)
    assert again == judged
    assert judged_start(tiny(tokenizer), tokenizer, ROWS, LongerIsBetter(), CHOSEN, seed=1) != judged


def test_training_prefers_the_chosen_replies_and_leaves_an_adapter(tokenizer, tmp_path):
    said = {"chosen": "What is it about this?", "rejected": "You should rest."}
    pairs = [
        {"prompt": row["prompt"], **{k: [{"role": "assistant", "content": v}] for k, v in said.items()}} for row in ROWS
    ]
    steps = train_dpo(tiny(tokenizer), tokenizer, pairs, CHOSEN, str(tmp_path / "scratch"), tmp_path / "adapter", 0)
    assert steps.step.tolist() == [1, 2, 3]
    assert steps.loss[0] == pytest.approx(0.6931, abs=1e-3)  # log 2: the adapter starts at the reference
    assert steps.loss[2] < steps.loss[0] and steps.margin[2] > 0
    tuned = load_adapter(tiny(tokenizer), tmp_path / "adapter")
    moved = [p.abs().max().item() for n, p in tuned.named_parameters() if "lora_B" in n]
    assert moved and min(moved) > 0


def test_no_pair_is_a_clear_error(tokenizer, tmp_path):
    with pytest.raises(RapoError, match="no pair to train on"):
        train_dpo(tiny(tokenizer), tokenizer, [], CHOSEN, str(tmp_path), tmp_path / "adapter", 0)
