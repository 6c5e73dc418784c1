"""Producer snapshots of tiered segments, as Apache Kafka writes them: parsed and checked."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from common.checksum import crc32c

_VERSION = 1
_HEAD = Struct(">hIi")
_CRC_FROM = 6
_ENTRY = Struct(">qhiqiqiq")


class SnapshotEntry(NamedTuple):
    """Source: Apache Kafka's producer snapshot, version 1. -1 where there is no sequence, offset or transaction."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


def snapshot_entries(data: bytes) -> list[SnapshotEntry]:
    """ValueError when the bytes are no producer snapshot."""
    if len(data) < _HEAD.size:
        raise ValueError(f"a producer snapshot of {len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    end = _HEAD.size + count * _ENTRY.size  # more may follow the entries
    if version != _VERSION or count < 0 or len(data) < end:
        raise ValueError(f"a producer snapshot of version {version}, {len(data)} bytes, {count} entries")
    if crc32c(memoryview(data)[_CRC_FROM:]) != crc:
        raise ValueError("wrong CRC of a producer snapshot")
    return [SnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(data[_HEAD.size : end])]
