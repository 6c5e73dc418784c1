"""Producers' last batches, which keep each producer's sequence and epoch even without records.

As in Apache Kafka's cleaner, the batch with a producer's last data stays, empty if necessary; for a producer with
known markers only, the markers of its epoch stay.
"""

from __future__ import annotations

import numpy as np

from spark_offload.segments.batch_scan import BatchTable, Flags
from spark_offload.segments.varints import Integers
from storage.producers.producer_snapshot import NO_OFFSET, decode_snapshot


class LastBatches:
    """The last batches of a partition's producers at some offset."""

    def __init__(self, snapshot: bytes = b"") -> None:
        """`snapshot`: a producer snapshot section, b"" without one. Raises ValueError if it is damaged."""
        entries = decode_snapshot(snapshot).entries if snapshot else []
        rows = sorted((one.producer_id, one.last_offset) for one in entries)
        self._producer: Integers = np.array([row[0] for row in rows], np.int64)
        self._last: Integers = np.array([row[1] for row in rows], np.int64)

    def among(self, batches: BatchTable) -> Flags:
        """Which of these batches must not be removed completely."""
        flags = np.zeros(len(batches), np.bool_)
        rows = np.flatnonzero(batches.producer_id >= 0)
        if not len(self._producer) or not len(rows):
            return flags
        producer = batches.producer_id[rows]
        at = np.minimum(np.searchsorted(self._producer, producer), len(self._producer) - 1)
        known = self._producer[at] == producer
        last = self._last[at]
        data = (last != NO_OFFSET) & (batches.last_offset[rows] == last)
        markers = (last == NO_OFFSET) & batches.is_control[rows]
        flags[rows] = known & (data | markers)
        return flags
