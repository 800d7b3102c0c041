"""A served model under evaluation: through the real client to a server on loopback, from the command line and back."""

import json

import pytest
from stub_endpoint import error, serving
from stub_endpoint import said as answers

from rapo_lib.chat import ChatModel, ChatReply, Endpoint, Failure
from rapo_lib.cli import main
from rapo_lib.dialogue import SYSTEM, Turn
from rapo_lib.lm.supporter import Served, said
from rapo_lib.measures.suites import compare, failures

SMALL = ["--turns", "2", "--harbor-turns", "2", "--limit", "2", "--critic", "none"]


def listener(body, headers):
    return answers("What is the heaviest part of it for you?")


def command(url, out, *more):
    return ["evaluate", "--model", "m", "--url", url, "--out", str(out), *SMALL, *more]


def test_all_suites_of_a_served_model(tmp_path, capsys):
    with serving(listener) as server:
        assert main(command(server.url, tmp_path / "m", "--prices", "1,2")) == 0
        asked = len(server.asked)
        bodies = list(server.asked)
        assert main(command(server.url, tmp_path / "m", "--prices", "1,2")) == 0
        assert len(server.asked) == asked, "a finished evaluation asks nothing"
        assert main(command(server.url, tmp_path / "again")) == 0
        assert len(server.asked) == 2 * asked
    assert {b["model"] for b in bodies} == {"m"} and {b["max_tokens"] for b in bodies} == {40}
    assert any(b["messages"][0]["content"] == SYSTEM for b in bodies)
    card = json.loads((tmp_path / "m" / "selfplay" / "card.json").read_text())
    use = card["cost"]["subject"]
    assert use["questions"] == 4 and use["input tokens"] == 400 and use["money"] == pytest.approx((400 + 80) / 1e6)
    for name in ("selfplay", "emoharbor", "sotopia", "safety"):
        files = sorted((tmp_path / "m" / name).glob("*.csv"))
        assert files and all(f.read_bytes() == (tmp_path / "again" / name / f.name).read_bytes() for f in files)
    assert set(compare([tmp_path / "m"]).suite) == {"selfplay", "emoharbor", "sotopia", "safety"}
    assert "safety" in capsys.readouterr().out


def test_a_failed_answer_is_marked_and_only_that_episode_is_asked_again(tmp_path, capsys):
    broken = True

    def script(body, headers):
        last = body["messages"][-1]["content"]
        if broken and "two thirds" in last:
            return error(400, "too sad for me")
        return listener(body, headers)

    with serving(script) as server:
        assert main(command(server.url, tmp_path, "--suite", "selfplay")) == 1
        told = capsys.readouterr().err
        assert "heldout-001 (HTTP 400" in told and "too sad for me" in told
        assert list(failures(tmp_path / "selfplay")) == ["heldout-001"]
        broken, before = False, len(server.asked)
        assert main(command(server.url, tmp_path, "--suite", "selfplay")) == 0
        assert len(server.asked) == before + 2  # two turns of one person
        assert not failures(tmp_path / "selfplay")


def test_answers_that_were_paid_for_are_not_paid_for_again(tmp_path):
    with serving(listener) as server:
        assert main(command(server.url, tmp_path, "--suite", "safety")) == 0
        (tmp_path / "safety" / "card.json").unlink()
        (tmp_path / "safety" / "episodes.jsonl").unlink()
        before = len(server.asked)
        assert main(command(server.url, tmp_path, "--suite", "safety")) == 0
        assert len(server.asked) == before
    assert json.loads((tmp_path / "safety" / "card.json").read_text())["cost"]["subject"]["from cache"] == 2


def test_the_key_is_named_and_never_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    seen = []

    def script(body, headers):
        seen.append(headers["authorization"])
        return listener(body, headers)

    with serving(script) as server:
        assert main(command(server.url, tmp_path, "--suite", "safety", "--key", "MY_KEY")) == 0
        assert set(seen) == {"Bearer sk-very-secret"}
        for path in (p for p in tmp_path.rglob("*") if p.is_file()):
            assert b"sk-very-secret" not in path.read_bytes(), path
        monkeypatch.delenv("MY_KEY")
        assert main(command(server.url, tmp_path / "b", "--suite", "safety", "--key", "MY_KEY")) == 1
        assert main(command(server.url, tmp_path / "b", "--suite", "safety", "--key", "sk-oops")) == 1
        assert main(command(server.url, tmp_path / "b", "--adapter", str(tmp_path))) == 1
    assert "sk-very-secret" not in capsys.readouterr().err


def test_a_reply_that_was_cut_counts_as_it_stands():
    with serving(lambda body, headers: answers("What is the", finish="length")) as server:
        chat = ChatModel(Endpoint(base_url=server.url, model="m"), retries=0)
        assert Served(chat=chat).policy([(Turn("seeker", "I am sad."),)], 0) == ["What is the"]
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (ChatReply("ok", "x", "Hm."), "Hm."),
        (ChatReply("truncated", "<think>a</think> Wel"), "Wel"),
        (ChatReply("truncated", "<think>never ends"), ""),
        (ChatReply("unparsable", "  "), ""),
        (ChatReply("refused", "I cannot."), "I cannot."),
        (ChatReply("failed", reason="HTTP 500"), Failure("HTTP 500")),
    ],
)
def test_what_counts_as_a_reply(reply, words):
    assert said(reply) == words
