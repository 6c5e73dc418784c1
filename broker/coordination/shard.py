"""What a shard is: the state machine that one partition of an internal topic holds, free of I/O.

A shard *decides* (request and time in, records and a reply out) and *replays* (records in). Hard state, which the
records can rebuild, changes in `replay` alone; soft state (parked requests, session timers) may change in a decision.
A reply that has to wait for others is PARKED under its ticket and comes later through `take_answers`.
The runtime shows nothing that a decision, an expiry or an answer has seen before it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from broker.coordination.packed_records import Run
from common.decision import Decision

Ticket = int


class CoordinatorRecord(NamedTuple):
    """One record of an internal topic, as its bytes; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class Now(NamedTuple):
    """`monotonic_s` for durations, `wall_ms` for what is written into records and for retention. `next_offset` is that
    of the first record which a decision made now yields. Before `spared_until_s` no client counts as silent: this node
    was stalled, and what clients sent meanwhile may not have been read yet."""

    monotonic_s: float
    wall_ms: int
    next_offset: int = 0
    spared_until_s: float = 0.0


class Parked(Enum):
    """The reply of a decision that is answered later, through the ticket."""

    PARKED = "parked"


PARKED = Parked.PARKED


class Answer(NamedTuple):
    """The late reply to a parked request."""

    ticket: Ticket
    reply: object


class Shard(Protocol):
    """One partition's coordinator state. All calls come from one event loop, one at a time."""

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a record: while loading, and at once when a decision's record is on its way to the log.

        Records of an unknown kind are left alone, so that an older node can run beside a newer one.
        """
        ...

    def replay_all(self, records: list[tuple[bytes, bytes | None]]) -> int:
        """`replay` of some records in order while loading; how many of them could not be read, and were left out."""
        ...

    def held_bytes(self) -> int:
        """About how much memory the hard state takes."""
        ...

    def loaded(self, now: Now) -> list[CoordinatorRecord]:
        """The whole log was replayed: begin the timers. What it returns is appended first."""
        ...

    def next_deadline(self) -> float | None:
        """Monotonic seconds at which `expire` has something to do."""
        ...

    def expire(self, now: Now) -> list[CoordinatorRecord]:
        """Do what is due; the records it yields need not become true together."""
        ...

    def take_answers(self) -> list[Answer]:
        """Late replies since the last call."""
        ...


@runtime_checkable
class RevocableShard(Shard, Protocol):
    """A shard that outlives an append that its log refuses; any other is dropped then, and loaded again."""

    def before(self, record: CoordinatorRecord) -> Any:
        """What `record`, which is about to be replayed, changes: as it is now, for `take_back`."""
        ...

    def take_back(self, before: list[Any], now: Now) -> None:
        """The log refused the newest records that were replayed. Bring back what was `before` each of them, the newest
        first, and have soft state follow. The requests that decided on them are refused elsewhere."""
        ...


@runtime_checkable
class PackedShard(Shard, Protocol):
    """A shard that can be written to the disk and read back, see `snapshots`."""

    def pack(self) -> Iterator[tuple[bytes, int]]:
        """Its hard state in short parts, runs of records; and how many each has. It may change between two parts: what
        comes meanwhile may be left out."""
        ...

    def unpack(self, run: Run) -> None:
        """`replay` of a run's records, before anything else is replayed. Raises ValueError."""
        ...


def replay_each(shard: Shard, records: list[tuple[bytes, bytes | None]]) -> int:
    """`replay_all` of a shard that has no quicker way."""
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
