"""ChatModel: order, statuses, asking again, the cache, the budget; with a scripted model and real files."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from rapo_lib.chat import (
    Answer,
    Budget,
    ChatCache,
    ChatModel,
    ChatRequest,
    Failure,
    Prices,
    Scripted,
)
from rapo_lib.runs import RapoError, write_json

ROOT = Path(__file__).resolve().parent.parent
COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def ask(text, **options):
    return ChatRequest(messages=({"role": "user", "content": text},), **options)


def echo(request):
    return request.messages[-1]["content"]


class Counted:
    """A script that remembers what it was asked."""

    def __init__(self, script=echo):
        self.script, self.requests = script, []

    def __call__(self, request):
        self.requests.append(request)
        return self.script(request)


def model(script=echo, **options):
    return ChatModel(Scripted(script), **options)


# ---------------------------------------------------------------------------------------------- the call


def test_order_is_kept_and_one_bad_item_fails_alone():
    def script(request):
        text = echo(request)
        return {"b": Failure("gone"), "c": Answer("no", "refused"), "d": Answer("He", "length")}.get(text, text)

    replies = model(script, retries=0).complete([ask(t) for t in "abcde"])
    assert [r.status for r in replies] == ["ok", "failed", "refused", "truncated", "ok"]
    assert [r.value for r in replies] == ["a", None, None, None, "e"]
    assert replies[3].text == "He" and model().complete([]) == []


def test_longer_questions_leave_first():
    script = Counted()
    model(script).complete([ask("a"), ask("aaa"), ask("aa")])
    assert [len(echo(r)) for r in script.requests] == [3, 2, 1]


def test_an_invalid_answer_is_asked_for_again_with_what_was_wrong():
    script = Counted(lambda r: '{"n": 7}' if "could not be used" in echo(r) else '{"n": "7"}')
    reply = model(script).complete([ask("How many?", schema=COUNT)])[0]
    assert (reply.status, reply.value, reply.attempts) == ("ok", {"n": 7}, 2)
    assert echo(script.requests[1]).startswith("How many?") and "$.n: type integer" in echo(script.requests[1])


def test_asking_again_is_capped_and_the_last_answer_is_kept():
    script = Counted(lambda r: "never")
    reply = model(script, retries=2).complete([ask("How many?", schema=COUNT)])[0]
    assert (reply.status, reply.text, reply.attempts, len(script.requests)) == ("unparsable", "never", 3, 3)


def test_the_requests_own_check_counts():
    script = Counted(lambda r: "8" if "odd" in echo(r) else "7")
    reply = model(script).complete([ask("A number", check=lambda v: "it is odd" if int(v) % 2 else "")])[0]
    assert (reply.value, reply.attempts) == ("8", 2)


def test_a_truncated_answer_gets_more_room_and_a_refusal_no_second_question():
    script = Counted(lambda r: Answer("Hel", "length") if r.max_tokens < 20 else "Hello")
    assert model(script).complete([ask("Hi", max_tokens=10)])[0].value == "Hello"
    assert script.requests[1].max_tokens == 20
    script = Counted(lambda r: Answer("no", "refused"))
    assert model(script).complete([ask("Hi")])[0].status == "refused" and len(script.requests) == 1


def test_a_body_without_sense_is_asked_for_again_and_a_failed_transport_is_not():
    replies = iter([Failure("no choice", again=True), "Hello"])
    assert model(lambda r: next(replies)).complete([ask("Hi")])[0].value == "Hello"
    script = Counted(lambda r: Failure("timeout"))
    assert model(script).complete([ask("Hi")])[0].status == "failed" and len(script.requests) == 1


def test_equal_questions_are_asked_once_and_draws_are_different_questions():
    script = Counted()
    chat = model(script)
    chat.complete([ask("a"), ask("a"), ask("a", draw=1)])
    assert len(script.requests) == 2


def test_works_inside_a_running_event_loop():
    async def cell():
        return model().complete([ask("a")])[0].value

    assert asyncio.run(cell()) == "a"


def test_works_from_several_threads(tmp_path):
    chat = model(cache=ChatCache(tmp_path / "chat.sqlite"))
    found = {}
    threads = [
        threading.Thread(target=lambda k=k: found.update({k: chat.complete([ask(f"{k}-{i}") for i in range(20)])}))
        for k in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all([r.value for r in found[k]] == [f"{k}-{i}" for i in range(20)] for k in range(8))
    assert chat.usage.sent == 160


# ---------------------------------------------------------------------------------------------- the cache


def test_what_was_answered_is_never_asked_again(tmp_path):
    path = tmp_path / "deep" / "chat.sqlite"
    first, second = Counted(), Counted()
    chat = model(first, cache=ChatCache(path))
    before = chat.complete([ask(t) for t in "abc"])
    again = ChatModel(Scripted(second), cache=ChatCache(path)).complete([ask(t) for t in "cba"])
    assert not second.requests and [r.value for r in again] == ["c", "b", "a"]
    assert all(r.cached for r in again) and not any(r.cached for r in before)
    assert (path.read_bytes()[:15], chat.usage.cached) == (b"SQLite format 3", 0)


@pytest.mark.parametrize(
    "other",
    [
        ask("b"),
        ask("a", temperature=1.0),
        ask("a", top_p=0.9),
        ask("a", max_tokens=9),
        ask("a", draw=1),
        ask("a", schema={"type": "string"}),
    ],
)
def test_everything_that_decides_an_answer_is_in_the_key(tmp_path, other):
    cache = ChatCache(tmp_path / "chat.sqlite")
    script = Counted(lambda r: '"a"')
    chat = model(script, cache=cache)
    chat.complete([ask("a")])
    chat.complete([other])
    assert len(script.requests) == 2
    ChatModel(Scripted(script, "another"), cache=cache).complete([ask("a")])
    assert len(script.requests) == 3
    chat.complete([ask("a", asker="judge", check=lambda v: "")])  # who asks, and how it is read, is no part of it
    assert len(script.requests) == 3


def test_the_order_of_a_schemas_fields_is_in_the_key(tmp_path):
    script = Counted(lambda r: '{"a": 1, "b": 1}')
    chat = model(script, cache=ChatCache(tmp_path / "chat.sqlite"))
    field = {"type": "integer"}
    for names in (("a", "b"), ("b", "a")):
        chat.complete([ask("x", schema={"type": "object", "properties": dict.fromkeys(names, field)})])
    assert len(script.requests) == 2


def test_failures_are_not_kept_and_bad_answers_never_pass_for_good_ones(tmp_path):
    cache = ChatCache(tmp_path / "chat.sqlite")
    model(lambda r: Failure("timeout"), cache=cache).complete([ask("a")])
    assert model(lambda r: "late", cache=cache).complete([ask("a")])[0].value == "late"
    for said in ("no JSON", Answer("", "refused"), Answer('{"n"', "length")):
        question = ask(str(said), schema=COUNT)
        first = model(lambda r, said=said: said, cache=cache).complete([question])[0]
        again = model(lambda r: '{"n": 1}', cache=cache).complete([question])[0]
        assert again.status == first.status and not again.answered and again.cached


def test_replay_needs_no_model_and_a_miss_is_an_error(tmp_path):
    path = tmp_path / "chat.sqlite"
    with pytest.raises(RapoError, match="nothing to replay"):
        ChatCache(path, "replay")
    bad_once = Counted(lambda r: '{"n": 1}' if "could not" in echo(r) else "hm")
    model(bad_once, cache=ChatCache(path)).complete([ask("a", schema=COUNT)])
    nobody = Counted()
    replayed = ChatModel(Scripted(nobody), cache=ChatCache(path, "replay"))
    reply = replayed.complete([ask("a", schema=COUNT)])[0]
    assert (reply.value, reply.attempts) == ({"n": 1}, 2)
    with pytest.raises(RapoError, match="does not hold the answers to 1 of 2 questions"):
        replayed.complete([ask("a", schema=COUNT), ask("b", asker="judge.en")])
    assert not nobody.requests


def test_replay_works_where_nothing_can_be_written(tmp_path):
    folder = tmp_path / "published"
    cache = ChatCache(folder / "chat.sqlite")
    model(cache=cache).complete([ask("a")])
    cache.close()
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert set(before) == {"chat.sqlite"}, "a closed cache is one file"
    code = (
        "import sys; from pathlib import Path; from rapo_lib.chat import *;"
        "chat = ChatModel(Scripted(lambda r: 1 / 0), cache=ChatCache(Path(sys.argv[1]), 'replay'));"
        "print(chat.complete([ChatRequest(messages=({'role': 'user', 'content': 'a'},))])[0].value)"
    )
    folder.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder / "chat.sqlite")], cwd=ROOT, capture_output=True, text=True
        )
    finally:
        folder.chmod(0o755)
    assert done.stdout == "a\n", done.stderr
    assert (folder / "chat.sqlite").read_bytes() == before["chat.sqlite"]


def test_a_cache_holds_json_that_anyone_can_read(tmp_path):
    import sqlite3

    model(cache=ChatCache(tmp_path / "chat.sqlite")).complete([ask("grüß dich 你好", asker="seeker.en.1")])
    rows = sqlite3.connect(tmp_path / "chat.sqlite").execute("SELECT request, answer, asker FROM answers").fetchall()
    request, answer, asker = rows[0]
    assert json.loads(request)["messages"] == [{"role": "user", "content": "grüß dich 你好"}]
    assert json.loads(answer)["text"] == "grüß dich 你好" and asker == "seeker.en.1"


def test_a_damaged_or_foreign_file_is_one_clear_error(tmp_path):
    path = tmp_path / "chat.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(RapoError, match="cannot be used"):
        model(cache=ChatCache(path)).complete([ask("a")])
    import sqlite3

    newer = tmp_path / "newer.sqlite"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(RapoError, match="format 9"):
        model(cache=ChatCache(newer)).complete([ask("a")])
    with pytest.raises(RapoError, match="modes: off, read_write, replay"):
        ChatCache(path, "write")
    with pytest.raises(RapoError, match="cannot make"):
        model(cache=ChatCache(path / "below" / "chat.sqlite")).complete([ask("a")])


def fill(path, start):
    chat = model(lambda r: f"{start}:{echo(r)}", cache=ChatCache(path))
    return [r.value for r in chat.complete([ask(str(i)) for i in range(60)])]


def test_processes_share_a_file_and_the_first_answer_stands(tmp_path):
    path = tmp_path / "chat.sqlite"
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(fill, [path] * 3, range(3)))
    kept = fill(path, 9)
    assert [value.split(":")[1] for value in kept] == [str(i) for i in range(60)]
    assert all(value in {run[i] for run in found} for i, value in enumerate(kept))


def test_a_killed_run_loses_nothing_that_was_answered(tmp_path):
    path = tmp_path / "chat.sqlite"
    code = (
        "import os, signal, sys; from pathlib import Path; from rapo_lib.chat import *\n"
        "def script(request):\n"
        "    text = request.messages[-1]['content']\n"
        "    if text == '7': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return text\n"
        "ChatModel(Scripted(script), cache=ChatCache(Path(sys.argv[1]))).complete(\n"
        "    [ChatRequest(messages=({'role': 'user', 'content': str(i)},)) for i in range(10)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    script = Counted()
    model(script, cache=ChatCache(path)).complete([ask(str(i)) for i in range(10)])
    assert [echo(r) for r in script.requests] == ["7", "8", "9"]


# ---------------------------------------------------------------------------------------------- the budget


def test_a_budget_stops_cleanly_and_what_was_answered_is_kept(tmp_path):
    cache = ChatCache(tmp_path / "chat.sqlite")
    script = Counted()
    with pytest.raises(RapoError, match=r"2 of 2 requests\) with 3 questions left.*kept"):
        model(script, cache=cache, budget=Budget(requests=2)).complete([ask(t) for t in "abcde"])
    assert len(script.requests) == 2
    model(script, cache=cache, budget=Budget(requests=3)).complete([ask(t) for t in "abcde"])
    assert len(script.requests) == 5


def test_tokens_and_money_are_limits_too():
    def script(request):
        return Answer("a", "stop", 900_000, 100_000)

    chat = model(script, prices=Prices(input=1.0, output=10.0), budget=Budget(money=3.0))
    with pytest.raises(RapoError, match="3.8 of 3 money"):
        chat.complete([ask(t) for t in "abc"])  # 1.9 each: two were asked
    assert chat.usage.cost == pytest.approx(3.8)
    with pytest.raises(RapoError, match="tokens"):
        model(script, budget=Budget(tokens=1_000_000)).complete([ask(t) for t in "ab"])
    with pytest.raises(RapoError, match="money must be 0 or more"):
        Budget(money=-1)
    with pytest.raises(RapoError, match="prices must be 0 or more"):
        Prices(output=-1.0)  # a budget in money would never be spent


def test_usage_is_counted_by_who_asked_and_fits_a_record(tmp_path):
    def script(request):
        return Answer("1" if request.asker == "judge" else "", "stop", 10, 2, metered=request.asker == "judge")

    chat = model(script, prices=Prices(input=1.0, output=2.0), cache=ChatCache(tmp_path / "chat.sqlite"))
    chat.complete([ask("a", asker="judge"), ask("b", asker="judge"), ask("c", asker="seeker")])
    chat.complete([ask("a", asker="judge")])
    report = json.loads(write_json(tmp_path / "run.json", chat.report()).read_text())
    assert (report["sent"], report["cached"], report["unmetered"]) == (4, 1, 2)  # the seeker was asked twice
    assert report["by_asker"]["judge"] == {"ok": 3, "input_tokens": 20, "output_tokens": 4, "cost": 2.8e-05}
    assert report["by_asker"]["seeker"]["unparsable"] == 1 and report["by_asker"]["seeker"]["asked again"] == 1
    assert report["cost"] == pytest.approx(4 * (10 + 2 * 2) / 1e6)
    assert report["model"] == {"model": "scripted"}


def test_importing_it_is_light():
    code = "import sys, rapo_lib.chat; print({'torch', 'transformers', 'openai', 'llguidance'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_keeping_an_answer_is_quick(tmp_path):
    chat = model(cache=ChatCache(tmp_path / "chat.sqlite"))
    chat.complete([ask("warm")])
    start = time.perf_counter()
    chat.complete([ask(str(i)) for i in range(500)])
    assert (time.perf_counter() - start) / 500 < 0.005, os.fspath(tmp_path)
