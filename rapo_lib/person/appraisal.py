"""Appraisal: what a reply does to a person, given what they need now.

Emotion is a pure function of (profile, history): every supporter turn is heard (perception), weighed by what this
person needs now, and moves the emotion by at most 10 points on SAGE's 0-100 scale. The rules come from
1. Hill, Helping Skills: exploration before insight before action, so advice is worth most after understanding;
2. Lazarus, Emotion and Adaptation: an event moves us by what it means for our own needs, hence one row of needs per
   attitude to advice, and a state that changes the weights;
3. Miller and Rollnick, Motivational Interviewing: reflections build trust, pushing builds resistance, a run of
   questions does too, and people keep to what they found out themselves;
4. SAGE (Zhang et al. 2025): a hidden emotion that starts low, moves in bounded steps and is said in words only.
None of them gives numbers. Every number in this module is ours, and all of them stand in the tables below.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rapo_lib.dialogue import SeekerProfile
from rapo_lib.person.perception import Perception
from rapo_lib.person.wording import Told

Spoken = tuple[tuple[str, str], ...]  # (speaker, text) of every turn: all of a history that can move a person

# ------------------------------------------------------------------------------------------- the numbers (all ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What each act is worth to one attitude to advice, in points of emotion at full strength."""

    understands: float
    asks: float
    validates: float
    reassures: float
    informs: tuple[float, float]  # before, after this person feels understood
    suggests: tuple[float, float]  # before, after
    patience: int  # supporter turns without advice or information before it grates


NOTICED = {  # how sure perception must be of an act for it to be noticed at all, and to count in full
    "understands": (0.15, 0.7),
    "asks": (0.15, 0.5),
    "suggests": (0.2, 0.7),
    "informs": (0.25, 0.75),
    "reassures": (0.25, 0.75),
    "discloses": (0.25, 0.75),
    "validates": (0.2, 0.7),
    "dismisses": (0.15, 0.6),
}
KINDNESS = 0.5  # a sentence that may be blame is heard as blame less, the more it validates
NEVER = 99
NEEDS = {
    "heard_first": Needs(
        understands=8.0,
        asks=4.0,
        validates=3.5,
        reassures=1.5,
        informs=(-1.5, 2.0),
        suggests=(-7.0, 5.0),
        patience=NEVER,
    ),
    "wants_plan": Needs(
        understands=6.0,
        asks=3.0,
        validates=2.0,
        reassures=1.0,
        informs=(2.0, 5.0),
        suggests=(3.0, 8.0),
        patience=2,
    ),
    "hates_reassurance": Needs(
        understands=7.5,
        asks=4.0,
        validates=1.5,
        reassures=-6.0,
        informs=(-0.5, 3.0),
        suggests=(-4.0, 5.0),
        patience=NEVER,
    ),
    "wary_of_advice": Needs(
        understands=7.0,
        asks=5.5,
        validates=3.0,
        reassures=1.0,
        informs=(-1.5, 1.5),
        suggests=(-8.0, 1.5),
        patience=NEVER,
    ),
}
FAULTS = {  # what cannot be taken as a reply costs this much, more each time
    "empty": -2.5,
    "garbled": -4.0,
    "language": -3.0,
    "emoji": -3.5,
    "parrot": -3.0,
    "both_sides": -4.0,
    "role_reversal": -4.5,
    "injection": -4.0,
    "too_long": -3.0,
    "off_topic": -3.5,
    "flattery": -2.5,
}
FAULT_GROWTH = 0.3
DISMISSED = -8.0
REACHED = 2.5  # a question that reaches something held back
RELIEF = 4.0  # having told it
STOCK, REPEATED, OFF = -2.0, -4.0, -2.0
QUESTIONED, NO_PLAN, THIN, FLOOR, ADVICE_AGAIN = -1.5, -1.5, -0.75, -2.0, -1.5  # each grows with every further time
SHARED = 1.5
WORN = (1.0, 1.0, 0.8, 0.65, 0.5)  # worth of the same acts by number of turns in a row that already had them
FADING = (1.0, 0.6, 0.3, 0.0)  # worth of advice, of reassurance, by times already given
ENOUGH_HEARD, ENOUGH_TRUST = 1.2, 0.5  # understanding and trust from which a person is ready for advice
TRUST = {"understands": 0.22, "asks": 0.08, "validates": 0.06, "dismisses": -0.4}
TRUST_START, TRUST_START_GUARDED, TRUST_FAULT, TRUST_PUSHED = 0.2, 0.1, -0.12, -0.12
ROOM_ABOVE, ROOM_BELOW, LEAST_ROOM = 65.0, 30.0, 0.35  # both gains and losses shrink towards the end of the scale
ACTS = ("understands", "asks", "suggests", "informs", "reassures", "discloses", "validates")
PRESENT = 0.4  # an act this strong counts as done
ABSENT = 0.25  # below this in every act, a reply is thin
ON_TOPIC, ON_POINT = 0.15, 0.4  # relevance below which it grates, and from which it counts in full
REACH, REACH_TRUST = 0.45, 0.1  # similarity that reaches a topic, and how far trust lowers it
MOST = 10.0  # change in one turn
NOISE, NOISE_SHARE = 1.0, 0.25  # personal noise: at most a point, at most a quarter of the change, so no sign flips


