"""The reward of thinking replies by hand, what the reward model is given, and training with it at tiny size."""

import pytest
import torch
from datasets import Dataset
from trainers import G, Hears, batch_of, gradients, make, rows, stir, tiny
from trl import GRPOConfig, GRPOTrainer

from rapo_lib.dialogue import Turn, load_profiles
from rapo_lib.feedback import CandidateGroup
from rapo_lib.foresight.reasoning import NOTHING_SAID, ReasoningReward, RubricReward
from rapo_lib.foresight.start import ReasoningStartConfig, answers, example_row
from rapo_lib.foresight.thoughts import TAG, ThoughtlessSeeker, take_apart, thought_examples, written
from rapo_lib.judge.rubric import read_replies, rubric_score
from rapo_lib.models import load_tokenizer
from rapo_lib.runs import RapoError
from rapo_lib.seeker import ProbeSeeker
from rapo_lib.simulation import SimulatedFeedback

HISTORY = (Turn("seeker", "My sister has not called since the funeral."),)
ASK, ADVISE = "What do you miss most about her calls?", "You should call her first."


class Words:
    """A reward model with a known taste, a tenth for each word; it remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[str, ...]] = []

    def score_batch(self, items):
        self.given.append(tuple(text for _, text in items))
        return [0.1 * len(text.split()) for _, text in items]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


# ------------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think> a b </think> c d", 0.2 + 0.5),
        ("<think> a b c d </think> c d", 0.2),  # the thought is over the limit of three words
        ("c d", 0.2),
        ("a </think> c d", 0.2),
        ("<think> a b", NOTHING_SAID),
        ("<think> a b </think>", NOTHING_SAID),
        ("", NOTHING_SAID),
    ],
)
def test_the_reward_is_the_models_score_of_the_reply_and_the_form(text: str, reward: float) -> None:
    model = Words()
    score = ReasoningReward(model, form_weight=0.5, thought_words=3)
    assert score.score_batch([(HISTORY, text)]) == pytest.approx([reward])
    assert model.given == ([("c d",)] if reward > NOTHING_SAID else [])


def test_without_the_form_or_without_reasoning_the_model_decides_alone() -> None:
    texts = [(HISTORY, written("a", "c d")), (HISTORY, "c d")]
    assert ReasoningReward(Words(), form_weight=0.0).score_batch(texts) == pytest.approx([0.2, 0.2])
    assert ReasoningReward(Words(), thinks=False).score_batch(texts) == pytest.approx([0.2, 0.2])


def test_the_rubric_as_a_reward_model_gives_its_mark_whatever_was_thought() -> None:
    marks = [rubric_score(HISTORY, t) for t in read_replies([(HISTORY, ASK), (HISTORY, ADVISE)])]
    reward = ReasoningReward(RubricReward(), form_weight=0.0)
    texts = [written("Give advice: call her, you should.", ASK), written("Ask an open question.", ADVISE)]
    assert reward.score_batch([(HISTORY, t) for t in texts]) == pytest.approx(marks)
    assert marks[0] > marks[1] + 0.5


def test_as_a_judge_it_scores_groups_in_one_call_and_says_nothing() -> None:
    model = Words()
    groups = [
        CandidateGroup(HISTORY, (written("a", "b"), "b c", "<think> a")),
        CandidateGroup(HISTORY, ("d", "d", written("a", "d e"))),
    ]
    one, other = ReasoningReward(model).compare_batch(groups)
    assert one.scores == pytest.approx((0.3, 0.2, -1.0)) and one.ranking == (0, 1, 2)
    assert other.scores == pytest.approx((0.1, 0.1, 0.4)) and other.ranking == (2, 0, 1)
    assert set(one.critiques + other.critiques) == {""}
    assert model.given == [("b", "b c", "d", "d e")]


def test_one_reply_has_one_score_however_the_model_rounds() -> None:
    class Noisy:
        def score_batch(self, items):
            return [0.001 * i for i in range(len(items))]

    other = (Turn("seeker", "Nothing to say."),)
    texts = [(HISTORY, written("x", "b")), (HISTORY, written("y", "b")), (other, written("x", "b"))]
    scores = ReasoningReward(Noisy(), form_weight=0.0).score_batch(texts)
    assert scores[0] == scores[1] != scores[2]


# ------------------------------------------------------------------------------------------- training


class Thoughtful(Words):
    """Rewards the first letter, so that groups differ whatever a random model writes."""

    def score_batch(self, items):
        super().score_batch(items)
        return [float(ord(text[0]) % 7) for _, text in items]


def reward_feedback(reward, seeker=None):
    people = {p.id: p for p in load_profiles("train")[:4]}
    return SimulatedFeedback(ThoughtlessSeeker(seeker or ProbeSeeker()), reward, people, reactions=False)


def thinks_aloud(trainer, texts):
    """The trainer's rollouts replaced by these texts, as tokens with the end; the rest of the step is real."""
    encode = trainer.processing_class

    def rollouts(ids):
        return ids, [
            [*encode(texts[i % len(texts)], add_special_tokens=False).input_ids, encode.eos_token_id]
            for i in range(len(ids))
        ]

    trainer._generate_transformers = rollouts


