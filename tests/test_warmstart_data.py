"""The warm-start pairs: well-formed, varied, free of stock phrases, and no held-out person leaks into them."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rapo_lib
from rapo_lib.dialogue import Turn, read_jsonl, to_messages

DATA = Path(rapo_lib.__file__).parent / "data"
PAIRS = list(read_jsonl(DATA / "warmstart.jsonl"))
ACT_SHARES = {
    "reflection": 0.24,
    "question": 0.20,
    "reflection+question": 0.20,
    "suggestion": 0.15,
    "reassurance": 0.08,
    "validation": 0.05,
    "information": 0.04,
    "disclosure": 0.04,
}
STOCK = (
    "sorry to hear",
    "must be hard",
    "must be tough",
    "must be difficult",
    "understand how you feel",
    "you are not alone",
    "you're not alone",
    "okay to feel",
    "here for you",
    "your feelings are valid",
    "as an ai",
)


def words(text: str) -> list[str]:
    """Lower-case words; apostrophes belong to them."""
    return re.findall(r"[a-z0-9']+", text.lower().replace("’", "'"))


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    """Every run of n words, in order."""
    tokens = words(text)
    return list(zip(*(tokens[i:] for i in range(n)), strict=False))


def supporter_texts(pair: dict[str, Any]) -> list[str]:
    """The reply and what the supporter said before it."""
    return [pair["reply"], *(t["text"] for t in pair["history"] if t["speaker"] == "supporter")]


def shared_with(texts: list[str], n: int = 5) -> set[tuple[str, ...]]:
    """n-grams that any pair has in common with `texts`."""
    theirs = {gram for text in texts for gram in ngrams(text, n)}
    ours = {g for p in PAIRS for text in [p["reply"], *(t["text"] for t in p["history"])] for g in ngrams(text, n)}
    return ours & theirs


def test_there_are_540_dialogues_with_exactly_the_documented_keys() -> None:
    assert len(PAIRS) == 540
    assert all(list(pair) == ["history", "reply", "act"] for pair in PAIRS)
    assert all(set(turn) == {"speaker", "text"} for pair in PAIRS for turn in pair["history"])


def test_speakers_alternate_and_the_seeker_begins_and_ends() -> None:
    for pair in PAIRS:
        speakers = [turn["speaker"] for turn in pair["history"]]
        assert speakers == ["seeker" if i % 2 == 0 else "supporter" for i in range(len(speakers))], pair
        assert speakers[-1] == "seeker", pair


def test_histories_become_chat_messages_turn_by_turn() -> None:
    for pair in PAIRS:
        messages = to_messages([Turn(**turn) for turn in pair["history"]])
        assert [m["content"] for m in messages[1:]] == [turn["text"] for turn in pair["history"]]


def test_histories_are_of_one_to_seven_turns() -> None:
    lengths = Counter(len(pair["history"]) for pair in PAIRS)
    assert set(lengths) == {1, 3, 5, 7}
    assert min(lengths.values()) > 0.1 * len(PAIRS)


def test_act_shares_hold_so_that_training_starts_from_a_mix() -> None:
    acts = Counter(pair["act"] for pair in PAIRS)
    assert set(acts) == set(ACT_SHARES)
    for act, share in ACT_SHARES.items():
        assert acts[act] / len(PAIRS) == pytest.approx(share, abs=0.015), act


def test_advice_also_comes_at_once_so_that_there_is_something_to_unlearn() -> None:
    early = [p for p in PAIRS if p["act"] == "suggestion" and len(p["history"]) == 1]
    assert len(early) >= 15


def test_acts_agree_with_question_marks() -> None:
    for pair in PAIRS:
        sentences = re.findall(r"[^.?!]+[.?!]", pair["reply"])
        if pair["act"] in ("question", "reflection+question"):
            assert pair["reply"].endswith("?"), pair
        elif pair["act"] != "suggestion":
            assert "?" not in pair["reply"], pair
        if pair["act"] == "reflection+question":
            assert len(sentences) == 2 and "?" not in sentences[0], pair


def test_seeker_turns_have_5_to_40_words_and_replies_6_to_20() -> None:
    for pair in PAIRS:
        assert 6 <= len(pair["reply"].split()) <= 20, pair
        for turn in pair["history"]:
            if turn["speaker"] == "seeker":
                assert 5 <= len(turn["text"].split()) <= 40, turn


def test_replies_are_one_plain_paragraph_of_at_most_two_sentences() -> None:
    for pair in PAIRS:
        reply = pair["reply"]
        assert reply == reply.strip() and reply.isascii() and not set(reply) & set("\n\t*#•"), pair
        assert len(re.findall(r"[.?!](?=\s|$)", reply)) in (1, 2), pair


def test_the_supporter_never_uses_a_stock_phrase() -> None:
    for pair in PAIRS:
        for text in supporter_texts(pair):
            assert not [phrase for phrase in STOCK if phrase in text.lower()], text


def test_no_opening_of_three_words_is_used_by_more_than_six_percent() -> None:
    opening, count = Counter(tuple(words(pair["reply"])[:3]) for pair in PAIRS).most_common(1)[0]
    assert count <= 0.06 * len(PAIRS), opening


def test_replies_stay_with_the_seekers_own_words() -> None:
    """What a very small model can learn: two thirds of the reflections and more share a word of five letters."""
    reflections = [pair for pair in PAIRS if "reflection" in pair["act"]]
    shared = 0
    for pair in reflections:
        said = {w for t in pair["history"] if t["speaker"] == "seeker" for w in words(t["text"]) if len(w) > 4}
        shared += bool(said & set(words(pair["reply"])))
    assert shared > 2 / 3 * len(reflections)


def test_no_supporter_turn_occurs_twice() -> None:
    said = [text for pair in PAIRS for text in supporter_texts(pair)]
    assert len(said) == len(set(said)) == 1178


def test_no_reply_and_no_history_occurs_twice() -> None:
    assert len({" ".join(words(pair["reply"])) for pair in PAIRS}) == len(PAIRS)
    assert len({json.dumps(pair["history"]) for pair in PAIRS}) == len(PAIRS)
    assert len({" ".join(words(pair["history"][0]["text"])) for pair in PAIRS}) == len(PAIRS)


def test_the_leak_check_finds_a_planted_sentence() -> None:
    planted = PAIRS[0]["history"][0]["text"]
    assert shared_with([planted]) == set(ngrams(planted, 5))
    assert ngrams("one two three", 2) == [("one", "two"), ("two", "three")]


@pytest.mark.parametrize("split", ["dev", "heldout"])
def test_no_five_words_are_shared_with_an_opening_that_evaluation_uses(split: str) -> None:
    source = DATA / "profiles" / f"{split}.jsonl"
    if not source.exists():
        pytest.skip(f"{source.name} is not there yet")
    shared = shared_with([profile["opening"] for profile in read_jsonl(source)])
    assert not shared, sorted(shared)
