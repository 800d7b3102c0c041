"""How the evaluator's person feels: needs that fill and leak, within a working alliance.

A staged model, unlike a sum of effects: a reply fills needs, needs leak from turn to turn, and the emotion moves with
the change of their weighed sum. The pieces come from
1. Hill, Helping Skills: exploration (being listened to) makes room for insight (being understood), both for action;
2. Carver and Scheier 1990: what is felt is the rate at which the distance to a goal shrinks, so a need that stays
   filled lifts nobody any further;
3. Bordin 1979: bond and agreement on tasks carry the work; a bond grows slowly and breaks fast;
4. Miller and Rollnick, Motivational Interviewing: more questions than reflections feel like an interview, advice wants
   a permission, and pressing it costs;
5. Smith and Ellsworth 1985, Roseman: anxious people lack certainty, angry people want the wrong seen, ashamed people
   want to be accepted, sad people want the loss understood, hence weights by emotion.
SAGE's scale: 0-100, at most 10 a turn. None of these sources gives numbers; every number here is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rapo_lib.dialogue import SeekerProfile
from rapo_lib.evaluator.hearing import Heard, ramp

NEEDS = ("heard", "understood", "valued", "equipped", "unburdened")
WEIGHTS = {  # how much of relief each need is, by attitude to advice
    "heard_first": (0.28, 0.36, 0.16, 0.10, 0.10),
    "wants_plan": (0.18, 0.22, 0.08, 0.42, 0.10),
    "hates_reassurance": (0.26, 0.38, 0.10, 0.14, 0.12),
    "wary_of_advice": (0.34, 0.36, 0.14, 0.04, 0.12),
}
LEANING = {  # what an emotion makes more important (its need, how much more)
    "anxiety": ("equipped", 1.2),
    "fear": ("equipped", 1.2),
    "nervousness": ("equipped", 1.2),
    "anger": ("valued", 1.5),
    "disgust": ("valued", 1.4),
    "shame": ("valued", 1.7),
    "sadness": ("understood", 1.15),
    "depression": ("understood", 1.15),
}
READY = {  # being heard and understood from which advice is welcome: not at all below the first, fully above the second
    "heard_first": (0.5, 1.1),
    "wants_plan": (-0.6, 0.6),
    "hates_reassurance": (0.35, 1.0),
    "wary_of_advice": (0.9, 2.0),
}
SCALE = 80.0  # emotion points from no need filled to all of them
LEAK = 0.04  # share of every need lost per supporter turn
DOSE = {  # what an act at full strength fills of what is still missing
    "explore": 0.30,
    "check": 0.12,
    "mirror": 0.42,
    "accept": 0.34,
    "useful": 0.30,
    "comfort": 0.14,
    "share": 0.12,
}
LISTENED = 0.5  # of a mirror's dose, for being heard
TOLD = 0.5  # of being unburdened, for each thing told
BOND_START, BOND_GUARDED, BOND_GAIN, BOND_BREAK = 0.25, 0.1, 0.28, 0.03  # the last: loss for each point of hurt
OPENS = {"guarded": 0.45, "formal": 0.35, "ironic": 0.35}  # bond from which people tell what they hold back
OPENS_ELSE = 0.3
REACH = 0.5  # how near a question must come to what is held back
BALANCE = 2.0  # questions ahead of reflections before it feels like an interview
MEMORY = 0.75  # share of questions, reflections and stock phrases remembered from one turn to the next
HURT = {  # points at full strength
    "rushed": 6.0,
    "steered": 7.0,
    "judged": 8.0,
    "brushed_off": 6.5,
    "interviewed": 1.6,
    "waiting": 1.2,
    "missed": 1.4,
    "generic": 1.4,
    "repeated": 3.5,
    "floor": 2.5,
    "thin": 0.8,
    "wordy": 1.0,
}
FAULT_HURT = {
    "silence": 2.0,
    "pictures": 3.0,
    "foreign": 2.5,
    "scrambled": 4.0,
    "machine": 4.5,
    "script": 3.5,
    "monologue": 3.5,
    "echo": 3.0,
    "vents": 4.0,
    "gushes": 2.0,
    "astray": 3.0,
}
WORSE = 0.25  # every further fault hurts this much more
PATIENCE = 3  # supporter turns without anything practical before it grates on who wants a plan
CURT_WORDS = 40  # a curt person tires of longer replies
HARD = {"ironic": 1.5, "guarded": 1.2}  # stock phrases hurt these voices more
MOST = 10.0
NUMB = 25.0  # below this emotion every hurt weighs less
LEAST_HURT = 0.3

Points = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class State:
    """What one person carries through a talk; all of it follows from what was said."""

    emotion: float
    bond: float
    needs: tuple[float, ...] = (0.0,) * len(NEEDS)
    asked: float = 0.0  # leaky counts
    reflected: float = 0.0
    stock: float = 0.0
    shared: float = 0.0
    faults: int = 0
    waiting: int = 0  # supporter turns since anything practical
    opened: tuple[int, ...] = ()  # disclosures that a question has reached
    told: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Felt:
    """What one reply did to a person: points by cause, the emotion after it, and what comes out now."""

    points: Points
    change: float
    emotion: float
    disclosure: int | None = None
    late: bool = False  # an earlier question had opened it


def arrival(profile: SeekerProfile) -> State:
    """How a person comes in."""
    return State(float(profile.start), BOND_GUARDED if profile.voice == "guarded" else BOND_START)


def weights(profile: SeekerProfile) -> dict[str, float]:
    """What each need is to this person, summing to 1."""
    raw = dict(zip(NEEDS, WEIGHTS[profile.advice], strict=True))
    need, more = LEANING.get(profile.emotion_type, ("heard", 1.0))
    raw[need] *= more
    return {name: value / sum(raw.values()) for name, value in raw.items()}


def readiness(profile: SeekerProfile, state: State, heard: Heard) -> float:
    """How welcome advice is, 0-1: explored and understood first, and offered rather than pressed."""
    explored = state.needs[0] + state.needs[1] + 0.3 * heard.mirror + 0.15 * heard.tentative
    return ramp(explored, *READY[profile.advice])


def doses(profile: SeekerProfile, state: State, heard: Heard) -> dict[str, float]:
    """What this reply fills of each need, 0-1, before repetition and bond weigh in."""
    patient = 1 - ramp(state.asked - state.reflected, BALANCE - 0.5, BALANCE + 1.5)
    asking = max(DOSE["explore"] * heard.explore, DOSE["check"] * heard.check) * patient
    soothing = 0.0 if profile.advice == "hates_reassurance" else DOSE["comfort"] * heard.comfort * heard.fit
    return {
        "heard": asking + LISTENED * DOSE["mirror"] * heard.mirror,
        "understood": DOSE["mirror"] * heard.mirror * (0.6 + 0.4 * state.needs[0]),
        "valued": DOSE["accept"] * heard.accept + soothing + DOSE["share"] * heard.share * (state.shared < 0.5),
        "equipped": DOSE["useful"] * heard.useful * readiness(profile, state, heard),
        "unburdened": 0.0,
    }


def hurts(profile: SeekerProfile, state: State, heard: Heard) -> dict[str, float]:
    """What hurts or grates, in points at full strength of feeling."""
    pressed = heard.advise + 0.4 * heard.inform
    refused = max(0.0, 1 - 2 * readiness(profile, state, heard)) if profile.advice != "wants_plan" else 0.0
    ahead = state.asked - state.reflected + max(heard.explore, heard.check) - BALANCE
    done = max(heard.explore, heard.check, heard.mirror, heard.accept, heard.advise, heard.inform, heard.comfort,
               heard.share)  # fmt: skip
    late = state.waiting - PATIENCE
    waits = profile.advice == "wants_plan" and late >= 0 and max(heard.advise, heard.inform) < 0.3
    strength = {
        "steered" if profile.advice == "wary_of_advice" else "rushed": pressed * refused * (1 - 0.4 * heard.tentative),
        "judged": heard.judge,
        "brushed_off": heard.comfort * (profile.advice == "hates_reassurance"),
        "interviewed": max(0.0, ahead) * (heard.mirror < 0.3) * (heard.explore + heard.check > 0.3),
        "waiting": min(3, late + 1) if waits else 0.0,
        "missed": heard.missed,
        "generic": max(0.0, state.stock + heard.stock - 1) * (heard.stock > 0.3) * HARD.get(profile.voice, 1.0),
        "repeated": heard.again if heard.again > 0.3 else 0.0,
        "floor": heard.share * min(2.0, state.shared),
        "thin": 1.0 if done < 0.2 else 0.0,
        "wordy": float(profile.voice == "curt" and heard.length > CURT_WORDS),
    }
    return {cause: HURT[cause] * value for cause, value in strength.items() if value > 0}


def fill(profile: SeekerProfile, state: State, heard: Heard, telling: bool) -> tuple[tuple[float, ...], Points]:
    """The needs after this reply, and the points that each filling or leaking is worth."""
    weight = weights(profile)
    given = dict.fromkeys(NEEDS, 0.0) if heard.fault else doses(profile, state, heard)
    if telling:
        given["unburdened"] = TOLD
    carried = (0.7 + 0.6 * state.bond) * (1 - max(heard.again, 0.8 * heard.stock))
    filled, points, leaked = [], [], 0.0
    for name, before in zip(NEEDS, state.needs, strict=True):
        dose = min(1.0, given[name] * (1.0 if name == "unburdened" else carried))
        left = before * (1 - LEAK)
        after = left + dose * (1 - left)
        filled.append(after)
        points.append((name, SCALE * weight[name] * (after - left)))
        leaked += SCALE * weight[name] * (left - before)
    return tuple(filled), (*((name, p) for name, p in points if p > 0), ("faded", leaked))


def opening_up(profile: SeekerProfile, state: State, heard: Heard, reach: Sequence[float]) -> tuple[int, ...]:
    """The disclosures that questions have reached, this reply's included."""
    if heard.fault or max(heard.explore, heard.check) < 0.3:
        return state.opened
    near = [(value, -place) for place, value in enumerate(reach) if place not in state.opened]
    best, place = max(near, default=(0.0, 0))
    return (*state.opened, -place) if best >= REACH else state.opened


