"""What the evaluator's person says: one sentence about the reply, as their voice puts it, and more of their story.

The bank (`data/evaluator/wording.json`) is written out in full forms, "head | tail" for each cause. Voices shorten,
contract, hedge or wander; nobody names a number or a label. All wording and all rates are ours.
"""

import json
import random
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from rapo_lib.dialogue import SeekerProfile, Turn
from rapo_lib.evaluator.alliance import Felt

EVEN = 0.8  # points either way that leave a person where they were
CONTENT_AT, GONE_AT = 85.0, 6.0  # emotion at which people take their leave
LEAD = {"plain": 0.3, "curt": 0.3, "rambling": 0.6, "ironic": 0.6, "formal": 0.4, "guarded": 0.7}  # how often
TAIL = {"plain": 0.6, "curt": 0.0, "rambling": 0.9, "ironic": 0.7, "formal": 0.6, "guarded": 0.1}
GOES_ON = {"plain": 0.9, "curt": 0.8, "rambling": 1.0, "ironic": 0.85, "formal": 0.9, "guarded": 0.75}
HURT, GOES_ON_HURT = -4.0, 0.4  # after a loss of so many points, this share of that
ASIDE, LINK = 0.4, 0.3
LONGEST = 45  # words
QUIET = ("faded",)  # causes that nobody speaks of
SHORT_FORMS = {  # how everybody but a formal person says it
    r"\b(do|does|did|is|was|were|would|could|should|has|have|had) not(?= \w)": r"\1n't",
    r"\bcannot\b": "can't",
    r"\bwill not\b": "won't",
    r"\bI am(?= \w)": "I'm",
    r"\bI will(?= \w)": "I'll",
    r"\b([Yy])ou are(?= \w)": r"\1ou're",
    r"\b([Tt]hat|[Ii]t|[Tt]here|[Ww]hat) is(?= \w)": r"\1's",
}


@cache
def bank() -> dict[str, Any]:
    """Everything that can be said."""
    return json.loads((resources.files("rapo_lib") / "data" / "evaluator" / "wording.json").read_text("utf-8"))


def speak(profile: SeekerProfile, history: Sequence[Turn], reply: str, felt: Felt, seed: int) -> str:
    """One reaction; the seed and the words so far choose among wordings and nothing else."""
    spoken = tuple((turn.speaker, turn.text) for turn in history)
    rng = random.Random(repr((seed, profile.id, spoken, reply)))
    said = " ".join(text for speaker, text in spoken if speaker == "seeker")
    answer = voiced(profile.voice, rng, cause_of(felt), direction(felt.change), said)
    return " ".join(part for part in (answer, *story(profile, said, felt, rng)) if part)


def cause_of(felt: Felt) -> str:
    """What weighed most in the direction the emotion moved."""
    if felt.disclosure is not None:
        return "unburdened"
    if abs(felt.change) < EVEN:
        return "unmoved"
    spoken_of = [(points, cause) for cause, points in felt.points if cause not in QUIET and points * felt.change > 0]
    return max(spoken_of, key=lambda item: abs(item[0]), default=(0.0, "unmoved"))[1]


def direction(change: float) -> str:
    """Which of a voice's openings fit."""
    return "even" if abs(change) < EVEN else "up" if change > 0 else "down"


def voiced(voice: str, rng: random.Random, cause: str, way: str, said: str) -> str:
    """A wording of this cause that this person has not used yet, as their voice says it."""
    options = bank()["causes"][cause]
    fresh = [line for line in options if shortened(line.split(" | ")[0].rstrip(".?"), voice) not in said] or options
    head, _, tail = rng.choice(fresh).partition(" | ")
    text = join(head, tail) if tail and rng.random() < TAIL[voice] else closed(head)
    if voice == "rambling" and rng.random() < ASIDE:
        text = f"{text[:-1]}, {rng.choice(bank()['asides'])}."
    if rng.random() < LEAD[voice]:
        lead = rng.choice(bank()["leads"][voice][way])
        text = f"{lead} {lowered(text) if lead[-1] not in '.?!' else text}"
    return shortened(text, voice)


def join(head: str, tail: str) -> str:
    """Two halves of a sentence; a question stands on its own, before the other half or after it."""
    return f"{head}, {tail}" if head[-1] != "?" != tail[-1] else f"{closed(head)} {tail[0].upper()}{tail[1:]}"


def closed(head: str) -> str:
    """A first half that stands alone."""
    return head if head[-1] in ".?!" else f"{head}."


def lowered(text: str) -> str:
    """Ready to follow a comma."""
    return text if re.match(r"I\b", text) else text[0].lower() + text[1:]


def shortened(text: str, voice: str) -> str:
    """Contracted, except by formal people."""
    if voice == "formal":
        return text
    for full, short in SHORT_FORMS.items():
        text = re.sub(full, short, text)
    return text


def story(profile: SeekerProfile, said: str, felt: Felt, rng: random.Random) -> tuple[str, ...]:
    """What they tell next: what was held back, the next part of the story, or a farewell."""
    if felt.disclosure is not None:
        return (profile.disclosures[felt.disclosure].text,)
    if felt.emotion >= CONTENT_AT and felt.change > 0:
        return (shortened(rng.choice(bank()["content"]), profile.voice),)
    if felt.emotion <= GONE_AT and felt.change < 0:
        return (shortened(rng.choice(bank()["gone"]), profile.voice),)
    if rng.random() > GOES_ON[profile.voice] * (GOES_ON_HURT if felt.change <= HURT else 1.0):
        return ()
    detail = next((part for part in profile.details if part not in said), "")
    if not detail:
        return (shortened(rng.choice(bank()["spent"]), profile.voice),)
    if rng.random() < LINK:
        return (shortened(rng.choice(bank()["more"]), profile.voice), detail)
    return (detail,)
