"""Bytes on their way to an object: in memory while they are few, else in a file without a name on the executor."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable

from common.machine_disk import MachineFile
from object_store.store import FileRange

MEMORY_BYTES = 64 << 20


class Spool:
    """Append, read the whole as the body of a put, then `close`, which gives the file's space back."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        """The file, if one is needed, lies where the machine keeps temporary files (TMPDIR)."""
        self.size = 0
        self._memory_bytes = memory_bytes
        self._parts: list[bytes] = []
        self._in_memory = 0
        self._file: MachineFile | None = None
        self._in_file = 0

    def append(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        """Append a copy. Raises OSError if the file cannot be written."""
        data = b"".join(parts)
        self._parts.append(data)
        self.size += len(data)
        self._in_memory += len(data)
        if self._in_memory > self._memory_bytes:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            with tempfile.TemporaryFile(prefix="tidelog-") as file:
                self._file = MachineFile(os.dup(file.fileno()))
        for part in self._parts:
            view = memoryview(part)
            while view:
                written = self._file.pwrite(view, self._in_file)
                self._in_file += written
                view = view[written:]
        self._parts.clear()
        self._in_memory = 0

    def body(self, tail: Iterable[bytes]) -> list[bytes | FileRange]:
        """All bytes, then `tail`. Use it before `close`."""
        head = [FileRange(self._file, 0, self._in_file)] if self._file is not None else []
        return [*head, *self._parts, *tail]

    def close(self) -> None:
        self._parts.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
