"""Where records are printed: a descriptor whose reader may be slow, or gone."""

from __future__ import annotations

import os
import select

from tidelog.streams.interruption import Interruption

WRITE_BYTES = 4_096  # a pipe that can take anything takes so much without waiting


class ReaderGone(Exception):
    """The reader has closed its end."""


class Unwritten(Exception):
    """What takes the output does not take it, such as a disk that is full; the text says why."""


class OutputPipe:
    def __init__(self, descriptor: int, interruption: Interruption) -> None:
        self._descriptor = descriptor
        self._interruption = interruption
        self._watch = select.poll()
        self._watch.register(descriptor, 0)

    def write(self, data: bytes) -> bool:
        """False if an interruption came before all was written. Raises ReaderGone, and Unwritten."""
        view = memoryview(data)
        while view:
            if not self._interruption.wait_writable(self._descriptor):
                return False
            try:
                view = view[os.write(self._descriptor, view[:WRITE_BYTES]) :]
            except BrokenPipeError:
                raise ReaderGone from None
            except OSError as error:
                raise Unwritten(error.strerror or str(error)) from None
        return True

    def check(self) -> None:
        """Raises ReaderGone, also while there is nothing to write."""
        if any(event & (select.POLLERR | select.POLLNVAL) for _, event in self._watch.poll(0)):
            raise ReaderGone
