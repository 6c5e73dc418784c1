"""SIGINT and SIGTERM while a command reads or writes records: it ends what it has begun, and says so.

A second one ends the process at once.
"""

from __future__ import annotations

import os
import select
import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """`asked` from the first signal on. Use it as a block in the main thread."""

    def __init__(self) -> None:
        self.asked = False
        self.number = 0
        self._before: dict[int, Any] = {}
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def __enter__(self) -> Interruption:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def wait_readable(self, descriptor: int) -> bool:
        """Wait for something to read; False if there is an interruption first."""
        ready, _, _ = select.select([descriptor, self._read], [], [])
        return self._read not in ready

    def wait_writable(self, descriptor: int) -> bool:
        """The same for room to write."""
        ready, _, _ = select.select([self._read], [descriptor], [])
        return not ready

    def pause(self, seconds: float) -> None:
        """Shorter if there is an interruption."""
        if seconds > 0:
            select.select([self._read], [], [], seconds)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.number = number
        os.write(self._write, b"!")
        for one in SIGNALS:
            signal.signal(one, signal.SIG_DFL)
