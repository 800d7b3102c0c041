"""From what a model wrote to what it means: thoughts removed, JSON found and mended, a schema checked.

The order matters: the text as it stands first (a fence may be part of a string), then without its surroundings, then
with its notation mended. What is not there is never made up: no bracket is closed, no number read out of prose.
"""

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

THOUGHT = re.compile(r"<(/?)(?:think|thinking|reasoning)>", re.IGNORECASE)
FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)
TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)
REFUSAL = re.compile(
    r"(i'?m sorry|i am sorry|sorry|i apologi[sz]e|unfortunately)?\W{0,3}(but )?"
    r"(as an ai\b|i ?(can'?t|cannot|can not|won'?t|will not|am (unable|not able)|'?m (unable|not able)) (to )?"
    r"(assist|help|comply|evaluate|judge|assess|rate|rank|provide|continue|engage|fulfil|participate|do that|answer"
    r"|respond))|(抱歉|对不起|很遗憾)?\W{0,3}(作为(一个)?(AI|人工智能)|我(无法|不能)(回答|提供|评估|评价|协助|帮助|继续|参与|完成))",
    re.IGNORECASE,
)
MENDABLE = 100_000  # characters; longer text is read as it stands or not at all
STRICT_UNKNOWN = ("minLength", "maxLength", "uniqueItems")  # keywords that strict structured output may not know


# ---------------------------------------------------------------------------------------------- text


def without_thoughts(text: str) -> str | None:
    """The text without its reasoning, with or without an opening tag; None if the reasoning never ends."""
    kept: list[str] = []
    start, opened = 0, None
    for tag in THOUGHT.finditer(text):
        if tag[1]:
            if opened is None:
                kept.clear()  # the template wrote the opening tag, so the text begins inside
            start, opened = tag.end(), None
        elif opened is None:
            kept.append(text[start : tag.start()])
            opened = tag.start()
    said = "".join(kept) + text[start if opened is None else opened :]
    return None if opened is not None and not "".join(kept).strip() else said.strip()


def is_refusal(text: str) -> bool:
    """Whether prose declines the task; asked only of text in which no answer was found."""
    return bool(REFUSAL.match(text[:200].replace("’", "'").lstrip(" \n\"'*>")))


def sound(text: str) -> str:
    """The text with every half of a broken surrogate pair replaced, so that it can be written as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# ---------------------------------------------------------------------------------------------- JSON


def read_json(text: str, schema: Mapping[str, Any]) -> tuple[Any, bool]:
    """The value that fits the schema and whether the text had to be repaired for it; else a ValueError says why."""
    said = without_thoughts(text)
    complaint = "its reasoning never ends" if said is None else "no JSON in it"
    for value, repaired in _readings(text.strip(), said):
        complaint = misfit(value, schema)
        if not complaint:
            return value, repaired
    raise ValueError(complaint)


def _readings(text: str, said: str | None) -> Iterator[tuple[Any, bool]]:
    """Every way to read the text, the most literal first; of several objects in prose the last comes first."""
    yield from _parsed(text, False)
    if said is None or len(text) > MENDABLE:
        return
    if said != text:
        yield from _parsed(said, False)
    for part in [*reversed(FENCE.findall(said)), *reversed(list(_braced(said)))]:
        yield from _parsed(part, True)
        yield from _mended(part)


def _parsed(text: str, repaired: bool) -> Iterator[tuple[Any, bool]]:
    try:
        yield _whole(json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)), repaired
    except (ValueError, RecursionError):
        return


def _mended(text: str) -> Iterator[tuple[Any, bool]]:
    """Raw line breaks in strings, trailing commas; then the notation of Python: single quotes, None, True."""
    plain = TRAILING_COMMA.sub(lambda found: found[1] or "", text)
    try:
        value = json.loads(plain, object_pairs_hook=_object, parse_constant=_no_number, strict=False)
    except (ValueError, RecursionError):
        try:
            value = _literal(plain)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return
    yield _whole(value), True


def _literal(text: str) -> Any:
    """A value in Python's notation as JSON has it; literals only, nothing is executed."""
    tree = ast.parse(text.strip(), mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and len({ast.dump(key) for key in node.keys if key}) < len(node.keys):
            raise ValueError("a key is given twice")
    return json.loads(json.dumps(ast.literal_eval(tree), allow_nan=False))


def _braced(text: str) -> Iterator[str]:
    """Every outermost {...} of the text; quotation marks hide braces."""
    depth, start, quote, escaped = 0, 0, "", False
    for i, c in enumerate(text):
        if quote and depth:
            quote, escaped = ("" if c == quote and not escaped else quote), c == "\\" and not escaped
        elif c == '"' and depth:
            quote = c
        elif c == "{":
            depth, start = depth + 1, start if depth else i
        elif c == "}" and depth:
            depth -= 1
            if not depth:
                yield text[start : i + 1]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _whole(value: Any) -> Any:
    """The value with sound strings; an overflowing number (1e999) is an error."""
    match value:
        case str():
            return sound(value)
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {sound(key): _whole(item) for key, item in value.items()}
        case float() if not math.isfinite(value):
            raise ValueError("a number overflows")
    return value


# ---------------------------------------------------------------------------------------------- schemas


def misfit(value: Any, schema: Mapping[str, Any]) -> str:
    """Where the value first departs from the schema, in the words of the schema's description if it has one."""
    errors = sorted(Draft202012Validator(schema).iter_errors(value), key=lambda e: e.json_path)
    if not errors:
        return ""
    wanted = errors[0].schema.get("description") or f"{errors[0].validator} {str(errors[0].validator_value)[:80]}"
    return f"{errors[0].json_path}: {wanted}"


def closed(schema: Any) -> Any:
    """The schema with no keys but those it names: for whoever is made to write by it."""
    match schema:
        case {"type": "object", "properties": properties}:
            inner = {name: closed(part) for name, part in properties.items()}
            return {**schema, "properties": inner, "required": list(properties), "additionalProperties": False}
        case {"type": "array", "items": items}:
            return {**schema, "items": closed(items)}
    return schema


def portable(schema: Any) -> Any:
    """The closed schema without keywords that strict endpoints reject; answers are checked against all of it anyway."""
    match schema:
        case {"type": "object", "properties": properties}:
            return closed({**schema, "properties": {name: portable(part) for name, part in properties.items()}})
        case {"type": "array", "items": items}:
            kept = {k: v for k, v in schema.items() if k not in (*STRICT_UNKNOWN, "enum")}
            return {**kept, "items": portable(items)}
        case dict():
            return {k: v for k, v in schema.items() if k not in STRICT_UNKNOWN}
    return schema
