"""Where each known layout keeps its turns and its story; nothing is checked here."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rapo_lib.corpora.files import printable

IDS = ("id", "pk", "episode_id", "dialogue_id", "conversation_id")
LABELLED = re.compile(r"\s*(AI assis?tant|ESC-Role)\s*[:\uff1a]", re.IGNORECASE)  # ESC-Eval, with a full-width colon
SAID = re.compile(r'said:\s*"(.*)"\s*\Z', re.DOTALL)


class Said(NamedTuple):
    """One turn as the file has it, nothing checked yet."""

    speaker: Any
    text: Any
    strategy: Any = None
    feedback: Any = None
    emotion: Any = None
    annotation: Any = None  # the object that strategy and feedback were looked for in


@dataclass(frozen=True, slots=True)
class Draft:
    """One record, taken apart."""

    format: str
    said: Iterable[Said]
    id: Any = None
    situation: Any = ""
    problem: Any = ""
    emotion_type: Any = ""
    survey: Any = None


def drafted(record: Any) -> Draft:
    """Recognise the layout by its keys and take the record apart."""
    if isinstance(record, list):
        return Draft("chat", map(said_of, record))
    if not isinstance(record, dict):
        raise ValueError(f"a JSON {type(record).__name__} where a dialogue was expected")
    for present, layout in LAYOUTS:
        if present(record):
            return layout(record)
    keys = printable(", ".join(sorted(map(str, record))[:8])[:200]) or "none"
    raise ValueError(f"not a dialogue layout we know (keys: {keys})")


def hub(record: dict[str, Any]) -> Draft:
    """The hub's esconv: a column `text` whose value is the record as a JSON string."""
    try:
        inner = json.loads(record["text"])
    except (ValueError, RecursionError):
        raise ValueError("a column 'text' that is not the JSON of a dialogue") from None
    if not isinstance(inner, dict) or "text" in inner:
        raise ValueError("a column 'text' that is not the JSON of a dialogue")
    return replace(drafted(inner), format="esconv-hub")


def esconv(record: dict[str, Any]) -> Draft:
    """ESConv, FailedESConv (speaker and listener) and PPDPP (usr and sys)."""
    short = any(isinstance(turn, dict) and turn.get("speaker") in ("usr", "sys") for turn in record["dialog"])
    return general("ppdpp" if short else "esconv", record, "dialog")


def general(format_name: str, record: dict[str, Any], key: str) -> Draft:
    """Turns that are objects with a speaker and a text, in the list at `key`."""
    return Draft(
        format_name,
        map(said_of, listed(record.get(key))),
        id=first(record, IDS),
        situation=record.get("situation"),
        problem=first(record, ("problem_type", "problem")),
        emotion_type=record.get("emotion_type"),
        survey=record.get("survey_score"),
    )


def esconv_ru(record: dict[str, Any]) -> Draft:
    """ESConv-ru: every text in two languages, the story under `meta` and `annotation`."""
    labels, meta = mapped(record.get("annotation")), mapped(record.get("meta"))
    return Draft(
        "esconv-ru",
        map(said_of, record["utterances"]),
        id=record.get("id"),
        situation=meta.get("situation"),
        problem=labels.get("problem_type"),
        emotion_type=labels.get("emotion"),
        survey=meta.get("survey_score"),
    )


def extes(record: dict[str, Any]) -> Draft:
    """ExTES: turns {"User": ...} or {"AI": ..., "AI Strategy": ...}, now and then both in one."""
    said = extes_turns(record["content"])
    return Draft("extes", said, first(record, IDS), situation=record.get("description"), problem=record.get("scene"))


def extes_turns(turns: list[Any]) -> Iterator[Said]:
    """Where one object holds both speakers, whoever did not speak last comes first."""
    last = "AI"
    for turn in map(mapped, turns):
        order = ("User", "AI") if last == "AI" else ("AI", "User")
        present = [key for key in order if turn.get(key) is not None]  # parquet has both keys in every turn
        for key in present:
            last = key
            yield Said("user" if key == "User" else "ai", turn[key], turn.get("AI Strategy") if key == "AI" else None)
        if not present:
            yield Said(None, None)


