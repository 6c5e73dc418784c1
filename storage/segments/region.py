"""A run of whole bytes of one segment file: what a read of a log answers, instead of bytes."""

from typing import Protocol

import msgspec

from common.ports import File
from storage.disk.cold_reads import PageWait


class Pin(Protocol):
    """What keeps a file open while somebody reads it."""

    def unpin(self) -> None: ...

    def bring_in(self, file: File, position: int) -> PageWait | None:
        """Have its bytes from `position` on brought into memory; None when they were just now."""
        ...

    def is_intact(self) -> bool:
        """False when its bytes are known to have been changed behind their reader's back."""
        ...

    def cut_short(self) -> str:
        """Note that promised bytes cannot be read; returns the file's name for the log."""
        ...


class Region(msgspec.Struct, frozen=True, gc=False):
    """`length` bytes of `file` from `position` on, whole record batches all of them.

    The file stays open until `release`, also when its segment is deleted meanwhile. The caller releases the region
    exactly once, after the last byte is sent or when its connection is lost.
    """

    file: File
    position: int
    length: int
    handle: Pin
    is_fresh: bool = False  # its bytes were written a moment ago

    def read(self) -> bytes:
        """All its bytes, copied once out of the page cache; fewer when the log was truncated below its end."""
        return self.file.pread(self.length, self.position)

    def in_memory(self, at: int, size: int) -> int:
        """How many of `size` bytes from `at` on can be sent without waiting for the device."""
        return size if self.is_fresh else self.file.in_memory(size, self.position + at)

    def bring_in(self, at: int) -> PageWait | None:
        """Have the bytes from `at` on brought into memory; None when they were just now."""
        return self.handle.bring_in(self.file, self.position + at)

    def release(self) -> None:
        self.handle.unpin()

    def is_intact(self) -> bool:
        """See `Pin`. To be asked just before its bytes are sent."""
        return self.handle.is_intact()

    def cut_short(self) -> str:
        """See `Pin`."""
        return self.handle.cut_short()
