"""A real server on loopback that misbehaves in every way seen: bounded time, the right status, nothing else lost."""

import json
import logging
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stub_endpoint import Reply, error, said, serving

from rapo_lib.chat import ChatCache, ChatModel, ChatRequest, Endpoint
from rapo_lib.runs import RapoError, write_json

RANK = {
    "type": "object",
    "properties": {"rank": {"type": "array", "items": {"type": "integer"}, "minItems": 8, "maxItems": 8}},
    "required": ["rank"],
}
GOOD = '{"rank": [1, 2, 3, 4, 5, 6, 7, 8]}'
ROOT = Path(__file__).resolve().parent.parent
KEY = "sk-planted-0123456789abcdef"


def ask(text, **options):
    return ChatRequest(messages=({"role": "user", "content": text},), **options)


def question(body):
    return body["messages"][-1]["content"]


def chat_with(server, *, cache=None, retries=0, chat_retries=0, **options):
    options = {"timeout": 5.0, **options}
    return ChatModel(
        Endpoint(base_url=server.url, model="m", retries=retries, **options), cache=cache, retries=chat_retries
    )


def asked_beside_others(bad, schema=RANK, **options):
    """The reply to one misbehaving answer, asked for between two good ones, and the seconds it took."""
    with serving(lambda body, headers: bad if "bad" in question(body) else said(GOOD)) as server:
        start = time.monotonic()
        replies = chat_with(server, **options).complete([ask(t, schema=schema) for t in ("one", "bad", "two")])
        seconds = time.monotonic() - start
    assert [r.status for r in (replies[0], replies[2])] == ["ok", "ok"], "the others were lost"
    return replies[1], seconds


# ---------------------------------------------------------------------------------------------- misbehaviour


@pytest.mark.parametrize(
    ("bad", "status", "reason"),
    [
        (error(429), "failed", "HTTP 429"),
        (error(500), "failed", "HTTP 500"),
        (error(400, "context length exceeded"), "failed", "context length exceeded"),
        (Reply(b"<html>Bad gateway</html>", 502, {"content-type": "text/html"}), "failed", "HTTP 502"),
        (Reply(b"<html>Welcome</html>", 200, {"content-type": "text/html"}), "failed", "not JSON"),
        (Reply(said(GOOD).body, cut=40), "failed", "connection broke"),
        (Reply(said(GOOD).body[:60]), "failed", "not JSON"),
        (Reply(b""), "failed", "not JSON"),
        (Reply(b"null"), "failed", "no choice"),
        (Reply(b'{"choices": []}'), "failed", "no choice"),
        (Reply(b'{"choices": [{"message": null}]}'), "failed", "no choice"),
        (Reply(b'{"error": {"message": "overloaded"}}'), "failed", "overloaded"),
        (Reply(b"[" * 100_000), "failed", "not JSON"),
        (said(None), "failed", "no text"),
        (said(GOOD * 300_000), "failed", "more than 4 MB"),
        (said(""), "unparsable", "empty"),
        (said("", "length"), "truncated", "cut at 256"),
        (said(None, "length", reasoning_content="hm"), "truncated", "cut"),
        (said('{"rank": [1, 2', "length"), "truncated", "cut"),
        (said('{"rank": [1, 2'), "unparsable", "no JSON"),
        (said('{"rank": [1, 2, 3, 4, 5, 6, 7]}'), "unparsable", "minItems"),
        (said('{"rank": [NaN, 2, 3, 4, 5, 6, 7, 8]}'), "unparsable", ""),
        (said('{"scores": [1]}'), "unparsable", "required"),
        (said(None, refusal="I can't assist with that."), "refused", "declined"),
        (said(None, "content_filter"), "refused", "declined"),
        (said("I'm sorry, but I can't assist with that."), "refused", "in words"),
    ],
)
def test_each_misbehaviour_has_its_status(bad, status, reason):
    reply, seconds = asked_beside_others(bad)
    assert reply.status == status and reason in reply.reason, reply
    assert reply.value is None and seconds < 3


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (f"```json\n{GOOD}\n```", "repaired"),
        (GOOD.replace('"', "'"), "repaired"),
        (f"Here is the ranking: {GOOD} I hope it helps.", "repaired"),
        (f"<think>Hm, [2, 1]?</think>{GOOD}", "ok"),
        ([{"type": "reasoning", "text": ""}, {"type": "text", "text": GOOD}], "ok"),
    ],
)
def test_good_answers_in_bad_clothes(text, status):
    reply, _ = asked_beside_others(said(text))
    assert reply.status == status and reply.value["rank"] == list(range(1, 9))


