"""The state of one partition's idempotent and transactional producers.

A producer's batches have consecutive sequence numbers per epoch. The last five batches are kept, because a client has
at most five in flight: a repeated one is answered like the first, a gap is rejected, an old epoch is fenced. The state
is derived from batch headers and transaction markers only, so follower, recovery scan and leader agree.

Source: KIP-98, KIP-360, KIP-447 and the behaviour of Apache Kafka 4.1's ProducerAppendInfo and ProducerStateEntry.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import dropwhile, groupby, islice, takewhile
from operator import itemgetter
from typing import NamedTuple

from common.errors import ErrorCode, ProtocolError
from common.pacing import Work, at_once
from records.batch import BatchHeader
from records.control import EndMarker, MarkerKind
from storage.producers.frozen_producers import FrozenProducers, LastRecord
from storage.producers.known_producer import (
    BATCH_LENGTH,
    COORDINATOR_EPOCH,
    EPOCH,
    FULL_LENGTH,
    HEAD_LENGTH,
    LAST_TIMESTAMP,
    TRANSACTION_START,
    KnownProducer,
    due_sequence,
    known_from,
    last_sequence_of,
    repeated_batch,
    with_batches,
)
from storage.producers.producer_bound import ProducerBound
from storage.producers.producer_snapshot import NO_OFFSET, decode_snapshot, join_parts

NO_EPOCH = -1
EXPIRE_STEP = 512
QUEUE_COST = 5
BUSY_SCAN_MAX = 64  # producers with open transactions to skip while searching for one to forget
# a scan finds this fraction of all producers, the longest idle, because removed ones leave gaps before them
IDLE_PART = 64
# Transactions by their first offset. The first one is asked for at each fetch, and most of those before it are gone: a
# plain dict would look at the gap that each has left, also a million of them, and also long after.
_Transactions = OrderedDict[int, int]
_NO_TRANSACTIONS = _Transactions()  # of all logs without any; never changed
# Transactions that ended above the HW: first offset and the marker's offset, both ascending. One that began later and
# ended earlier than another is left out: the other one holds readers back for longer, and further back.
_Ended = deque[tuple[int, int]]
_NONE_ENDED = _Ended()  # never changed


class Duplicate(NamedTuple):
    """A batch that is already in the log, with its original offsets."""

    base_offset: int
    next_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A transaction whose marker was appended at `last_offset`.

    If aborted, it is added to the transaction index with `last_stable_offset`, the LSO at the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int


class ProducerView(NamedTuple):
    """One row of DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


