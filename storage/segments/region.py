"""A range of complete batches in one segment file: the result of a read, instead of bytes."""

from typing import Protocol

import msgspec

from common.ports import File
from storage.disk.cold_reads import PageWait


class Pin(Protocol):
    """Keeps a file open while it is being read."""

    def unpin(self) -> None: ...

    def bring_in(self, file: File, position: int) -> PageWait | None:
        """Start reading its bytes from `position` on into memory; None if they were read just now."""
        ...

    def is_intact(self) -> bool:
        """False if its bytes are known to have changed unexpectedly."""
        ...

    def cut_short(self) -> str:
        """Record that promised bytes cannot be read. Returns the file's name for the log."""
        ...


class Region(msgspec.Struct, frozen=True, gc=False):
    """`length` bytes of `file` from `position` on, all of them complete record batches.

    The file stays open until `release`, even if its segment is deleted. The caller releases the region exactly once,
    after the last byte is sent or when its connection is lost.
    """

    file: File
    position: int
    length: int
    handle: Pin
    is_fresh: bool = False  # its bytes were written a moment ago

    def read(self) -> bytes:
        """All its bytes, copied once from the page cache; fewer if the log was truncated below its end."""
        return self.file.pread(self.length, self.position)

    def in_memory(self, at: int, size: int) -> int:
        """How many of `size` bytes from `at` on can be sent without waiting for the device."""
        return size if self.is_fresh else self.file.in_memory(size, self.position + at)

    def bring_in(self, at: int) -> PageWait | None:
        """Start reading the bytes from `at` on into memory; None if they were read just now."""
        return self.handle.bring_in(self.file, self.position + at)

    def release(self) -> None:
        self.handle.unpin()

    def is_intact(self) -> bool:
        """See `Pin`. Call it just before the bytes are sent."""
        return self.handle.is_intact()

    def cut_short(self) -> str:
        """See `Pin`."""
        return self.handle.cut_short()
