"""One reply as the evaluator hears it: what it does, whether it belongs to this story, and what is wrong with it.

What the words do comes from `acts`, whether they stand in an order from `order`, whose story they tell from `words`.
All thresholds are ours, set on warm-start pairs and on train and dev people.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rapo_lib.evaluator.acts import ACTS, act_shares
from rapo_lib.evaluator.order import glue, order_gain
from rapo_lib.evaluator.words import covers, distinctive, sentences, ties, topical, words

FAULTS = ("silence", "pictures", "foreign", "scrambled", "machine", "script", "monologue", "echo", "vents", "gushes",
          "astray")  # fmt: skip
ORDERED = -0.5  # order gain: 4 % of human supporter sentences lie below, 7 in 10 of the same words shuffled
ORDERED_SHORT = -1.0  # the same for three to five words, which tell less
ENGLISH = 0.2  # least share of the commonest English words in a reply of four words or more
FEWEST, LONGEST = 3, 85  # words; fewer do nothing
ECHO = 0.75  # share of a reply that only repeats the seeker's own run of words
OWN, WHOLLY_OWN = 0.2, 1.5  # crowd deviations from which a sentence belongs to this story: a little, entirely
TOUCHED, COVERED = 0.03, 0.23  # the same for the share of its words that the story knows
IMPERSONAL = 0.3  # of that, for a sentence about nobody that only informs or has one word in common
LOST = -0.2  # a reply all of whose sentences stay below this, and which does nothing else, is about something else
SURE, CERTAIN = 0.25, 0.7  # share from which an act is noticed, and counts in full
BLAME = (0.35, 0.75)  # the same for blame, which is heard late: kind words often stand near it
BLAME = (0.35, 0.75)  # the same for blame, which is noticed late: kind words often stand near it
UNOWNED = 0.25  # worth of a question or a kind word that would do for anyone
SAME, VERBATIM = 0.45, 0.85  # overlap with an earlier supporter sentence from which a sentence is a repetition

SPEAKERS = frozenset("user seeker helper supporter assistant therapist counselor counsellor client patient human ai"
                     " bot me you listener friend person speaker system model".split())  # fmt: skip
META = frozenset("prompt prompts simulator simulated seeker supporter user users assistant llm ai chatbot dataset"
                 " rubric".split())  # fmt: skip
MEASURES = frozenset("score scores scored level points maximum max highest emotion emotions mood state output system"
                     " model ignore previous rate rated grade percent full increase set override instruction"
                     " instructions reward rewards rating ratings token tokens".split())  # fmt: skip
HEDGES = frozenset("could might may maybe perhaps wonder".split())
ELSEWHERE = frozenset("ich und nicht ist das die der für wie geht mir dir je suis vous les est pas une dans pour que"
                      " el los las estoy muy con una por lo siento está como il che non sono per io di mi ti sei ik"
                      " het een niet voor eu você não uma com estou jag är och att nie się jest".split())  # fmt: skip
PERSON = frozenset("i me my mine myself you your yours yourself he she we they us them am are is was were so and"
                   .split())  # fmt: skip
PERSON_AT_ALL = PERSON - {"am", "are", "is", "was", "were", "so", "and"} | {"him", "her", "his", "their"}
LABEL = re.compile(r"(?:^|[\n.!?]\s*)[*_\[(\"]*([A-Za-z]+)(?: [A-Za-z0-9])?[*_\])\"]*\s*:")
FIRST = re.compile(r"\b(i|i'm|i've|i'd|i'll|my|me)\b")
ANSWERS = re.compile(r"^\W*(yes|no|yeah|nope|well|because|i|i'm|my|he|she|they)\b")


@dataclass(frozen=True, slots=True)
class Heard:
    """What one reply does, each 0-1."""

    explore: float = 0.0  # this and the next three count in full only where they speak of this story
    check: float = 0.0
    mirror: float = 0.0  # says back what belongs to this story, in words of its own
    accept: float = 0.0
    useful: float = 0.0  # advice or information that this person can use
    advise: float = 0.0
    inform: float = 0.0
    comfort: float = 0.0
    share: float = 0.0
    judge: float = 0.0
    fit: float = 0.0  # belongs to this story and to no other
    tentative: float = 0.0  # advice offered as a question or a maybe
    missed: float = 0.0  # says back what was never said
    stock: float = 0.0  # kind words that would do for anyone
    again: float = 0.0  # has been said before by the supporter
    length: int = 0  # words
    fault: str = ""  # "", or one of FAULTS


def ramp(value: float, low: float, high: float) -> float:
    """0 below `low`, 1 above `high`, a line between."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


# ------------------------------------------------------------------------------------------------ faults


