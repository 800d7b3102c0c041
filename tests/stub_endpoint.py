"""A chat endpoint on loopback that behaves, or misbehaves, as a test tells it to."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What the server does with one question."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    before: float = 0.0  # seconds until it answers
    pace: float = 0.0  # seconds between its bytes
    cut: int | None = None  # bytes after which the connection is dropped


def said(text: Any, finish: str = "stop", usage: Any = None, **message: Any) -> Reply:
    """A chat completion that says `text`."""
    usage = {"prompt_tokens": 100, "completion_tokens": 10} if usage is None else usage
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
    completion = {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}
    return Reply(json.dumps(completion).encode())


def error(status: int, message: str = "no", **headers: str) -> Reply:
    """An error in the shape of the API."""
    return Reply(json.dumps({"error": {"message": message, "code": None}}).encode(), status, headers)


class Stub(ThreadingHTTPServer):
    """Asks `script(body, headers)` for every question; `asked` keeps the bodies, `peak` the most at once."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script: Callable[[dict, Any], Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.asked, self.now, self.peak = script, [], 0, 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.asked.append(body)
            self.server.now += 1
            self.server.peak = max(self.server.peak, self.server.now)
        try:
            self._send(self.server.script(body, self.headers))
        finally:
            with self.server.lock:
                self.server.now -= 1

    def _send(self, reply: Reply) -> None:
        time.sleep(reply.before)
        headers = {"content-type": "application/json", **reply.headers, "content-length": str(len(reply.body))}
        head = f"HTTP/1.1 {reply.status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
        if not reply.pace:
            self.wfile.write(head.encode() + reply.body[: reply.cut])
        else:
            self.wfile.write(head.encode())
            for byte in reply.body:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(reply.pace)
        if reply.cut is not None:
            self.close_connection = True

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def serving(script: Callable[[dict, Any], Reply]) -> Iterator[Stub]:
    """The server, for as long as the block runs."""
    server = Stub(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
