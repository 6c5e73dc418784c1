"""Builds the indexes of a segment from its batches, in order, as appending them would."""

from typing import Protocol

from records.batch import BatchHeader
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import NO_TIMESTAMP, LargestTimestamp, TimeIndex


class Indexes(Protocol):
    """Both indexes of one segment, wherever their entries are written."""

    def append(self, last_offset: int, position: int, largest: LargestTimestamp) -> None:
        """Add a batch, and the largest timestamp so far."""
        ...

    def append_time(self, largest: LargestTimestamp) -> None: ...


class IndexEntries:
    """The bytes of both index files, in memory."""

    def __init__(self, base_offset: int) -> None:
        self._offsets = OffsetIndex(base_offset)
        self._times = TimeIndex(base_offset)
        self.offset_entries = bytearray()
        self.time_entries = bytearray()

    def append(self, last_offset: int, position: int, largest: LargestTimestamp) -> None:
        self.offset_entries += self._offsets.append(last_offset, position)
        self.append_time(largest)

    def append_time(self, largest: LargestTimestamp) -> None:
        if largest.timestamp > self._times.last_timestamp:
            self.time_entries += self._times.append(*largest) or b""


class IndexBuilder:
    """`largest` is the largest timestamp so far, `bytes_since_index` what was added since the last offset entry."""

    def __init__(self, indexes: Indexes, largest: LargestTimestamp, interval_bytes: int = 4_096) -> None:
        self._indexes = indexes
        self._interval_bytes = interval_bytes
        self.bytes_since_index = 0
        self.largest = largest

    def add(self, position: int, header: BatchHeader) -> None:
        if header.max_timestamp > self.largest.timestamp:
            self.largest = LargestTimestamp(header.max_timestamp, header.last_offset)
        if self.bytes_since_index > self._interval_bytes:
            self._indexes.append(header.last_offset, position, self.largest)
            self.bytes_since_index = 0
        self.bytes_since_index += header.size

    def finish(self) -> None:
        """The segment is complete."""
        self._indexes.append_time(self.largest)


def without_timestamp(base_offset: int) -> LargestTimestamp:
    """For a segment without timestamps."""
    return LargestTimestamp(NO_TIMESTAMP, base_offset)
