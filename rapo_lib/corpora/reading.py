"""From one JSON record, whatever its layout, to one `Dialogue`: what a turn means is decided here, once.

Repairs are collected as sentences; a record that holds no dialogue raises a ValueError.
"""

import re
from dataclasses import dataclass, fields, replace
from itertools import chain, groupby
from typing import Any

from rapo_lib.corpora.layouts import Draft, Said, drafted, listed_or_one, mapped
from rapo_lib.corpora.strategies import strategy_name
from rapo_lib.dialogue import Dialogue, Speaker, Turn, dialogue_from_record

SPEAKERS: dict[str, Speaker] = {
    **dict.fromkeys(("seeker", "speaker", "usr", "user", "human", "client", "patient", "esc-role"), "seeker"),
    **dict.fromkeys(("help-seeker", "help seeker", "help_seeker", "helpseeker"), "seeker"),
    **dict.fromkeys(
        ("supporter", "listener", "sys", "assistant", "gpt", "ai", "bot", "model", "ai assistant"), "supporter"
    ),
    **dict.fromkeys(("ai assitant", "chatbot", "helper"), "supporter"),  # the first is ESC-Eval's own spelling
    **dict.fromkeys(("counselor", "counsellor", "therapist", "doctor"), "supporter"),
}
SURVEY = ("initial_emotion_intensity", "empathy", "relevance", "final_emotion_intensity")
OWN = {f.name for f in fields(Dialogue)}
LANGUAGES = ("eng", "rus")  # ESConv-ru has both; the series reads English
BOTH = "texts in English and Russian; the English is read"
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one record gave."""

    format: str
    dialogue: Dialogue
    repairs: tuple[str, ...]
    notes: tuple[str, ...] = ()  # true of the file rather than the record: to be said once


def read_record(record: Any, fallback_id: str, source: str) -> Reading:
    """Read one record of any known layout."""
    repairs: list[str] = []
    if isinstance(record, dict) and {"id", "turns"} <= record.keys() <= OWN:
        name, dialogue = "rapo", own(record, repairs)
    else:
        draft = drafted(record)
        name, dialogue = draft.format, replace(dialogue_of(draft, repairs), source=source)
    notes = (BOTH,) if BOTH in repairs else ()
    repairs = [repair for repair in repairs if repair != BOTH]
    if not dialogue.turns and not (name == "sage-profile" and dialogue.situation):
        raise ValueError(f"{name}: no readable turn" + (f" ({repairs[0]})" if repairs else ""))
    return Reading(name, replace(dialogue, id=dialogue.id or fallback_id), tuple(repairs), notes)


def dialogue_of(draft: Draft, repairs: list[str]) -> Dialogue:
    """Check everything a layout found."""
    numbered = enumerate(draft.said, start=1)
    turns = [turn for number, said in numbered if (turn := turn_of(said, number, repairs))]
    return Dialogue(
        id=plain_id(draft.id),
        turns=merged(turns, repairs),
        situation=plain(draft.situation, "situation", repairs),
        problem=plain(draft.problem, "problem", repairs),
        emotion_type=plain(draft.emotion_type, "emotion type", repairs),
        survey=survey_of(draft.survey, repairs),
    )


def turn_of(said: Said, number: int, repairs: list[str]) -> Turn | None:
    """Check one turn; what cannot be used is put on record in `repairs`."""
    at = f"turn {number}"
    label = said.speaker.strip() if isinstance(said.speaker, str) else said.speaker
    speaker = SPEAKERS.get(label.casefold()) if isinstance(label, str) else None
    if speaker is None:
        repairs.append(f"{at}: speaker {shown(label)} is neither seeker nor supporter; left out")
        return None
    text = plain(said.text, at, repairs)
    if not text:
        repairs.append(f"{at}: no text; left out")
        return None
    object_of(said.annotation, f"{at}: annotation", repairs)
    labels = (plain(label, f"{at}: strategy", repairs) for label in listed_or_one(said.strategy))
    raw = tuple(label for label in labels if label)
    return Turn(
        speaker=speaker,
        text=text,
        strategies=tuple(known_strategy(name, at, repairs) for name in raw),
        raw_strategies=raw,
        feedback=score_of(said.feedback, f"{at}: feedback", repairs),
        emotion=point_of(said.emotion, at, repairs),
    )


def own(record: dict[str, Any], repairs: list[str]) -> Dialogue:
    """Our own JSONL; anything `to_record` wrote comes back equal."""
    if not isinstance(record["turns"], list):
        raise ValueError("rapo: 'turns' is not a list")
    if any(isinstance(turn.get("strategies"), str) for turn in map(mapped, record["turns"])):
        raise ValueError("rapo: 'strategies' is not a list")  # a tuple of it would be its letters
    try:
        dialogue = dialogue_from_record(record)
    except TypeError as error:
        raise ValueError(f"rapo: {error}") from None
    turns = [turn for number, t in enumerate(dialogue.turns, start=1) if (turn := own_turn(t, number, repairs))]
    texts = {
        key: plain(record.get(key, ""), key, repairs) for key in ("situation", "problem", "emotion_type", "source")
    }
    rated = ((plain(k, "survey", repairs), v) for k, v in object_of(dialogue.survey, "survey", repairs).items())
    scores = {k: score_of(v, f"survey {shown(k)}", repairs) for k, v in rated}
    survey = scores if isinstance(dialogue.survey, dict) else None
    return Dialogue(id=plain_id(dialogue.id), turns=merged(turns, repairs), survey=survey, **texts)


def own_turn(turn: Turn, number: int, repairs: list[str]) -> Turn | None:
    """Check a turn from our own file, keeping both spellings of its strategies as they are."""
    checked = turn_of(Said(turn.speaker, turn.text, None, turn.feedback, turn.emotion), number, repairs)
    if not all(isinstance(name, str) for name in (*turn.strategies, *turn.raw_strategies)):
        raise ValueError(f"rapo: turn {number}: strategies must be text")
    kept = {
        key: tuple(plain(name, f"turn {number}: strategy", repairs) for name in getattr(turn, key))
        for key in ("strategies", "raw_strategies")
    }
    return checked and replace(checked, **kept)


def merged(turns: list[Turn], repairs: list[str]) -> tuple[Turn, ...]:
    """Neighbouring turns of one speaker become one, with every strategy and the latest rating and emotion."""
    out: list[Turn] = []
    for _, neighbours in groupby(turns, key=lambda turn: turn.speaker):
        run = list(neighbours)
        if len(run) == 1:
            out.append(run[0])
            continue
        ratings = [turn.feedback for turn in run if turn.feedback is not None]
        emotions = [turn.emotion for turn in run if turn.emotion is not None]
        if len(ratings) > 1:
            repairs.append(f"merged turns carry the ratings {', '.join(map(str, ratings))}; the last is kept")
        one = replace(
            run[0],
            text="\n".join(turn.text for turn in run),
            strategies=tuple(chain.from_iterable(turn.strategies for turn in run)),
            raw_strategies=tuple(chain.from_iterable(turn.raw_strategies for turn in run)),
            feedback=ratings[-1] if ratings else None,
            emotion=emotions[-1] if emotions else None,
        )
        out.append(one)
    return tuple(out)


def plain(value: Any, at: str, repairs: list[str]) -> str:
    """Trimmed text; of two languages the English, of message parts the text parts."""
    if isinstance(value, dict):
        value = in_english(value, repairs)
    if isinstance(value, list):
        parts = [part.get("text") for part in map(mapped, value)]
        if not all(isinstance(part, str) for part in parts):
            repairs.append(f"{at}: parts that are not text; left out")
        value = "\n".join(part for part in parts if isinstance(part, str))
    if not isinstance(value, str):
        if value is not None:
            repairs.append(f"{at}: {shown(value)} is not text; left out")
        return ""
    text = value.strip()
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        repairs.append(f"{at}: half a character (lone surrogate) replaced")
        return SURROGATE.sub("\ufffd", text)
    return text


def in_english(value: dict[str, Any], repairs: list[str]) -> Any:
    """Of a text in two languages (ESConv-ru) the English, or the one there is; another object stays as it is."""
    given = [value[key] for key in LANGUAGES if value.get(key) not in (None, "")]
    if len(given) > 1:
        repairs.append(BOTH)
    if given:
        return given[0]
    return None if value.keys() <= set(LANGUAGES) else value


def known_strategy(name: str, at: str, repairs: list[str]) -> str:
    """One of ESConv's eight; a strange one counts as Others and keeps its own spelling beside it."""
    known = strategy_name(name)
    if known is None:
        repairs.append(f"{at}: unknown strategy {shown(name)} counted as Others")
    return known or "Others"