# ------------------------------------------------------------------------------------------- state and appraisal


@dataclass(frozen=True, slots=True)
class Heard:
    """One supporter turn as this person hears it: its acts, and how near it comes to what they hold back."""

    spoken: Spoken  # before the turn
    reply: str
    acts: Perception
    reach: tuple[float, ...]  # similarity of its questions with each disclosure's topic


@dataclass(frozen=True, slots=True)
class Mood:
    """What a person carries from turn to turn, all of it replayed from the history."""

    emotion: float
    trust: float
    turn: int = 0  # supporter turns so far
    understood: float = 0.0
    questions: int = 0  # in a row without a reflection
    waiting: int = 0  # supporter turns since the last advice or information
    advice: int = 0  # in a row
    reassured: int = 0
    disclosed: int = 0
    stock: int = 0
    thin: int = 0
    faults: int = 0
    acts: tuple[str, ...] = ()  # of the last reply
    run: int = 0  # turns in a row with these acts
    reached: tuple[tuple[int, int], ...] = ()  # (disclosure, supporter turn from which it can be told)

    @property
    def ready(self) -> float:
        """How far this person is ready for advice, 0-1: understood, and trusting."""
        return min(1.0, self.understood / ENOUGH_HEARD) * min(1.0, self.trust / ENOUGH_TRUST)


def first_mood(profile: SeekerProfile) -> Mood:
    """How a person comes in."""
    return Mood(float(profile.start), TRUST_START_GUARDED if profile.voice == "guarded" else TRUST_START)


def present_acts(acts: Perception) -> tuple[str, ...]:
    """The acts that a reply clearly does."""
    return tuple(act for act in ACTS if getattr(acts, act) >= PRESENT)


def noticed(acts: Perception) -> Perception:
    """The acts as strongly as this person takes them: (x - threshold) / (full - threshold), clipped to 0-1."""
    sure = {act: getattr(acts, act) for act in NOTICED}
    sure["dismisses"] -= KINDNESS * acts.validates
    strength = {act: min(1.0, max(0.0, (sure[act] - least) / (full - least))) for act, (least, full) in NOTICED.items()}
    return replace(acts, **strength)


def between(pair: tuple[float, float], share: float) -> float:
    """From the first value to the second."""
    return pair[0] + (pair[1] - pair[0]) * share


def later(values: Sequence[float], times: int) -> float:
    """The entry for this many times, the last one for more."""
    return values[min(times, len(values) - 1)]


