"""The seeker: a person who answers a reply, and whose feelings are known.

What they feel is appraised (`person.appraisal`), what they say is worded (`person.wording`); both depend only on what
was said.
"""

import random
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rapo_lib import encoder
from rapo_lib.dialogue import SeekerProfile, Turn, load_profiles
from rapo_lib.person import perception
from rapo_lib.person.appraisal import Heard, Spoken, replay
from rapo_lib.person.perception import Perception
from rapo_lib.person.wording import load_bank, word_reaction

__all__ = ["AppraisalSeeker", "ProbeSeeker", "Reaction", "Seeker", "load_profiles", "probe_reply"]

Item = tuple[SeekerProfile, Sequence[Turn], str, int]  # profile, history, reply, seed
REMEMBERED = 20_000  # perceptions kept


@dataclass(frozen=True, slots=True)
class Reaction:
    """What the seeker says next on hearing a reply, and how they feel then (0-100)."""

    text: str
    emotion: float  # NaN if unknown
    status: str = "ok"  # or why there is no reaction; only a language model can fail to give one


class Seeker(Protocol):
    """Anyone who reacts to replies; a pure function of what was said, batch first."""

    def react_batch(self, items: Sequence[Item]) -> list[Reaction]:
        """One reaction per (profile, history, reply, seed); the seed selects wording only."""

    def emotion(self, profile: SeekerProfile, history: Sequence[Turn]) -> float:
        """How this person feels after `history`."""


# ------------------------------------------------------------------------------------------- the seeker


def spoken_words(history: Sequence[Turn]) -> Spoken:
    """Who said what: notes on a turn (its emotion, its strategies) are not heard."""
    return tuple((turn.speaker, turn.text) for turn in history)


def heard_turns(turns: Sequence[Turn]) -> list[tuple[Spoken, str]]:
    """Every supporter turn with what was said before it."""
    spoken = spoken_words(turns)
    return [(spoken[:place], text) for place, (speaker, text) in enumerate(spoken) if speaker == "supporter"]


def questions_in(reply: str) -> str:
    """The sentences of a reply that ask something."""
    return " ".join(part.strip() for part in re.findall(r"[^.!?]*\?", reply))


class AppraisalSeeker:
    """A seeker whose feelings follow the appraisal above and whose words come from bank 'a' or 'b'."""

    def __init__(
        self,
        bank: str = "a",
        perceive: Callable[[Sequence[tuple[Sequence[Turn], str]]], list[Perception]] = perception.perceive_batch,
        embed: Callable[[Sequence[str]], np.ndarray] = encoder.embed,
    ) -> None:
        load_bank(bank)  # an unknown bank fails here
        self.bank, self._perceive, self._embed = bank, perceive, embed
        self._remembered: OrderedDict[tuple[Spoken, str], Perception] = OrderedDict()  # a cache, never state

    def react_batch(self, items: Sequence[Item]) -> list[Reaction]:
        """One reaction per (profile, history, reply, seed)."""
        talks = [(profile, (*history, Turn("supporter", reply))) for profile, history, reply, _ in items]
        reactions = []
        for (profile, history, reply, seed), heard in zip(items, self.hear(talks), strict=True):
            told = replay(profile, heard)[1]
            rng = random.Random(repr((seed, profile.id, spoken_words(history), reply)))
            reactions.append(Reaction(word_reaction(self.bank, profile, history, told, rng), told.emotion))
        return reactions

    def emotion(self, profile: SeekerProfile, history: Sequence[Turn]) -> float:
        """How this person feels after `history`: its supporter turns replayed from the start."""
        return replay(profile, self.hear([(profile, tuple(history))])[0])[0].emotion

    def hear(self, talks: Sequence[tuple[SeekerProfile, tuple[Turn, ...]]]) -> list[list[Heard]]:
        """Every supporter turn of every talk as it is heard, with one call of each model for all that is new."""
        keys = [heard_turns(turns) for _, turns in talks]
        asked = {key: turns[: len(key[0])] for (_, turns), own in zip(talks, keys, strict=True) for key in own}
        acts = self._perceptions(asked)
        pairs = [(profile, reply) for (profile, _), own in zip(talks, keys, strict=True) for _, reply in own]
        reach = self._reaches(set(pairs))
        return [
            [Heard(spoken, reply, acts[spoken, reply], reach[profile, reply]) for spoken, reply in own]
            for (profile, _), own in zip(talks, keys, strict=True)
        ]

    def _perceptions(self, asked: dict[tuple[Spoken, str], Sequence[Turn]]) -> dict[tuple[Spoken, str], Perception]:
        """Perceptions of (history, reply) pairs, remembered ones first."""
        found = {key: self._remembered[key] for key in asked if key in self._remembered}
        new = [key for key in asked if key not in found]
        if new:
            found |= zip(new, self._perceive([(asked[key], key[1]) for key in new]), strict=True)
        for key in asked:
            self._remembered[key] = found[key]
            self._remembered.move_to_end(key)
        while len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        return found

    def _reaches(self, pairs: set[tuple[SeekerProfile, str]]) -> dict[tuple[SeekerProfile, str], tuple[float, ...]]:
        """Similarity of what each reply asks with each topic that the person holds back."""
        texts = sorted({q for _, reply in pairs if (q := questions_in(reply))})
        if not texts:
            return dict.fromkeys(pairs, ())
        texts += sorted({d.topic for profile, _ in pairs for d in profile.disclosures})
        vectors = dict(zip(texts, self._embed(texts), strict=True))
        return {
            (profile, reply): tuple(round(float(vectors[q] @ vectors[d.topic]), 3) for d in profile.disclosures)
            if (q := questions_in(reply))
            else ()
            for profile, reply in pairs
        }


