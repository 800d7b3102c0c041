"""A real OpenAI-compatible server, `transformers serve`, with the embedded model on loopback."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rapo_lib.chat import ChatCache, ChatModel, ChatRequest, Endpoint
from rapo_lib.models import embedded_model

pytestmark = pytest.mark.slow
STARTS_WITHIN = 150.0  # seconds


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The server's base_url."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log.txt"
    command = [str(Path(sys.executable).parent / "transformers"), "serve", str(embedded_model())]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        end = time.monotonic() + STARTS_WITHIN
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None and time.monotonic() < end, log.read_text()[-2000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=30)


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def ask(text, **options):
    return ChatRequest(messages=({"role": "user", "content": text},), **options)


def test_a_real_server(served, tmp_path):
    cache = ChatCache(tmp_path / "chat.sqlite")
    endpoint = Endpoint(base_url=served, model=str(embedded_model()), in_flight=2, timeout=120)
    chat = ChatModel(endpoint, cache=cache, retries=0)
    texts = ["Say hello.", "What is the capital of France?", "Name a colour."]
    schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
    replies = chat.complete([ask(t, max_tokens=48) for t in texts] + [ask("A colour, as JSON", schema=schema)])
    assert [r.status for r in replies[:3]] == ["ok"] * 3 and "Paris" in replies[1].value
    # this server ignores response_format: whatever the small model writes gets a status and harms nobody
    assert replies[3].status in ("ok", "repaired", "unparsable", "truncated")
    assert chat.usage.input_tokens > 0 and chat.usage.unmetered == 0
    again = ChatModel(endpoint, cache=ChatCache(cache.path, "replay"), retries=0)
    assert [r.text for r in again.complete([ask(t, max_tokens=48) for t in texts])] == [r.text for r in replies[:3]]
