"""RLFF-ESC (arXiv 2508.12935): rewards from imagined futures, and a policy that thinks before it replies."""

from rapo_lib.foresight.futures import imagine
from rapo_lib.foresight.reasoning import ReasoningReward
from rapo_lib.foresight.reward_model import RewardModel, train_reward_model

__all__ = ["ReasoningReward", "RewardModel", "imagine", "train_reward_model"]
