"""Lines of a descriptor, with a bound on their length, until its end or an interruption."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tidelog.streams.interruption import Interruption
from tidelog.streams.record_lines import LINE_BYTES_MAX, BadLine

READ_BYTES = 1 << 16


class LineSource:
    """`number` is that of the line which was read last, from 1 on."""

    def __init__(self, descriptor: int, interruption: Interruption, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._descriptor = descriptor
        self._interruption = interruption
        self._most = line_bytes_max
        self.number = 0

    def __iter__(self) -> Iterator[bytes]:
        """Without their ends, CRLF or LF. Raises BadLine for one that is too long."""
        rest = bytearray()
        while data := self._read():
            begin = 0
            while (end := data.find(b"\n", begin)) >= 0:
                rest += data[begin:end]
                yield self._line(rest)
                rest = bytearray()
                begin = end + 1
            rest += data[begin:]
            if len(rest) > self._most:
                self._line(rest)
        if rest and not self._interruption.asked:
            yield self._line(rest)

    def _read(self) -> bytes:
        if not self._interruption.wait_readable(self._descriptor):
            return b""
        return os.read(self._descriptor, READ_BYTES)

    def _line(self, line: bytearray) -> bytes:
        self.number += 1
        if len(line) > self._most:
            raise BadLine(f"it has more than {self._most} bytes")
        return bytes(line[:-1] if line.endswith(b"\r") else line)
