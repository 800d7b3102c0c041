"""The critique: one or two sentences to the supporter on what in this reply caused this reaction, and what to do.

A critique claims of the reply only what the reply does (`Traits`), tells of the seeker only what the reaction shows,
and names what the seeker's last turn was about. It never quotes a reply. The wording is ours.
"""

import re
from collections.abc import Callable, Sequence

from rapo_lib.dialogue import Turn
from rapo_lib.judge.reading import Reading, words
from rapo_lib.judge.rubric import FUNCTION_WORDS, MANY_WORDS, Traits, questions_before, understood_before, wants_advice

GENERAL = ("unheard", "closing", "relieved")  # fit many reactions: a cause that names the reply's act goes first
CLEAR = 0.1  # ours: a weaker reading is neither better nor worse
Rule = tuple[Callable[[Traits], bool], str]  # when it is true of the reply, what to say of {t}
DULL = FUNCTION_WORDS | frozenset(
    """again also always anymore anything back being bit day days else even ever every everyone everything feel feeling
    feels felt first get getting getting go goes going gonna good got guess hello hey keep kind know last like little
    lot made make makes many maybe much never new next nothing now old one only other own part people quite really same
    say says since still such sure thank thanks thing things think time two very want wants way week well went whole
    year years yes yeah yet something someone can't didn't doesn't isn't won't i've i'd i'll he's she's they're we're
    you've point worst best mind hi okay told tell said start started""".split()
)

FAULTS = {
    "empty": "You sent nothing. Answer what they said about {t} in one or two sentences.",
    "garbled": "Your words made no sense to them. Write one plain sentence about {t}.",
    "foreign": "They cannot read this language. Answer in plain English about {t}.",
    "endless": "You wrote far too much. Pick {t} and stay with it for two sentences.",
    "parrot": "You only gave their own words back. Say in yours what {t} means to them.",
    "both_sides": "You wrote their part of the talk too. Speak only for yourself, about {t}, and let them answer.",
}
WORSE: dict[str, tuple[Rule, ...]] = {
    "advice": (
        (
            lambda t: bool(t.advises),
            "You gave advice before they felt understood. Name what hurts about {t} first and ask one open question.",
        ),
    ),
    "vague": (
        (lambda t: bool(t.advises), "Your advice stayed too general for them. Offer one concrete step about {t}."),
        (
            lambda t: True,
            "They wanted something they can do about {t} and got nothing to hold on to. Offer one small step.",
        ),
    ),
    "reassurance": (
        (
            lambda t: bool(t.reassures),
            "You cheered them up and they could not believe it. Stay with what is hard about {t} instead.",
        ),
    ),
    "stock": (
        (
            lambda t: t.stock > 0,
            "You used a stock phrase that fits anybody. Say in your own words what {t} does to them.",
        ),
    ),
    "repeated": ((lambda t: t.repeats > 0.5, "You said again what you had said before. Move on with them to {t}."),),
    "belittled": (
        (
            lambda t: bool(t.dismisses),
            "You made their trouble sound small or their fault. Take {t} seriously and say why it weighs.",
        ),
        (lambda t: True, "They felt judged. Take {t} seriously and say why it weighs on them."),
    ),
    "misread": ((lambda t: True, "They felt misread. Go back to {t} and check what it means to them."),),
    "offtopic": ((lambda t: t.relevance < 0.4, "Your words did not belong to what they told you. Come back to {t}."),),
    "garbled": ((lambda t: t.relevance < 0.4, "They could not follow you. Say one plain thing about {t}."),),
    "selfish": ((lambda t: bool(t.discloses), "You turned to your own life. Give the floor back to them and to {t}."),),
    "long": ((lambda t: t.words > MANY_WORDS, "You said too much at once. Choose {t} and keep to two sentences."),),
    "probed": (
        (lambda t: t.asks > 0, "Your question came too close too soon. Say first what you understood about {t}."),
    ),
    "flattery": (
        (
            lambda t: bool(t.flatters),
            "Praise from a stranger rang hollow. Speak of {t} instead of how wonderful they are.",
        ),
    ),
    "closing": ((lambda t: True, "They closed up after this. Slow down and name what hurts about {t}."),),
    "unheard": (
        (
            lambda t: t.reflects < 0.5,
            "You passed over what they said about {t}. Say it back in your own words, then let them go on.",
        ),
        (lambda t: True, "They still do not feel heard. Stay with {t} longer and name the feeling in it."),
    ),
}
BETTER: dict[str, tuple[Rule, ...]] = {
    "understood": (
        (
            lambda t: t.reflects > 0.3,
            "You put {t} into words that fit and they felt understood. Keep reflecting like this.",
        ),
        (
            lambda t: t.validates > 0,
            "You showed that their feeling makes sense and they felt understood. Keep that close to {t}.",
        ),
    ),
    "accepted": (
        (lambda t: t.validates > 0, "You let their feeling stand and they eased. Keep accepting what {t} stirs up."),
    ),
    "question": (
        (lambda t: t.asks > 0, "Your question made them look closer. Keep asking one at a time, and stay near {t}."),
    ),
    "opening": (
        (lambda t: t.asks > 0, "Your question opened them up. Keep listening and follow what they tell about {t}."),
    ),
    "helped": (
        (
            lambda t: bool(t.advises),
            "Your advice was something they can use. Keep it as small and concrete, close to {t}.",
        ),
    ),
    "relieved": (
        (lambda t: bool(t.reassures), "Your encouragement reached them. Keep it honest and tied to {t}."),
        (lambda t: True, "They sound lighter after this. Keep this tone and stay with {t}."),
    ),
}


