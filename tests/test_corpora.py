"""Every layout, as synthetic look-alikes; what the turns come to mean; our own JSONL and garbage as properties."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapo_lib.cli import main
from rapo_lib.corpora import CorpusError, Dropped, describe, iter_dialogues, load_dialogues, profiles_from_dialogues
from rapo_lib.corpora.reading import read_record
from rapo_lib.corpora.strategies import NAMES, SPELLINGS, strategy_name
from rapo_lib.dialogue import Dialogue, Turn, to_messages, to_record

LOST_CAT = "Our cat has been gone for six days now and I keep checking the porch."
QUESTION = "What was the last evening with her like?"
SLEPT = "She slept on my feet, as always."


def read(record: Any) -> Dialogue:
    """The dialogue of one record that needs no repair."""
    reading = read_record(record, "made-1", "made.json")
    assert reading.repairs == ()
    return reading.dialogue


def said(dialogue: Dialogue) -> list[tuple[str, str]]:
    return [(turn.speaker, turn.text) for turn in dialogue.turns]


THREE = [("seeker", LOST_CAT), ("supporter", QUESTION), ("seeker", SLEPT)]


def esconv(seeker: str = "seeker", supporter: str = "supporter", strategy: str = "Question") -> dict[str, Any]:
    return {
        "experience_type": "Current Experience",
        "emotion_type": "sadness",
        "problem_type": "loss of a pet",
        "situation": "My cat ran away.\n",
        "survey_score": {"seeker": {"initial_emotion_intensity": "5", "empathy": "4"}, "supporter": {}},
        "dialog": [
            {"speaker": seeker, "annotation": {}, "content": f"{LOST_CAT}\n"},
            {"speaker": supporter, "annotation": {"strategy": strategy}, "content": QUESTION},
            {"speaker": seeker, "annotation": {"feedback": "4"}, "content": SLEPT},
        ],
        "seeker_question1": "kind",
    }


PPDPP = {
    "emotion_type": "sadness",
    "problem_type": "loss of a pet",
    "situation": "My cat ran away.",
    "dialog": [
        {"text": LOST_CAT, "speaker": "usr"},
        {"text": QUESTION, "speaker": "sys", "strategy": "Question"},
        {"text": SLEPT, "speaker": "usr"},
    ],
}
ESCONV_RU = {
    "id": "ru-7",
    "utterances": [
        {
            "annotation": {"feedback": None, "strategy": None},
            "role": "seeker",
            "text": {"eng": "Gone.", "rus": "Ушла."},
        },
        {
            "annotation": {"feedback": None, "strategy": "Other"},
            "role": "supporter",
            "text": {"eng": None, "rus": "Хм."},
        },
    ],
    "annotation": {"emotion": "sadness", "experience_type": "Previous Experience", "problem_type": "pets"},
    "meta": {
        "situation": {"eng": "Cat.", "rus": "Кошка."},
        "survey_score": {"seeker": {"empathy": "3"}, "supporter": None},
    },
}
SAGE = {
    "id": "a-b",
    "emo_point": 45,
    "emo_state": "Emotion-B",
    "player": "* name: Ines",
    "scene": "## Background\nThe cat left.",
    "topic": "pets",
    "task": "to be heard",
    "history": [
        {"role": "user", "content": LOST_CAT, "emotion-point": 40},
        {"role": "assistant", "content": QUESTION, "think": "ask"},
        {"role": "user", "content": SLEPT, "emotion-point": 45, "planning": {"change": 5}},
    ],
}
SOTOPIA_MESSAGES = [
    [
        [
            "Environment",
            "Ines Vale",
            "Here is the context:\nScenario: Two neighbours talk.\nParticipants: Ines and Bo\n",
        ],
        ["Environment", "Bo Lund", "Here is the context:\nScenario: Two neighbours talk.\nParticipants: Ines and Bo\n"],
        ["Ines Vale", "Environment", f'said: "{LOST_CAT}"'],
        ["Bo Lund", "Environment", "did nothing"],
    ],
    [
        ["Environment", "Ines Vale", "Turn #0: ..."],
        ["Ines Vale", "Environment", "did nothing"],
        ["Bo Lund", "Environment", json.dumps({"action_type": "speak", "argument": QUESTION})],
    ],
    [
        ["Ines Vale", "Environment", "[action] looks at the porch"],
        ["Bo Lund", "Environment", "left the conversation"],
    ],
]
SOTOPIA_SAID = [*THREE[:2], ("seeker", "[action] looks at the porch")]
CHAT = [
    {"role": "user", "content": LOST_CAT},
    {"role": "assistant", "content": QUESTION},
    {"role": "user", "content": SLEPT},
]
SHAREGPT = [{"from": "human", "value": LOST_CAT}, {"from": "gpt", "value": QUESTION}, {"from": "human", "value": SLEPT}]
LOOKALIKES: dict[str, Any] = {
    "esconv": esconv(),
    "failed esconv": esconv("speaker", "listener", "Questions"),
    "hub": {"text": json.dumps(PPDPP)},
    "ppdpp": PPDPP,
    "extes": {
        "scene": "Pets",
        "description": "A cat is lost.",
        "content": [{"User": LOST_CAT}, {"AI": QUESTION, "AI Strategy": "Clarification"}, {"User": SLEPT}],
    },
    "extes, both speakers in one": {
        "scene": "Pets",
        "content": [{"User": LOST_CAT, "AI": QUESTION, "AI Strategy": "Clarification (Cla)"}, {"User": SLEPT}],
    },
    "sage": SAGE,
    "esc-eval": {"id": "0", "dialogue": [f"ESC-Role：{LOST_CAT}", f"AI assistant：{QUESTION}", f"ESC-Role: {SLEPT}"]},
    "chat": {"messages": CHAT},
    "chat, bare": CHAT,
    "chat, in parts": {"messages": [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in CHAT]},
    "trl": {"prompt": CHAT[:2], "completion": CHAT[2:]},
    "sharegpt": {"conversations": SHAREGPT},
    "rapo": to_record(Dialogue("x", tuple(Turn(*pair) for pair in THREE))),
    "turns of unknown make": {"turns": [{"speaker": "client", "text": t} for _, t in THREE[:1]] + CHAT[1:]},
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_every_layout_gives_the_same_three_turns(name: str) -> None:
    assert said(read(LOOKALIKES[name])) == THREE


def test_esconv_details() -> None:
    dialogue = read(esconv("speaker", "listener", "Questions"))
    assert (dialogue.situation, dialogue.problem, dialogue.emotion_type) == (
        "My cat ran away.",
        "loss of a pet",
        "sadness",
    )
    assert (dialogue.id, dialogue.source) == ("made-1", "made.json")
    assert dialogue.survey == {
        "initial_emotion_intensity": 5,
        "empathy": 4,
        "relevance": None,
        "final_emotion_intensity": None,
        "supporter_relevance": None,
    }
    assert dialogue.turns[1].strategies == ("Question",)
    assert dialogue.turns[1].raw_strategies == ("Questions",)
    assert [turn.feedback for turn in dialogue.turns] == [None, None, 4]


def test_esconv_ru_reads_english_and_falls_back_to_russian() -> None:
    dialogue = read(ESCONV_RU)
    assert said(dialogue) == [("seeker", "Gone."), ("supporter", "Хм.")]
    assert (dialogue.id, dialogue.situation, dialogue.problem) == ("ru-7", "Cat.", "pets")
    assert dialogue.survey is not None
    assert dialogue.survey["empathy"] == 3
    assert dialogue.turns[1].strategies == ("Others",)


def test_two_languages_are_noted_once(tmp_path: Path) -> None:
    path = tmp_path / "ru.jsonl"
    path.write_text("\n".join(json.dumps({**ESCONV_RU, "id": i}) for i in "ab"), encoding="utf-8")
    note = Dropped(str(path), "texts in English and Russian; the English is read", lost=False)
    assert load_dialogues(path).dropped == (note,)


def test_sage_keeps_emotion_points_and_never_the_hidden_thoughts() -> None:
    dialogue = read(SAGE)
    assert [turn.emotion for turn in dialogue.turns] == [40.0, None, 45.0]
    assert (dialogue.id, dialogue.problem, dialogue.situation) == ("a-b", "pets", "## Background\nThe cat left.")


def test_sage_profiles_with_and_without_a_first_line() -> None:
    profile = {"id": "p", "player": "* name: Ines", "scene": "The cat left.", "task": "x", "cha_group": []}
    assert said(read({**profile, "first_talk": LOST_CAT})) == THREE[:1]
    assert read(profile).turns == ()
    assert read(profile).situation == "The cat left."


@pytest.mark.parametrize(
    "record",
    [
        {"pk": "e1", "environment": "k", "agents": ["a", "b"], "messages": SOTOPIA_MESSAGES, "rewards": [0.0, 0.0]},
        {
            "episode_id": "e1",
            "scenario": "Two neighbours talk.",
            "agents_background": {"Bo Lund": "", "Ines Vale": ""},  # in any order
            "raw_messages": SOTOPIA_MESSAGES,
        },
        {
            "episode_id": "e1",
            "scenario": "Two neighbours talk.",
            "agents_background": {"Bo Lund": "", "Ines Vale": ""},  # in any order
            "social_interactions": f'Turn #0\nInes Vale said: "{LOST_CAT}"\n\nTurn #1\nBo Lund said: "{QUESTION}"\n\n'
            "Turn #2\nInes Vale: [action] looks at the porch\nBo Lund: left the conversation",
        },
    ],
    ids=["log", "export", "export without raw messages"],
)
def test_sotopia(record: dict[str, Any]) -> None:
    dialogue = read(record)
    assert said(dialogue) == SOTOPIA_SAID
    assert (dialogue.id, dialogue.situation) == ("e1", "Two neighbours talk.")


def test_sotopia_needs_two_agents() -> None:
    third = [*SOTOPIA_MESSAGES, [["Third", "Environment", 'said: "Hi"']]]
    with pytest.raises(ValueError, match="3 agents where a dialogue has two"):
        read_record({"messages": third}, "x", "x")


def test_in_sotopia_whoever_acts_first_is_the_seeker() -> None:
    waits = [[["Environment", "Bo", "Hi Bo"], ["Environment", "Ann", "Hi Ann"], ["Bo", "Ann", "did nothing"]]]
    spoken = [*waits, [["Ann", "Bo", 'said: "a"'], ["Bo", "Ann", 'said: "b"']]]
    told = 'Ann said: "a"\nBo said: "b"'
    for names in (("Ann", "Bo"), ("Bo", "Ann")):
        background = dict.fromkeys(names, "")
        for record in ({"raw_messages": spoken}, {"social_interactions": told}):
            dialogue = read({**record, "agents_background": background})
            assert said(dialogue) == [("seeker", "a"), ("supporter", "b")] == said(read({"messages": spoken}))


def test_sotopia_messages_that_cannot_be_read_are_on_record() -> None:
    spoken = [[["Ann", "Bo", None], ["Ann", "Bo", "a"], ["Bo", "Ann", "b"], ["Bo", "Ann"], ["Cy", "Bo", "c"]], "d"]
    reading = read_record({"messages": spoken, "agents_background": {"Ann": "", "Bo": ""}}, "x", "x")
    assert said(reading.dialogue) == [("seeker", "a"), ("supporter", "b")]
    assert reading.repairs == (
        "turn 1: no text; left out",
        "turn 4: speaker None is neither seeker nor supporter; left out",
        "turn 5: speaker 'agent Cy' is neither seeker nor supporter; left out",
        "turn 6: speaker None is neither seeker nor supporter; left out",
    )


def test_trl_completions_may_be_text() -> None:
    assert said(read({"prompt": CHAT[:1], "completion": QUESTION})) == THREE[:2]
    reading = read_record({"prompt": CHAT[:1], "completion": 7}, "x", "x")
    assert reading.repairs == ("turn 2: speaker None is neither seeker nor supporter; left out",)


def test_extes_order_follows_whoever_did_not_speak_last() -> None:
    turns = [{"User": "one"}, {"AI": "two", "User": "three"}, {"AI": "four"}]
    assert [text for _, text in said(read({"scene": "s", "content": turns}))] == ["one", "two", "three", "four"]


# ----------------------------------------------------------------------------------------- one meaning


def test_neighbours_merge_with_all_strategies_and_the_later_rating() -> None:
    dialog = [
        {"speaker": "supporter", "annotation": {"strategy": "Question"}, "content": "a"},
        {"speaker": "supporter", "annotation": {"strategy": "Direct Guidance"}, "content": " b\n"},
        {"speaker": "seeker", "annotation": {"feedback": "2"}, "content": "c"},
        {"speaker": "seeker", "annotation": {"feedback": "5"}, "content": "d"},
        {"speaker": "seeker", "annotation": {}, "content": "e"},
    ]
    reading = read_record({"dialog": dialog}, "x", "x")
    supporter, seeker = reading.dialogue.turns
    assert (supporter.text, seeker.text) == ("a\nb", "c\nd\ne")
    assert supporter.strategies == ("Question", "Providing Suggestions")
    assert supporter.raw_strategies == ("Question", "Direct Guidance")
    assert seeker.feedback == 5
    assert reading.repairs == ("merged turns carry the ratings 2, 5; the last is kept",)


def test_a_dialogue_that_opens_with_the_supporter_fits_strict_chat_templates() -> None:
    messages = to_messages(read({"dialog": esconv()["dialog"][1:]}).turns, system=None)
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("turn", "repair"),
    [
        (
            {"role": "system", "content": "Be kind."},
            "turn 2: speaker 'system' is neither seeker nor supporter; left out",
        ),
        ({"content": "Hm."}, "turn 2: speaker None is neither seeker nor supporter; left out"),
        ("Hm.", "turn 2: speaker None is neither seeker nor supporter; left out"),
        ({"role": "assistant", "content": " \n"}, "turn 2: no text; left out"),
        ({"role": "assistant", "content": None}, "turn 2: no text; left out"),
        ({"role": "assistant", "content": 7}, "turn 2: 7 is not text; left out"),
        ({"role": "assistant", "content": "x", "strategy": "Hug"}, "turn 2: unknown strategy 'Hug' counted as Others"),
        ({"role": "user", "content": "x", "feedback": "9"}, "turn 2: feedback '9' is not 1-5; read as missing"),
        ({"role": "user", "content": "x", "feedback": True}, "turn 2: feedback True is not 1-5; read as missing"),
        ({"role": "user", "content": "x", "emotion-point": 140}, "turn 2: emotion 140 is outside 0-100; clamped"),
        (
            {"role": "assistant", "content": "x", "strategy": ["Question", 3, {"name": "Information"}]},
            "turn 2: strategy: 3 is not text; left out",
        ),
        (
            {"role": "assistant", "content": "x", "annotation": {"strategy": ["Question", {"name": "Information"}]}},
            "turn 2: strategy: dict is not text; left out",
        ),
        ({"role": "assistant", "content": "x", "strategy": 7}, "turn 2: strategy: 7 is not text; left out"),
        (
            {"role": "assistant", "content": "x", "annotation": "Question"},
            "turn 2: annotation: 'Question' is not an object; left out",
        ),
        (
            {"role": "user", "content": "x", "annotation": {"feedback": 0}},
            "turn 2: feedback 0 is not 1-5; read as missing",
        ),
        (
            {"role": "user", "content": "x", "annotation": {"feedback": []}},
            "turn 2: feedback list is not 1-5; read as missing",
        ),
        ({"role": "user", "content": "x", "feedback": False}, "turn 2: feedback False is not 1-5; read as missing"),
        ({"role": "user", "content": "x", "feedback": {}}, "turn 2: feedback dict is not 1-5; read as missing"),
        (
            {"role": "user", "content": "x", "emotion-point": "calm"},
            "turn 2: emotion 'calm' is not a number; read as missing",
        ),
        ({"role": "user", "content": "a \ud83d b"}, "turn 2: half a character (lone surrogate) replaced"),
        (
            {"role": "user", "content": [{"type": "image_url"}, {"text": "x"}]},
            "turn 2: parts that are not text; left out",
        ),
    ],
)
def test_every_repair_is_on_record(turn: Any, repair: str) -> None:
    reading = read_record([CHAT[0], turn], "x", "x")
    assert repair in reading.repairs
    assert said(reading.dialogue)[0][1].startswith(LOST_CAT)
    json.dumps(to_record(reading.dialogue), ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize(
    ("part", "repair"),
    [
        ({"survey_score": [1, 2]}, "survey: list is not an object; left out"),
        ({"survey_score": {"seeker": ["4"]}}, "survey, seeker: list is not an object; left out"),
        ({"survey_score": {"supporter": "3"}}, "survey, supporter: '3' is not an object; left out"),
        ({"survey_score": {"supporter": {"empathy": "4"}}}, "survey, supporter: unknown key 'empathy'; left out"),
        ({"survey_score": {"mood": 4}}, "survey: unknown key 'mood'; left out"),
        ({"problem_type": ["job crisis"]}, "problem: parts that are not text; left out"),
        ({"situation": {"deu": "Die Katze."}}, "situation: dict is not text; left out"),
    ],
)
def test_every_odd_shape_around_the_turns_is_on_record(part: dict[str, Any], repair: str) -> None:
    reading = read_record({**PPDPP, **part}, "x", "x")
    assert reading.repairs == (repair,)
    assert said(reading.dialogue) == THREE


def test_emotion_points_beyond_the_scale_are_clamped() -> None:
    history = [{**SAGE["history"][0], "emotion-point": -5}, {**CHAT[1], "emotion-point": 104.5}]
    reading = read_record({**SAGE, "history": history}, "x", "x")
    assert [turn.emotion for turn in reading.dialogue.turns] == [0.0, 100.0]
    assert len(reading.repairs) == 2


@pytest.mark.parametrize(
    ("seeker", "supporter"),
    [("Patient", "Doctor"), ("help-seeker", "helper"), ("Client ", "counsellor"), ("user", "chatbot")],
)
def test_speakers_under_other_names(seeker: str, supporter: str) -> None:
    assert said(read(esconv(seeker, supporter))) == THREE


LETTERS = {"id": "x", "turns": [{"speaker": "supporter", "text": "a", "strategies": "Question"}]}


@pytest.mark.parametrize(
    "record", [None, 3, "x", {}, {"dialog": []}, {"text": "hi"}, {"text": '{"text": "{}"}'}, [], LETTERS]
)
def test_what_holds_no_dialogue_says_so(record: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_record(record, "x", "x")


def test_strategies_have_eight_names_and_ignore_case_and_brackets() -> None:
    assert len(SPELLINGS) == 8
    assert all(strategy_name(name) == name for name in SPELLINGS)
    assert strategy_name("[reflection of Feelings]") == "Reflection of feelings"
    assert strategy_name("Avoid Judgment And Criticism (AJC)") == "Affirmation and Reassurance"
    assert strategy_name("Hug") is None
    assert len(NAMES) == sum(1 + len(others) for others in SPELLINGS.values())  # no spelling claimed twice


# ------------------------------------------------------------------------------------------ properties

words = st.text(st.characters(codec="utf-8"), min_size=1).map(str.strip).filter(bool)
names = st.lists(st.sampled_from(list(SPELLINGS)), max_size=2).map(tuple)


@st.composite
def dialogues(draw: st.DrawFn) -> Dialogue:
    """Dialogues as our own code writes them: trimmed text, alternating speakers."""
    speakers = ("seeker", "supporter") if draw(st.booleans()) else ("supporter", "seeker")
    turns = tuple(
        Turn(
            speaker=speakers[number % 2],
            text=draw(words),
            strategies=draw(names),
            raw_strategies=draw(names),
            feedback=draw(st.none() | st.integers(1, 5)),
            emotion=draw(st.none() | st.floats(0, 100)),
        )
        for number in range(draw(st.integers(1, 5)))
    )
    survey = draw(st.none() | st.dictionaries(words, st.none() | st.integers(1, 5), max_size=2))
    return Dialogue(draw(words), turns, draw(words | st.just("")), survey=survey, source=draw(words | st.just("")))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(dialogues(), min_size=1, max_size=3, unique_by=lambda d: d.id))
def test_our_own_jsonl_comes_back_equal(tmp_path: Path, written: list[Dialogue]) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(to_record(d), ensure_ascii=False) + "\n" for d in written), encoding="utf-8")
    corpus = load_dialogues(path)
    assert list(corpus.dialogues) == written
    assert corpus.dropped == ()
    assert list(iter_dialogues(path)) == written


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["usr", "sys"]), words), min_size=1, max_size=6))
def test_no_word_is_lost_in_merging(turns: list[tuple[str, str]]) -> None:
    dialogue = read({"dialog": [{"speaker": who, "text": text} for who, text in turns]})
    assert "\n".join(turn.text for turn in dialogue.turns) == "\n".join(text for _, text in turns)
    assert all(a.speaker != b.speaker for a, b in zip(dialogue.turns, dialogue.turns[1:], strict=False))


KEYS = (
    "dialog",
    "turns",
    "id",
    "text",
    "content",
    "messages",
    "role",
    "speaker",
    "annotation",
    "history",
    "player",
    "scene",
)
MORE = (
    "utterances",
    "conversations",
    "raw_messages",
    "social_interactions",
    "agents_background",
    "User",
    "AI",
    "prompt",
)
leaves = (
    st.none() | st.booleans() | st.integers(-9, 200) | st.floats() | st.sampled_from(["user", "sys", "hi", "5", ""])
)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS + MORE), inner, max_size=4),
    max_leaves=25,
)


@settings(max_examples=400, deadline=None)
@given(trees)
def test_garbage_records_never_crash(record: Any) -> None:
    try:
        reading = read_record(record, "x", "x")
    except ValueError as error:
        assert str(error)  # noqa: PT017
    else:
        assert reading.dialogue.turns or reading.dialogue.situation


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", b"[", b'{"dialog": [', b"PK\x03\x04", b"\x1f\x8b", b"PAR1"]))
def test_garbage_bytes_never_crash(tmp_path: Path, data: bytes, head: bytes) -> None:
    path = tmp_path / "noise"
    path.write_bytes(head + data)
    with pytest.raises(CorpusError, match="noise"):
        load_dialogues(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 4), st.sampled_from(list(b'%[{<"\0')), st.binary(max_size=40).filter(lambda b: b"\n" not in b))
def test_one_bad_line_costs_only_itself(tmp_path: Path, place: int, head: int, noise: bytes) -> None:
    lines = [json.dumps(PPDPP).encode()] * 5
    lines.insert(place, bytes([head]) + noise)
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(b"\n".join(lines))
    corpus = load_dialogues(path)
    assert len(corpus.dialogues) == 5
    assert [d.where for d in corpus.dropped] == [f"{path}, line {place + 1}"]


# --------------------------------------------------------------------------------- profiles, overview


def test_profiles_open_with_what_says_something(caplog: pytest.LogCaptureFixture) -> None:
    greeting = Dialogue(
        "d1",
        (Turn("seeker", "Hi"), Turn("supporter", "Hello"), Turn("seeker", LOST_CAT), Turn("seeker", SLEPT)),
        situation="My cat ran away.",
        problem="loss of a pet",
        emotion_type="sadness",
    )
    told = Dialogue("d3", (), situation="My cat ran away. I call her every night.")
    people = profiles_from_dialogues([greeting, Dialogue("d2", (Turn("supporter", "Hello?"),)), told])
    assert (people[1].opening, people[1].details) == ("My cat ran away.", ("I call her every night.",))
    profile = people[0]
    assert (profile.id, profile.opening, profile.details) == ("d1", LOST_CAT, (SLEPT,))
    assert (profile.voice, profile.advice, profile.start) == ("plain", "heard_first", 35)
    assert "1 of 3 dialogues hold no seeker turn" in caplog.text


@pytest.mark.parametrize("hidden", ["#### Hidden topic:\n***You want an ear", "####隐藏主题:\n***你想倾诉"])
def test_a_story_is_told_without_headings_and_hidden_topic(hidden: str) -> None:
    scene = "## Background\n\n### 1. What happened\n**The start:**  \nMy cat left on Monday. I miss her.\n"
    scene += f"- **A week later:** I asked every neighbour.\n{hidden}"
    (profile,) = profiles_from_dialogues([read({"id": "p", "player": "Ines", "scene": scene, "task": "x"})])
    assert profile.opening == "My cat left on Monday."
    assert profile.details == ("I miss her.", "A week later: I asked every neighbour.")


def test_an_unreadable_file_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "absent.json"
    good.write_text(json.dumps([SAGE]), encoding="utf-8")
    assert main(["data", str(good), str(bad), str(good)]) == 1
    shown = capsys.readouterr()
    assert shown.out == "\n".join(f"{describe(good)}\n" for _ in range(2))
    assert shown.err == f"rapo: {bad}: no such file\n"


def test_describe_counts_everything(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    path.write_text(json.dumps([esconv(), SAGE, {"odd": 1}]), encoding="utf-8")
    text = describe(path)
    for part in (
        "esconv (1), sage (1)",
        "seeker: 4, supporter: 2",
        "Question: 1",
        "4: 1",
        "2, from 40 to 45",
        "1; 0 repairs",
    ):
        assert part in text
    assert f"dropped {path}, record 3: not a dialogue layout we know (keys: odd)" in text
    assert f"seeker     {LOST_CAT}" in text


def test_repeated_ids_are_renamed_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text(f"{json.dumps(SAGE)}\n{json.dumps(SAGE)}\n", encoding="utf-8")
    corpus = load_dialogues(path)
    assert [d.id for d in corpus.dialogues] == ["a-b", "a-b#2"]
    assert corpus.dropped == (Dropped(f"{path}, dialogue 2", "id taken, now 'a-b#2'", lost=False),)


def test_a_new_id_is_never_one_that_the_file_has_too(tmp_path: Path) -> None:
    path = tmp_path / "thrice.jsonl"
    path.write_text("\n".join(json.dumps(SAGE | {"id": i}) for i in ("x", "x", "x#2", "x", "x#2")), encoding="utf-8")
    ids = [d.id for d in load_dialogues(path).dialogues]
    assert len(set(ids)) == 5 and ids[:2] == ["x", "x#2"]


def test_halves_of_characters_never_reach_a_file_we_write() -> None:
    half = "\ud800"
    labelled = {"dialog": [{"speaker": "sys", "text": half, "strategy": half}], "id": half, "situation": half}
    ours = {"id": "x", "turns": [{"speaker": "seeker", "text": "a", "strategies": [half]}], "survey": {half: 3}}
    for record in (labelled, ours):
        json.dumps(to_record(read_record(record, "x", "x").dialogue), ensure_ascii=False).encode("utf-8")


def test_the_overview_cannot_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    evil = "\x1b]0;title\x07 \x9b31m \u202e"
    talk = {"id": evil, "problem_type": evil, "dialog": [{"speaker": "usr", "text": evil}]}
    path.write_text(json.dumps([talk, {evil: 1}]), encoding="utf-8")
    assert not set(evil.replace(" ", "")) & set("\x1b\x07\x9b\u202e") & set(describe(path))
    assert main(["data", str(tmp_path / "\x1b[31mred\n.json")]) == 1
    assert "\x1b" not in (shown := capsys.readouterr().err) and len(shown.splitlines()) == 1


def test_parquets_empty_fields_are_no_turns() -> None:
    both = [{"User": LOST_CAT, "AI": None}, {"User": None, "AI": QUESTION, "AI Strategy": None}]
    reading = read_record({"scene": "Pets", "content": both}, "x", "x")
    assert said(reading.dialogue) == THREE[:2] and reading.repairs == ()


@pytest.mark.timeout(10)
def test_no_text_takes_long_to_read() -> None:
    spaces = [["Environment", "Ann", f"Scenario: a{' ' * 50_000}b"], ["Ann", "Bo", "Hi"], ["Bo", "Ann", "hm"]]
    assert read_record({"messages": [spaces]}, "x", "x").dialogue.situation.endswith("b")
    read_record({"dialog": [{"speaker": "sys", "text": "a", "strategy": "(" * 50_000}]}, "x", "x")


# ------------------------------------------------------------------------------------------ real files


def real(name: str) -> Path:
    """A file that other people made, or skip."""
    folder = Path(os.environ.get("RAPO_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / name).is_file():
        pytest.skip(f"{name} not found: set RAPO_DATA to the folder that holds it")
    return folder / name


@pytest.mark.parametrize(
    ("name", "layout", "count", "opened_by_supporter"),
    [
        ("failed_esconv_even.json", "esconv", 98, 42),
        ("ppdpp_esc_valid.jsonl", "ppdpp", 130, 63),
        ("sage_o1_first40.jsonl", "sage", 40, 0),
    ],
)
def test_real_files_are_read_whole(name: str, layout: str, count: int, opened_by_supporter: int) -> None:
    corpus = load_dialogues(real(name))
    assert (corpus.formats, corpus.dropped) == ({layout: count}, ())
    assert sum(d.turns[0].speaker == "supporter" for d in corpus.dialogues) == opened_by_supporter
    for dialogue in corpus.dialogues:
        roles = [message["role"] for message in to_messages(dialogue.turns, system=None)]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)
    profiles = profiles_from_dialogues(corpus.dialogues)
    assert len({profile.id for profile in profiles}) == count


def test_real_ratings_strategies_and_words_all_arrive() -> None:
    path = real("failed_esconv_even.json")
    turns = [turn for d in load_dialogues(path).dialogues for turn in d.turns]
    source = [turn for record in json.loads(path.read_text("utf-8")) for turn in record["dialog"]]
    labels = [turn["annotation"]["strategy"] for turn in source if "strategy" in turn["annotation"]]
    ratings = [int(turn["annotation"]["feedback"]) for turn in source if "feedback" in turn["annotation"]]
    assert [name for turn in turns for name in turn.raw_strategies] == labels
    assert [turn.feedback for turn in turns if turn.feedback is not None] == ratings
    assert [text for turn in turns for text in turn.text.split()] == [
        w for turn in source for w in turn["content"].split()
    ]
