"""What one partition remembers of its idempotent and transactional producers.

A producer's batches carry consecutive sequence numbers per epoch. The last five batches are kept, because a client
has at most five in flight: a repeated one is answered like the first, a gap is refused, an old epoch is fenced.
All of it follows from batch headers and transaction markers, so a follower, a recovery scan and the leader agree.

Source: KIP-98, KIP-360, KIP-447 and the behaviour of Apache Kafka 4.1's ProducerAppendInfo and ProducerStateEntry.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple

from common.errors import ErrorCode, ProtocolError
from common.pacing import Work, at_once
from records.batch import NO_SEQUENCE, NO_TIMESTAMP, SEQUENCE_MASK, BatchHeader
from records.control import EndMarker, MarkerKind
from storage.producer_snapshot import (
    NO_OFFSET,
    SnapshotBatch,
    SnapshotEntry,
    SnapshotParts,
    decode_snapshot,
    encode_batches,
    encode_entries,
    join_parts,
)

BATCHES_KEPT = 5
NO_EPOCH = -1
FROZEN_STEP = 128  # producers that are encoded at once
ENTRY_COST = 5
EXPIRE_STEP = 512
EVICTION_SCAN_MAX = 64  # producers with open transactions that one eviction looks past


class Duplicate(NamedTuple):
    """A batch that is in the log already, as it was appended then."""

    base_offset: int
    next_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A transaction whose marker was appended at `last_offset`.

    An aborted one goes into the transaction index with `last_stable_offset`, the LSO at the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int


class LastRecord(NamedTuple):
    """What compaction must keep of a producer: its last data batch, or else a marker of its epoch."""

    last_data_offset: int  # -1 when there is none
    producer_epoch: int


class ProducerView(NamedTuple):
    """One row of DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


class _Batch(NamedTuple):
    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @classmethod
    def from_end(cls, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> _Batch:
        first = (last_sequence - offset_delta) & SEQUENCE_MASK
        return cls(first, last_sequence, last_offset, offset_delta, timestamp)


class _Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "stamp", "transaction_start")

    def __init__(self, stamp: int) -> None:
        self.stamp = stamp  # of the time between two freezes in which it was last copied or made
        self.epoch = NO_EPOCH
        self.batches: list[_Batch] = []  # oldest first, at most BATCHES_KEPT
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch = -1
        self.transaction_start = NO_OFFSET

    def copied(self, stamp: int) -> _Producer:
        copy = _Producer(stamp)
        copy.epoch = self.epoch
        copy.batches = self.batches.copy()
        copy.last_timestamp = self.last_timestamp
        copy.coordinator_epoch = self.coordinator_epoch
        copy.transaction_start = self.transaction_start
        return copy

    def enter_epoch(self, epoch: int) -> None:
        if self.epoch != epoch:
            self.epoch = epoch
            self.batches.clear()


