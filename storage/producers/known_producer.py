"""The state of one producer: one flat tuple of numbers, replaced with each of its batches.

A tuple takes two thirds of the memory of an object with a list of batches. It is immutable for those who froze it, and
the garbage collector does not traverse it, so that a million of them cost little per collection.
"""

from __future__ import annotations

from collections.abc import Iterator

from records.batch import NO_SEQUENCE, SEQUENCE_MASK, BatchHeader
from storage.producers.producer_snapshot import NO_OFFSET, SnapshotBatch, SnapshotEntry

BATCHES_KEPT = 5

KnownProducer = tuple[int, ...]
"""The numbers at EPOCH to TURN; then of each batch of the present epoch, oldest first, at most BATCHES_KEPT of them:
last sequence, last offset, offset delta, timestamp."""

EPOCH = 0
COORDINATOR_EPOCH = 1
TRANSACTION_START = 2  # first offset of the open transaction, else NO_OFFSET
LAST_TIMESTAMP = 3  # of its last batch or marker
TURN = 4  # turn (`ProducerBound`) of its last append; 0: before this run
HEAD_LENGTH = 5
BATCH_LENGTH = 4
FULL_LENGTH = HEAD_LENGTH + BATCHES_KEPT * BATCH_LENGTH


def known_batches(producer: KnownProducer) -> Iterator[tuple[int, ...]]:
    return (producer[at : at + BATCH_LENGTH] for at in range(HEAD_LENGTH, len(producer), BATCH_LENGTH))


def due_sequence(producer: KnownProducer) -> int:
    """The expected first sequence of its next batch in this epoch."""
    return (producer[-BATCH_LENGTH] + 1) & SEQUENCE_MASK if len(producer) > HEAD_LENGTH else 0


def repeated_batch(producer: KnownProducer, header: BatchHeader) -> tuple[int, ...] | None:
    """The known batch with the sequences of `header`, whose epoch is the producer's."""
    last_sequence = header.last_sequence
    if last_sequence in producer[HEAD_LENGTH::BATCH_LENGTH]:
        for batch in known_batches(producer):
            if batch[0] == last_sequence and batch[2] == header.last_offset_delta:
                return batch
    return None


def last_sequence_of(producer: KnownProducer) -> int:
    return producer[-BATCH_LENGTH] if len(producer) > HEAD_LENGTH else NO_SEQUENCE


def last_offset_of(producer: KnownProducer) -> int:
    """Of its last data batch, NO_OFFSET if only markers are known."""
    return producer[-BATCH_LENGTH + 1] if len(producer) > HEAD_LENGTH else NO_OFFSET


def entry_of(producer_id: int, producer: KnownProducer) -> SnapshotEntry:
    return SnapshotEntry(
        producer_id,
        producer[EPOCH],
        last_sequence_of(producer),
        last_offset_of(producer),
        producer[-BATCH_LENGTH + 2] if len(producer) > HEAD_LENGTH else 0,
        producer[LAST_TIMESTAMP],
        producer[COORDINATOR_EPOCH],
        producer[TRANSACTION_START],
    )


def batches_behind_entry(producer_id: int, producer: KnownProducer) -> list[SnapshotBatch]:
    """All batches, if the entry is not enough for them."""
    length = len(producer) - HEAD_LENGTH
    if length > BATCH_LENGTH or (length and producer[-1] != producer[LAST_TIMESTAMP]):
        return [(producer_id, *batch) for batch in known_batches(producer)]  # type: ignore[misc]  # four numbers
    return []


def known_from(entry: SnapshotEntry) -> KnownProducer:
    """The state that a snapshot's entry gives by itself."""
    start = entry.transaction_start
    head = (entry.producer_epoch, entry.coordinator_epoch, start, entry.last_timestamp, 0)
    if entry.last_offset < 0:
        return head
    return (*head, entry.last_sequence, entry.last_offset, entry.offset_delta, entry.last_timestamp)


def with_batches(producer: KnownProducer, batches: list[SnapshotBatch]) -> KnownProducer:
    """The producer with these batches instead of all known ones."""
    return (*producer[:HEAD_LENGTH], *(number for batch in batches[-BATCHES_KEPT:] for number in batch[1:]))
