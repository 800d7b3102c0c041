"""The arms of the ablation as data: what each changes against full RAPO, and nothing else.

An arm is a row: overrides of the run's settings, what the judge hears, which judge it is, which control is wrapped
round its feedback, which histories it is trained on and by what. Everything that is not named here is the same for all
arms: the start, the seeds, the replies a step, the steps, the learning rate unless a search on dev chose another.

PPO is not run: it needs a value model of the policy's size, and no claim of ours rests on it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from rapo_lib.runs import RapoError

Tier = Literal["start", "primary", "exploratory", "control"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One row of the ablation."""

    name: str
    label: str
    tier: Tier
    overrides: Mapping[str, Any] = field(default_factory=dict)  # of the run's Settings
    reactions: bool = True  # False: the judge sees replies only (without user-reaction modelling)
    judge: Literal["run", "rubric", "oracle_fitted"] = "run"  # "run": the judge the run is given
    control: str | None = None  # a wrapper of the feedback, see `controls`
    histories: Literal["selected", "random"] = "selected"
    trainer: Literal["hybrid", "dpo", "none"] = "hybrid"

    @property
    def weight(self) -> float | None:
        """w where the arm fixes it, None where it is the run's."""
        return self.overrides.get("weight")


FULL, WARM = "full", "warm_start"
_ROWS = (
    Arm(name=WARM, label="warm start", tier="start", trainer="none"),
    Arm(name=FULL, label="full RAPO", tier="primary"),
    Arm(name="without_reactions", label="without reactions (URM)", tier="primary", reactions=False),
    Arm(
        name="without_distillation",
        label="without self-distillation (SD)",
        tier="primary",
        overrides={"weight": 0.0},
    ),
    Arm(
        name="grpo_rubric",
        label="plain GRPO on the rubric",
        tier="primary",
        overrides={"weight": 0.0},
        reactions=False,
        judge="rubric",
    ),
    Arm(name="random_turns", label="random turns", tier="exploratory", histories="random"),
    Arm(name="verbal_only", label="verbal only (w = 1)", tier="exploratory", overrides={"weight": 1.0}),
    Arm(
        name="oracle_judge",
        label="oracle-fitted judge, no reactions",
        tier="exploratory",
        reactions=False,
        judge="oracle_fitted",
    ),
    Arm(name="dpo", label="DPO on best and worst (for CPO)", tier="exploratory", trainer="dpo"),
    Arm(
        name="policy_scaled",
        label="without SD, policy term x (1 - w)",
        tier="control",
        overrides={"weight": 0.0, "policy_scale": 0.7},  # 1 - w at the default w
    ),
    Arm(name="critiques_in_group", label="critiques shuffled in the group", tier="control", control="in_group"),
    Arm(
        name="critiques_across",
        label="critiques shuffled across histories",
        tier="control",
        control="across_histories",
    ),
    Arm(name="critique_constant", label="one constant critique", tier="control", control="constant"),
    Arm(name="critique_reply_only", label="critiques of the reply only", tier="control", control="reply_only"),
    Arm(name="reactions_shuffled", label="reactions shuffled in the group", tier="control", control="reactions"),
)
ARMS: dict[str, Arm] = {arm.name: arm for arm in _ROWS}
LABELS = {name: arm.label for name, arm in ARMS.items()}
PRIMARY = tuple(name for name, arm in ARMS.items() if arm.tier == "primary")


def known_arm(name: str) -> Arm:
    """The arm of this name; an unknown one is an error that suggests the nearest."""
    if name not in ARMS:
        near = get_close_matches(name, ARMS, n=1)
        raise RapoError(f"unknown arm {name!r}" + (f"; did you mean {near[0]!r}?" if near else f"; arms: {_listed()}"))
    return ARMS[name]


def _listed(names: Iterable[str] = ARMS) -> str:
    return ", ".join(names)
