"""The indexes behind a segment's log bytes: fetched, checked and searched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.checksum import crc32c
from object_store.store import ObjectStore
from spark_offload.segments.varints import DamagedRecords, Integers
from tiering.bucket.segment import Section

_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


async def read_section(store: ObjectStore, key: str, section: Section | None) -> bytes:
    """One section of the object `key`, b"" for one that is not there.

    Raises DamagedRecords when its bytes are not those that were written, StoreError.
    """
    if section is None or not section.length:
        return b""
    data = await store.get(key, section.position, section.length)
    if crc32c(data) != section.crc32c:
        raise DamagedRecords(f"wrong CRC of bytes {section.position} to {section.position + section.length} of {key}")
    return data


@dataclass(slots=True)
class OffsetEntries:
    """`offset[i]` is the last offset of the batch at `position[i]`."""

    offset: Integers
    position: Integers

    def within(self, low: int, high: int) -> OffsetEntries:
        """Those of batches that begin in [low, high)."""
        inside = (self.position >= low) & (self.position < high)
        return OffsetEntries(self.offset[inside], self.position[inside])


@dataclass(slots=True)
class TimeEntries:
    """Up to `offset[i]` no record of the segment is newer than `timestamp[i]`."""

    timestamp: Integers
    offset: Integers


def offset_entries(data: bytes, base_offset: int) -> OffsetEntries:
    """DamagedRecords for a length that no index has."""
    if len(data) % _OFFSET_ENTRY.itemsize:
        raise DamagedRecords(f"an offset index of {len(data)} bytes")
    entries = np.frombuffer(data, _OFFSET_ENTRY)
    return OffsetEntries(entries["offset"].astype(np.int64) + base_offset, entries["position"].astype(np.int64))


def time_entries(data: bytes, base_offset: int) -> TimeEntries:
    """DamagedRecords for a length that no index has."""
    if len(data) % _TIME_ENTRY.itemsize:
        raise DamagedRecords(f"a time index of {len(data)} bytes")
    entries = np.frombuffer(data, _TIME_ENTRY)
    return TimeEntries(entries["timestamp"].astype(np.int64), entries["offset"].astype(np.int64) + base_offset)


class OffsetPositions:
    """A segment's offset index: at each position begins the batch whose last offset is given."""

    def __init__(self, data: bytes, base_offset: int, log_bytes: int) -> None:
        entries = offset_entries(data, base_offset)
        self.offset, self.position = entries.offset, entries.position
        self._log_bytes = log_bytes
        if not _grow(self.position) or not _grow(self.offset):
            raise DamagedRecords("an offset index that does not grow")
        if len(self.position) and not 0 <= self.position[0] <= self.position[-1] < log_bytes:
            raise DamagedRecords("an offset index that leaves its segment")

    def window(self, start: int, end: int) -> tuple[int, int]:
        """Batch boundaries round the records with `start` <= offset < `end`, as near as the index knows."""
        before = int(np.searchsorted(self.offset, start, side="right")) - 1
        low = int(self.position[before]) if before >= 0 else 0
        after = int(np.searchsorted(self.offset, end - 1, side="left")) + 1
        high = int(self.position[after]) if after < len(self.position) else self._log_bytes
        return low, max(low, high)

    def aligned(self, position: int) -> int:
        """The first known batch boundary at or after `position`."""
        if position <= 0:
            return 0
        at = int(np.searchsorted(self.position, position, side="left"))
        return int(self.position[at]) if at < len(self.position) else self._log_bytes


def offset_before_timestamp(data: bytes, base_offset: int, timestamp: int) -> int:
    """An offset up to which no record has `timestamp` or a later one, as a time index tells; `base_offset` - 1 if none.

    An entry says that up to and including its offset no record of the segment has a larger timestamp than its own.
    """
    entries = time_entries(data, base_offset)
    before = int(np.searchsorted(entries.timestamp, timestamp, side="left")) - 1
    return int(entries.offset[before]) if before >= 0 else base_offset - 1


def _grow(values: Integers) -> bool:
    return bool((values[1:] > values[:-1]).all())
