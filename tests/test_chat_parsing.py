"""What a model's answer means: every way that answers have been seen to go wrong, with the right reading."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapo_lib.chat import Answer, ChatRequest, Failure
from rapo_lib.chat.model import read_reply
from rapo_lib.chat.parsing import closed, is_refusal, portable, read_json, without_thoughts

SCORE = {
    "type": "object",
    "properties": {"score": {"type": "number", "minimum": 0, "maximum": 4}},
    "required": ["score"],
}
RANKING = {
    "type": "object",
    "properties": {
        "critique": {"type": "string"},
        "rank": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    },
    "required": ["rank"],
}


def read(text, schema=RANKING, finish="stop"):
    return read_reply(ChatRequest(messages=(), schema=schema), Answer(text, finish))


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"rank": [2, 1]}', "ok"),
        (' \n{"rank": [2, 1]}\n', "ok"),
        ('\ufeff{"rank": [2, 1]}', "repaired"),
        ('{"rank": [2, 1], "note": "more than was asked"}', "ok"),
        ('{"critique": "use ```code``` here", "rank": [2, 1]}', "ok"),  # stripping fences first would destroy it
        ('{"critique": "say <think> aloud", "rank": [2, 1]}', "ok"),
        ('<think>{"rank": [1, 2]} first?</think>\n{"rank": [2, 1]}', "ok"),
        ('so [1, 2]... no.</think>{"rank": [2, 1]}', "ok"),  # the template wrote the opening tag
        ('```json\n{"rank": [2, 1]}\n```', "repaired"),
        ('Sure!\n```\n{"critique": "a ``` b", "rank": [2, 1]}\n```\nAnything else?', "repaired"),
        ('Here you are: {"rank": [2, 1]} I hope {it} helps.', "repaired"),
        ('Draft {"rank": [1, 2]}, but on reflection {"rank": [2, 1]}', "repaired"),
        ("Sure! {'rank':[2,1],}", "repaired"),
        ("{'critique': None, 'rank': [2, 1]}", "unparsable"),  # None is read, and is no string
        ("{'critique': 'it\\'s cold', 'rank': (2, 1)}", "repaired"),
        ('{"critique": "two\nlines", "rank": [2, 1]}', "repaired"),
        ('{"critique": "a, }", "rank": [2, 1,],}', "repaired"),
    ],
)
def test_finds_the_object(text, status):
    reply = read(text)
    assert reply.status == status, reply.reason
    assert reply.text == text
    if reply.answered:
        assert list(reply.value["rank"]) == [2, 1]


def test_keeps_what_is_inside_strings():
    assert read('{"critique": "use ```code``` {x}, ]", "rank": [2, 1]}').value["critique"] == "use ```code``` {x}, ]"
    assert read('x {"critique": "a,}", "rank": [2, 1,]}').value["critique"] == "a,}"


@pytest.mark.parametrize(
    "text",
    [
        '{"rank": [2, 1]',  # no bracket is closed for it
        '{"rank": [2, 1',
        '{"rank": [2]}',
        '{"rank": [2, 1, 3]}',
        '{"rank": ["2", "1"]}',
        '{"rank": [true, false]}',
        '{"rank": [NaN, 1]}',
        '{"rank": [2, 1], "rank": [1, 2]}',
        '{"ranking": [2, 1]}',
        "[2, 1]",
        "The ranking is 2, 1.",
        "Answer: B",  # where the first letter among A, B and C would be an A
        "Based on the profile, A",
        "null",
        "[" * 90_000,
        "{" * 90_000,
        "```\n" * 20_000,
        "<think>" * 14_000,
        '{"a":' * 18_000,
        ", " * 45_000,
        "\n" * 90_000 + "x",
        "__import__('os').system('true')",
        '{"rank": __import__("os").getpid()}',
    ],
)
def test_never_makes_up_what_is_not_there(text):
    reply = read(text)
    assert reply.status == "unparsable" and reply.value is None and reply.reason


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"score": 3.0}', 3.0),
        ('{"score": 4}', 4),
        ("Score: 4/10", None),  # first digits of prose: 4, or 0 from the ten
        ("3.0", None),
        ("The score is 4 (range 0-4)", None),
        ("four", None),
        ("[[90]]", None),
        ("0.8", None),
        ('{"score": 85}', None),  # neither clamped nor full marks
        ('{"score": -1}', None),
        ('{"score": "0.8x"}', None),
        ('{"score": "3"}', None),
        ('{"score": 1e999}', None),
        ('{"score": Infinity}', None),
        ("There are 5 reasons... 3", None),
        ("not excellent", None),
        ("The issue has not been solved.", None),
    ],
)
def test_a_score_is_read_from_its_field_or_not_at_all(text, right):
    reply = read(text, SCORE)
    assert reply.value == (None if right is None else {"score": right})


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't assist with that.",
        "I’m sorry, but I can’t help with content about self-harm.",
        "I cannot evaluate this",
        "As an AI language model, I do not judge people.",
        "抱歉，我无法评估这段对话。",
    ],
)
def test_a_refusal_is_a_refusal_and_never_a_score(text):
    assert read(text, SCORE).status == "refused"


def test_an_answer_that_speaks_of_refusing_is_none():
    assert read('{"critique": "I cannot help you, it says", "rank": [1, 2]}').status == "ok"
    assert not is_refusal("The seeker says: I can't help crying.")


@pytest.mark.parametrize(
    ("text", "finish", "status"),
    [
        ("", "stop", "unparsable"),
        ("  ", "stop", "unparsable"),
        ('{"rank": [2', "length", "truncated"),
        ('{"rank": [2, 1]}', "length", "ok"),  # whole, although the limit was reached
        ("<think>well, the first", "length", "truncated"),
        ("<think>well, the first", "stop", "unparsable"),
        ("I decline", "refused", "refused"),
    ],
)
def test_endings(text, finish, status):
    assert read(text, finish=finish).status == status


def test_plain_text_answers():
    def plain(text, finish="stop", check=None):
        return read_reply(ChatRequest(messages=(), check=check), Answer(text, finish))

    assert plain(" <think>hm</think> Hello ").value == "Hello"
    assert (plain("").status, plain("He", "length").status) == ("unparsable", "truncated")
    assert plain("Hello", check=lambda value: "too short").reason == "too short"
    assert read_reply(ChatRequest(messages=()), Failure("gone")).status == "failed"


def test_thoughts():
    assert without_thoughts("a</think> b") == "b"
    assert without_thoughts("<think>a</think>b<think>c</think>d") == "bd"
    assert without_thoughts("<think>a") is None
    assert without_thoughts("I think so") == "I think so"


def test_broken_surrogates_can_be_written():
    reply = read('{"critique": "\\ud83d\\ude0a and \\ud83d", "rank": [2, 1]}')
    assert reply.value["critique"] == "😊 and �"
    reply.value["critique"].encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_every_object_survives_prose_and_fences(value):
    text = json.dumps(value)
    expected = json.loads(text.encode("utf-8", "replace"))
    for wrapped in (text, f"```json\n{text}\n```", f"So:\n{text}\nThat is all."):
        assert read_json(wrapped, {"type": "object"})[0] == expected


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text):
    reply = read(text)
    assert reply.answered or reply.reason


def test_schemas_for_whoever_writes_by_them():
    inner = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 5}}}
    order = {"type": "array", "items": {"type": "integer"}, "enum": [[1, 2], [2, 1]]}
    schema = {"type": "object", "properties": {"all": {"type": "array", "items": inner}, "order": order}}
    assert closed(schema)["required"] == ["all", "order"] and closed(schema)["additionalProperties"] is False
    assert closed(schema)["properties"]["all"]["items"]["additionalProperties"] is False
    sent = portable(schema)["properties"]
    assert sent["all"]["items"]["properties"]["text"] == {"type": "string"}
    assert sent["all"]["items"]["required"] == ["text"] and "enum" not in sent["order"]
    assert "additionalProperties" not in schema  # the schema itself is left as it was
