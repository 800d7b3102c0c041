"""A language model that rates social episodes in SOTOPIA's seven dimensions, beside the goal checks, which need none.

It reads what SOTOPIA's evaluator reads: the scene, both agents, their goals, and what was said and done; never the
game, its state or the progress. Ranges and the overall mean are SOTOPIA's, the wording of the prompt is ours. A score
outside its range, a missing or an unknown dimension is no rating: it is asked for again, then counted as an abstention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kendalltau, spearmanr

from rapo_lib.chat import ChatModel, ChatReply, ChatRequest
from rapo_lib.dialogue import Turn, language_of
from rapo_lib.lm.prompts import load_prompt, quoted
from rapo_lib.sotopia.episode import acted
from rapo_lib.sotopia.goals import DIMENSIONS, overall
from rapo_lib.sotopia.scenarios import OURS, Scenario

Talk = tuple[Scenario, Sequence[Turn]]


def _dimension(low: float, high: float) -> dict[str, Any]:
    score = {
        "type": "integer",
        "minimum": int(low),
        "maximum": int(high),
        "description": f"a whole number from {low:g} to {high:g}",
    }
    properties = {"reason": {"type": "string", "maxLength": 400}, "score": score}
    return {"type": "object", "properties": properties, "required": ["score"]}


SCHEMA = {
    "type": "object",
    "properties": {name: _dimension(*limits) for name, limits in DIMENSIONS.items()},
    "required": list(DIMENSIONS),
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Rating:
    """One agent's seven scores with the reasons given; `scores` None means that the model abstained."""

    scores: Mapping[str, int] | None
    reasons: Mapping[str, str]
    status: str = "ok"  # or why there is no rating

    @property
    def overall(self) -> float | None:
        """SOTOPIA's overall score: the plain mean of the seven."""
        return None if self.scores is None else overall(self.scores)


class LMSocialEvaluator:
    """Rates one agent of each talk, by default ours."""

    def __init__(self, chat: ChatModel, *, seat: int = OURS, temperature: float = 0.0, max_tokens: int = 700) -> None:
        self.chat, self.seat, self.temperature, self.max_tokens = chat, seat, temperature, max_tokens

    def rate_batch(self, talks: Sequence[Talk]) -> list[Rating]:
        """One rating for each (scenario, turns), all of them in one call."""
        return [_rating(reply) for reply in self.chat.complete([self._request(*talk) for talk in talks])]

    def _request(self, scenario: Scenario, turns: Sequence[Turn]) -> ChatRequest:
        prompt = load_prompt("social", language_of([turn.text for turn in turns]))
        names = [agent.name for agent in scenario.agents]
        messages = prompt.messages(
            name=names[self.seat],
            scene=quoted(scenario.situation),
            people=quoted({a.name: a.told for a in scenario.agents}),
            goals=quoted(dict(zip(names, scenario.environment.agent_goals, strict=True))),
            talk="\n".join(
                quoted({"turn": number, "who": who, "does": action.written()})
                for number, (who, action) in enumerate(acted(scenario, turns))
            ),
        )
        return ChatRequest(
            messages=messages,
            schema=SCHEMA,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            asker=prompt.tag,
        )


def _rating(reply: ChatReply) -> Rating:
    if not reply.answered:
        return Rating(None, {}, f"abstained: {reply.status}, {reply.reason}")
    scores = {name: int(reply.value[name]["score"]) for name in DIMENSIONS}
    return Rating(scores, {name: reply.value[name].get("reason", "") for name in DIMENSIONS})


# ------------------------------------------------------------------------------------------ results


def ratings_table(ratings: Sequence[Rating]) -> pd.DataFrame:
    """One row per rating: the seven dimensions, overall and status; NaN where the model abstained."""
    return pd.DataFrame(
        [
            {name: r.scores[name] if r.scores else np.nan for name in DIMENSIONS}
            | {"overall": np.nan if r.overall is None else r.overall, "status": r.status}
            for r in ratings
        ]
    )


def goal_agreement(checked: Sequence[float], ratings: Sequence[Rating]) -> dict[str, float]:
    """The model's goal score against the check's (0-10) of the same talks; NaN where a side does not vary.

    talks, abstained (share);  kendall, spearman: do they order talks alike;  lift: the model's mean less the check's;
    apart: mean absolute difference, in points of 10.
    """
    if len(checked) != len(ratings):
        raise ValueError(f"{len(checked)} checks for {len(ratings)} ratings")
    pairs = [(c, r.scores["goal"]) for c, r in zip(checked, ratings, strict=True) if r.scores is not None]
    true, said = np.array([c for c, _ in pairs], dtype=float), np.array([s for _, s in pairs], dtype=float)
    varied = len(pairs) > 1 and np.ptp(true) > 0 and np.ptp(said) > 0
    return {
        "talks": len(checked),
        "abstained": 1 - len(pairs) / len(checked) if checked else np.nan,
        "kendall": float(kendalltau(true, said).statistic) if varied else np.nan,
        "spearman": float(spearmanr(true, said).statistic) if varied else np.nan,
        "lift": float((said - true).mean()) if pairs else np.nan,
        "apart": float(np.abs(said - true).mean()) if pairs else np.nan,
    }