def test_bytes_in_another_charset():
    body = said("grüß dich").body.decode("unicode_escape").encode("latin-1")
    declared = Reply(body, headers={"content-type": "application/json; charset=iso-8859-1"})
    assert asked_beside_others(declared, schema=None)[0].value == "grüß dich"
    utf8 = Reply(json.dumps({"choices": [{"message": {"content": "你好"}}]}, ensure_ascii=False).encode())
    utf8.headers["content-type"] = "application/json; charset=iso-8859-1"  # JSON is UTF-8 whatever the header says
    assert asked_beside_others(utf8, schema=None)[0].value == "你好"
    assert asked_beside_others(Reply(body), schema=None)[0].status == "failed"


def test_a_slow_answer_and_an_answer_in_drops_are_bounded():
    reply, seconds = asked_beside_others(Reply(said(GOOD).body, before=3.0), timeout=0.5)
    assert reply.status == "failed" and "within 0.5 s" in reply.reason and seconds < 2
    reply, seconds = asked_beside_others(Reply(said(GOOD).body, pace=0.2), timeout=0.5)
    assert reply.status == "failed" and seconds < 2.5


def test_what_may_pass_is_tried_again_and_retry_after_is_obeyed():
    turns = iter([error(429, **{"retry-after": "1"}), error(500), Reply(said(GOOD).body, cut=30), said(GOOD)])
    with serving(lambda body, headers: next(turns)) as server:
        start = time.monotonic()
        reply = chat_with(server, retries=3).complete([ask("a", schema=RANK)])[0]
        assert reply.status == "ok" and len(server.asked) == 4
    assert 1.0 < time.monotonic() - start < 8


def test_a_body_without_sense_is_asked_for_once_more():
    turns = iter([Reply(b"<html>"), said(GOOD)])
    with serving(lambda body, headers: next(turns)) as server:
        reply = chat_with(server, chat_retries=1).complete([ask("a", schema=RANK)])[0]
    assert (reply.status, reply.attempts) == ("ok", 2)


def test_usage_is_read_or_estimated():
    usages = iter([{"prompt_tokens": 7, "completion_tokens": 5}, {}, {"prompt_tokens": "7", "completion_tokens": -1}])
    with serving(lambda body, headers: said("Hello", usage=next(usages))) as server:
        chat = chat_with(server)
        for text in "abc":
            chat.complete([ask(text)])
    assert (chat.usage.unmetered, chat.usage.input_tokens, chat.usage.output_tokens) == (2, 7 + 1 + 1, 5 + 2 + 2)


# ---------------------------------------------------------------------------------------------- what concerns all


def test_what_concerns_every_question_is_one_error_and_what_was_answered_is_kept(tmp_path):
    cache = ChatCache(tmp_path / "chat.sqlite")

    def script(body, headers):
        return (
            said("Hello", usage=None) if question(body) == "long question" else Reply(error(401).body, 401, before=0.3)
        )

    with serving(script) as server:
        with pytest.raises(RapoError, match="refuses a request without a key"):
            chat_with(server, cache=cache).complete([ask(t) for t in ("a", "b", "long question")])
        asked = len(server.asked)
        assert chat_with(server, cache=cache).complete([ask("long question")])[0].cached
        assert len(server.asked) == asked


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (error(401), "refuses the key in TEST_KEY"),
        (error(403), "refuses the key"),
        (error(404), "does not know the model 'm', or the address is wrong"),
        (Reply(b'{"error": {"message": "pay", "code": "insufficient_quota"}}', 429), "no quota left: .*pay"),
    ],
)
def test_wrong_keys_models_and_accounts(reply, message, monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    with serving(lambda body, headers: reply) as server, pytest.raises(RapoError, match=message):
        chat_with(server, key_variable="TEST_KEY").complete([ask("a")])


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(RapoError, match=f"nothing answers at {url}"):
        ChatModel(Endpoint(base_url=url, model="m", retries=0)).complete([ask("a"), ask("b")])


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "localhost:8000"},
        {"base_url": f"http://user:{KEY}@localhost/v1"},
        {"base_url": f"http://localhost/v1?key={KEY}"},
        {"key_variable": KEY},
        {"in_flight": 0},
        {"timeout": 0},
    ],
)
def test_wrong_settings_are_refused_without_repeating_a_key(options):
    with pytest.raises(RapoError) as caught:
        Endpoint(**{"base_url": "http://localhost:8000/v1", "model": "m", **options})
    assert KEY not in str(caught.value)


def test_a_missing_key_and_a_missing_package_say_what_to_do(monkeypatch):
    chat = ChatModel(Endpoint(base_url="http://localhost:1/v1", model="m", key_variable="NOT_SET"))
    with pytest.raises(RapoError, match="NOT_SET is not set"):
        chat.complete([ask("a")])
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(RapoError, match=r"rapo-lib\[lm\]"):
        ChatModel(Endpoint(base_url="http://localhost:1/v1", model="m")).complete([ask("a")])


# ---------------------------------------------------------------------------------------------- the key


