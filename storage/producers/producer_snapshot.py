"""The file `<offset>.snapshot`: the producers of a partition as of that offset.

Layout, big-endian: version int16 (1), CRC-32C uint32 of everything after it, count int32, then per producer: id int64,
epoch int16, last sequence int32, last offset int64, offset delta int32, timestamp int64, coordinator epoch int32, first
offset of the open transaction int64 (-1: none). Source: Apache Kafka's producer snapshot, version 1.

An entry has only a producer's last batch, but a client may also repeat earlier ones. These follow the entries: a tag,
version int16 (1), then per batch, oldest first: producer id int64, last sequence int32, last offset int64, offset delta
int32, timestamp int64. Apache Kafka includes these bytes in the CRC and ignores them; its own files have none, and from
them only the last batch is known, as in Apache Kafka.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from common.checksum import crc32c
from common.ports import File
from common.whole_files import write_fully

VERSION = 1
NO_OFFSET = -1
_HEAD = Struct(">hIi")
_CRC_FROM = 6
_ENTRY = Struct(">qhiqiqiq")
_BATCHES_HEAD = Struct(">4sh")
_BATCHES_TAG = b"TLPB"
_BATCHES_VERSION = 1
_BATCH = Struct(">qiqiq")


class SnapshotEntry(NamedTuple):
    """One producer. `last_offset` and `last_sequence` are -1 if only markers are known of it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


SnapshotBatch = tuple[int, int, int, int, int]
"""A batch of a producer's current epoch: producer id, last sequence, last offset, offset delta, timestamp."""


class Snapshot(NamedTuple):
    """`batches`: all known batches of the producers in it; of any other producer, the entry has the only one."""

    entries: list[SnapshotEntry]
    batches: list[SnapshotBatch]


class SnapshotParts(NamedTuple):
    """A snapshot of `producers` producers in encoded pieces: all entries, then the batches."""

    producers: int
    pieces: list[bytes]


def encode_entries(entries: Iterable[SnapshotEntry]) -> bytes:
    return b"".join([_ENTRY.pack(*entry) for entry in entries])


def encode_batches(batches: Iterable[SnapshotBatch], *, is_first: bool) -> bytes:
    """A piece of the batches after the entries; the first begins with the tag. Empty without batches."""
    data = b"".join([_BATCH.pack(*batch) for batch in batches])
    return _BATCHES_HEAD.pack(_BATCHES_TAG, _BATCHES_VERSION) + data if is_first and data else data


def _head(parts: SnapshotParts) -> bytes:
    crc = crc32c(_HEAD.pack(VERSION, 0, parts.producers)[_CRC_FROM:])
    for piece in parts.pieces:
        crc = crc32c(piece, crc)
    return _HEAD.pack(VERSION, crc, parts.producers)


def join_parts(parts: SnapshotParts) -> bytes:
    """The bytes of the file."""
    return b"".join([_head(parts), *parts.pieces])


def write_parts(file: File, parts: SnapshotParts) -> None:
    """Write them piece by piece into an empty file."""
    at = 0
    for piece in [_head(parts), *parts.pieces]:
        if piece:
            write_fully(file, piece, at)
            at += len(piece)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    pieces = [encode_entries(snapshot.entries), encode_batches(snapshot.batches, is_first=True)]
    return join_parts(SnapshotParts(len(snapshot.entries), pieces))


def decode_snapshot(data: bytes) -> Snapshot:
    """The inverse of `encode_snapshot`; ValueError if version, CRC or length is wrong."""
    if len(data) < _HEAD.size:
        raise ValueError(f"a producer snapshot of {len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"a producer snapshot of version {version}")
    if crc32c(memoryview(data)[_CRC_FROM:]) != crc:
        raise ValueError("wrong CRC of a producer snapshot")
    end = _HEAD.size + count * _ENTRY.size
    if count < 0 or len(data) < end:
        raise ValueError(f"a producer snapshot of {len(data)} bytes with {count} entries")
    entries = [SnapshotEntry._make(fields) for fields in _ENTRY.iter_unpack(data[_HEAD.size : end])]
    return Snapshot(entries, _decode_batches(data[end:]))


def _decode_batches(data: bytes) -> list[SnapshotBatch]:
    """Empty if the bytes after the entries are not Tidelog's, or of a later version: the entries are sufficient."""
    if len(data) < _BATCHES_HEAD.size or _BATCHES_HEAD.unpack_from(data) != (_BATCHES_TAG, _BATCHES_VERSION):
        return []
    rows = data[_BATCHES_HEAD.size :]
    if len(rows) % _BATCH.size:
        raise ValueError(f"a producer snapshot with {len(rows)} bytes of batches")
    return list(_BATCH.iter_unpack(rows))