def number_of(value: Any) -> float | None:
    """A finite number, also where it is written as text."""
    if isinstance(value, str):
        return float(value) if re.fullmatch(r"\s*-?\d{1,9}(\.\d{1,9})?\s*", value, re.ASCII) else None
    known = isinstance(value, int | float) and not isinstance(value, bool) and -1e9 < value < 1e9
    return float(value) if known else None


def score_of(value: Any, at: str, repairs: list[str]) -> int | None:
    """A rating 1-5; missing is None."""
    if value is None or value == "":
        return None
    number = number_of(value)
    if number not in (1, 2, 3, 4, 5):
        repairs.append(f"{at} {shown(value)} is not 1-5; read as missing")
        return None
    return int(number)


def point_of(value: Any, at: str, repairs: list[str]) -> float | None:
    """An emotion point on SAGE's scale, clamped to 0-100 (SAGE itself has no lower bound); missing is None."""
    if value is None or value == "":
        return None
    number = number_of(value)
    if number is None:
        repairs.append(f"{at}: emotion {shown(value)} is not a number; read as missing")
        return None
    if not 0 <= number <= 100:
        repairs.append(f"{at}: emotion {shown(value)} is outside 0-100; clamped")
    return min(max(number, 0.0), 100.0)


def survey_of(value: Any, repairs: list[str]) -> dict[str, int | None] | None:
    """ESConv's closing survey, flat: the seeker's four scores, and the supporter's one."""
    sides = known_part(value, ("seeker", "supporter"), "survey", repairs)
    if not isinstance(value, dict):
        return None
    seeker = known_part(sides.get("seeker"), SURVEY, "survey, seeker", repairs)
    supporter = known_part(sides.get("supporter"), ("relevance",), "survey, supporter", repairs)
    scores = {key: score_of(seeker.get(key), f"survey {key}", repairs) for key in SURVEY}
    return {
        **scores,
        "supporter_relevance": score_of(supporter.get("relevance"), "survey supporter relevance", repairs),
    }


def known_part(value: Any, keys: tuple[str, ...], at: str, repairs: list[str]) -> dict[str, Any]:
    """An object that should have these keys; every other key is put on record."""
    found = object_of(value, at, repairs)
    strange = (key for key, given in found.items() if key not in keys and given is not None)
    repairs.extend(f"{at}: unknown key {shown(key)}; left out" for key in strange)
    return found


def object_of(value: Any, at: str, repairs: list[str]) -> dict[str, Any]:
    """An object, empty where there is none; anything else that says something is put on record."""
    if not isinstance(value, dict) and value not in (None, "", []):
        repairs.append(f"{at}: {shown(value)} is not an object; left out")
    return mapped(value)


def plain_id(value: Any) -> str:
    """An id as text, empty where there is none."""
    known = isinstance(value, str | int) and not isinstance(value, bool)
    return plain(str(value), "id", []) if known else ""


def shown(value: Any) -> str:
    """A value in a message: short, and of containers only the kind."""
    if isinstance(value, str):
        return repr(value[:40])
    return type(value).__name__ if isinstance(value, list | dict) else repr(value)[:40]
