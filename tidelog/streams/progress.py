"""How far a command is, on a terminal alone: one line that is written over."""

from __future__ import annotations

import time
from typing import TextIO

EVERY_S = 0.5
CLEAR = "\r\x1b[K"


class Progress:
    """Counts records; a `terminal` of None shows nothing."""

    def __init__(self, verb: str, terminal: TextIO | None) -> None:
        self._verb = verb
        self._terminal = terminal
        self._begin = time.monotonic()
        self._next = self._begin + EVERY_S
        self.records = 0
        self.bytes = 0

    def add(self, records: int, size: int) -> None:
        self.records += records
        self.bytes += size

    def show(self) -> None:
        now = time.monotonic()
        if self._terminal is not None and now >= self._next:
            self._next = now + EVERY_S
            print(f"{CLEAR}{self._line(now)}", end="", file=self._terminal, flush=True)

    def end(self) -> None:
        """The last line, which stays."""
        if self._terminal is not None:
            print(f"{CLEAR}{self._line(time.monotonic())}", file=self._terminal, flush=True)

    def _line(self, now: float) -> str:
        speed = self.records / max(now - self._begin, 1e-3)
        return f"{self._verb} {self.records:,} records, {self.bytes / 1e6:,.1f} MB, {speed:,.0f} a second"
