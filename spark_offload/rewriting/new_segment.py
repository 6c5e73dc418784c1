"""One new segment from its first batch to its object in the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from records.batch import read_header
from records.builder import empty_batch
from spark_offload.rewriting.log_pieces import read_section
from spark_offload.rewriting.rewriter import Buffer, Rewritten
from spark_offload.rewriting.spool import Spool
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.bucket.segment import TAKEN_OVER, TieredSegment
from tiering.jobs.segment_writer import INDEX_INTERVAL_BYTES, SegmentWriter

if TYPE_CHECKING:
    from object_store.blocking import BlockingStore


class NewSegment:
    """Feed it everything that becomes of consecutive inputs, `begin` each of them, and `put` it at an input's end.

    It always ends with a batch that reaches its last input's last offset, an empty one if need be, so that a reader of
    any offset in its range finds something there, and it is never without a batch.
    """

    def __init__(self, base_offset: int, index_interval_bytes: int = INDEX_INTERVAL_BYTES) -> None:
        self.inputs: list[TieredSegment] = []
        self._writer = SegmentWriter(base_offset, index_interval_bytes)
        self._spool = Spool()
        self._last: bytes | None = None  # header of the last batch that was given, if it was dropped

    @property
    def base_offset(self) -> int:
        return self._writer.base_offset

    @property
    def log_bytes(self) -> int:
        return self._writer.log_bytes

    @property
    def records(self) -> int:
        return self._writer.records

    def begin(self, segment: TieredSegment) -> None:
        """Note that batches appended from now on come from `segment`."""
        self.inputs.append(segment)

    def append(self, rewritten: Rewritten) -> None:
        """Raises ValueError when the segment becomes too large for its indexes, OSError when the spool is full."""
        for part in rewritten.parts:
            self._writer.append(part)
        self._spool.append(rewritten.parts)
        self._last = rewritten.dropped_end

    def put(
        self,
        store: BlockingStore,
        root: TierRoot,
        path: PartitionPath,
        uuid: str,
        transactions: Sequence[bytes],
        now_ms: int,
    ) -> TieredSegment:
        """Write the object under a key that nothing had before. `transactions` are the entries of its index.

        Raises StoreError, DamagedObject when a section of the last input is damaged.
        """
        if self._last is not None:
            tail: Buffer = empty_batch(read_header(self._last, 0))
            self._writer.append(tail)
            self._spool.append([tail])
        last = self.inputs[-1]
        key = root.segment_key(path, last.id)
        taken_over = {
            name: read_section(store, key, name, last.sections[name]) for name in TAKEN_OVER if name in last.sections
        }
        finished = self._writer.finish(uuid, self.inputs, taken_over, b"".join(transactions), now_ms)
        target = root.segment_key(path, finished.segment.id)
        store.put(target, self._spool.body(finished.tail), create_only=True)
        return finished.segment

    def close(self) -> None:
        self._spool.close()