def sage(record: dict[str, Any]) -> Draft:
    """SAGE and RLVER results; the user's emotion point rides on each user turn."""
    said = map(said_of, record["history"])
    return Draft("sage", said, record.get("id"), situation=record.get("scene"), problem=record.get("topic"))


def sage_profile(record: dict[str, Any]) -> Draft:
    """SAGE and RLVER profiles: a background and, in some files, the first thing the person says."""
    talk = record.get("first_talk")
    said = [] if talk in (None, "") else [Said("seeker", talk)]
    return Draft("sage-profile", said, record.get("id"), situation=record.get("scene"), problem=record.get("topic"))


def esc_eval(record: dict[str, Any]) -> Draft:
    """ESC-Eval: strings labelled "AI assistant" or "ESC-Role"; also turn objects under the same key."""
    said = (labelled(line) if isinstance(line, str) else said_of(line) for line in listed(record["dialogue"]))
    name = "esc-eval" if any(isinstance(line, str) for line in listed(record["dialogue"])) else "dialogue"
    return replace(general(name, record, "dialogue"), said=said)


def labelled(line: str) -> Said:
    """Split "AI assistant: Hello" at its label."""
    label = LABELLED.match(line)
    return Said(label[1], line[label.end() :]) if label else Said(None, line)


def trl(record: dict[str, Any]) -> Draft:
    """TRL's conversational rows: a prompt and, where there is one, its completion or the chosen answer."""
    answer = first(record, ("completion", "chosen"))
    if isinstance(answer, str):
        answer = {"role": "assistant", "content": answer}
    turns = record["prompt"] + ([] if answer is None else listed_or_one(answer))
    return replace(general("chat", record, "prompt"), said=map(said_of, turns))


def sotopia(record: dict[str, Any]) -> Draft:
    """SOTOPIA episode logs and exports. Whoever acts first is read as the seeker, the other as the supporter (ours).

    That order is the one thing logs and exports share: the order of names in an export means nothing.
    """
    messages = flat(listed(record.get("raw_messages") or record.get("messages")))
    triples = [m for m in messages if is_triple(m)]
    background = list(mapped(record.get("agents_background")))
    names = agent_names(triples) or background
    if len(names) != 2 and len(background) == 2:
        names = background  # somebody else speaks up; those turns are left out, on record
    if len(names) != 2:
        raise ValueError(f"sotopia: {len(names)} agents where a dialogue has two")
    if not triples:
        messages += written_out(str(record.get("social_interactions")), names)
    told = str(triples[0][2]).partition("Scenario:")[2] if triples else ""
    scenario = record.get("scenario") or told.partition("\nParticipants:")[0].strip()
    return Draft("sotopia", acted(messages, names), first(record, IDS), situation=scenario)


def flat(turns: list[Any]) -> list[Any]:
    """The messages of all turns, and whatever stands where a turn should."""
    return [message for turn in turns for message in (turn if isinstance(turn, list) else [turn])]


def is_triple(message: Any) -> bool:
    """Whether this is a [sender, receiver, text]."""
    return isinstance(message, list | tuple) and len(message) == 3


def acted(messages: list[Any], names: list[str]) -> Iterator[Said]:
    """What was said and done, in order; what nobody of the two said comes as the turn of somebody unknown."""
    said = [(m[0], speech_of(m[2])) if is_triple(m) else (None, None) for m in messages]
    seeker = next((who for who, speech in said if who in names and isinstance(speech, str) and speech), None)
    for who, speech in said:
        if who != "Environment" and speech != "":
            role = "seeker" if who == seeker else "supporter"
            yield Said(role if who in names else who and f"agent {who}", speech)


def agent_names(triples: list[Any]) -> list[str]:
    """Who takes part, in the order of the opening messages: senders and receivers, less the environment."""
    names = [name for sender, receiver, _ in triples for name in (sender, receiver)]
    return [name for name in dict.fromkeys(n for n in names if isinstance(n, str)) if name != "Environment"]