# ------------------------------------------------------------------------------------------- a seeker to test with

OPEN_QUESTION = re.compile(r"\b(what|how|who|where|when|why|which)\b[^?.!]*\?\s*$", re.IGNORECASE)
PROBE_GAIN, PROBE_COST = 6.0, -4.0
COMMON = frozenset("about there would could should which where think because still every other never these".split())


def content_words(text: str) -> set[str]:
    """Words of five letters or more that are not in every sentence."""
    return set(re.findall(r"[a-z]{5,}", text.lower())) - COMMON


def probe_reply(history: Sequence[Turn]) -> str:
    """The best reply to a probe seeker: an open question about what they said last."""
    last = next(turn.text for turn in reversed(history) if turn.speaker == "seeker")
    word = max(sorted(content_words(last)), key=len, default="this")
    return f"What is it about {word} that stays with you?"


class ProbeSeeker:
    """A seeker with a known best reply: an open question at the end, about what was said, helps; all else hurts."""

    def react_batch(self, items: Sequence[Item]) -> list[Reaction]:
        """One reaction per item; the seed changes nothing."""
        return [self._react(profile, history, reply) for profile, history, reply, _ in items]

    def emotion(self, profile: SeekerProfile, history: Sequence[Turn]) -> float:
        """Start, plus 6 for every fitting question and minus 4 for every other supporter turn."""
        emotion = float(profile.start)
        for place, turn in enumerate(history):
            if turn.speaker == "supporter":
                change = PROBE_GAIN if self._fits(history[:place], turn.text) else PROBE_COST
                emotion = min(100.0, max(0.0, emotion + change))
        return emotion

    def _react(self, profile: SeekerProfile, history: Sequence[Turn], reply: str) -> Reaction:
        story = profile.details[sum(turn.speaker == "supporter" for turn in history) % len(profile.details)]
        text = (
            "Thank you for asking, that helps."
            if self._fits(history, reply)
            else "You did not ask me anything about it."
        )
        return Reaction(f"{text} {story}", self.emotion(profile, (*history, Turn("supporter", reply))))

    @staticmethod
    def _fits(history: Sequence[Turn], reply: str) -> bool:
        last = next((turn.text for turn in reversed(history) if turn.speaker == "seeker"), "")
        return bool(OPEN_QUESTION.search(reply)) and bool(content_words(reply) & content_words(last))