def gains(profile: SeekerProfile, mood: Mood, acts: Perception) -> dict[str, float]:
    """What helps, by cause, before it is worn, repeated or off the point."""
    needs = NEEDS[profile.advice]
    advising = between(needs.suggests, mood.ready)
    informing = between(needs.informs, mood.ready)
    return {
        "understood": needs.understands * acts.understands,
        "asked": needs.asks * acts.asks * (mood.questions < 2),
        "validated": needs.validates * acts.validates,
        "advice": max(0.0, advising) * acts.suggests * later(FADING, mood.advice),
        "informed": max(0.0, informing) * acts.informs,
        "reassured": max(0.0, needs.reassures) * acts.reassures * later(FADING, mood.reassured),
        "shared": SHARED * acts.discloses * (mood.disclosed == 0),
    }


def costs(profile: SeekerProfile, mood: Mood, acts: Perception) -> dict[str, float]:
    """What hurts or grates, by cause."""
    needs = NEEDS[profile.advice]
    done = present_acts(acts)
    pushed = "own_way" if profile.advice == "wary_of_advice" and mood.turn > 0 else "advice_early"
    helps = "suggests" in done or "informs" in done
    over = mood.waiting - needs.patience
    strongest = max(
        acts.understands, acts.asks, acts.suggests, acts.informs, acts.reassures, acts.discloses, acts.validates
    )
    return {
        pushed: min(0.0, between(needs.suggests, mood.ready)) * acts.suggests
        + min(0.0, between(needs.informs, mood.ready)) * acts.informs,
        "advice_again": ADVICE_AGAIN * (mood.advice - 1) * acts.suggests if mood.advice > 1 else 0.0,
        "no_plan": NO_PLAN * min(3, over + 1) if over >= 0 and not helps else 0.0,
        "reassurance": min(0.0, needs.reassures) * acts.reassures,
        "stock": STOCK * acts.stock * min(3, mood.stock),
        "repeated": REPEATED * acts.repeats if acts.repeats >= PRESENT else 0.0,
        "dismissed": DISMISSED * acts.dismisses,
        "took_floor": FLOOR * acts.discloses * min(3, mood.disclosed),
        "questioned": QUESTIONED * min(3, mood.questions - 1)
        if mood.questions >= 2 and "asks" in done and "understands" not in done
        else 0.0,
        "off": OFF * max(0.0, 1 - acts.relevance / ON_TOPIC),
        "thin": THIN * min(4, mood.thin + 1) if strongest < ABSENT else 0.0,
    }


def effects(profile: SeekerProfile, mood: Mood, acts: Perception) -> dict[str, float]:
    """Points of emotion by cause; a fault leaves nothing but costs."""
    hurt = min(1.0, max(LEAST_ROOM, mood.emotion / ROOM_BELOW))
    found = {cause: points * hurt for cause, points in costs(profile, mood, acts).items()}
    if acts.fault:
        fault = FAULTS[acts.fault] * (1 + FAULT_GROWTH * mood.faults)
        return {acts.fault: fault * hurt, "dismissed": found["dismissed"]}
    worn = later(WORN, mood.run) if present_acts(acts) == mood.acts else 1.0
    room = min(1.0, max(LEAST_ROOM, (100 - mood.emotion) / ROOM_ABOVE))
    fresh = 1 - max(acts.stock, acts.repeats)
    share = worn * room * fresh * min(1.0, acts.relevance / ON_POINT) * (0.8 + 0.4 * mood.trust)
    return found | {cause: points * share for cause, points in gains(profile, mood, acts).items()}


def newly_reached(mood: Mood, acts: Perception, reach: Sequence[float]) -> int | None:
    """The disclosure that this reply's question reaches for the first time: the nearest one."""
    if acts.fault or acts.asks < PRESENT or mood.questions >= 3:
        return None
    known = {index for index, _ in mood.reached}
    near = [(nearness, -index) for index, nearness in enumerate(reach) if index not in known]
    best, index = max(near, default=(0.0, 0))
    return -index if best >= REACH - REACH_TRUST * mood.trust else None


