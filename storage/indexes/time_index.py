"""The sparse time index of one segment: `.timeindex`, 12 bytes per entry.

An entry (timestamp int64 in milliseconds, relative offset int32; big-endian) says: up to and including this offset no
record of the segment has a larger timestamp. Timestamps grow strictly, offsets never fall.
"""

from struct import Struct
from typing import NamedTuple

from storage.indexes.offset_index import RELATIVE_MAX, Pread, search

_ENTRY = Struct(">qi")
ENTRY_BYTES = _ENTRY.size
NO_TIMESTAMP = -1


class LargestTimestamp(NamedTuple):
    """A segment's largest timestamp (-1: none) and the last offset of the first batch that holds it."""

    timestamp: int
    offset: int


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class TimeIndex:
    """The state needed to append to one `.timeindex` and to search it; it holds no file."""

    __slots__ = ("base_offset", "count", "last_offset", "last_timestamp")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.count = 0
        self.last_timestamp = NO_TIMESTAMP
        self.last_offset = base_offset

    @classmethod
    def load(cls, base_offset: int, pread: Pread, size: int) -> "TimeIndex":
        """An index of `size` bytes on disk. ValueError if its length or its ends are invalid."""
        if size % ENTRY_BYTES:
            raise ValueError(f"a time index of {size} bytes")
        index = cls(base_offset)
        index._set_end(pread, size // ENTRY_BYTES)
        if index.count and index.last_offset < base_offset:
            raise ValueError("the last entry of a time index lies before its segment")
        if index.count > 1 and index.entry(pread, 0).timestamp >= index.last_timestamp:
            raise ValueError("the timestamps of a time index do not grow")
        return index

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.count * ENTRY_BYTES

    def append(self, timestamp: int, offset: int) -> bytes | None:
        """The entry to write at the old `size`, or None if `timestamp` is not larger than the last.

        `offset`: of the batch's last record with the largest timestamp so far. ValueError if it is below the last entry
        or out of range.
        """
        if timestamp <= self.last_timestamp:
            return None
        relative = offset - self.base_offset
        if not 0 <= relative <= RELATIVE_MAX:
            raise ValueError(f"offset {offset} does not fit a time index from {self.base_offset}")
        if self.count and offset < self.last_offset:
            raise ValueError(f"offset {offset} after {self.last_offset} in a time index")
        self.count += 1
        self.last_timestamp = timestamp
        self.last_offset = offset
        return _ENTRY.pack(timestamp, relative)

    def lookup(self, pread: Pread, timestamp: int) -> TimestampOffset:
        """The last entry with at most `timestamp`; (-1, base offset) if there is none.

        To find the first record with a timestamp of at least T, pass T - 1 and scan from the returned offset.
        """
        slot = search(pread, self.count, ENTRY_BYTES, _timestamp, timestamp)
        return self.entry(pread, slot) if slot >= 0 else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def entry(self, pread: Pread, slot: int) -> TimestampOffset:
        timestamp, relative = _ENTRY.unpack(pread(ENTRY_BYTES, slot * ENTRY_BYTES))
        return TimestampOffset(timestamp, self.base_offset + relative)

    def entries(self, pread: Pread) -> list[TimestampOffset]:
        """All of them: for recovery, tests and dumps."""
        data = pread(self.size, 0)
        return [
            TimestampOffset(timestamp, self.base_offset + relative) for timestamp, relative in _ENTRY.iter_unpack(data)
        ]

    def look_at_cut(self, pread: Pread, offset: int) -> None:
        """Read what `truncate_to` will read."""
        slot = search(pread, self.count, ENTRY_BYTES, _relative_offset, offset - 1 - self.base_offset)
        if slot >= 0:
            self.entry(pread, slot)

    def truncate_to(self, pread: Pread, offset: int) -> int:
        """Drop entries at or after `offset`. Returns the new length of the file."""
        slot = search(pread, self.count, ENTRY_BYTES, _relative_offset, offset - 1 - self.base_offset)
        self._set_end(pread, slot + 1)
        return self.size

    def _set_end(self, pread: Pread, count: int) -> None:
        self.count = count
        last = self.entry(pread, count - 1) if count else TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self.last_timestamp, self.last_offset = last


def _timestamp(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "big", signed=True)


def _relative_offset(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
