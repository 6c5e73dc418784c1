"""An index file whose newest entries are still in memory; reads combine both parts.

A crash may lose the newest entries: recovery rebuilds them from the batches.
"""

from common.ports import File
from storage.disk.open_files import FileHandle, OpenFiles

LUMP_ENTRIES = 128  # entries that wait in memory until they are written together


class IndexFile:
    """`flushed` bytes on disk, then `pending`. Runs on the event loop; the file is open only while it is used."""

    __slots__ = ("flushed", "handle", "is_blank", "pending")

    def __init__(self, open_files: OpenFiles, path: str, flushed: int = 0, *, is_blank: bool = False) -> None:
        self.handle = FileHandle(open_files, path)
        self.flushed = flushed
        self.pending = bytearray()
        self.is_blank = is_blank  # the file is new and was never written

    def append(self, entries: bytes) -> None:
        self.pending += entries

    def found(self, size: int) -> None:
        """The file on disk has `size` bytes of entries."""
        self.flushed = size

    def pread(self, size: int, position: int) -> bytes:
        """Read as if both parts were one file."""
        on_disk = self.flushed - position
        if on_disk <= 0:
            return bytes(self.pending[-on_disk : size - on_disk])
        data = self.handle.pread(min(size, on_disk), position)
        return data + bytes(self.pending[: size - on_disk]) if size > on_disk else data

    def truncate(self, size: int) -> None:
        if size >= self.flushed:
            del self.pending[size - self.flushed :]
            return
        self.pending.clear()
        self.flushed = size
        self.handle.use().truncate(size)

    def take_pending(self) -> tuple[int, bytes]:
        """Position and bytes for the caller to write now; they then count as written."""
        position, data = self.flushed, bytes(self.pending)
        self.note_written()
        return position, data

    def note_written(self) -> None:
        """The caller has written the pending entries after those on disk."""
        self.is_blank = self.is_blank and not self.pending
        self.flushed += len(self.pending)
        self.pending.clear()


def used_bytes(file: File, size: int, entry_bytes: int) -> int:
    """The length of an index without the empty entries of a preallocated file, and without a torn last entry.

    Only a file that was not closed properly has them, and no valid entry is empty: an offset entry has a position above
    0 and a time entry a timestamp.
    """
    count = size // entry_bytes
    empty = bytes(entry_bytes)
    if not count or file.pread(entry_bytes, (count - 1) * entry_bytes) != empty:
        return count * entry_bytes
    low, high = 0, count - 1  # entries from `high` on are empty
    while low < high:
        middle = (low + high) // 2
        if file.pread(entry_bytes, middle * entry_bytes) == empty:
            high = middle
        else:
            low = middle + 1
    return low * entry_bytes
