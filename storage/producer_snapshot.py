"""The file `<offset>.snapshot`: the producers of a partition as they stood at that offset.

Layout, big-endian: version int16 (1), CRC-32C uint32 of all that follows it, count int32, then per producer: id int64,
epoch int16, last sequence int32, last offset int64, offset delta int32, timestamp int64, coordinator epoch int32,
first offset of the open transaction int64 (-1: none). Source: Apache Kafka's producer snapshot, version 1.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from common.checksum import crc32c

VERSION = 1
NO_OFFSET = -1
_HEAD = Struct(">hIi")
_CRC_FROM = 6
_ENTRY = Struct(">qhiqiqiq")


class SnapshotEntry(NamedTuple):
    """One producer. `last_offset` is -1 and `last_sequence` -1 when only markers are known of it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    body = [_ENTRY.pack(*entry) for entry in entries]
    data = bytearray(_HEAD.pack(VERSION, 0, len(body)) + b"".join(body))
    crc = crc32c(memoryview(data)[_CRC_FROM:])
    _HEAD.pack_into(data, 0, VERSION, crc, len(body))
    return bytes(data)


def decode_snapshot(data: bytes) -> list[SnapshotEntry]:
    """The inverse of `encode_snapshot`; ValueError when version, CRC or length is wrong."""
    if len(data) < _HEAD.size:
        raise ValueError(f"a producer snapshot of {len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"a producer snapshot of version {version}")
    if crc32c(memoryview(data)[_CRC_FROM:]) != crc:
        raise ValueError("wrong CRC of a producer snapshot")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise ValueError(f"a producer snapshot of {len(data)} bytes with {count} entries")
    return [SnapshotEntry._make(fields) for fields in _ENTRY.iter_unpack(data[_HEAD.size :])]