TEXTS = (written("zebra", "b is said"), "zebra </think> c is said", written("zebra", "d is said"))


def test_in_training_the_model_hears_replies_and_the_thoughts_tokens_are_trained(tokenizer, tmp_path) -> None:
    model, seeker = Thoughtful(), Hears()
    feedback = reward_feedback(ReasoningReward(model), seeker)
    trainer = make(tokenizer, tmp_path, feedback, distillation_weight=0.0, max_completion_length=40)
    thinks_aloud(trainer, TEXTS)
    batch = batch_of(trainer)
    assert model.given == [("b is said", "c is said", "d is said") * 2]  # two histories
    assert "c is said" in seeker.heard and not any("zebra" in text or TAG.search(text) for text in seeker.heard)
    for ids, mask, text in zip(batch["completion_ids"], batch["completion_mask"], TEXTS * 2, strict=True):
        assert tokenizer.decode(ids[mask.bool()], skip_special_tokens=True) == text  # the thought too
    assert batch["advantages"].abs().min() > 0
    stir(trainer)
    _, found = gradients(trainer, batch)
    assert any(g.abs().max() > 0 for g in found.values())


def test_equal_rewards_move_nothing_even_where_thoughts_differ(tokenizer, tmp_path) -> None:
    trainer = make(
        tokenizer,
        tmp_path,
        reward_feedback(ReasoningReward(Words())),
        distillation_weight=0.0,
        max_completion_length=40,
    )
    thinks_aloud(trainer, (written("zebra", "b c"), written("quokka and zebra", "d e"), written("a", "f g")))
    batch = batch_of(trainer)
    stir(trainer)
    _, found = gradients(trainer, batch)
    assert batch["advantages"].eq(0).all() and all(g.abs().max() == 0 for g in found.values())


def test_two_real_steps_of_our_trainer_move_the_policy(tokenizer, tmp_path) -> None:
    trainer = make(tokenizer, tmp_path, reward_feedback(ReasoningReward(Thoughtful())), distillation_weight=0.0)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if ".default." in n}
    trainer.train()
    after = dict(trainer.model.named_parameters())
    assert trainer.state.global_step == 2 and all(not torch.equal(p, after[n]) for n, p in before.items())


def test_trls_own_grpo_takes_it_as_a_reward_function(tokenizer, tmp_path) -> None:
    model = Thoughtful()
    config = GRPOConfig(output_dir=str(tmp_path), per_device_train_batch_size=2 * G, num_generations=G, max_steps=2,
                        learning_rate=0.1, max_completion_length=6, bf16=False, use_cpu=True, report_to="none",
                        gradient_checkpointing=False, save_strategy="no", disable_tqdm=True)  # fmt: skip
    policy = tiny(tokenizer)
    before = policy.lm_head.weight.detach().clone()
    trainer = GRPOTrainer(
        policy, ReasoningReward(model), args=config, train_dataset=Dataset.from_list(rows()), processing_class=tokenizer
    )
    trainer.train()
    assert len(model.given) == 2 and not any(TAG.search(text) for step in model.given for text in step)
    assert "rewards/ReasoningReward/mean" in trainer.state.log_history[0]
    assert not torch.equal(before, trainer.model.lm_head.weight)


# ------------------------------------------------------------------------------------------- the start


def test_the_start_learns_the_thought_and_the_reply_of_the_last_turn_only(tokenizer) -> None:
    example = next(e for e in thought_examples() if len(e.history) > 2)
    text = written(example.thought, example.reply)
    row = example_row(example, text, tokenizer, 200)
    learned = [t for t, m in zip(row["input_ids"], row["completion_mask"], strict=True) if m]
    assert tokenizer.decode(learned).strip() == f"{text}<|im_end|>"
    prompt = tokenizer.decode([t for t, m in zip(row["input_ids"], row["completion_mask"], strict=True) if not m])
    assert prompt.endswith("<|im_start|>assistant\n") and example.history[1].text in prompt and "think>" not in prompt


def test_the_controls_learn_the_same_replies_without_thoughts_or_with_others() -> None:
    examples = thought_examples()[:20]
    own, none, swapped = ([take_apart(t) for t in answers(examples, kind)] for kind in ("own", "none", "swapped"))
    assert (
        [s.reply for s in own] == [s.reply for s in none] == [s.reply for s in swapped] == [e.reply for e in examples]
    )
    assert all(s.well_formed for s in own + swapped) and not any(s.thought for s in none)
    assert sorted(s.thought for s in own) == sorted(s.thought for s in swapped)
    assert not [a for a, b in zip(own, swapped, strict=True) if a.thought == b.thought]
    with pytest.raises(RapoError, match="unknown thinking 'aloud'; known: own, none, swapped"):
        ReasoningStartConfig(thinking="aloud")
