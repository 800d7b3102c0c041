"""Arms of the thinking policy: what they change, a whole small training through them, swapped thoughts, the table."""

from dataclasses import fields, replace

import pandas as pd
import pytest
from trainers import G, tiny

from rapo_lib.dialogue import Turn, load_profiles, read_jsonl
from rapo_lib.evaluation import ModelPolicy
from rapo_lib.foresight import policy as rlff
from rapo_lib.foresight.comparison import evaluate_policy
from rapo_lib.foresight.policy import FORESIGHT_ARMS, SwappedThoughts, form_by_step, train_policy
from rapo_lib.foresight.start import ReasoningStartConfig, reasoning_start
from rapo_lib.foresight.thoughts import TAG, ThinkingPolicy, spoken, take_apart
from rapo_lib.models import is_whole, load_model, load_tokenizer, save_model
from rapo_lib.profiles import Settings
from rapo_lib.runs import RapoError, read_json
from rapo_lib.seeker import ProbeSeeker

PEOPLE = load_profiles("train")[:4]
HISTORIES = [(p, (Turn("seeker", p.opening),)) for p in PEOPLE]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """A tiny random model on disk."""
    place = tmp_path_factory.mktemp("tiny") / "model"
    save_model(place, tiny(tokenizer), tokenizer)
    return place


class Letters:
    """A reward model that prefers some letters; it remembers the texts."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def score_batch(self, items):
        self.given += [text for _, text in items]
        return [float(sum(map(ord, text)) % 11) for _, text in items]


# ------------------------------------------------------------------------------------------- arms


def test_every_arm_changes_one_thing_against_rlff() -> None:
    full = FORESIGHT_ARMS["rlff"]
    for arm in FORESIGHT_ARMS.values():
        if arm.tier == "start" or arm is full:
            continue
        changed = [f.name for f in fields(arm) if getattr(arm, f.name) != getattr(full, f.name)]
        assert len(set(changed) - {"name", "label", "tier", "trained_as"}) == 1, arm.name
    assert {a.name for a in FORESIGHT_ARMS.values() if a.adapter is None} == {"reasoning_start", "plain_start"}
    assert FORESIGHT_ARMS["thoughts_swapped"].adapter == "rlff" and FORESIGHT_ARMS["thoughts_swapped"].tier == "control"


def test_wrong_names_and_arms_without_training_are_errors(tmp_path) -> None:
    with pytest.raises(RapoError, match="unknown arm 'rlf'; did you mean 'rlff'"):
        rlff.known_foresight_arm("rlf")
    with pytest.raises(RapoError, match="'thoughts_swapped' is not trained; it plays with the adapter of 'rlff'"):
        train_policy(FORESIGHT_ARMS["thoughts_swapped"], Settings(), HISTORIES, ProbeSeeker(), Letters(), tmp_path)
    with pytest.raises(RapoError, match="'plain_start' plays with its start alone"):
        rlff.playing_policy(FORESIGHT_ARMS["plain_start"], Settings(), tmp_path)


# ------------------------------------------------------------------------------------------- training


def test_start_training_and_evaluation_of_a_tiny_policy(folder, tokenizer, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RAPO_CACHE", str(tmp_path / "cache"))
    chosen = Settings(model=str(folder), warm_start=False, reply_tokens=6, group=G, groups=2, steps=2, save_steps=0,
                      learning_rate=0.05, lora_rank=4)  # fmt: skip
    arm = FORESIGHT_ARMS["rlff"]
    chosen = rlff.arm_settings(arm, chosen, ReasoningStartConfig(examples=8, epochs=1.0, rank=4))
    assert is_whole(rlff.Path(chosen.model)) and chosen.weight == 0.0 and chosen.reply_tokens == 6 + rlff.THOUGHT_TOKENS
    reward, seeker = Letters(), ProbeSeeker()
    trained = train_policy(arm, chosen, HISTORIES, seeker, reward, tmp_path / "rlff", reward_hash="abc")
    record = read_json(trained / "arm.json")
    assert record["judge"] == "abc" and record["arm"]["overrides"] == {"weight": 0.0}
    rollouts = list(read_jsonl(trained / "rollouts.jsonl"))
    assert len(rollouts) == 2 * 2 * G and all(r["reaction"] is None for r in rollouts)
    assert set(reward.given) == {reply for r in rollouts if (reply := spoken(r["reply"]))}
    assert not any(TAG.search(text) for text in reward.given)
    steps = form_by_step(rollouts, 2 * G)
    assert list(steps.step) == [1, 2] and steps.formed.between(0, 1).all()

    policy = rlff.playing_policy(arm, chosen, trained)
    place = evaluate_policy(policy, tokenizer, PEOPLE, {"probe": seeker}, 2, tmp_path / "played")
    cost = read_json(place / "spent.json")
    assert cost["replies"] == 8 and cost["total_tokens"] > 0
    assert len(pd.read_csv(place / "outcomes.csv")) == 4


def test_the_start_is_trained_once_for_each_thinking(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RAPO_CACHE", str(tmp_path / "cache"))
    config = ReasoningStartConfig(examples=4, epochs=1.0, rank=4)
    first = reasoning_start(config, str(folder))
    made = first.stat().st_mtime_ns
    assert reasoning_start(config, str(folder)) == first and first.stat().st_mtime_ns == made
    assert reasoning_start(replace(config, thinking="none"), str(folder)) != first


# ------------------------------------------------------------------------------------------- swapped thoughts


def test_replies_go_on_from_another_historys_thought(folder, tokenizer, monkeypatch) -> None:
    model, _ = load_model(str(folder))
    policy = ModelPolicy(model=model, tokenizer=tokenizer, reply_tokens=8)
    histories = [(Turn("seeker", text),) for text in ("I lost my job.", "My dog died.", "I cannot sleep.")]
    thoughts = ["<think> job </think> a", "<think> dog </think> b", "sleepless </think> c"]
    monkeypatch.setattr(ModelPolicy, "__call__", lambda self, histories, seed: thoughts)
    raw = SwappedThoughts(policy=policy)(histories, 5)
    said = [take_apart(text) for text in raw]
    assert sorted(s.thought for s in said) == ["dog", "job", "sleepless"]
    assert not [s for s, own in zip(said, ("job", "dog", "sleepless"), strict=True) if s.thought == own]
    begun = [f"<think> {s.thought} </think>" for s in said]
    followed = rlff.go_on(policy, histories, begun, rlff.seed_for(5, "after another's thought"))
    assert raw == [begin + text for begin, text in zip(begun, followed, strict=True)]
    thinking = ThinkingPolicy(SwappedThoughts(policy=policy))
    assert not any(TAG.search(reply) for reply in thinking(histories, 5))
    with pytest.raises(ValueError, match="two histories or more, not 1"):
        SwappedThoughts(policy=policy)(histories[:1], 0)


# ------------------------------------------------------------------------------------------- tables


def test_form_by_step_by_hand() -> None:
    def record(reply, score, emotion):
        return {"reply": reply, "score": score, "before": 40.0, "emotion": emotion}

    rollouts = [
        record("<think> a b </think> c d e", 1.0, 42.0),
        record("c", 0.0, 38.0),
        record(f"<think> {'a ' * 26}</think> c", 0.5, 40.0),  # over the limit
        record("<think> a", -1.0, 30.0),
    ]
    first, second = form_by_step(rollouts, 2).to_dict("records")
    assert first == {"step": 1, "formed": 0.5, "thought_words": 1.0, "reply_words": 2.0, "reward": 0.5, "change": 0.0}
    assert second["formed"] == 0.0 and second["thought_words"] == 13.5 and second["reward"] == -0.25