class ProducerStates:
    """The producers of one partition, bounded by `producers_max`: the one idle for longest is forgotten first.

    Only producers with an open transaction outlive that bound. Idleness is counted in appends, so that every replica
    forgets the same ones. `end_offset` is the offset up to which the log has been taken in.
    """

    __slots__ = ("_ongoing", "_producers", "_stamp", "_unreplicated", "end_offset", "expiration_ms", "producers_max")

    def __init__(self, expiration_ms: int, producers_max: int) -> None:
        self.expiration_ms = expiration_ms
        self.producers_max = producers_max
        self.end_offset = 0
        self._stamp = 0  # grows with each freeze
        self._producers: dict[int, _Producer] = {}  # least recently appended first
        self._ongoing: dict[int, int] = {}  # first offset of each open transaction -> producer id; grows in order
        self._unreplicated: dict[int, int] = {}  # first offset of each ended one above the HW -> its marker's offset

    def __len__(self) -> int:
        return len(self._producers)

    # Appends

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Whether a leader may append a client's batch with a producer id: None, or what it repeats.

        Raises ProtocolError: INVALID_PRODUCER_EPOCH (an older epoch), OUT_OF_ORDER_SEQUENCE_NUMBER (a gap, or a
        new epoch that does not begin at 0), INVALID_TXN_STATE (a plain batch within a transaction),
        UNKNOWN_PRODUCER_ID (not known, perhaps forgotten, and does not begin at 0: the caller may allow it). Changes
        nothing; `update` follows the append.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            if header.base_sequence > 0:
                raise ProtocolError(ErrorCode.UNKNOWN_PRODUCER_ID, f"producer {header.producer_id} is not known")
            return None
        epoch, first = header.producer_epoch, header.base_sequence
        if epoch == producer.epoch:
            last = header.last_sequence
            for batch in producer.batches:
                if batch.first_sequence == first and batch.last_sequence == last:
                    return Duplicate(batch.last_offset - batch.offset_delta, batch.last_offset + 1, batch.timestamp)
            due = (producer.batches[-1].last_sequence + 1) & SEQUENCE_MASK if producer.batches else 0
            if first != due:
                raise _out_of_order(header, f"sequence {first} where {due} is due")
        elif epoch < producer.epoch:
            message = f"epoch {epoch} of producer {header.producer_id} is older than {producer.epoch}"
            raise ProtocolError(ErrorCode.INVALID_PRODUCER_EPOCH, message)
        elif first != 0 and producer.epoch != NO_EPOCH:
            raise _out_of_order(header, f"sequence {first} at the start of epoch {epoch}")
        if producer.transaction_start != NO_OFFSET and not header.is_transactional:
            message = f"producer {header.producer_id} has an open transaction"
            raise ProtocolError(ErrorCode.INVALID_TXN_STATE, message)
        return None

    def check_marker(self, header: BatchHeader, marker: EndMarker) -> None:
        """Whether a leader may append a marker that a transaction coordinator sent.

        Raises ProtocolError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED (an older coordinator epoch).
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        if header.producer_epoch < producer.epoch:
            message = f"epoch {header.producer_epoch} of producer {header.producer_id} is older than {producer.epoch}"
            raise ProtocolError(ErrorCode.INVALID_PRODUCER_EPOCH, message)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            message = f"coordinator epoch {marker.coordinator_epoch} is older than {producer.coordinator_epoch}"
            raise ProtocolError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, message)

    def update(self, header: BatchHeader, marker: EndMarker | None = None) -> CompletedTransaction | None:
        """Take in an appended batch, checked or from a leader, with its final offsets.

        `marker` is `read_marker` of a control batch. Batches without a producer id only move `end_offset`.
        """
        self.end_offset = header.next_offset
        if header.producer_id < 0:
            return None
        if header.is_control:
            return self._end_transaction(header, marker) if marker is not None else None
        producer = self._touch(header.producer_id)
        producer.enter_epoch(header.producer_epoch)
        batches = producer.batches
        if len(batches) == BATCHES_KEPT:
            del batches[0]
        delta = header.last_offset_delta
        batches.append(
            _Batch(header.base_sequence, header.last_sequence, header.last_offset, delta, header.max_timestamp)
        )
        producer.last_timestamp = header.max_timestamp
        if header.is_transactional and producer.transaction_start == NO_OFFSET:
            producer.transaction_start = header.base_offset
            self._ongoing[header.base_offset] = header.producer_id
        return None

    def _end_transaction(self, header: BatchHeader, marker: EndMarker) -> CompletedTransaction | None:
        producer = self._touch(header.producer_id)
        first = producer.transaction_start
        producer.enter_epoch(header.producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = marker.timestamp
        producer.transaction_start = NO_OFFSET
        if first == NO_OFFSET:
            return None
        self._ongoing.pop(first, None)
        self._unreplicated[first] = header.last_offset
        stable = next(iter(self._ongoing), header.last_offset + 1)
        aborted = marker.kind is MarkerKind.ABORT
        return CompletedTransaction(header.producer_id, first, header.last_offset, aborted, stable)

    def _touch(self, producer_id: int) -> _Producer:
        """The producer's state, made if need be, now the most recent one."""
        producers = self._producers
        producer = producers.pop(producer_id, None)
        if producer is None:
            producer = _Producer(self._stamp)
            if len(producers) >= self.producers_max:
                self._evict()
        elif producer.stamp != self._stamp:
            producer = producer.copied(self._stamp)
        producers[producer_id] = producer
        return producer

    def _evict(self) -> None:
        for seen, (producer_id, producer) in enumerate(self._producers.items()):
            if producer.transaction_start == NO_OFFSET:
                del self._producers[producer_id]
                return
            if seen == EVICTION_SCAN_MAX:
                return

    # Stability

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open, or ended by a marker that is not below the HW yet."""
        undecided = next(iter(self._ongoing), None)
        unreplicated = min(self._unreplicated, default=None)
        if undecided is None or unreplicated is None:
            return unreplicated if undecided is None else undecided
        return min(undecided, unreplicated)

    @property
    def first_undecided_offset(self) -> int | None:
        """As `first_unstable_offset`, but for open transactions alone."""
        return next(iter(self._ongoing), None)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Markers below `high_watermark` are final: their transactions are stable from now on."""
        if self._unreplicated:
            self._unreplicated = {f: last for f, last in self._unreplicated.items() if last >= high_watermark}

    # Upkeep

    def expire(self, now_ms: int) -> Work[int]:
        """Forget producers without a batch for `expiration_ms`, by record time; how many. Open transactions stay."""
        gone = 0
        known = iter(list(self._producers))
        while some := list(islice(known, EXPIRE_STEP)):
            for producer_id in some:
                producer = self._producers.get(producer_id)
                if producer is not None and self._is_expired(
                    producer.last_timestamp, producer.transaction_start, now_ms
                ):
                    del self._producers[producer_id]
                    gone += 1
            yield len(some)
        return gone

    def _is_expired(self, last_timestamp: int, transaction_start: int, now_ms: int) -> bool:
        return transaction_start == NO_OFFSET and now_ms - last_timestamp >= self.expiration_ms

    def advance_log_start(self, log_start_offset: int) -> None:
        """The log begins later now. Producers stay known until they expire, as in Apache Kafka."""
        self.on_high_watermark(log_start_offset)
        self.end_offset = max(self.end_offset, log_start_offset)

    def reset(self, end_offset: int) -> None:
        """Forget everything: before a snapshot is loaded, or because the log begins anew at `end_offset`."""
        self._producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self.end_offset = end_offset

    def freeze(self) -> FrozenProducers:
        """All producers as they are now. Those that go on are copied before they change."""
        self._stamp += 1
        return FrozenProducers(self._producers.copy())

    def snapshot(self) -> bytes:
        """The bytes of `<end offset>.snapshot`."""
        return join_parts(at_once(FrozenProducers(self._producers).encode()))

    def load_snapshot(self, data: bytes, end_offset: int, now_ms: int) -> None:
        """Begin again with a snapshot that was taken at `end_offset`; the caller then replays the log from there.

        ValueError when the file is damaged; the state is unchanged then.
        """
        snapshot = decode_snapshot(data)
        self.reset(end_offset)
        open_transactions = []
        for entry in snapshot.entries:
            if self._is_expired(entry.last_timestamp, entry.transaction_start, now_ms):
                continue
            producer = self._touch(entry.producer_id)
            producer.epoch = entry.producer_epoch
            producer.last_timestamp = entry.last_timestamp
            producer.coordinator_epoch = entry.coordinator_epoch
            producer.transaction_start = entry.transaction_start
            producer.batches = _told(entry)
            if entry.transaction_start != NO_OFFSET:
                open_transactions.append((entry.transaction_start, entry.producer_id))
        self._ongoing = dict(sorted(open_transactions))
        for producer_id, rows in groupby(snapshot.batches, itemgetter(0)):
            known = self._producers.get(producer_id)
            if known is not None:
                known.batches = [_Batch.from_end(*row[1:]) for row in rows][-BATCHES_KEPT:]

    # Views

    def last_records(self) -> dict[int, LastRecord]:
        """See `FrozenProducers.last_records`."""
        return FrozenProducers(self._producers).last_records()

    def views(self) -> Iterator[ProducerView]:
        """Of the producers that are there at the first step; those that have gone meanwhile are left out."""
        for producer_id in list(self._producers):
            producer = self._producers.get(producer_id)
            if producer is None:
                continue
            last_sequence = producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE
            yield ProducerView(
                producer_id,
                producer.epoch,
                last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.transaction_start,
            )


