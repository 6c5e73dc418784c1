"""The sparse offset index of one segment: `.index`, 8 bytes per entry.

An entry is (offset relative to the segment's base, position in the `.log` file), both int32, big-endian and growing.
The offset is the last one of the batch that begins at the position, as Apache Kafka writes it. Entries are searched
on disk: the page cache holds them, the process does not.
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

_ENTRY = Struct(">ii")
ENTRY_BYTES = _ENTRY.size
RELATIVE_MAX = 2**31 - 1
_WINDOW_BYTES = 8_192  # read at once for the last part of a search: two pages cost less than three more reads

Pread = Callable[[int, int], bytes]
"""`common.ports.File.pread`: (size, position) to bytes."""


class OffsetPosition(NamedTuple):
    offset: int
    position: int


class OffsetIndex:
    """The state needed to append to one `.index` and to search it; it holds no file."""

    __slots__ = ("base_offset", "count", "last_offset", "last_position")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.count = 0
        self.last_offset = base_offset
        self.last_position = 0

    @classmethod
    def load(cls, base_offset: int, pread: Pread, size: int) -> "OffsetIndex":
        """An index of `size` bytes on disk. ValueError if its length or its last entry is invalid."""
        if size % ENTRY_BYTES:
            raise ValueError(f"an offset index of {size} bytes")
        index = cls(base_offset)
        index._set_end(pread, size // ENTRY_BYTES)
        if index.count and (index.last_offset < base_offset or index.last_position < 0):
            raise ValueError("the last entry of an offset index lies before its segment")
        if index.count > 1 and index.last_offset == base_offset:
            raise ValueError("an offset index ends in empty entries")
        return index

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.count * ENTRY_BYTES

    def append(self, offset: int, position: int) -> bytes:
        """The entry to write at the old `size`. ValueError unless both values grow and fit into 31 bits."""
        relative = offset - self.base_offset
        if not 0 <= relative <= RELATIVE_MAX or not 0 <= position <= RELATIVE_MAX:
            raise ValueError(f"offset {offset} at {position} does not fit an index from {self.base_offset}")
        if self.count and (offset <= self.last_offset or position <= self.last_position):
            raise ValueError(f"offset {offset} at {position} after {self.last_offset} at {self.last_position}")
        self.count += 1
        self.last_offset = offset
        self.last_position = position
        return _ENTRY.pack(relative, position)

    def lookup(self, pread: Pread, offset: int) -> OffsetPosition:
        """The last entry at or before `offset`; the segment's start when there is none."""
        if self.count and offset >= self.last_offset:
            return OffsetPosition(self.last_offset, self.last_position)
        slot = search(pread, self.count, ENTRY_BYTES, _relative_offset, offset - self.base_offset)
        return self.entry(pread, slot) if slot >= 0 else OffsetPosition(self.base_offset, 0)

    def entry(self, pread: Pread, slot: int) -> OffsetPosition:
        relative, position = _ENTRY.unpack(pread(ENTRY_BYTES, slot * ENTRY_BYTES))
        return OffsetPosition(self.base_offset + relative, position)

    def entries(self, pread: Pread) -> list[OffsetPosition]:
        """All of them: for recovery, tests and dumps."""
        data = pread(self.size, 0)
        return [
            OffsetPosition(self.base_offset + relative, position) for relative, position in _ENTRY.iter_unpack(data)
        ]

    def truncate_to(self, pread: Pread, offset: int) -> int:
        """Drop entries at or after `offset`. Returns the new length of the file."""
        slot = search(pread, self.count, ENTRY_BYTES, _relative_offset, offset - 1 - self.base_offset)
        self._set_end(pread, slot + 1)
        return self.size

    def _set_end(self, pread: Pread, count: int) -> None:
        self.count = count
        last = self.entry(pread, count - 1) if count else OffsetPosition(self.base_offset, 0)
        self.last_offset, self.last_position = last


def _relative_offset(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big", signed=True)


def search(pread: Pread, count: int, entry_bytes: int, key_at: Callable[[bytes, int], int], target: int) -> int:
    """The last slot of `count` ordered entries whose key is at most `target`, or -1.

    Halves the range by single reads until it fits one window, then searches that in memory.
    """
    window_entries = _WINDOW_BYTES // entry_bytes
    low, high = 0, count  # keys before `low` are at most the target, keys from `high` on are above
    while high - low > window_entries:
        middle = (low + high) // 2
        if key_at(pread(entry_bytes, middle * entry_bytes), 0) <= target:
            low = middle + 1
        else:
            high = middle
    first = low
    window = pread((high - low) * entry_bytes, low * entry_bytes) if high > low else b""
    while low < high:
        middle = (low + high) // 2
        if key_at(window, (middle - first) * entry_bytes) <= target:
            low = middle + 1
        else:
            high = middle
    return low - 1
