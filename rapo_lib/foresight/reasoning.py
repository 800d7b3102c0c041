"""The reward of a policy that thinks: the reward model hears the reply, the form of the thought is paid for apart.

RLFF-ESC trains its policy with GRPO on a learned, future-oriented reward and asks for explicit reasoning; how the form
is rewarded is not public. Ours, for what the policy wrote, taken apart into a thought t and a reply y:

    R = r(h, y) + f * formed,    formed = 1 if the text is `<think> t </think> y`, t of at most `thought_words` words

r is the reward model's score, and `NOTHING_SAID` where no reply is left once the thought is gone. One object serves
both ways of training: called, it is a reward function of trl's `GRPOTrainer`; `compare_batch` makes it a judge, so that
the arms' own trainer with w = 0, which is GRPO, takes it like any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rapo_lib.dialogue import Message, Turn
from rapo_lib.feedback import CandidateGroup, Verdict
from rapo_lib.foresight.thoughts import Said, take_apart
from rapo_lib.judge.rubric import read_replies, rubric_score
from rapo_lib.simulation import row_history

THOUGHT_WORDS = 25  # ours: our own thoughts have 19 at most
FORM_WEIGHT = 0.2  # ours
NOTHING_SAID = -1.0  # ours: the worst future


class ReplyScorer(Protocol):
    """Scores replies to histories from their text; `reply` never holds a thought."""

    def score_batch(self, items: Sequence[tuple[Sequence[Turn], str]]) -> list[float]:
        """One score per (history, reply)."""


class RubricReward:
    """The expert rubric's mark, -1 to 1, as a reward model: the comparison, and what needs no training."""

    def score_batch(self, items: Sequence[tuple[Sequence[Turn], str]]) -> list[float]:
        """One mark per (history, reply)."""
        return [rubric_score(h, traits) for (h, _), traits in zip(items, read_replies(items), strict=True)]


@dataclass(frozen=True, slots=True)
class ReasoningReward:
    """The reward above, for texts with or without thoughts.

    `form_weight` 0 leaves the form out; a policy without reasoning is paid for its reply alone by `thinks=False`.
    """

    model: ReplyScorer
    form_weight: float = FORM_WEIGHT
    thought_words: int = THOUGHT_WORDS
    thinks: bool = True

    def score_batch(self, items: Sequence[tuple[Sequence[Turn], str]]) -> list[float]:
        """One reward per (history, what the policy wrote), from one call to the reward model.

        A reply that occurs again after the same history is scored once: two roundings of one score would look like a
        difference, and dividing by a group's tiny deviation would make much of it.
        """
        said = [take_apart(text) for _, text in items]
        heard = [(tuple(history), one.reply) for (history, _), one in zip(items, said, strict=True)]
        asked = [item for item in dict.fromkeys(heard) if item[1]]
        marks = dict(zip(asked, self.model.score_batch(asked) if asked else (), strict=True))
        return [marks.get(item, NOTHING_SAID) + self._form(one) for item, one in zip(heard, said, strict=True)]

    def _form(self, said: Said) -> float:
        return self.form_weight * (self.thinks and formed(said, self.thought_words))

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Sequence[Message]],
        history: Sequence[Sequence[Mapping[str, str]]],
        **_: Any,
    ) -> list[float]:
        """As a reward function of trl; `history` is the column of `simulation.training_row`."""
        histories = [row_history({"history": turns}) for turns in history]
        texts = [completion[0]["content"] for completion in completions]
        return self.score_batch(list(zip(histories, texts, strict=True)))

    def compare_batch(self, groups: Sequence[CandidateGroup]) -> list[Verdict]:
        """As a judge: a reply's score is its reward. Nothing is said about it, so nothing can be distilled."""
        flat = iter(self.score_batch([(group.history, text) for group in groups for text in group.replies]))
        return [_verdict(group, tuple(next(flat) for _ in group.replies)) for group in groups]


def formed(said: Said, thought_words: int = THOUGHT_WORDS) -> bool:
    """Whether the text has the form that is asked for and its thought keeps within the limit."""
    return said.well_formed and len(said.thought.split()) <= thought_words


def _verdict(group: CandidateGroup, scores: tuple[float, ...]) -> Verdict:
    ranking = tuple(sorted(range(len(scores)), key=lambda i: -scores[i]))
    return Verdict(scores, ("",) * len(scores), group.reactions, ranking)
