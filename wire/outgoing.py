"""What leaves a connection: bytes and regions of files, in order, with one call per turn where the socket takes it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from common.ports import File


class FileRegion(Protocol):
    """Whole bytes of one file. If it has a `release()` method, that is called once: when sent, or given up."""

    @property
    def file(self) -> File: ...

    @property
    def position(self) -> int: ...

    @property
    def length(self) -> int: ...


@runtime_checkable
class Releasable(Protocol):
    def release(self) -> None: ...


Part = bytes | bytearray | FileRegion
