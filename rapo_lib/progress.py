"""Progress, the one place that writes to the terminal while something long runs.

In place on a terminal; elsewhere (log files, notebooks) one plain line now and then, because widgets and carriage
returns survive neither papermill nor a log.
"""

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Self, TextIO, TypeVar

T = TypeVar("T")
TERMINAL, LOG = 1.0, 15.0  # seconds between two updates


def duration(seconds: float) -> str:
    """Seconds as a person reads them: 8s, 2m05s, 1h02m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def say(text: str, stream: TextIO | None = None) -> None:
    """One line to the user."""
    stream = stream or sys.stderr
    stream.write(text + "\n")
    stream.flush()


class Progress:
    """`label  done/total  elapsed of about total`, redrawn while the block runs, with one last line at its end."""

    def __init__(
        self,
        label: str,
        total: int | None = None,
        expected: float | None = None,
        unit: str = "",
        stream: TextIO | None = None,
        every: float = LOG,
    ) -> None:
        self.label, self.total, self.expected, self.unit = label, total, expected, unit
        self.stream = stream or sys.stderr
        self.in_place = self.stream.isatty()
        self.interval = TERMINAL if self.in_place else every
        self.done = 0
        self.started = time.monotonic()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._ticker.join()
        outcome = "done in" if kind is None else "stopped after"
        self._draw(f"{self.label}  {outcome} {duration(time.monotonic() - self.started)}", last=True)

    def line(self) -> str:
        """The current state in words."""
        elapsed = time.monotonic() - self.started
        count = f"  {self.unit}{self.done}/{self.total}" if self.total else f"  {self.unit}{self.done}"
        estimate = self._estimate(elapsed)
        return f"{self.label}{count}  {duration(elapsed)}" + (f" of about {duration(estimate)}" if estimate else "")

    def _estimate(self, elapsed: float) -> float | None:
        """Total seconds: what it took last time, else in proportion to what is done."""
        if self.expected:
            return max(self.expected, elapsed)
        return elapsed * self.total / self.done if self.total and self.done else None

    def _tick(self) -> None:
        while not self._ended.wait(self.interval):
            self._draw(self.line())

    def _draw(self, text: str, last: bool = False) -> None:
        if self.in_place:
            self.stream.write(f"\r\x1b[K{text}" + ("\n" if last else ""))
        else:
            self.stream.write(text + "\n")
        self.stream.flush()


def progress(items: Iterable[T], label: str) -> Iterator[T]:
    """Go through `items`, showing how far we are."""
    total = len(items) if isinstance(items, Sized) else None
    with Progress(label, total) as shown:
        for item in items:
            yield item
            shown.done += 1