def live(
    profile: SeekerProfile, state: State, heard: Heard, reach: Sequence[float], said: Sequence[str]
) -> tuple[State, Felt]:
    """One supporter turn: E' = clip(E + clip(SCALE * change of filled needs - hurts, -10, 10), 0, 100)."""
    opened = opening_up(profile, state, heard, reach)
    out = {place for place, secret in enumerate(profile.disclosures) if any(secret.text in turn for turn in said)}
    numb = max(LEAST_HURT, min(1.0, state.emotion / NUMB))
    worse = 1 + WORSE * state.faults
    pains = {heard.fault: FAULT_HURT[heard.fault] * worse} if heard.fault else hurts(profile, state, heard)
    pains = {cause: -points * numb for cause, points in pains.items()}
    trusting = state.bond >= OPENS.get(profile.voice, OPENS_ELSE) and sum(pains.values()) > -2 and not heard.fault
    waiting = [place for place in opened if place not in out and place not in state.told]
    telling = waiting[0] if trusting and waiting else None
    needs, gains = fill(profile, state, heard, telling is not None)
    points = (*gains, *pains.items())
    change = min(MOST, max(-MOST, sum(value for _, value in points)))
    emotion = round(min(100.0, max(0.0, state.emotion + change)), 2)
    late = telling is not None and telling in state.opened
    felt = Felt(tuple((c, round(v, 3)) for c, v in points if v), change, emotion, telling, late)
    after = replace(
        carry(state, heard, -sum(pains.values())),
        emotion=emotion,
        needs=needs,
        opened=opened,
        told=state.told if telling is None else (*state.told, telling),
    )
    return after, felt


def carry(state: State, heard: Heard, hurt: float) -> State:
    """What the supporter's manner leaves behind: bond, the balance of questions and reflections, what has worn thin."""
    warmth = 0.0 if heard.fault else heard.mirror + 0.4 * heard.accept * heard.fit + 0.25 * heard.explore * heard.fit
    bond = state.bond + BOND_GAIN * min(1.0, warmth) * (1 - heard.again) * (1 - state.bond) - BOND_BREAK * hurt
    practical = max(heard.advise, heard.inform) >= 0.3
    return replace(
        state,
        bond=min(1.0, max(0.0, bond)),
        asked=MEMORY * state.asked + max(heard.explore, heard.check),
        reflected=MEMORY * state.reflected + heard.mirror,
        stock=MEMORY * state.stock + heard.stock,
        shared=MEMORY * state.shared + heard.share,
        faults=state.faults + bool(heard.fault),
        waiting=0 if practical else state.waiting + 1,
    )
