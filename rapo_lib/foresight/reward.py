"""The future-oriented reward of a reply: one formula over what the critic says of the futures that begin with it.

RLFF-ESC's formula is not public; this one is ours. With v_j the critic's value after turn j of a future (-1 worse, -0.5
same, 0.5 better, 1 solved, averaged over its draws), k turns in all and t the turn at which the issue is solved,

    R = sum_{j=1..k} gamma^(j-1) u_j / sum_{j=1..k} gamma^(j-1),    u_j = v_j for j < t, 1 from t on

so R lies in [-1, 1], the near future counts more than the far one, and an issue solved early is worth more than one
solved late. A reply's reward is the mean over its futures. The **oracle** reward is the same formula on the true
emotion; nothing is ever trained on it, it tells how far the critic can be trusted.
"""

from collections.abc import Sequence

from rapo_lib.evaluation import SUCCESS as SOLVED_FROM
from rapo_lib.lm.critic import SUCCESS, VALUES

DISCOUNT = 0.9  # gamma; ours
SAME = 5.0  # points of emotion on either side of the start that still feel the same; ours, half of what a turn can move


def future_reward(values: Sequence[float], horizon: int, discount: float = DISCOUNT) -> float:
    """R of one future, in [-1, 1], from the critic's value after each of its turns.

    A value above 0.5 is a success (PPDPP's rule) and everything after it counts 1; a future that broke off keeps its
    last value. Raises ValueError if there is no value, or more than `horizon`.
    """
    if not 0 < len(values) <= horizon:
        raise ValueError(f"a future of at most {horizon} turns needs 1 to {horizon} values, not {len(values)}")
    solved = next((j for j, value in enumerate(values) if value > SUCCESS), horizon)
    held = [*values, *[values[-1]] * (horizon - len(values))]
    worth = [1.0 if j >= solved else value for j, value in enumerate(held)]
    weights = [discount**j for j in range(horizon)]
    return sum(w * u for w, u in zip(weights, worth, strict=True)) / sum(weights)


def true_state(start: float, emotion: float) -> str:
    """What a perfect critic would say: solved from an emotion of 70 on, else by the change since the opening."""
    if emotion >= SOLVED_FROM:
        return "solved"
    change = emotion - start
    return "worse" if change < -SAME else "better" if change >= SAME else "same"


def oracle_reward(start: float, emotions: Sequence[float], horizon: int, discount: float = DISCOUNT) -> float:
    """ORACLE: R of one future from the true emotion after each of its turns; for comparison only."""
    return future_reward([VALUES[true_state(start, emotion)] for emotion in emotions], horizon, discount)
