"""The batches in a part of a segment, as columns of their headers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_BYTES,
    MAGIC,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
)
from spark_offload.segments.batch_headers import checksums_between, headers_between, steps
from spark_offload.segments.varints import Bytes, DamagedRecords, Integers

Flags = npt.NDArray[np.bool_]


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
        """Batches that still have a record for each of their offsets."""
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
    bounds, size = steps(view)
    if size < 0:
        raise _too_small(bounds[-1])
    return bounds[-1], size


def scan_batches(view: memoryview, *, check_crc: bool = True) -> BatchTable:
    """All batches of `view`, which holds whole ones.

    DamagedRecords: bytes that are no batch, a wrong CRC, offsets that do not grow, counts that cannot be.
    """
    bounds, size = steps(view)
    left = len(view) - bounds[-1]
    if size < 0:
        raise _too_small(bounds[-1])
    if left:
        raise DamagedRecords(
            f"a batch of {size} bytes in {left} bytes" if size else f"{left} bytes after the last batch"
        )
    fields = headers_between(view, bounds)
    if check_crc:
        wrong = np.flatnonzero(checksums_between(view, bounds) != fields["crc"])
        if len(wrong):
            raise DamagedRecords(f"wrong CRC of the batch at byte {bounds[int(wrong[0])]}")
    positions = np.array(bounds, np.int64)
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


def _too_small(at: int) -> DamagedRecords:
    return DamagedRecords(f"a batch of fewer than {HEADER_BYTES} bytes at byte {at}")


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