def common_run(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest common subsequence of two short word lists."""
    row = [0] * (len(right) + 1)
    for word in left:
        corner = 0
        for place, other in enumerate(right, start=1):
            corner, row[place] = row[place], corner + 1 if word == other else max(row[place], row[place - 1])
    return row[-1]


def echoed(text: str, said: Sequence[str]) -> float:
    """Share of a text's words, persons aside, that stand in this order in one sentence or turn of the seeker."""
    mine = [word for word in words(text) if word not in PERSON]
    if len(mine) < 3:
        return 0.0
    sources = {part for turn in said for part in (turn, *sentences(turn))}
    longest = max((common_run(mine, [w for w in words(s) if w not in PERSON]) for s in sources), default=0)
    return longest / len(mine)


def outward_fault(reply: str) -> str:
    """What is wrong with a text whoever hears it, or ""."""
    spoken, letters = words(reply), [mark for mark in reply if mark.isalpha()]
    pictures = sum(unicodedata.category(mark) in ("So", "Sk") for mark in reply)
    if pictures >= 3 or pictures > len(spoken):
        return "pictures"
    if not letters:
        return "silence"
    abroad = sum(word in ELSEWHERE for word in re.findall(r"\w+", reply.lower()))
    common = sum(word in glue() for word in spoken)
    if sum(not mark.isascii() for mark in letters) > 0.2 * len(letters) or (abroad >= 2 and abroad > common):
        return "foreign"
    if is_meta(reply):
        return "machine"
    if any(label.lower() in SPEAKERS for label in LABEL.findall(reply)):
        return "script"
    if len(spoken) > LONGEST:
        return "monologue"
    return "scrambled" if is_scrambled(reply, spoken) else ""


def is_meta(reply: str) -> bool:
    """Words about the conversation's machinery, or marks of it."""
    spoken = set(words(reply))
    counted = re.search(r"\d+ ?(/|%|out of|percent)|\b(to|at|is|of|now|=|:) ?\d{2,3}\b", reply.lower())
    marked = re.search(r"<[|/\w]+>?|\[/?\w+\]|\{[^}]*\}|=>|==", reply)
    return bool(
        marked
        or spoken & META
        or len(spoken & MEASURES) >= 2
        or (counted and spoken & MEASURES)
        or {"language", "model"} <= spoken
    )


def is_scrambled(reply: str, spoken: Sequence[str]) -> bool:
    """No order in the words, no glue between them, or the same few again and again."""
    if len(spoken) >= 4 and sum(word in glue() for word in spoken) < ENGLISH * len(spoken):
        return True
    if len(spoken) >= 5 and Counter(spoken).most_common(1)[0][1] > max(3, 0.3 * len(spoken)):
        return True
    if any(one == two != "really" and len(one) > 4 for one, two in zip(spoken, spoken[1:], strict=False)):
        return True
    parts = sentences(reply)
    if len(parts) >= 3 and len(set(parts)) <= len(parts) / 2:
        return True
    return len(spoken) >= 3 and order_gain(reply) < (ORDERED if len(spoken) >= 6 else ORDERED_SHORT)


def inward_fault(parts: Sequence[str], shares: np.ndarray, nearness: np.ndarray) -> str:
    """What is wrong with a reply to this person, or ""; `shares` (n, acts), `nearness` (n,) in crowd deviations."""
    p = dict(zip(ACTS, shares.T, strict=True))
    size = np.array([len(words(part)) for part in parts])
    own_trouble = np.array([bool(FIRST.search(part.lower().replace("’", "'"))) for part in parts]) & (
        (p["vent"] > 0.35) & (p["vent"] > p["share"])
    )
    for before, place in zip(parts, range(1, len(parts)), strict=False):
        if before.endswith("?") and ANSWERS.match(parts[place].lower()) and p["vent"][place] + p["share"][place] > 0.5:
            return "script"
    if own_trouble @ size >= 0.4 * size.sum():
        return "vents"
    if (p["praise"] > 0.35) @ size > 0.6 * size.sum() and nearness.max() < WHOLLY_OWN:
        return "gushes"
    about = any(len(topical(part)) >= 2 for part in parts)
    turned = max(
        p[act].max() for act in ("explore", "check", "accept", "comfort", "mirror", "advise", "share", "judge")
    )
    idle = ((p["chat"] + p["inform"]) @ size) / size.sum()
    return "astray" if about and nearness.max() < LOST and (idle > 0.4 or turned < 0.4) else ""


# ------------------------------------------------------------------------------------------------ hearing


def repetition(parts: Sequence[str], earlier: Sequence[str]) -> float:
    """Share of a reply's words in sentences that an earlier supporter sentence has said much the same way."""
    old = [part for turn in earlier for part in sentences(turn)]
    if not old:
        return 0.0
    size = np.array([len(words(part)) for part in parts])
    return float(np.array([max(sameness(part, other) for other in old) for part in parts]) @ size / size.sum())


def about_nobody(part: str) -> bool:
    """Whether a sentence speaks neither to anybody nor of anybody."""
    return not PERSON_AT_ALL & set(words(part))


def belonging(part: str, said: Sequence[str], act: str) -> float:
    """0-1: how surely a sentence belongs to what this person said: nearer than to the crowd, and near enough."""
    near = ramp(distinctive(part, said), OWN, WHOLLY_OWN)
    near *= ramp(max((covers(part, turn) for turn in said), default=0.0), TOUCHED, COVERED)
    loose = act in ("inform", "chat") or max((ties(part, turn) for turn in said), default=0) < 2
    return near * (IMPERSONAL if loose and about_nobody(part) else 1.0)


@lru_cache(maxsize=50_000)
def sameness(left: str, right: str) -> float:
    """0-1: how far one sentence is the other again, by its words (Dice)."""
    a, b = set(words(left)), set(words(right))
    return ramp(2 * len(a & b) / (len(a) + len(b)), SAME, VERBATIM)


def placed(shares: np.ndarray, fit: float) -> np.ndarray:
    """Acts of a sentence when it is known to belong to this story: more saying back and siding, less small talk."""
    odds = np.ones(len(ACTS))
    odds[[ACTS.index(act) for act in ("chat", "comfort", "praise", "vent")]] = 1 - 0.6 * fit
    odds[[ACTS.index(act) for act in ("mirror", "accept")]] = 1 + 1.2 * fit
    return shares * odds / (shares * odds).sum()


@lru_cache(maxsize=20_000)
def hear(said: tuple[str, ...], earlier: tuple[str, ...], reply: str) -> Heard:
    """One reply after what the seeker has `said` and the supporter said `earlier`, oldest first."""
    length = len(words(reply))
    parts = sentences(reply)
    if fault := outward_fault(reply):
        return Heard(length=length, fault=fault)
    if length < FEWEST:
        return Heard(length=length)
    if max((echoed(reply, (turn,)) for turn in said), default=0.0) >= ECHO:
        return Heard(length=length, fault="echo")
    nearness = np.array([distinctive(part, said) for part in parts])
    shares = np.stack([act_shares(part) for part in parts])
    if fault := inward_fault(parts, shares, nearness):
        return Heard(length=length, fault=fault)
    fits = np.array([belonging(part, said, ACTS[act]) for part, act in zip(parts, shares.argmax(1), strict=True)])
    copied = np.array([ramp(echoed(part, said), 0.5, ECHO) for part in parts])
    p = dict(zip(ACTS, np.stack([placed(s, f) for s, f in zip(shares, fits, strict=True)]).T, strict=True))
    size = np.array([len(words(part)) for part in parts])
    asks = np.array([part.endswith("?") for part in parts])
    about = np.array([len(topical(part)) >= 2 for part in parts])
    hedge = np.array([bool(HEDGES & set(words(part))) for part in parts]) | asks
    noticed = {act: np.clip((share - SURE) / (CERTAIN - SURE), 0, 1) for act, share in p.items()}
    own = UNOWNED + (1 - UNOWNED) * fits
    placed_fits = np.maximum(fits, 0.5 * fits.max())  # advice may point to the story that the sentence before it told
    mirrors = noticed["mirror"] * ~asks
    astray = np.maximum.reduce([mirrors, p["inform"], 0.4 * p["advise"]]) * about * (1 - fits) * ~asks
    found = {
        "explore": noticed["explore"] * own,
        "check": noticed["check"] * own,
        "mirror": mirrors * fits * (1 - copied),
        "accept": noticed["accept"] * own,
        "useful": np.maximum(noticed["advise"] * (0.1 + 0.9 * placed_fits), 0.7 * noticed["inform"] * fits),
        **{act: noticed[act] for act in ("advise", "inform", "comfort", "share")},
        "fit": fits,
        "missed": astray * (fits.max() < 0.4),
    }
    kind = np.maximum(p["accept"], p["comfort"]) * (1 - fits)
    advises = p["advise"] > SURE
    return Heard(
        **{name: float(value.max()) for name, value in found.items()},
        judge=ramp(float((p["judge"] - 0.5 * p["accept"]).max()), *BLAME),
        tentative=float(advises @ hedge / max(1, advises.sum())),
        stock=float((kind > SURE) @ size / size.sum()),
        again=repetition(parts, earlier),
        length=length,
    )


def reaches(reply: str, topic: str, secret: str) -> float:
    """How near a reply's questions come to something held back: its topic's words, or the words of what is hidden."""
    asked = " ".join(part for part in sentences(reply) if part.endswith("?"))
    return max(covers(topic, asked), 0.8 * covers(asked, f"{topic} {secret}")) if asked else 0.0
