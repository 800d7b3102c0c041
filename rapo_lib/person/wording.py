"""How a person puts a reaction into words: a frame of their voice round a cause, then more of their story.

Text says what landed or did not and how strongly, never a number or a label. Two banks of wording, "a" and "b", share
no sentence, so a judge can be developed on one and reported on the other. All wording and all rates here are ours.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from rapo_lib.dialogue import SeekerProfile, Turn

BANKS = ("a", "b")
MIN_WORDS, MAX_WORDS = 5, 45  # length of a reaction
LEVELS = (-4.0, -1.0, 1.0, 4.0)  # points of change that separate clearly worse, worse, even, better, clearly better
CLOSE_AT, WITHDRAW_AT = 80.0, 8.0  # emotion at which a person takes their leave, warmly or not
OPENER, CLOSER, ASIDE, BRIDGE = 0.55, 0.4, 0.5, 0.4  # how often each part is there
CLOSER_STRONG = 0.15  # more often when the change is strong
NOTABLE = 2.0  # points from which two opposite causes are both mentioned
GOOD = frozenset(("understood", "asked", "reached", "validated", "advice", "informed", "reassured", "shared", "told"))
GOES_ON = {"plain": 0.95, "curt": 0.8, "rambling": 1.0, "ironic": 0.9, "formal": 0.95, "guarded": 0.75}
GOES_ON_HURT = 0.4  # of these, the share that goes on with the story right after being hurt

DECLARATIVE = frozenset(
    "that that's it it's you you're you've i i'm i've i'd i'll i'm this there there's nobody we we're we've my the now"
    " those people another knowing being asking hearing saying one orders rosy words optimism comfort".split()
)
FULL_FORMS = {  # how a formal person writes
    r", (isn't it|isn't that|aren't you|haven't you|is that it)\?": ".",
    r"\bcan't\b": "cannot",
    r"\bwon't\b": "will not",
    r"\bisn't\b": "is not",
    r"\bain't\b": "is not",
    r"\b(\w+)n't\b": r"\1 not",
    r"\b(I)'m\b": r"\1 am",
    r"\b([Yy]ou|[Ww]e|[Tt]hey)'re\b": r"\1 are",
    r"\b(\w+)'ve\b": r"\1 have",
    r"\b(\w+)'ll\b": r"\1 will",
    r"\b(I|[Yy]ou|[Ww]e)'d (been|lost|made|no|opened)\b": r"\1 had \2",
    r"\b(I|[Yy]ou|[Ww]e)'d\b": r"\1 would",
    r"\b(it|that|there|It|That|There)'s (been|got)\b": r"\1 has \2",
    r"\b(it|that|what|who|there|here|nobody|It|That|What|Who|There|Here|Nobody)'s\b": r"\1 is",
}


@dataclass(frozen=True, slots=True)
class Pen:
    """What one reaction is written with."""

    words: dict[str, Any]  # the bank
    voice: str
    said: str  # all this person has said, lower case
    rng: random.Random

    def pick(self, options: Sequence[str]) -> str:
        """One of these wordings, if possible one this person has not used yet."""
        new = [option for option in options if not (spoken := self._spoken(option)) or spoken not in self.said]
        return self.rng.choice(new or options)

    def _spoken(self, option: str) -> str:
        """The longest fixed piece of a wording, as this voice says it."""
        piece = max(re.split(r"\[[^\]]*\]|\{core\}", option), key=len).strip()
        return _voiced(piece, self.voice).lower()


@dataclass(frozen=True, slots=True)
class Told:
    """What a reaction has to say: the causes by weight, how far the emotion moved, and what is disclosed."""

    causes: tuple[tuple[str, float], ...]  # (cause, points), heaviest first
    change: float  # points of emotion
    emotion: float  # afterwards
    disclosure: str = ""  # told in this reaction, "" if nothing is
    late: bool = False  # the question that reached it was asked in an earlier turn


@cache
def load_bank(name: str) -> dict[str, Any]:
    """The wording bank 'a' or 'b'."""
    if name not in BANKS:
        raise ValueError(f"unknown wording bank {name!r}; banks: {', '.join(BANKS)}")
    source = resources.files("rapo_lib") / "data" / "wording" / f"{name}.json"
    return json.loads(source.read_text("utf-8"))


def level(change: float) -> int:
    """Strength of a change in five steps: -2 clearly worse to 2 clear relief."""
    return sum(change >= edge for edge in LEVELS) - 2


def next_detail(profile: SeekerProfile, history: Sequence[Turn]) -> str:
    """The first part of the story that this person has not told yet, "" when all is told."""
    said = [turn.text for turn in history if turn.speaker == "seeker"]
    return next((detail for detail in profile.details if not any(detail in text for text in said)), "")


def word_reaction(bank: str, profile: SeekerProfile, history: Sequence[Turn], told: Told, rng: random.Random) -> str:
    """One reaction in this person's voice; `rng` chooses among wordings and nothing else."""
    said = " ".join(turn.text for turn in history if turn.speaker == "seeker").lower()
    pen = Pen(load_bank(bank), profile.voice, said, rng)
    text = ""
    while len(text.split()) < MIN_WORDS:
        text = _fit((_opener(pen, told), _core(pen, told), _closer(pen, told), *_story(pen, profile, history, told)))
    return text


