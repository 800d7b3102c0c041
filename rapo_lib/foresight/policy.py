"""RLFF-ESC's third stage: GRPO on the learned reward of imagined futures, with and without reasoning.

The trainer is the arms' own with w = 0, which is GRPO on shared prompts and goes on after a kill; the reward is the
reward model's of the stripped reply, and every token that was sampled is trained, thought and reply alike. In training
the seeker is asked only for the record (how replies really felt), behind the border that holds thoughts back; nothing
it says or feels enters the reward. GRPO is what the paper's earlier version names; the settings are ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import pandas as pd

from rapo_lib.ablation import load_policy, start_model, train_arm
from rapo_lib.dialogue import SeekerProfile, Turn, to_messages
from rapo_lib.evaluation import ModelPolicy
from rapo_lib.foresight.reasoning import FORM_WEIGHT, ReasoningReward, ReplyScorer, formed
from rapo_lib.foresight.start import ReasoningStartConfig, Thinking, reasoning_start
from rapo_lib.foresight.thoughts import CLOSE, OPEN, ThinkingPolicy, ThoughtlessSeeker, take_apart
from rapo_lib.grid.arms import Arm
from rapo_lib.grid.controls import rotated
from rapo_lib.profiles import Settings
from rapo_lib.runs import RapoError, seed_for
from rapo_lib.sampling import fit, sample_replies
from rapo_lib.seeker import Seeker

THOUGHT_TOKENS = 36  # ours: room for a thought and its tags before the reply; our own need 23 on average, 29 at most


@dataclass(frozen=True, slots=True, kw_only=True)
class ForesightArm:
    """One way to train or start the thinking policy; everything not named here is the same for all."""

    name: str
    label: str
    tier: Literal["start", "primary", "exploratory", "control"]
    thinking: Thinking = "own"  # what the start has learned to write before a reply
    form_weight: float = FORM_WEIGHT
    trained_as: str | None = None  # the arm whose adapter it takes; "": none, it is a start
    swapped: bool = False  # in evaluation each reply follows a thought about somebody else

    @property
    def thinks(self) -> bool:
        """Whether it writes thoughts at all."""
        return self.thinking != "none"

    @property
    def adapter(self) -> str | None:
        """The name of the arm that trains what this one plays with, None for a start."""
        return self.name if self.trained_as is None else self.trained_as or None


_ROWS = (
    ForesightArm(name="reasoning_start", label="reasoning warm start", tier="start", trained_as=""),
    ForesightArm(name="plain_start", label="the same without thoughts", tier="start", thinking="none", trained_as=""),
    ForesightArm(name="rlff", label="RLFF-ESC", tier="primary"),
    ForesightArm(name="rlff_without_reasoning", label="RLFF without reasoning", tier="primary", thinking="none"),
    ForesightArm(name="rlff_without_form", label="RLFF without the form reward", tier="exploratory", form_weight=0.0),
    ForesightArm(
        name="thoughts_swapped", label="RLFF, others' thoughts", tier="control", trained_as="rlff", swapped=True
    ),
    ForesightArm(
        name="thoughts_unfit", label="RLFF from a start with others' thoughts", tier="control", thinking="swapped"
    ),
)
FORESIGHT_ARMS: dict[str, ForesightArm] = {arm.name: arm for arm in _ROWS}


def known_foresight_arm(name: str) -> ForesightArm:
    """The arm of this name; an unknown one is an error that suggests the nearest."""
    if name not in FORESIGHT_ARMS:
        near = get_close_matches(name, FORESIGHT_ARMS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"arms: {', '.join(FORESIGHT_ARMS)}"
        raise RapoError(f"unknown arm {name!r}; {hint}")
    return FORESIGHT_ARMS[name]


def _plays_with(arm: ForesightArm) -> str:
    return f"the adapter of {arm.adapter!r}" if arm.adapter else "its start alone"


# ------------------------------------------------------------------------------------------ training


def arm_settings(arm: ForesightArm, chosen: Settings, start: ReasoningStartConfig | None = None) -> Settings:
    """The run's settings for this arm: GRPO from its own start, with room for thoughts where it thinks.

    Trains the start if it is not in the cache.
    """
    config = replace(start or ReasoningStartConfig(rank=chosen.lora_rank), thinking=arm.thinking)
    return replace(
        chosen,
        model=str(reasoning_start(config, start_model(chosen))),
        warm_start=False,
        weight=0.0,
        reply_tokens=chosen.reply_tokens + (THOUGHT_TOKENS if arm.thinks else 0),
    )


def train_policy(
    arm: ForesightArm,
    chosen: Settings,
    histories: Sequence[tuple[SeekerProfile, Sequence[Turn]]],
    seeker: Seeker,
    reward: ReplyScorer,
    folder: Path,
    seed: int = 0,
    reward_hash: str = "",
) -> Path:
    """Train one arm by GRPO on `reward` and write what `ablation.train_arm` writes to `folder`; returns `folder`.

    `chosen` are settings as `arm_settings` made them. `reward_hash` tells reward models apart, so that a training
    interrupted under one does not go on under another. Rollouts keep the raw text, thoughts included.
    """
    if arm.adapter != arm.name:
        raise RapoError(f"arm {arm.name!r} is not trained; it plays with {_plays_with(arm)}")
    judge = ReasoningReward(reward, form_weight=arm.form_weight, thinks=arm.thinks)
    row = Arm(name=arm.name, label=arm.label, tier=arm.tier, overrides={"weight": 0.0}, reactions=False)
    return train_arm(row, chosen, histories, ThoughtlessSeeker(seeker), judge, folder, seed, judged_by=reward_hash)


def form_by_step(rollouts: Sequence[Mapping[str, Any]], size: int) -> pd.DataFrame:
    """One row per update of `size` replies, from the records of rollouts.jsonl.

    Columns: step, formed (share), thought_words and reply_words (means), reward (mean score), change (of the true
    emotion, for the record only).
    """
    rows = []
    for start in range(0, len(rollouts), size):
        records = rollouts[start : start + size]
        said = [take_apart(r["reply"]) for r in records]
        rows.append(
            {
                "step": start // size + 1,
                "formed": fmean(formed(one) for one in said),
                "thought_words": fmean(len(one.thought.split()) for one in said),
                "reply_words": fmean(len(one.reply.split()) for one in said),
                "reward": fmean(r["score"] for r in records),
                "change": fmean(r["emotion"] - r["before"] for r in records),
            }
        )
    return pd.DataFrame(rows)


# ---------------------------------------------------------------------------------------- evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class SwappedThoughts:
    """Control: every reply is written after the thought that the policy had about another of the histories."""

    policy: ModelPolicy

    def __call__(self, histories: Sequence[Sequence[Turn]], seed: int) -> list[str]:
        """Raw text for each of two or more histories, another's thought first."""
        if len(histories) < 2:
            raise ValueError(f"thoughts can be swapped between two histories or more, not {len(histories)}")
        thoughts = [take_apart(text).thought for text in self.policy(histories, seed)]
        begun = [f"{OPEN} {thought} {CLOSE}" for thought in rotated(thoughts, seed)]
        replies = go_on(self.policy, histories, begun, seed_for(seed, "after another's thought"))
        return [thought + reply for thought, reply in zip(begun, replies, strict=True)]


def go_on(policy: ModelPolicy, histories: Sequence[Sequence[Turn]], begun: Sequence[str], seed: int) -> list[str]:
    """What the policy writes after each history and the words its text begins with; those are not repeated."""
    prompts = [fit(to_messages(h), policy.tokenizer, policy.prompt_tokens) for h in histories]
    replies = sample_replies(
        policy.model,
        policy.tokenizer,
        prompts,
        max_new_tokens=policy.reply_tokens,
        temperature=policy.temperature,
        seed=seed,
        begun=begun,
    )
    return [group[0] for group in replies]


def playing_policy(arm: ForesightArm, chosen: Settings, trained: Path | None) -> ThinkingPolicy:
    """The policy of an arm behind the border; `trained` is the folder of `arm.adapter`, None for a start."""
    if (trained is None) != (arm.adapter is None):
        raise RapoError(f"arm {arm.name!r} plays with {_plays_with(arm)}")
    policy = load_policy(chosen, trained)
    return ThinkingPolicy(SwappedThoughts(policy=policy) if arm.swapped else policy)
