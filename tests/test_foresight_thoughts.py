"""Thoughts: how they are read, that none of them passes a border, and the ones we wrote."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainers import Hears

import rapo_lib
from rapo_lib.dialogue import Turn, load_profiles, read_jsonl
from rapo_lib.evaluation import self_play
from rapo_lib.foresight.thoughts import (
    TAG,
    Said,
    ThinkingPolicy,
    ThoughtlessSeeker,
    spent,
    spoken,
    take_apart,
    thought_examples,
    written,
)
from rapo_lib.models import load_tokenizer
from rapo_lib.seeker import ProbeSeeker
from rapo_lib.warmstart import warmstart_pairs

RECORDS = list(read_jsonl(Path(rapo_lib.__file__).parent / "data" / "thoughts.jsonl"))


# ------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("text", "thought", "reply", "well_formed"),
    [
        ("<think> a </think> b", "a", "b", True),
        ("<think>a</think>b", "a", "b", True),
        ("  <think>a\nc</think>\n\nb\nd ", "a\nc", "b\nd", True),
        ("b", "", "b", False),
        ("", "", "", False),
        ("a </think> b", "a", "b", False),  # the template wrote the opening tag
        ("<think> a", "a", "", False),  # cut off while thinking
        ("b <think> a", "a", "b", False),
        ("<think> a </think>", "a", "", False),  # only a thought
        ("<think></think> b", "", "b", False),  # an empty one
        ("<think> a <think> c </think> d </think> b", "a c d", "b", False),  # nested
        ("<think> a <think> c </think> b", "a c b", "", False),  # one of two closed: in doubt it is thought
        ("<think> a </think> b <think> c </think> d", "a c", "b d", False),  # several
        ("<think> a </think> b </think> c", "a b", "c", False),
        ("b </think> c <think> d </think> e", "b d", "c e", False),
        ("<THINK> a </Think> b", "a", "b", False),
        ("< think > a < / think > b", "a", "b", False),
        ("<thinking> a </thinking> b", "a", "b", False),
        ('<think mood="low"> a </think> b', "a", "b", False),
        ("<think a </think> b", "a", "b", False),  # a tag without its end
        ("<think> a </think> b </thi", "a", "b", False),  # cut off inside a tag
        ("<thi<think> a </think>nk> b", "a", "<thi nk> b", False),  # pieces do not make a tag
        ("< <think> a </think> think> b", "a b", "", False),  # here they do
        ("the <thinker> I know, 2 < 3", "", "the <thinker> I know, 2 < 3", False),
    ],
)
def test_how_texts_are_taken_apart(text: str, thought: str, reply: str, well_formed: bool) -> None:
    assert take_apart(text) == Said(thought, reply, well_formed)


TAGS = ("<think>", "</think>", "< Think >", "</THINK >", "<thinking>", "</thinking>", "<think", "</think")
PIECES = st.lists(st.sampled_from((*TAGS, "word", "word", "word", "\n", "<", "</", ">", "think")), max_size=12)


@given(PIECES)
def test_what_stands_inside_tags_is_never_spoken(pieces: list[str]) -> None:
    """A word whose nearest tag before it opens is thought, and one that comes before a first, closing tag."""
    numbered = [f"w{i}w" if piece == "word" else piece for i, piece in enumerate(pieces)]
    text = " ".join(numbered)
    reply = spoken(text)
    tags = [(m.start(), m[1]) for m in TAG.finditer(text)]
    for word in re.finditer(r"w\d+w", text):
        before = [close for start, close in tags if start < word.start()]
        inside = not before[-1] if before else bool(tags and tags[0][1])
        assert not (inside and word[0] in reply), (text, reply)


@given(st.one_of(PIECES.map("".join), PIECES.map(" ".join), st.text(alphabet="<>/ think\n", max_size=40), st.text()))
def test_no_tag_is_spoken_and_nothing_is_taken_from_a_clean_reply(text: str) -> None:
    reply = spoken(text)
    assert not re.search(r"<\s*/?\s*think(ing)?(?![a-z])", reply, re.IGNORECASE)
    assert spoken(reply) == reply


@given(st.text(alphabet="abc .?", min_size=1), st.text(alphabet="abc .?", min_size=1))
def test_what_is_written_well_is_read_back(thought: str, reply: str) -> None:
    said = take_apart(written(thought, reply))
    assert (said.thought, said.reply) == (thought.strip(), reply.strip())
    assert said.well_formed == bool(thought.strip() and reply.strip())


# ------------------------------------------------------------------------------------------- borders


RAW = (
    "<think> zebra </think> What happened then?",
    "zebra </think> Go on.",
    "Oh. <think> zebra",
    "<THINK>zebra</THINK>",
)


def test_neither_the_seeker_nor_a_later_prompt_gets_a_thought() -> None:
    prompts: list[str] = []

    def policy(histories, seed):
        prompts.extend(t.text for h in histories for t in h)
        return [RAW[(len(h) // 2 + i) % len(RAW)] for i, h in enumerate(histories)]

    thinking, seeker = ThinkingPolicy(policy), Hears()
    dialogues = self_play(thinking, load_profiles("train")[:4], seeker, turns=4)
    said = [t.text for d in dialogues for t in d.turns]
    for text in (*seeker.heard, *prompts, *said):
        assert "zebra" not in text and not TAG.search(text)
    assert "What happened then?" in seeker.heard
    assert [s.thought for s in thinking.said] == ["zebra"] * 16


def test_a_seeker_behind_the_border_hears_the_reply_alone() -> None:
    person, inner = load_profiles("train")[0], Hears()
    history = (Turn("seeker", person.opening),)
    seeker = ThoughtlessSeeker(inner)
    assert seeker.react_batch([(person, history, RAW[0], 0)]) == ProbeSeeker().react_batch(
        [(person, history, "What happened then?", 0)]
    )
    assert inner.heard == [person.opening, "What happened then?"]
    assert seeker.emotion(person, history) == person.start


def test_what_thoughts_cost_is_counted_by_hand() -> None:
    said = [Said("a b c", "d", True), Said("", "e f", False)]
    found = spent(said, lambda text: len(text.split()))
    assert (found.replies, found.well_formed, found.thought_tokens, found.reply_tokens) == (2, 0.5, 1.5, 1.5)
    assert found.total_tokens == 6 + 2  # the tags
    with pytest.raises(ValueError, match="nothing was said"):
        spent([], len)


# ------------------------------------------------------------------------------------------- our thoughts


def test_there_are_175_thoughts_each_for_another_warm_start_dialogue() -> None:
    assert len(RECORDS) == 175 and all(list(r) == ["reply", "thought"] for r in RECORDS)
    known = {reply for _, reply in warmstart_pairs()}
    assert len({r["reply"] for r in RECORDS} & known) == 175
    assert len({r["thought"].lower() for r in RECORDS}) == 175


def test_thoughts_are_short_plain_sentences() -> None:
    tokenizer = load_tokenizer()
    for record in RECORDS:
        thought = record["thought"]
        assert thought == thought.strip() and thought.isascii() and not set(thought) & set("<>\n\t*#"), thought
        assert len(thought.split()) >= 6 and len(tokenizer(thought).input_ids) <= 25, thought
        assert thought[0].isupper() and thought[-1] in ".?" and thought.count(".") in (1, 2), thought


def test_thoughts_do_not_begin_alike_and_do_not_give_the_reply_away_word_for_word() -> None:
    openings = Counter(" ".join(r["thought"].split()[:3]) for r in RECORDS)
    assert openings.most_common(1)[0][1] <= 3
    for record in RECORDS:
        grams = [
            {tuple(words[i : i + 5]) for i in range(len(words) - 4)}
            for words in (record["thought"].lower().split(), record["reply"].lower().split())
        ]
        assert not grams[0] & grams[1], record


def test_a_thought_asks_for_a_question_only_where_the_reply_asks_one() -> None:
    """The part of 'the reply carries it out' that text alone can show."""
    plans = [
        r for r in RECORDS if re.search(r"(?:\. |and |, |then )ask (?!me)(?!for very)", r["thought"], re.IGNORECASE)
    ]
    assert len(plans) > 40
    assert not [r for r in plans if "?" not in r["reply"]]


def test_a_thought_is_about_its_own_history() -> None:
    """It shares more words of four letters with its own history and reply than with another's, nearly always."""

    def words(text: str) -> set[str]:
        return set(re.findall(r"[a-z]{4,}", text.lower()))

    examples = thought_examples()
    said = [words(" ".join([*(t.text for t in e.history), e.reply])) for e in examples]
    own = [len(words(e.thought) & s) for e, s in zip(examples, said, strict=True)]
    other = [len(words(e.thought) & said[i - 1]) for i, e in enumerate(examples)]
    assert sum(own) > 4 * sum(other)