def to_tell(profile: SeekerProfile, mood: Mood, spoken: Spoken, points: float, acts: Perception) -> int | None:
    """The disclosure that comes out now: reached, its time has come, not told yet, and this reply does not hurt."""
    if acts.fault or points < -1:
        return None
    said = " ".join(text for speaker, text in spoken if speaker == "seeker")
    waiting = (i for i, turn in mood.reached if turn <= mood.turn and profile.disclosures[i].text not in said)
    return next(waiting, None)


def unit_noise(profile: SeekerProfile, spoken: Spoken, reply: str) -> float:
    """A number in [-1, 1] that depends on nothing but the words."""
    digest = hashlib.sha256(repr((profile.id, spoken, reply)).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**63 - 1


def appraise(profile: SeekerProfile, mood: Mood, heard: Heard) -> tuple[Mood, Told]:
    """One step: E' = clip(E + clip(sum of effects + noise, -10, 10), 0, 100)."""
    acts = noticed(heard.acts)
    found = effects(profile, mood, acts)
    if (new := newly_reached(mood, acts, heard.reach)) is not None:
        found["reached"] = REACHED
        delay = 0 if mood.trust >= ENOUGH_TRUST else 2 if profile.voice == "guarded" else 1
        mood = replace(mood, reached=(*mood.reached, (new, mood.turn + delay)))
    telling = to_tell(profile, mood, heard.spoken, sum(found.values()), acts)
    if telling is not None:
        found["told"] = RELIEF
    points = sum(found.values())
    points += unit_noise(profile, heard.spoken, heard.reply) * min(NOISE, NOISE_SHARE * abs(points))
    emotion = round(min(100.0, max(0.0, mood.emotion + min(MOST, max(-MOST, points)))), 2)
    sign = 1 if points >= 0 else -1
    causes = tuple(sorted(((c, p) for c, p in found.items() if p), key=lambda item: -item[1] * sign))
    told = Told(
        causes=causes,
        change=points,
        emotion=emotion,
        disclosure=profile.disclosures[telling].text if telling is not None else "",
        late=telling is not None and telling != new,
    )
    return replace(next_mood(mood, acts, found), emotion=emotion), told


def next_mood(mood: Mood, acts: Perception, found: dict[str, float]) -> Mood:
    """What one reply leaves behind, the emotion aside."""
    if acts.fault:
        trust = max(0.0, mood.trust + TRUST_FAULT)
        return replace(
            mood, turn=mood.turn + 1, faults=mood.faults + 1, waiting=mood.waiting + 1, trust=trust, acts=(), run=0
        )
    done = present_acts(acts)
    carried = 1 - max(acts.stock, acts.repeats)
    pushed = min(0.0, found.get("advice_early", 0.0) + found.get("own_way", 0.0)) <= -2
    moved = sum(worth * getattr(acts, act) * (carried if worth > 0 else 1) for act, worth in TRUST.items())
    asks, reflects = "asks" in done, "understands" in done
    return replace(
        mood,
        turn=mood.turn + 1,
        trust=min(1.0, max(0.0, mood.trust + moved + TRUST_PUSHED * pushed)),
        understood=mood.understood + acts.understands * carried,
        questions=0 if reflects else mood.questions + asks,
        waiting=0 if "suggests" in done or "informs" in done else mood.waiting + 1,
        advice=mood.advice + 1 if "suggests" in done else 0,
        reassured=mood.reassured + ("reassures" in done),
        disclosed=mood.disclosed + ("discloses" in done),
        stock=mood.stock + (acts.stock >= PRESENT),
        thin=mood.thin + 1 if found["thin"] else 0,
        acts=done,
        run=mood.run + 1 if done == mood.acts else 1,
    )


def replay(profile: SeekerProfile, heard: Sequence[Heard]) -> tuple[Mood, Told]:
    """The mood after all that was heard, and what the last of it gave this person to say."""
    mood = first_mood(profile)
    told = Told((), 0.0, mood.emotion)
    for turn in heard:
        mood, told = appraise(profile, mood, turn)
    return mood, told
