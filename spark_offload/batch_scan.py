"""The batches of a piece of a segment, as columns of their headers."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

import numpy as np
import numpy.typing as npt

from common.checksum import crc32c
from records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
)
from spark_offload.varints import Bytes, DamagedRecords, Integers

Flags = npt.NDArray[np.bool_]

_LENGTH_AT = 8
_LENGTH = Struct(">i")
_CRC = Struct(">I")
_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
_HEADER_RANGE = np.arange(HEADER_BYTES)


@dataclass(slots=True)
class BatchTable:
    """One row per batch. `at` and `end` are positions in the scanned bytes, header included; timestamps are in ms."""

    at: Integers
    end: Integers
    base_offset: Integers
    attributes: Integers
    last_offset_delta: Integers
    base_timestamp: Integers
    max_timestamp: Integers
    producer_id: Integers
    count: Integers

    def __len__(self) -> int:
        return len(self.at)

    @property
    def last_offset(self) -> Integers:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> Integers:
        """Numbers of `records.compression.Compression`."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_control(self) -> Flags:
        return self._has(CONTROL)

    @property
    def is_transactional(self) -> Flags:
        return self._has(TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> Flags:
        return self._has(TIMESTAMP_TYPE)

    @property
    def is_dense(self) -> Flags:
        """Batches that still hold a record for each of their offsets."""
        dense: Flags = self.count == self.last_offset_delta + 1
        return dense

    def _has(self, attribute: int) -> Flags:
        flags: Flags = (self.attributes & attribute) != 0
        return flags

    def where(self, rows: Flags | slice) -> BatchTable:
        """The chosen rows alone."""
        return BatchTable(
            self.at[rows],
            self.end[rows],
            self.base_offset[rows],
            self.attributes[rows],
            self.last_offset_delta[rows],
            self.base_timestamp[rows],
            self.max_timestamp[rows],
            self.producer_id[rows],
            self.count[rows],
        )


def whole_batches_end(view: memoryview) -> tuple[int, int]:
    """(end of the last whole batch, bytes that the batch after it takes; 0 when less than its length is there)."""
    at, end = 0, len(view)
    while end - at >= PREFIX_BYTES:
        size = _size_at(view, at)
        if size > end - at:
            return at, size
        at += size
    return at, 0


def scan_batches(view: memoryview, *, check_crc: bool = True) -> BatchTable:
    """All batches of `view`, which holds whole ones.

    DamagedRecords: bytes that are no batch, a wrong CRC, offsets that do not grow, counts that cannot be.
    """
    positions = _positions(view, check_crc)
    data = np.frombuffer(view, np.uint8)
    fields = np.ascontiguousarray(data[positions[:-1, None] + _HEADER_RANGE]).view(_HEADER).reshape(-1)
    table = BatchTable(
        at=positions[:-1],
        end=positions[1:],
        base_offset=_column(fields, "base_offset"),
        attributes=_column(fields, "attributes"),
        last_offset_delta=_column(fields, "last_offset_delta"),
        base_timestamp=_column(fields, "base_timestamp"),
        max_timestamp=_column(fields, "max_timestamp"),
        producer_id=_column(fields, "producer_id"),
        count=_column(fields, "count"),
    )
    _check(table, _column(fields, "magic"))
    return table


def _positions(view: memoryview, check_crc: bool) -> Integers:
    """Where each batch begins, and the end of the last one."""
    found = [0]
    at, end = 0, len(view)
    while at < end:
        if end - at < HEADER_BYTES:
            raise DamagedRecords(f"{end - at} bytes after the last batch")
        size = _size_at(view, at)
        if size > end - at:
            raise DamagedRecords(f"a batch of {size} bytes in {end - at} bytes")
        if check_crc and crc32c(view[at + CRC_FROM : at + size]) != _CRC.unpack_from(view, at + CRC_AT)[0]:
            raise DamagedRecords(f"wrong CRC of the batch at byte {at}")
        at += size
        found.append(at)
    return np.array(found, np.int64)


def _size_at(view: memoryview, at: int) -> int:
    size: int = _LENGTH.unpack_from(view, at + _LENGTH_AT)[0] + PREFIX_BYTES
    if size < HEADER_BYTES:
        raise DamagedRecords(f"a batch of {size} bytes at byte {at}")
    return size


def _column(fields: npt.NDArray[np.void], name: str) -> Integers:
    return fields[name].astype(np.int64)


def _check(table: BatchTable, magic: Integers) -> None:
    if (magic != MAGIC).any():
        raise DamagedRecords(f"a batch of message format {int(magic[magic != MAGIC][0])}")
    if (table.base_offset < 0).any() or (table.last_offset_delta < 0).any() or (table.count < 0).any():
        raise DamagedRecords("a batch with a negative offset or count")
    if (table.count > table.last_offset_delta + 1).any():
        raise DamagedRecords("a batch of more records than offsets")
    last = table.last_offset  # wraps round to a negative number beyond 2**63
    if (last < table.base_offset).any() or (table.base_offset[1:] <= last[:-1]).any():
        raise DamagedRecords("a batch whose offsets do not follow those before it")


def bytes_of(view: memoryview) -> Bytes:
    """The same memory as an array."""
    return np.frombuffer(view, np.uint8)