def _opener(pen: Pen, told: Told) -> str:
    if pen.rng.random() > OPENER:
        return ""
    return _expand(pen.pick(pen.words["openers"][pen.voice][str(level(told.change))]), pen.rng)


def _closer(pen: Pen, told: Told) -> str:
    """How it leaves them; masked in guarded people, mocked in ironic ones, and leave-taking at either end."""
    if told.emotion >= CLOSE_AT and told.change > 0:
        return pen.pick(pen.words["warm"])
    if told.emotion <= WITHDRAW_AT and told.change <= 0:
        return pen.pick(pen.words["withdraw"])
    strength = level(told.change)
    if pen.rng.random() > CLOSER + CLOSER_STRONG * (abs(strength) == 2):
        return ""
    closers = pen.words["closers"][pen.voice if pen.voice in pen.words["closers"] else "open"]
    return _voiced(_expand(pen.pick(closers[str(strength)]), pen.rng), pen.voice)


def _core(pen: Pen, told: Told) -> str:
    """The cause, or two causes that pull apart, the heavier one last."""
    strength = level(told.change)
    causes = dict(told.causes)
    if told.disclosure and pen.rng.random() < 0.5:
        del causes["told"]  # the disclosure speaks for itself, and leaves room for what this reply did
    cause, points = max(causes.items(), key=lambda item: item[1] * told.change, default=("flat", 0.0))
    against, against_points = min(causes.items(), key=lambda item: item[1] * told.change, default=("flat", 0.0))
    if points * against_points < 0 and min(abs(points), abs(against_points)) >= NOTABLE:
        return f"{_sentence(pen, against, 1)} {_voiced(f'but {_cause(pen, cause, strength)}', pen.voice)}"
    return _sentence(pen, "flat" if strength == 0 else cause, strength)


def _cause(pen: Pen, cause: str, strength: int) -> str:
    kinds = pen.words["cores"][cause]
    strong = abs(strength) == 2 and "strong" in kinds
    return _expand(pen.pick(kinds["strong" if strong else "mild"]), pen.rng)


def _sentence(pen: Pen, cause: str, strength: int) -> str:
    """A cause inside one of the voice's frames, where the two fit grammatically."""
    core = _cause(pen, cause, strength)
    frames = pen.words["frames"][pen.voice]["0" if cause == "flat" else "+" if cause in GOOD else "-"]
    frame = pen.pick([frame for frame in frames if _fits(frame, core)] or ["{core}"])
    return _voiced(frame.format(core=core), pen.voice)


def _story(pen: Pen, profile: SeekerProfile, history: Sequence[Turn], told: Told) -> tuple[str, str]:
    """The way into the next part of the story, and that part: a disclosure first, else the next detail."""
    if told.disclosure:
        return pen.pick(pen.words["bridges_late" if told.late else "bridges_now"]), told.disclosure
    leaving = told.emotion >= CLOSE_AT or told.emotion <= WITHDRAW_AT
    goes_on = GOES_ON[pen.voice] * (GOES_ON_HURT if level(told.change) == -2 else 1.0)
    if leaving or pen.rng.random() > goes_on:
        return "", ""
    detail = next_detail(profile, history)
    if not detail:
        return "", pen.pick(pen.words["spent"])
    if pen.voice == "rambling" and pen.rng.random() < ASIDE:
        return _voiced(pen.pick(pen.words["asides"]), pen.voice), detail
    return (pen.pick(pen.words["bridges"][pen.voice]) if pen.rng.random() < BRIDGE else ""), detail


def _fit(parts: Sequence[str]) -> str:
    """Join opener, core, closer, bridge and story; what matters least goes first when it is too long."""
    opener, core, closer, bridge, story = parts
    for kept in (parts, (opener, core, closer, story), (opener, core, story), (core, story)):
        text = " ".join(part for part in kept if part)
        if len(text.split()) <= MAX_WORDS:
            return text
    return story or core


def _expand(text: str, rng: random.Random) -> str:
    """Choose one of every [this|that]."""
    return re.sub(r"\[([^\]]*)\]", lambda match: rng.choice(match.group(1).split("|")), text)


def _fits(frame: str, core: str) -> bool:
    """Whether a core can follow a frame: only a statement follows 'I suppose', and no word is said twice."""
    lead = frame.removesuffix("{core}")
    if not lead:
        return True
    if not lead.endswith(", ") and (core.split()[0].lower() not in DECLARATIVE or "?" in core):
        return False
    long_words = {word for word in re.findall(r"\w+", lead.lower()) if len(word) > 4 or word == "but"}
    return not long_words & set(re.findall(r"\w+", core.lower()))


def _voiced(text: str, voice: str) -> str:
    """Capital at the start; curt people drop the subject, formal people write words out."""
    if not text:
        return ""
    if voice == "curt":
        text = re.sub(r"^(but )?(i'm|i've|i|it's|that's|there's) (?!(was|were|am)\b)", r"\1", text, flags=re.IGNORECASE)
    if voice == "formal":
        for short, full in FULL_FORMS.items():
            text = re.sub(short, full, text)
    return text[0].upper() + text[1:]