class ProducerStates:
    """The producers of one partition, limited by `producers_max`: the longest idle is forgotten first.

    Only producers with an open transaction may exceed that limit. Idleness is counted in appends, so that every replica
    forgets the same ones. `end_offset`: how far a log has been read during a replay; appends do not move it.
    """

    __slots__ = (
        "_bound",
        "_final_end",
        "_idle",
        "_ongoing",
        "_producers",
        "_producers_end",
        "_unreplicated",
        "end_offset",
        "expiration_ms",
        "producers_max",
    )

    def __init__(self, expiration_ms: int, producers_max: int) -> None:
        self.expiration_ms = expiration_ms
        self.producers_max = producers_max
        self.end_offset = 0
        self._bound: ProducerBound | None = None
        self._producers: dict[int, KnownProducer] = {}  # least recently appended first
        self._idle: list[tuple[int, KnownProducer]] = []  # the longest idle ones as of a while ago, last first
        self._ongoing = _NO_TRANSACTIONS  # first offset of each open one -> producer id; ascending
        self._unreplicated = _NONE_ENDED  # see `_Ended`
        self._final_end = 0  # below it there may be markers that are not in `_unreplicated` any more
        self._producers_end = 0  # from there on there is no batch of a producer, known or forgotten

    def set_limits(self, expiration_ms: int, producers_max: int) -> None:
        self.expiration_ms = expiration_ms
        self.producers_max = producers_max

    def adopt(self, read: ProducerStates) -> None:
        """Take over the state of `read`, which is not used any more; limits and the broker's bound stay."""
        bound = self._bound
        self.leave()
        self._producers, self._idle = read._producers, read._idle
        self._ongoing, self._unreplicated, self._final_end = read._ongoing, read._unreplicated, read._final_end
        self.end_offset, self._producers_end = read.end_offset, read._producers_end
        if bound is not None:
            self.join(bound)

    def join(self, bound: ProducerBound) -> None:
        """From now on count for the broker's limit."""
        self._bound = bound
        bound.join(self)

    def leave(self) -> None:
        """Count for no limit any more."""
        if self._bound is not None:
            self._bound.leave(self)
            self._bound = None

    def __len__(self) -> int:
        return len(self._producers)

    # Appends

    def epoch_of(self, producer_id: int) -> int:
        """The largest epoch of a batch or marker of this producer; NO_EPOCH if it is not known."""
        producer = self._producers.get(producer_id)
        return NO_EPOCH if producer is None else producer[EPOCH]

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transaction of that epoch has begun here and has no marker yet."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer[TRANSACTION_START] != NO_OFFSET and producer[EPOCH] == producer_epoch

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, exceeds: bool) -> bool:
        """Whether a leader is to append a marker; False if it would change nothing, because it is a repeated one.

        `exceeds`: the marker's epoch must be larger than the producer's (KIP-890, KIP-1228). A repeated one is known by
        the same epoch with no transaction open, without `exceeds` only under the same coordinator. Raises
        ProtocolError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED (a marker of a later coordinator is here).
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return True
        known_epoch, known_coordinator = producer[EPOCH], producer[COORDINATOR_EPOCH]
        is_open = producer[TRANSACTION_START] != NO_OFFSET
        if producer_epoch < known_epoch or (exceeds and is_open and producer_epoch == known_epoch):
            message = f"a marker of epoch {producer_epoch} where producer {producer_id} is in epoch {known_epoch}"
            raise ProtocolError(ErrorCode.INVALID_PRODUCER_EPOCH, message)
        if coordinator_epoch < known_coordinator:
            message = f"a marker of coordinator epoch {coordinator_epoch} after one of {known_coordinator}"
            raise ProtocolError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, message)
        if is_open or producer_epoch > known_epoch:
            return True
        return not exceeds and coordinator_epoch > known_coordinator

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Whether a leader may append a client's batch with a producer id: None, or the batch that it repeats.

        Raises ProtocolError: INVALID_PRODUCER_EPOCH (an older epoch), OUT_OF_ORDER_SEQUENCE_NUMBER (a gap, or a new
        epoch that does not begin at 0), INVALID_TXN_STATE (a plain batch within a transaction), UNKNOWN_PRODUCER_ID
        (unknown, perhaps forgotten, and not at sequence 0; the caller may allow it). Changes nothing; `update` follows
        the append.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            if header.base_sequence > 0:
                raise ProtocolError(ErrorCode.UNKNOWN_PRODUCER_ID, f"producer {header.producer_id} is not known")
            return None
        epoch, first, known_epoch = header.producer_epoch, header.base_sequence, producer[EPOCH]
        if epoch == known_epoch:
            if (repeated := repeated_batch(producer, header)) is not None:
                _, last_offset, offset_delta, timestamp = repeated
                return Duplicate(last_offset - offset_delta, last_offset + 1, timestamp)
            due = due_sequence(producer)
            if first != due:
                raise _out_of_order(header, f"sequence {first} where {due} is due")
        elif epoch < known_epoch:
            message = f"epoch {epoch} of producer {header.producer_id} is older than {known_epoch}"
            raise ProtocolError(ErrorCode.INVALID_PRODUCER_EPOCH, message)
        elif first != 0 and known_epoch != NO_EPOCH:
            raise _out_of_order(header, f"sequence {first} at the start of epoch {epoch}")
        if producer[TRANSACTION_START] != NO_OFFSET and not header.is_transactional:
            message = f"producer {header.producer_id} has an open transaction"
            raise ProtocolError(ErrorCode.INVALID_TXN_STATE, message)
        return None

    def update(self, header: BatchHeader, marker: EndMarker | None = None) -> CompletedTransaction | None:
        """Apply an appended batch, checked or from a leader, with its final offsets.

        `marker`: `read_marker` of a control batch. Batches without a producer id only move `end_offset`.
        """
        self.end_offset = header.next_offset
        if header.producer_id < 0:
            return None
        self._producers_end = self.end_offset
        if header.is_control:
            return self._end_transaction(header, marker) if marker is not None else None
        producer_id, epoch, timestamp = header.producer_id, header.producer_epoch, header.max_timestamp
        delta = header.last_offset_delta
        producers, bound = self._producers, self._bound
        known = producers.pop(producer_id, None)
        coordinator_epoch, start = -1, NO_OFFSET
        batches: KnownProducer = ()
        if known is not None:
            coordinator_epoch, start = known[COORDINATOR_EPOCH], known[TRANSACTION_START]
            if known[EPOCH] == epoch:
                batches = known[HEAD_LENGTH + BATCH_LENGTH if len(known) == FULL_LENGTH else HEAD_LENGTH :]
        if header.is_transactional and start == NO_OFFSET:
            start = header.base_offset
            if not self._ongoing:
                self._ongoing = _Transactions()
            self._ongoing[start] = producer_id
        producers[producer_id] = (
            epoch, coordinator_epoch, start, timestamp, bound.turn if bound is not None else 0,
            *batches,
            header.last_sequence, header.base_offset + delta, delta, timestamp,
        )  # fmt: skip
        if known is None:
            self._added()
        return None

    def _end_transaction(self, header: BatchHeader, marker: EndMarker) -> CompletedTransaction | None:
        producers, bound = self._producers, self._bound
        known = producers.pop(header.producer_id, None)
        first = NO_OFFSET
        batches: KnownProducer = ()
        if known is not None:
            first = known[TRANSACTION_START]
            batches = known[HEAD_LENGTH:] if known[EPOCH] == header.producer_epoch else ()
        head = (header.producer_epoch, marker.coordinator_epoch, NO_OFFSET, marker.timestamp)
        producers[header.producer_id] = (*head, bound.turn if bound is not None else 0, *batches)
        if known is None:
            self._added()
        if first == NO_OFFSET:
            return None
        self._ongoing.pop(first, None)
        if not self._ongoing:
            self._ongoing = _NO_TRANSACTIONS
        if not self._unreplicated:
            self._unreplicated = _Ended()
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[-1][0] > first:
            unreplicated.pop()
        unreplicated.append((first, header.last_offset))
        stable = next(iter(self._ongoing), header.last_offset + 1)
        aborted = marker.kind is MarkerKind.ABORT
        return CompletedTransaction(header.producer_id, first, header.last_offset, aborted, stable)

    # Forgetting

    def _added(self) -> None:
        """There is one more producer."""
        if len(self._producers) > self.producers_max:
            self.forget_idlest()
        if self._bound is not None:
            self._bound.added(self)

    def _removed(self, count: int = 1) -> None:
        if self._bound is not None:
            self._bound.removed(count)

    def idlest(self) -> KnownProducer | None:
        """The longest-idle producer without an open transaction, or None."""
        return self._idle[-1][1] if self._find_idle() else None

    def forget_idlest(self) -> bool:
        """Forget that producer. Returns whether there was one."""
        if not self._find_idle():
            return False
        del self._producers[self._idle.pop()[0]]
        self._removed()
        return True

    def _find_idle(self) -> bool:
        """Whether there is one; then it is the last of `_idle`."""
        idle, producers = self._idle, self._producers
        while idle:
            producer_id, producer = idle[-1]
            if producers.get(producer_id) is producer:
                return True
            idle.pop()
        part = 1 + len(producers) // IDLE_PART
        rows = islice(producers.items(), BUSY_SCAN_MAX + part)
        self._idle = list(islice((row for row in rows if row[1][TRANSACTION_START] == NO_OFFSET), part))
        self._idle.reverse()
        return bool(self._idle)

    # Stability

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open, or whose end marker is not below the HW yet."""
        undecided = next(iter(self._ongoing), None)
        unreplicated = self._unreplicated[0][0] if self._unreplicated else None
        if undecided is None or unreplicated is None:
            return unreplicated if undecided is None else undecided
        return min(undecided, unreplicated)

    @property
    def first_undecided_offset(self) -> int | None:
        """As `first_unstable_offset`, but only for open transactions."""
        return next(iter(self._ongoing), None)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Markers below `high_watermark` are final: their transactions are stable."""
        unreplicated = self._unreplicated
        if unreplicated:
            while unreplicated and unreplicated[0][1] < high_watermark:
                self._final_end = unreplicated.popleft()[1] + 1
            if not unreplicated:
                self._unreplicated = _NONE_ENDED

    def cut(self, log_start_offset: int, end_offset: int) -> bool:
        """The log was truncated to `end_offset`. Returns whether its producers must be read again, for `adopt`.

        They need not if none is known and no batch of a forgotten one was cut: a forgotten producer may have had a
        transaction open at `end_offset`. Until `adopt` transactions whose markers were cut stay unstable: the high
        watermark does not pass the end. If markers were cut that had counted as final, of which nothing is known here
        any more, nothing is stable.
        """
        if not self._producers and end_offset >= self._producers_end:
            self._idle.clear()
            self.end_offset = end_offset
            return False
        if end_offset < self._final_end:
            self._unreplicated = _Ended([(log_start_offset, end_offset)])
        return True

    # Upkeep

    def expire(self, now_ms: int) -> Work[int]:
        """Forget producers without a batch for `expiration_ms`, by record time. Returns how many. Open transactions
        stay."""
        gone = 0
        known = iter(list(self._producers))
        while some := list(islice(known, EXPIRE_STEP)):
            for producer_id in some:
                producer = self._producers.get(producer_id)
                if producer is not None and self._is_expired(
                    producer[LAST_TIMESTAMP], producer[TRANSACTION_START], now_ms
                ):
                    del self._producers[producer_id]
                    self._removed()
                    gone += 1
            yield len(some)
        if self._bound is not None:
            self._bound.queue(self)
            yield QUEUE_COST
        return gone

    def _is_expired(self, last_timestamp: int, transaction_start: int, now_ms: int) -> bool:
        return transaction_start == NO_OFFSET and now_ms - last_timestamp >= self.expiration_ms

    def advance_to(self, end_offset: int) -> None:
        """The log up to `end_offset` was applied, including batches without a producer."""
        self.end_offset = max(self.end_offset, end_offset)

    def advance_log_start(self, log_start_offset: int) -> None:
        """The log start has moved. Producers stay until they expire, as in Apache Kafka."""
        self.on_high_watermark(log_start_offset)
        self.advance_to(log_start_offset)

    def reset(self, end_offset: int) -> None:
        """Forget everything, before a snapshot is loaded or because the log starts over at `end_offset`."""
        self._removed(len(self._producers))
        self._producers.clear()
        self._idle.clear()
        self._ongoing, self._unreplicated = _NO_TRANSACTIONS, _NONE_ENDED
        self.end_offset = self._final_end = self._producers_end = end_offset

    def freeze(self) -> FrozenProducers:
        """All producers as they are now."""
        return FrozenProducers(self._producers.copy())

    def snapshot(self) -> bytes:
        """The bytes of `<end offset>.snapshot`."""
        return join_parts(at_once(FrozenProducers(self._producers).encode()))

    def load_snapshot(self, data: bytes, end_offset: int, now_ms: int) -> None:
        """Start over from a snapshot that was taken at `end_offset`; the caller then replays the log from there.

        ValueError if the file is damaged; then nothing has changed.
        """
        snapshot = decode_snapshot(data)
        bound = self._bound
        self.leave()
        self.reset(end_offset)
        open_transactions = []
        producers = self._producers
        for entry in snapshot.entries:
            if self._is_expired(entry.last_timestamp, entry.transaction_start, now_ms):
                continue
            producers[entry.producer_id] = known_from(entry)
            if entry.transaction_start != NO_OFFSET:
                open_transactions.append((entry.transaction_start, entry.producer_id))
        self._ongoing = _Transactions(sorted(open_transactions)) if open_transactions else _NO_TRANSACTIONS
        # A snapshot says neither which markers were above the high watermark nor which producers had been forgotten.
        self._final_end = self._producers_end = end_offset
        for producer_id, rows in groupby(snapshot.batches, itemgetter(0)):
            known = producers.get(producer_id)
            if known is not None:
                producers[producer_id] = with_batches(known, list(rows))
        while len(producers) > self.producers_max and self.forget_idlest():
            pass
        if bound is not None:
            self.join(bound)

    # Views

    def count_opened(self, low: int, high: int) -> int:
        """How many transactions are open that began in [low, high)."""
        return sum(first >= low for first in takewhile(lambda first: first < high, self._ongoing))

    def opened(self, low: int, high: int, most: int) -> list[ProducerView]:
        """The producers of these transactions, at most `most`, the oldest transaction first."""
        begun = takewhile(lambda row: row[0] < high, dropwhile(lambda row: row[0] < low, self._ongoing.items()))
        return [self._view(producer_id, self._producers[producer_id]) for _, producer_id in islice(begun, most)]

    def last_records(self) -> dict[int, LastRecord]:
        """See `FrozenProducers.last_records`."""
        return FrozenProducers(self._producers).last_records()

    def views(self) -> Iterator[ProducerView]:
        """The producers as of the first step, without those removed meanwhile."""
        for producer_id in list(self._producers):
            producer = self._producers.get(producer_id)
            if producer is None:
                continue
            yield self._view(producer_id, producer)

    def _view(self, producer_id: int, producer: KnownProducer) -> ProducerView:
        return ProducerView(
            producer_id,
            producer[EPOCH],
            last_sequence_of(producer),
            producer[LAST_TIMESTAMP],
            producer[COORDINATOR_EPOCH],
            producer[TRANSACTION_START],
        )


def _out_of_order(header: BatchHeader, what: str) -> ProtocolError:
    return ProtocolError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"producer {header.producer_id}: {what}")
