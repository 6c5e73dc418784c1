"""What has to be the same before and after an erasure: every record that stays, with its place and its batch's fields.

Several running hashes are kept, one per thing, so that it does not matter in which pieces a segment is read: the
records as they lie (attributes, deltas, key, value, headers), their lengths, offsets and timestamps, and attributes
but for the codec, and producer of the batch that each is in.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from records.batch import COMPRESSION_MASK
from spark_offload.erasure.key_digests import KeyMatcher
from spark_offload.options import INFLATED_BYTES_MAX
from spark_offload.segments.arrow_columns import NO_LENGTH, binary_column
from spark_offload.segments.batch_scan import BatchTable, Flags
from spark_offload.segments.payload import Payload, payloads
from spark_offload.segments.record_table import RecordTable, locate_records
from spark_offload.segments.varints import Integers

_THINGS = 6


def erased_records(matcher: KeyMatcher, payload: Payload, table: RecordTable) -> tuple[Flags, dict[bytes, int]]:
    """As `KeyMatcher.match`. The keys of control records are not keys of records."""
    length = np.where(payload.batches.is_control[table.batch], NO_LENGTH, table.key_length)
    return matcher.match(binary_column(payload.view, table.key_at, length))


@dataclass(slots=True)
class SurvivorDigest:
    """Takes the payloads in order."""

    records: int = 0
    _parts: list[Any] = field(default_factory=lambda: [hashlib.sha256() for _ in range(_THINGS)])

    def add(self, payload: Payload, table: RecordTable, stays: Flags) -> None:
        rows = np.flatnonzero(stays)
        self.records += len(rows)
        if not len(rows):
            return
        batch = table.batch[rows]
        length = table.end[rows] - table.start[rows]
        batches = payload.batches
        columns: list[Integers] = [
            length,
            table.offset[rows],
            table.timestamp[rows],
            batches.attributes[batch] & ~COMPRESSION_MASK,
            batches.producer_id[batch],
        ]
        lying = binary_column(payload.view, table.start[rows], length)
        self._parts[0].update(memoryview(lying.buffers()[2])[: int(length.sum())])
        for part, column in zip(self._parts[1:], columns, strict=True):
            part.update(column.astype("<i8").tobytes())

    def hexdigest(self) -> str:
        return hashlib.sha256(b"".join(part.digest() for part in self._parts)).hexdigest()


@dataclass(slots=True)
class SegmentScan:
    """One segment, looked through once. `found` counts records by the digest of their key."""

    matcher: KeyMatcher
    inflated_bytes_max: int = INFLATED_BYTES_MAX
    survivors: SurvivorDigest = field(default_factory=SurvivorDigest)
    records: int = 0
    found: Counter[bytes] = field(default_factory=Counter)

    def feed(self, view: memoryview, batches: BatchTable) -> None:
        """Add the next batches of the segment, scanned in `view`. Raises DamagedRecords if they cannot be read."""
        for payload in payloads(view, batches, inflated_bytes_max=self.inflated_bytes_max):
            table = locate_records(payload)
            erased, found = erased_records(self.matcher, payload, table)
            self.records += len(table)
            self.survivors.add(payload, table, ~erased)
            self.found.update(found)
