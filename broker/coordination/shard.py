"""Interface of a shard: the state machine of one partition of an internal topic, without I/O.

A shard *decides* (request and time in, records and a reply out) and *replays* (records in). Hard state, which the
records can rebuild, changes only in `replay`; soft state (waiting requests, session timers) may change in a decision. A
reply that must wait for other requests is PARKED under its ticket and comes later from `take_answers`. The runtime
reveals nothing that a decision, expiry or answer has seen before it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from broker.coordination.packed_records import Run
from common.decision import Decision, ProducerStamp

Ticket = int

ENDING_TURN_COST = 500
"""A marker that ends as much, in units of `common.pacing`, takes a slice of its own."""


class CoordinatorRecord(NamedTuple):
    """One record of an internal topic; value None is a tombstone."""

    key: bytes
    value: bytes | None


class Now(NamedTuple):
    """`monotonic_s`: for durations; `wall_ms`: for records and retention; `next_offset`: offset of the first record of
    a decision made now. Before `spared_until_s` no client counts as silent, because this node was stalled and may not
    have read what clients sent."""

    monotonic_s: float
    wall_ms: int
    next_offset: int = 0
    spared_until_s: float = 0.0


class Parked(Enum):
    """Stands for the reply of a decision that is answered later, through its ticket."""

    PARKED = "parked"


PARKED = Parked.PARKED


class Answer(NamedTuple):
    """The late reply to a parked request."""

    ticket: Ticket
    reply: object


class Shard(Protocol):
    """The coordinator state of one partition. All calls come from one event loop, one at a time."""

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a record: while loading, and right after a decision.

        Records of an unknown kind are ignored, so that an older node can run beside a newer one.
        """
        ...

    def replay_all(self, records: list[tuple[bytes, bytes | None]]) -> int:
        """`replay` some records in order while loading. Returns how many could not be read and were skipped."""
        ...

    def held_bytes(self) -> int:
        """Approximate memory of the hard state."""
        ...

    def loaded(self, now: Now) -> list[CoordinatorRecord]:
        """The whole log was replayed: start the timers. The returned records are appended first."""
        ...

    def next_deadline(self) -> float | None:
        """Monotonic seconds at which `expire` has something to do."""
        ...

    def expire(self, now: Now) -> list[CoordinatorRecord]:
        """Do what is due. The returned records need not be atomic."""
        ...

    def take_answers(self) -> list[Answer]:
        """Late replies since the last call."""
        ...


@runtime_checkable
class RevocableShard(Shard, Protocol):
    """A shard that survives an append that its log rejects; any other shard is dropped and loaded again."""

    def before(self, record: CoordinatorRecord) -> Any:
        """The current state that `record` is about to change, for `undo`."""
        ...

    def undo(self, before: list[Any], now: Now) -> None:
        """The log rejected the newest replayed records. Restore what was `before` each of them, newest first, and adapt
        soft state. The caller rejects the requests that decided them."""
        ...


@runtime_checkable
class PackedShard(Shard, Protocol):
    """A shard that supports snapshots, see `snapshots`."""

    def pack(self) -> Iterator[tuple[bytes, int]]:
        """Its hard state in short parts: runs of records, each with its number of records. Changes between two parts
        may be missing."""
        ...

    def unpack(self, run: Run) -> None:
        """`replay` the records of a run, before anything else is replayed. Raises ValueError."""
        ...


@runtime_checkable
class ActingShard(Shard, Protocol):
    """A shard that wants something done outside, such as the sending of markers."""

    def take_acts(self) -> list[object]:
        """What the records replayed since the last call ask for, and what the loaded state asks for, in `loaded` or
        later.

        The runtime begins it when everything that the shard had replayed is committed. After a change of leader the new
        shard names again whatever is not done yet.
        """
        ...

    def find_acts(self, now: Now) -> None:
        """Nothing can be appended, so `expire` is not called: find more of what the loaded state asks for."""
        ...

    def put_back(self, acts: list[object]) -> None:
        """These acts have not begun, because the log rejected the newest records, which are undone by now. The next
        `take_acts` returns again what is still asked for: other records, or the loaded state, may have asked for it."""
        ...


@runtime_checkable
class TransactionalShard(Shard, Protocol):
    """A shard with records of open transactions, which count only after a marker.

    Offsets are those of batches: all records of a batch are older or newer than those of another. While loading, a
    shard with a snapshot may get what it has already.
    """

    @property
    def has_pending(self) -> bool:
        """Whether records of an open transaction are here."""
        ...

    @property
    def pending_count(self) -> int:
        """How many of them."""
        ...

    def begin_batch(self, offset: int) -> None:
        """What is replayed from now on lies in the batch at `offset`. While loading, it is called for every batch only
        if there are pending records."""
        ...

    def before_pending(self, producer: ProducerStamp, record: CoordinatorRecord) -> Any:
        """As `RevocableShard.before`, of a record of a producer's open transaction."""
        ...

    def replay_pending(self, producer: ProducerStamp, records: list[tuple[bytes, bytes | None]]) -> int:
        """Keep records of a producer's open transaction. Returns how many could not be read and were skipped."""
        ...

    def ending_cost(self, producer: ProducerStamp) -> int:
        """What `end_transaction` will take, in units of `common.pacing`."""
        ...

    def end_transaction(self, producer: ProducerStamp, *, commit: bool) -> int:
        """A marker, at the offset of the last `begin_batch`, ends the producer's transaction. Returns the number of its
        pending records."""
        ...


_with_transactions: dict[type, bool] = {}
_with_snapshots: dict[type, bool] = {}


def transactional(shard: Shard) -> TransactionalShard | None:
    """The shard, if it has transactions. Asked for every batch: a check against a protocol goes through all its
    members, so it is made once for each class."""
    known = _with_transactions.get(type(shard))
    if known is None:
        known = _with_transactions[type(shard)] = isinstance(shard, TransactionalShard)
    return cast(TransactionalShard, shard) if known else None


def packed(shard: Shard) -> PackedShard | None:
    """The shard, if it supports snapshots; as `transactional`."""
    known = _with_snapshots.get(type(shard))
    if known is None:
        known = _with_snapshots[type(shard)] = isinstance(shard, PackedShard)
    return cast(PackedShard, shard) if known else None


def replay_each(shard: Shard, records: list[tuple[bytes, bytes | None]]) -> int:
    """`replay_all` for a shard without a faster way."""
    unreadable = 0
    for key, value in records:
        try:
            shard.replay(key, value)
        except ValueError:
            unreadable += 1
    return unreadable


ShardType = TypeVar("ShardType", bound=Shard)
Reply = TypeVar("Reply")

Decide = Callable[[ShardType, Now, Ticket], Decision[CoordinatorRecord, Reply]]
DecideOrPark = Callable[[ShardType, Now, Ticket], Decision[CoordinatorRecord, Reply | Parked]]
Query = Callable[[ShardType, Now], Reply]