def test_the_key_reaches_the_server_and_nothing_else(tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.setenv("TEST_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    seen = []

    def script(body, headers):  # a server that repeats the key wherever it can
        seen.append(headers["authorization"])
        leak = f"you sent {headers['authorization']}"
        return {
            "a": said(leak),
            "b": said(None, refusal=leak),
            "c": error(400, leak),
            "d": Reply(json.dumps({"error": leak}).encode()),
            "e": Reply(leak.encode(), 500, {"content-type": "text/plain"}),
        }.get(question(body), error(401, leak))

    with serving(script) as server:
        chat = chat_with(server, cache=ChatCache(tmp_path / "chat.sqlite"), key_variable="TEST_KEY")
        replies = chat.complete([ask(t) for t in "abcde"])
        with pytest.raises(RapoError) as caught:
            chat.complete([ask("f")])
    write_json(tmp_path / "run.json", chat.report())
    assert seen and set(seen) == {f"Bearer {KEY}"}
    written = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    shown = [*map(repr, replies), str(caught.value), repr(caught.value.__cause__), repr(chat.backend), caplog.text]
    assert KEY.encode() not in written and b"[key]" in written
    assert KEY not in "".join(shown) + "".join(capsys.readouterr())


def test_no_key_is_sent_unless_named(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    seen = []
    with serving(lambda body, headers: seen.append(headers.as_string()) or said("Hello")) as server:
        chat_with(server).complete([ask("a")])
    assert KEY not in seen[0]


# ---------------------------------------------------------------------------------------------- what is sent


def test_what_is_sent():
    with serving(lambda body, headers: said('{"rank": [1, 2, 3, 4, 5, 6, 7, 8]}')) as server:
        chat = chat_with(server, extra={"chat_template_kwargs": {"enable_thinking": False}})
        chat.complete([ask("a", schema=RANK, max_tokens=77)])
        chat.complete([ask("b", schema=RANK, temperature=0.7, top_p=0.9, draw=1)])
        chat_with(server, structured="none", token_limit="max_completion_tokens").complete([ask("c", schema=RANK)])
        chat_with(server, structured="json_object").complete([ask("d", schema=RANK)])
        first, second, third, fourth = server.asked
    assert first["max_tokens"] == 77 and first["temperature"] == 0 and "seed" not in first
    assert first["response_format"]["json_schema"]["schema"]["additionalProperties"] is False
    assert first["chat_template_kwargs"] == {"enable_thinking": False}
    assert second["top_p"] == 0.9 and 0 <= second["seed"] < 2**31
    assert "response_format" not in third and third["max_completion_tokens"] == 256
    assert fourth["response_format"] == {"type": "json_object"}


def test_many_in_flight_and_no_more_than_allowed(tmp_path):
    """256 questions at 200 ms, 32 at once: 1.6 s is ideal, a quarter more is allowed; the second time none is sent."""
    cache = ChatCache(tmp_path / "chat.sqlite")
    with serving(lambda body, headers: Reply(said(question(body)).body, before=0.2)) as server:
        chat = chat_with(server, cache=cache, in_flight=32)
        chat.complete([ask("warm")])
        seconds, sent = [], 1
        while sent == 1 or (min(seconds) > 1.25 * 1.6 and sent < 700):  # up to three times: other work disturbs
            start = time.monotonic()
            replies = chat.complete([ask(str(sent + i)) for i in range(256)])
            seconds.append(time.monotonic() - start)
            assert [r.value for r in replies] == [str(sent + i) for i in range(256)]
            sent += 256
        assert 24 <= server.peak <= 32 and len(server.asked) == sent
        assert all(r.cached for r in chat_with(server, cache=cache).complete([ask(str(1 + i)) for i in range(256)]))
        assert len(server.asked) == sent
    print(f"256 requests in {min(seconds):.2f} s")
    assert min(seconds) < 1.25 * 1.6


def test_ctrl_c_ends_a_call_at_once_and_keeps_what_was_answered(tmp_path):
    path = tmp_path / "chat.sqlite"
    code = (
        "import sys; from pathlib import Path; from rapo_lib.chat import *\n"
        "chat = ChatModel(Endpoint(base_url=sys.argv[1], model='m'), cache=ChatCache(Path(sys.argv[2])))\n"
        "chat.complete([ChatRequest(messages=({'role': 'user', 'content': t},)) for t in ('quick', 'slow')])\n"
    )
    with serving(lambda body, headers: Reply(said("x").body, before=20.0 * (question(body) == "slow"))) as server:
        child = subprocess.Popen([sys.executable, "-c", code, server.url, str(path)], cwd=ROOT, stderr=subprocess.PIPE)
        while len(server.asked) < 2:
            time.sleep(0.05)
        time.sleep(0.3)
        start = time.monotonic()
        child.send_signal(signal.SIGINT)
        trouble = child.communicate(timeout=15)[1]
        assert b"KeyboardInterrupt" in trouble and time.monotonic() - start < 5
        assert chat_with(server, cache=ChatCache(path, "replay")).complete([ask("quick")])[0].value == "x"