def topic(history: Sequence[Turn]) -> str:
    """What the seeker's last turn with content words is about: 'the exam', or a word of theirs in quotation marks."""
    for turn in reversed([turn for turn in history if turn.speaker == "seeker"]):
        content = [word for word in words(turn.text) if len(word) > 2 and word not in DULL]
        nouns = re.findall(r"\b(?:my|the|our|his|her|this) ([a-z]{3,})\b", turn.text.lower())
        named = [noun for noun in nouns if noun in content]
        if named:
            return f"the {max(named, key=len)}"
        if content:
            return f'"{max(content, key=len)}"'
    return "what they said"


def _first_true(rules: Sequence[Rule], traits: Traits) -> str:
    return next((text for holds, text in rules if holds(traits)), "")


def _by_cause(table: dict[str, tuple[Rule, ...]], reading: Reading, traits: Traits, default: str) -> str:
    """What to say for the best-fitting cause that is true of this reply."""
    fit = {cause: reading.causes.get(cause, 0.0) * (0.5 if cause in GENERAL else 1.0) for cause in table}
    order = sorted(table, key=lambda cause: -fit[cause])
    likely = [cause for cause in order if reading.causes.get(cause, 0.0) > 0.05]
    said = (_first_true(table[cause], traits) for cause in [*likely, default])
    return next(text for text in said if text)


def _by_reply(history: Sequence[Turn], traits: Traits) -> str:
    """Without a reaction: the reply's gravest fault by the rubric, or what to keep."""
    if traits.dismisses:
        return WORSE["belittled"][0][1]
    if traits.advises and not wants_advice(history) and not understood_before(history):
        return WORSE["advice"][0][1]
    for cause in ("repeated", "stock", "reassurance", "selfish", "flattery", "long", "offtopic"):
        if text := _first_true(WORSE[cause], traits):
            return text
    if wants_advice(history) and not traits.advises:
        return WORSE["vague"][1][1]
    if traits.asks and traits.reflects <= 0.3 and questions_before(history) >= 2:
        return "That was one more question after questions. Say back what you heard about {t} before you ask again."
    if traits.reflects > 0.3:
        return "You put {t} into words of your own. Keep reflecting like this and leave them room."
    if traits.asks:
        return (
            "You asked and left them room. Keep to one question at a time, and say also what you understood about {t}."
        )
    return WORSE["unheard"][0][1]


def write_critique(history: Sequence[Turn], traits: Traits, reading: Reading | None) -> str:
    """One or two sentences to the supporter; `reading` None or empty: from reply and history alone."""
    if traits.fault:
        text = FAULTS[traits.fault]
    elif reading is None or reading.empty:
        text = _by_reply(history, traits)
    elif reading.relief > CLEAR:
        text = _by_cause(BETTER, reading, traits, "relieved")
    elif reading.relief < -CLEAR:
        text = _by_cause(WORSE, reading, traits, "unheard")
    else:
        text = "They stayed as they were. " + _by_reply(history, traits)
    return text.format(t=topic(history))
