"""Requests, replies and the state of a transactional id: plain values, independent of wire versions.

Sources: KIP-98 (transactions), KIP-360 (epochs that clients bump), KIP-890 (the new protocol, in which each transaction
has its own epoch).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import NamedTuple

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1
LAST_EPOCH = 32_766
"""The last epoch that a client may have. The one after it only fences."""

Partitions = Mapping[str, tuple[int, ...]]
"""Partition indexes by topic, each once."""
NO_PARTITIONS: Partitions = MappingProxyType({})


class TransactionState(IntEnum):
    """By the number in records; `title` is Kafka's spelling."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        return _TITLES[self]

    @property
    def is_prepared(self) -> bool:
        """The outcome is decided, and not every marker is written yet."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_open(self) -> bool:
        return self is TransactionState.ONGOING or self.is_prepared


_TITLES = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
}
STATES_BY_TITLE = {title: state for state, title in _TITLES.items()}
PASSING_STATES = frozenset({"Dead", "PrepareEpochFence"})
"""States of Apache Kafka's coordinator that are never recorded. A filter may name them."""


class Producer(NamedTuple):
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


NO_PRODUCER = Producer()


class Transaction(NamedTuple):
    """A transactional id as in its newest record. Times in ms, -1 for none.

    `previous_id`: the producer id before the newest record. `next_id`: the one that follows the transaction's end,
    because the epochs are used up. `last_epoch`: with which a client may ask again for the current epoch. `version`:
    the transaction version that the client spoke, 2 for the new protocol.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: Partitions = NO_PARTITIONS
    updated_ms: int = NO_TIME
    start_ms: int = NO_TIME
    previous_id: int = NO_PRODUCER_ID
    next_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH
    version: int = 0

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def is_exhausted(self) -> bool:
        """Whether no client may get a higher epoch of this producer id."""
        return self.producer_epoch >= LAST_EPOCH

    def is_next(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether this is the producer of the transaction behind one that is prepared: its client knows it already."""
        if not self.state.is_prepared:
            return False
        if self.next_id != NO_PRODUCER_ID:
            return (producer_id, producer_epoch) == (self.next_id, 0)
        return (producer_id, producer_epoch) == self.producer and producer_epoch <= LAST_EPOCH

    @property
    def partition_count(self) -> int:
        return sum(map(len, self.partitions.values()))

    def has(self, topic: str, index: int) -> bool:
        return index in self.partitions.get(topic, ())


class NeedsId(Enum):
    """The reply of a decision that needs a new producer id: draw one and decide again."""

    NEEDS_ID = "needs id"


NEEDS_ID = NeedsId.NEEDS_ID


class InitProducer(NamedTuple):
    """`producer_id` and `producer_epoch`: those that the client has, both -1 if it has none."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class AddPartitions(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Partitions
    new_protocol: bool


class EndTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    new_protocol: bool


class MarkersToWrite(NamedTuple):
    """An act: write these markers, because the record of their transaction's outcome is committed. The coordinator
    epoch of a marker is the leader epoch of the shard's partition, plus `epoch_floor`. Two transactions of one producer
    may have the same epoch in the older protocol, so each act of a coordinator has a `serial` of its own."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: Partitions
    new_protocol: bool
    epoch_floor: int = 0
    serial: int = 0


class TransactionFilter(NamedTuple):
    """`states` and `producer_ids`: None for all. `longer_than_ms`: -1 for all. `prefix`: of a tenant's ids. Shards take
    no notice of the `pattern`, which the coordinator matches; none and an empty one match all."""

    states: frozenset[TransactionState] | None = None
    producer_ids: frozenset[int] | None = None
    longer_than_ms: int = -1
    pattern: str | None = None
    prefix: str = ""


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: TransactionState