def written_out(text: str, names: list[str]) -> list[tuple[str, str, str]]:
    """Exports without raw messages: 'Ann said: "..."' or 'Ann: [action] ...', one agent after the other."""
    who = "|".join(map(re.escape, names))
    parts = re.split(rf"^({who}):?\s+(?=said:|\[|did nothing|left the conversation)", text, flags=re.MULTILINE)
    bodies = (re.split(r"^Turn #\d+", body, maxsplit=1, flags=re.MULTILINE)[0].strip() for body in parts[2::2])
    return [(name, "Environment", body) for name, body in zip(parts[1::2], bodies, strict=True)]


def speech_of(text: Any) -> Any:
    """The words of a SOTOPIA action; gestures keep their "[action]" mark, doing nothing is empty."""
    if not isinstance(text, str):
        return text
    text = text.strip()
    if quoted := SAID.match(text):
        return quoted[1]
    if text in ("did nothing", "left the conversation"):
        return ""
    return json_action(text) if text.startswith("{") else text


def json_action(text: str) -> str:
    """An agent's answer as it was generated: {"action_type": ..., "argument": ...}."""
    try:
        action = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(action, dict) or not isinstance(action.get("argument"), str):
        return text
    kind = action.get("action_type")
    if kind in ("none", "leave"):
        return ""
    return action["argument"] if kind == "speak" else f"[{kind}] {action['argument']}"


def has_list(key: str) -> Callable[[dict[str, Any]], bool]:
    """A test for a list under `key`."""
    return lambda record: isinstance(record.get(key), list)


def is_sotopia(record: dict[str, Any]) -> bool:
    """Episode logs hold messages as lists of [sender, receiver, text], one list a turn."""
    messages = record.get("messages")
    nested = isinstance(messages, list) and bool(messages) and isinstance(messages[0], list)
    return nested or "raw_messages" in record or isinstance(record.get("social_interactions"), str)


LAYOUTS = (
    (has_list("dialog"), esconv),
    (has_list("utterances"), esconv_ru),
    (has_list("history"), sage),
    (lambda record: "player" in record and "scene" in record, sage_profile),
    (is_sotopia, sotopia),
    (has_list("content"), extes),
    (has_list("messages"), lambda record: general("chat", record, "messages")),
    (has_list("conversations"), lambda record: general("sharegpt", record, "conversations")),
    (has_list("conversation"), lambda record: general("chat", record, "conversation")),
    (has_list("prompt"), trl),
    (has_list("turns"), lambda record: general("turns", record, "turns")),
    (has_list("dialogue"), esc_eval),
    (lambda record: isinstance(record.get("text"), str), hub),
)


def said_of(turn: Any) -> Said:
    """A turn object in any of the usual spellings."""
    if not isinstance(turn, dict):
        return Said(None, None)
    annotation = turn.get("annotation")
    notes = mapped(annotation)
    return Said(
        speaker=first(turn, ("speaker", "role", "from")),
        text=first(turn, ("content", "text", "value")),
        strategy=either(notes.get("strategy"), first(turn, ("strategy", "strategies"))),
        feedback=either(notes.get("feedback"), turn.get("feedback")),
        emotion=first(turn, ("emotion-point", "emotion_point", "emotion")),
        annotation=annotation,
    )


# --------------------------------------------------------------------------------------- small helpers


def first(record: dict[str, Any], keys: Iterable[str]) -> Any:
    """The value of the first key that has one."""
    for key in keys:  # a loop: three times as fast as next() over a generator, and called for every turn
        if record.get(key) is not None:
            return record[key]
    return None


def either(value: Any, other: Any) -> Any:
    """The first of the two that says anything; 0 and false do, though they are wrong."""
    return other if value is None or value == "" else value


def mapped(value: Any) -> dict[str, Any]:
    """An object, or an empty one where the file has something else."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """A list, or an empty one where the file has something else."""
    return value if isinstance(value, list) else []


def listed_or_one(value: Any) -> list[Any]:
    """A list; a single value counts as a list of one."""
    return value if isinstance(value, list) else [value]
