"""A chat model behind OpenAI's chat completions, on loopback: for evaluators of others, and for `chat.Endpoint`.

Only what such clients need: one answer to a list of messages, no streaming, no tools. Whoever answers is a function of
messages and options, so that the transport knows no model.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from rapo_lib.dialogue import Message
from rapo_lib.runs import RapoError, stable_hash

LARGEST = 1_000_000  # bytes of a question
HOST = "127.0.0.1"  # nobody else's machine

Respond = Callable[[str, list[Message], Mapping[str, Any]], str]  # model, messages, the body; ValueError: not readable


class ChatServer(ThreadingHTTPServer):
    """Answers POST /v1/chat/completions with `respond`, one question at a time, and GET /v1/models with `models`."""

    daemon_threads = True

    def __init__(self, respond: Respond, models: Sequence[str], port: int = 0) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise RapoError(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another --port") from error
        self.respond, self.models, self.turn = respond, tuple(models), Lock()

    @property
    def url(self) -> str:
        """What clients call the base URL."""
        return f"http://{HOST}:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChatServer

    def do_GET(self) -> None:
        if self.path.rstrip("/") != "/v1/models":
            return self._refuse(404, f"no {self.path} here")
        return self._send(200, {"object": "list", "data": [{"id": m, "object": "model"} for m in self.server.models]})

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > LARGEST:
            self.close_connection = True  # what follows is not read
            return self._refuse(413, f"a question needs a content-length of at most {LARGEST}")
        body = self.rfile.read(int(length))
        if self.path.rstrip("/") != "/v1/chat/completions":
            return self._refuse(404, f"no {self.path} here")
        try:
            model, messages, options = read_body(body, self.server.models)
            with self.server.turn:
                text = self.server.respond(model, messages, options)
        except ValueError as error:
            return self._refuse(400, str(error))
        return self._send(200, completion(model, messages, text))

    def _refuse(self, status: int, why: str) -> None:
        self._send(status, {"error": {"message": why, "type": "invalid_request_error", "code": None}})

    def _send(self, status: int, value: Mapping[str, Any]) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Questions hold what people said; they go to no log."""


def read_body(body: bytes, models: Sequence[str]) -> tuple[str, list[Message], dict[str, Any]]:
    """Model, messages and the whole body of a question; a ValueError says what is wrong with it."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list) or not value["messages"]:
        raise ValueError("the body needs a list of messages")
    if value.get("stream"):
        raise ValueError("there is no streaming here")
    model = value.get("model")
    if model not in models:
        raise ValueError(f"unknown model {model!r}; models: {', '.join(models)}")
    return model, [_message(m) for m in value["messages"]], value


def _message(value: Any) -> Message:
    """A message with plain text; text parts are joined."""
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str) or value.get("role") not in ("system", "user", "assistant"):
        raise ValueError('a message is {"role": "system", "user" or "assistant", "content": text}')
    return {"role": value["role"], "content": content}


def completion(model: str, messages: Sequence[Message], text: str) -> dict[str, Any]:
    """A chat completion that says `text`."""
    return {
        "id": f"chatcmpl-{stable_hash([model, list(messages), text])[:24]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
    }
