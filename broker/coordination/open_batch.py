"""The records that a shard has decided and replayed in this turn of the loop, and that are appended at its end."""

from __future__ import annotations

from typing import Any

from broker.coordination.awaiting_commit import Waiter
from broker.coordination.shard import CoordinatorRecord
from common.decision import ProducerStamp
from records.batch import NO_PRODUCER_ID
from records.builder import NO_EPOCH, build_batch
from records.record import Record

RECORD_OVERHEAD_BYTES = 32  # maximal varint overhead of one record below 1 GB
BATCH_OVERHEAD_BYTES = 61


class OpenBatch:
    """One batch: its records are all plain, or all pending in one producer's transaction. `before`: what each record
    has changed, newest last; for shards that take nothing back, nothing."""

    __slots__ = ("before", "bytes", "producer", "records", "waiters")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.before: list[Any] = []
        self.bytes = 0
        self.producer: ProducerStamp | None = None
        self.waiters: list[Waiter] = []

    def __len__(self) -> int:
        return len(self.records)

    def admits(self, size: int, producer: ProducerStamp | None, *, bytes_max: int, records_max: int) -> bool:
        """Whether a record of this size and producer may join. `bytes_max`: for the whole batch."""
        if not self.records:
            return True
        is_full = self.bytes + size > bytes_max - BATCH_OVERHEAD_BYTES or len(self.records) >= records_max
        return not is_full and producer == self.producer

    def add(self, record: CoordinatorRecord, producer: ProducerStamp | None) -> None:
        self.records.append(record)
        self.bytes += size_of(record)
        self.producer = producer

    def wait(self, waiters: list[Waiter]) -> None:
        self.waiters += waiters

    def encoded(self, now_ms: int) -> bytearray:
        producer = self.producer
        return build_batch(
            [Record(index, now_ms, record.key, record.value, ()) for index, record in enumerate(self.records)],
            producer_id=NO_PRODUCER_ID if producer is None else producer.producer_id,
            producer_epoch=NO_EPOCH if producer is None else producer.producer_epoch,
            transactional=producer is not None,
        )


def size_of(record: CoordinatorRecord) -> int:
    """The most that the record takes in a batch."""
    return len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES
