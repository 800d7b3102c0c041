"""Answers that were paid for once: a SQLite file of JSON, one row a question, written as each answer arrives.

The row holds what the model said, not what we made of it: refusals, truncations and broken JSON are read again each
time, so a better reader needs no new answers and nothing that failed can pass for a success. Failures of the
transport are not kept. Several processes may share a file on a local disk; a killed one loses nothing that arrived.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from rapo_lib.chat.request import Answer
from rapo_lib.runs import RapoError

Mode = Literal["off", "read_write", "replay"]
FORMAT = 1
WAIT = 60.0  # seconds for another process to finish writing
TABLE = (
    "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, request TEXT NOT NULL, answer TEXT NOT NULL, asker TEXT)"
)
CHUNK = 500  # keys a query


class ChatCache:
    """The answers in one file. Modes: off (nothing read or kept), read_write, replay (a miss is an error)."""

    def __init__(self, path: Path | None = None, mode: Mode = "read_write") -> None:
        if mode not in get_args(Mode):
            raise RapoError(f"unknown cache mode {mode!r}; modes: {', '.join(get_args(Mode))}")
        if path is None and mode != "off":
            raise RapoError(f"cache mode {mode!r} needs a file")
        if mode == "replay" and not path.is_file():
            raise RapoError(f"nothing to replay: {path} does not exist")
        self.path, self.mode = path, mode
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None

    def get(self, keys: Sequence[str]) -> dict[str, Answer]:
        """The answers that are known, by key."""
        if self.mode == "off":
            return {}
        found = {}
        with self._connection() as connection:
            for start in range(0, len(keys), CHUNK):
                part = keys[start : start + CHUNK]
                marks = ",".join("?" * len(part))
                found |= connection.execute(f"SELECT key, answer FROM answers WHERE key IN ({marks})", part).fetchall()
        return {key: Answer(**json.loads(answer)) for key, answer in found.items()}

    def put(self, key: str, request: Mapping[str, Any], answer: Answer, asker: str = "") -> Answer:
        """Keep an answer; if another process was first, its answer stands and is returned."""
        if self.mode == "off":
            return answer
        row = (key, json.dumps(request, ensure_ascii=False), json.dumps(asdict(answer), ensure_ascii=False), asker)
        with self._connection() as connection:
            connection.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", row)
            kept = connection.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return Answer(**json.loads(kept[0]))

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock:
                if self._opened is None:
                    self._opened = self._open()
                yield self._opened
        except sqlite3.DatabaseError as error:
            raise RapoError(f"the cache {self.path} cannot be used ({error}); move it away or mend it") from error

    def _open(self) -> sqlite3.Connection:
        connection = self._open_replay() if self.mode == "replay" else self._open_writable()
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found != FORMAT:
            raise RapoError(f"the cache {self.path} has format {found}, this version reads {FORMAT}; move it away")
        return connection

    def _open_replay(self) -> sqlite3.Connection:
        fixed = "" if os.access(self.path.parent, os.W_OK) else "&immutable=1"  # no lock file can be made there
        uri = f"{self.path.resolve().as_uri()}?mode=ro{fixed}"
        return sqlite3.connect(uri, uri=True, timeout=WAIT, check_same_thread=False)

    def _open_writable(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RapoError(f"cannot make {self.path.parent} for the cache: {error.strerror}") from error
        connection = sqlite3.connect(self.path, timeout=WAIT, isolation_level=None, check_same_thread=False)
        connection.execute(f"PRAGMA busy_timeout = {int(WAIT * 1000)}")
        connection.execute("PRAGMA journal_mode = WAL")  # readers and one writer at a time, no fsync for each answer
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")  # two processes may be making the file at once
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            connection.execute(TABLE)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
        return connection