class FrozenProducers:
    """The producers of one partition as they stood at one offset; nothing of it changes any more."""

    __slots__ = ("_producers",)

    def __init__(self, producers: dict[int, _Producer]) -> None:
        self._producers = producers

    def encode(self) -> Work[SnapshotParts]:
        """Their snapshot."""
        entries: list[bytes] = []
        batches: list[bytes] = []
        rows = iter(self._producers.items())
        while some := list(islice(rows, FROZEN_STEP)):
            entries.append(encode_entries([_entry(producer_id, producer) for producer_id, producer in some]))
            told = [row for producer_id, producer in some for row in _batches_behind_entry(producer_id, producer)]
            if told:
                batches.append(encode_batches(told, is_first=not batches))
            yield len(some) * ENTRY_COST + len(told)
        return SnapshotParts(len(self._producers), entries + batches)

    def last_records(self) -> dict[int, LastRecord]:
        """By producer id: what compaction must leave in the log. In a thread."""
        return {
            producer_id: LastRecord(
                producer.batches[-1].last_offset if producer.batches else NO_OFFSET,
                producer.epoch,
            )
            for producer_id, producer in self._producers.items()
        }


def _entry(producer_id: int, producer: _Producer) -> SnapshotEntry:
    last = producer.batches[-1] if producer.batches else None
    return SnapshotEntry(
        producer_id,
        producer.epoch,
        last.last_sequence if last else NO_SEQUENCE,
        last.last_offset if last else NO_OFFSET,
        last.offset_delta if last else 0,
        producer.last_timestamp,
        producer.coordinator_epoch,
        producer.transaction_start,
    )


def _batches_behind_entry(producer_id: int, producer: _Producer) -> list[SnapshotBatch]:
    """All batches, where the entry does not tell the one there is."""
    batches = producer.batches
    if len(batches) > 1 or (batches and batches[-1].timestamp != producer.last_timestamp):
        return [(producer_id, *batch[1:]) for batch in batches]
    return []


def _told(entry: SnapshotEntry) -> list[_Batch]:
    """The batches that a snapshot's entry tells by itself."""
    if entry.last_offset < 0:
        return []
    return [_Batch.from_end(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.last_timestamp)]


def _out_of_order(header: BatchHeader, what: str) -> ProtocolError:
    return ProtocolError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"producer {header.producer_id}: {what}")
