"""The language model as turn selector and as critic, and the prompts of all roles."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapo_lib.chat import ChatModel, Failure, Scripted
from rapo_lib.dialogue import Dialogue, Turn, language_of
from rapo_lib.lm.critic import VALUES, LMCritic, assessment
from rapo_lib.lm.prompts import load_prompt
from rapo_lib.lm.selection import LMSelector, eligible, windows


def dialogue(name, length):
    turns = [Turn("seeker" if i % 2 == 0 else "supporter", f"words {i}", emotion=float(i % 100)) for i in range(length)]
    return Dialogue(name, tuple(turns))


def shown(request):
    return [json.loads(line) for line in request.messages[1]["content"].splitlines() if line.startswith("{")]


def pivot(turn, before=-2, after=3):
    return {"reason": "it lasted", "turn": turn, "before": before, "after": after}


def selector(script, **options):
    return LMSelector(ChatModel(Scripted(script), retries=0), **options)


def naming(*pivots):
    """A model that names those of the given pivots that it is shown."""
    return lambda request: json.dumps(
        {"pivots": [p for p in pivots if p["turn"] in {t["turn"] for t in shown(request)}]}
    )


# ---------------------------------------------------------------------------------------------- selection


@given(st.integers(1, 400), st.integers(4, 60), st.data())
def test_windows_cover_everything_and_overlap(length, size, data):
    overlap = data.draw(st.integers(1, size - 1))
    parts = windows(length, size, overlap)
    assert {i for part in parts for i in part} == set(range(length))
    assert all(len(part) <= size for part in parts)
    assert all(one.stop - other.start == overlap for one, other in zip(parts, parts[1:], strict=False))


def test_pivots_carry_their_dialogue_turn_and_levels():
    found = selector(naming(pivot(3), pivot(5, 4, -6))).select([dialogue("a", 9), dialogue("b", 5)])
    assert [(p.dialogue_id, p.turn, p.before, p.after) for p in found] == [
        ("a", 3, -0.2, 0.3), ("a", 5, 0.4, -0.6), ("b", 3, -0.2, 0.3)]  # fmt: skip


def test_the_largest_changes_are_kept():
    script = naming(pivot(1, 0, 1), pivot(3, 0, 9), pivot(5, 2, -3), pivot(7, 4, 4))
    choose = selector(script).select
    assert [p.turn for p in choose([dialogue("a", 11)])] == [3, 5]
    assert [p.turn for p in choose([dialogue("a", 11)], per_dialogue=9)] == [1, 3, 5]  # no change is no pivot
    assert [p.turn for p in choose([dialogue("a", 11)], per_dialogue=9, min_change=0.4)] == [3, 5]
    assert [(p.dialogue_id, p.turn) for p in choose([dialogue("a", 11), dialogue("b", 11)], top=2)] == [
        ("a", 3), ("b", 3)]  # fmt: skip


def test_a_long_dialogue_is_read_in_windows_and_a_turn_counts_once():
    asked = []

    def script(request):
        asked.append([t["turn"] for t in shown(request)])
        first = asked[-1][0]
        found = [pivot(51, 0, 5 if first else 1)] if 51 in asked[-1] else []
        return json.dumps({"pivots": found})

    found = selector(script).select([dialogue("a", 130)])
    assert sorted(len(a) for a in asked) == [50, 60, 60]
    assert [(p.turn, p.after) for p in found] == [(51, 0.5)]  # the window that shows what came after


def test_only_supporter_turns_between_seeker_turns_count():
    talk = Dialogue("a", (Turn("supporter", "Hi"), Turn("seeker", "x"), Turn("supporter", "y"), Turn("supporter", "z"),
                          Turn("seeker", "u"), Turn("supporter", "v")))  # fmt: skip
    assert eligible(talk, range(6)) == {2, 3}
    assert [p.turn for p in selector(naming(pivot(3))).select([talk])] == [2]  # what the seeker had heard before both
    for wrong in (0, 1, 5, 99):
        said = json.dumps({"pivots": [pivot(wrong)]})
        assert selector(lambda r, said=said: said).select([talk]) == []
    assert selector(lambda r: Failure("gone")).select([talk]) == []
    assert selector(lambda r: pytest.fail("asked")).select([Dialogue("empty", ())]) == []


def test_a_window_that_cannot_be_read_is_reported(caplog):
    selector(lambda r: "no").select([dialogue("a", 9)])
    assert "1 of 1 windows could not be read" in caplog.text


def test_the_selector_reads_words_only():
    requests = []

    def script(request):
        requests.append(request.messages)
        return '{"pivots": []}'

    talk = dialogue("a", 9)
    masked = replace(
        talk, turns=tuple(replace(t, emotion=1.0, feedback=5, strategies=("Question",)) for t in talk.turns)
    )
    selector(script).select([talk])
    selector(script).select([masked])
    assert requests[0] == requests[1]


# ---------------------------------------------------------------------------------------------- critic


def critic(script, **options):
    return LMCritic(ChatModel(Scripted(script), retries=0), **options)


def test_the_mean_over_the_draws():
    states = ["solved", "better", "better", "same"]
    found = critic(lambda r: json.dumps({"reason": "x", "state": states[r.draw]}), samples=4).assess_batch(
        [("lost the job", dialogue("a", 3).turns)] * 2
    )
    assert [f.value for f in found] == [(1 + 0.5 + 0.5 - 0.5) / 4] * 2 and not found[0].solved
    assert found[0].votes == {"worse": 0, "same": 1, "better": 2, "solved": 1}
    assert assessment(["solved", "better"]).solved and VALUES == {"worse": -1, "same": -0.5, "better": 0.5, "solved": 1}


@pytest.mark.parametrize(
    "said",
    [
        "The issue has not been solved.",
        "At the same time, the Patient feels much better.",
        "I cannot assess this.",
        "",
        '{"state": "not solved"}',
        '{"state": "Solved!"}',
    ],
)
def test_words_in_prose_are_no_vote(said):
    found = critic(lambda r: said, samples=3).assess_batch([("x", dialogue("a", 3).turns)])[0]
    assert found.value is None and found.unreadable == 3 and not found.solved


def test_what_cannot_be_read_is_counted_and_leaves_the_mean_alone():
    answers = ['{"state": "worse"}', "no", '{"state": "better"}']
    found = critic(lambda r: answers[r.draw], samples=3).assess_batch([("x", dialogue("a", 3).turns)])[0]
    assert (found.value, found.unreadable) == (-0.25, 1)


# ---------------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", ["seeker", "judge", "selector", "critic", "social"])
def test_every_prompt_has_a_version_and_a_hash(name, language):
    prompt = load_prompt(name, language)
    assert prompt.tag == f"{name}.{language}.v{prompt.version}#{prompt.digest[:8]}" and int(prompt.version) >= 1
    assert {"system", "user"} <= set(prompt.parts)
    assert set(prompt.parts) == set(load_prompt(name, "en").parts)
    with pytest.raises(ValueError, match="placeholders"):
        prompt.messages(nothing="x")


def test_values_are_filled_in_once():
    filled = load_prompt("critic", "en").messages(situation="$history", history="x")[1]["content"]
    assert "$history" in filled


def test_languages():
    assert language_of(["我很难过", "ok"]) == "zh" and language_of(["I am sad 我"]) == "en" and language_of([]) == "en"
