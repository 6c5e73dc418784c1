"""Incremental fetch sessions (KIP-227): the leader remembers a reader's positions, and the reader sends only changes.

No I/O; positions watch their partitions. A session keeps the set of positions that may have something new, so the cost
of a fetch depends on what changed, and an idle partition costs nothing.

Behaviour is that of FetchManager, FetchSession and FetchSessionCache in Apache Kafka 4.1, with one addition: a follower
may send its next fetch while the previous one waits, which is then answered at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Protocol

from broker.partitions.partition import Partition
from broker.partitions.replica import Replica
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work, at_once
from wire.hot_codec import NO_TIER_END, FetchCall, FetchedRow, FetchPart

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
EVICTION_S = 120.0  # min.incremental.fetch.session.eviction.ms
BY_ID_FROM = 13
UNSENT = -1
KEPT_ASLEEP_MAX = 1_000  # positions of a session that survives its connection
KEPT_NAMES_BYTES_MAX = 300 * KEPT_ASLEEP_MAX  # of its topics: as many real ones take less
DROPS_PER_STEP = 64


class PositionOwner(Protocol):
    """A session or a single fetch. It is notified when one of its positions may have something new."""

    def position_changed(self, position: Position, *, committed: bool) -> None: ...


class _NoOwner:
    """Owner of dropped positions. Late notifications, for example from a quota, end here."""

    def position_changed(self, position: Position, *, committed: bool) -> None:
        """Nothing to do. Passing it to a session could give that session two positions of one partition."""


_NO_OWNER = _NoOwner()


class WaitingFetch(Protocol):
    """A session's fetch that waits for new data."""

    def poke(self, partition: Partition | None, *, committed: bool) -> None:
        """A position changed: its log grew or, if `committed`, its high watermark or role changed."""
        ...

    def superseded(self) -> None:
        """Another fetch continues the session, or ends it."""
        ...


class Position:
    """A reader's position in one partition. It watches the partition while `partition` is set.

    `topic` is a name or an id, as in the request. The `sent_…` fields hold what the reader was last sent.
    """

    __slots__ = (
        "bytes_max",
        "index",
        "lacks_below",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "offset",
        "owner",
        "partition",
        "sent_erased_end",
        "sent_high_watermark",
        "sent_log_start",
        "sent_tier_end",
        "sent_tier_generation",
        "tier_generation",
        "topic",
    )

    def __init__(self, owner: PositionOwner, part: FetchPart) -> None:
        self.owner = owner
        self.topic = part.topic
        self.index = part.partition
        self.partition: Partition | None = None
        self.sent_high_watermark = UNSENT
        self.sent_log_start = UNSENT
        self.sent_tier_end = self.sent_tier_generation = UNSENT
        self.sent_erased_end = 0
        self.update(part)

    def update(self, part: FetchPart) -> None:
        self.leader_epoch = part.leader_epoch
        self.offset = part.offset
        self.last_fetched_epoch = part.last_fetched_epoch
        self.log_start_offset = part.log_start_offset
        self.bytes_max = part.bytes_max
        self.tier_generation = part.tier_generation
        self.lacks_below = part.lacks_below
        if part.tier_generation:  # the reader may have been sent the tier's end before it learned of this generation
            self.sent_tier_generation = UNSENT

    def send(self, row: FetchedRow) -> bool:
        """Record that `row` is sent. Return whether it has something new besides records."""
        says_more = (
            row.error != 0
            or row.high_watermark != self.sent_high_watermark
            or row.log_start_offset != self.sent_log_start
            or row.tier_end != NO_TIER_END
            or row.erased_end > 0
        )
        self.sent_high_watermark = UNSENT if row.error else row.high_watermark
        self.sent_log_start = row.log_start_offset
        if row.tier_end != NO_TIER_END:
            self.sent_tier_end, self.sent_tier_generation = row.tier_end, row.tier_generation
        if row.erased_end:
            self.sent_erased_end = row.erased_end
        return says_more

    def watch(self, partition: Partition | None) -> None:
        """Watch `partition` from now on, and nothing else."""
        if self.partition is not partition:
            if self.partition is not None:
                self.partition.watchers.pop(self, None)
            self.partition = partition
        if partition is not None:
            partition.watchers[self] = None

    def unwatch(self) -> None:
        if self.partition is not None:
            self.partition.watchers.pop(self, None)

    def give_up(self) -> None:
        """Stop watching; the owner no longer reads here."""
        if self.partition is not None:
            self.partition.watchers.pop(self, None)
        self.owner = _NO_OWNER

    def partition_changed(self, partition: Replica, *, committed: bool) -> None:
        self.owner.position_changed(self, committed=committed)


class FetchSession:
    """One reader's positions. `replica`: broker id of a follower, -1 for a consumer. Only clients of `tenant` can
    continue it."""

    __slots__ = (
        "_abandoned",
        "changed",
        "created_at",
        "dormant",
        "epoch",
        "fetched_at",
        "id",
        "positions",
        "replica",
        "tenant",
        "uses_topic_ids",
        "waiting",
    )

    def __init__(
        self,
        session_id: int,
        replica: int,
        uses_topic_ids: bool,
        now: float,
        tenant: str | None = None,
        abandoned: Callable[[FetchSession], None] | None = None,
    ) -> None:
        """`abandoned` is called when the session loses its connection and is not kept."""
        self.id = session_id
        self.tenant = tenant
        self.replica = replica
        self.epoch = 1  # expected in the next fetch
        self.uses_topic_ids = uses_topic_ids
        self.positions: dict[tuple[bytes, int], Position] = {}
        self.changed: dict[Position, None] = {}
        self.created_at = now
        self.fetched_at = now
        self.dormant = False
        self.waiting: WaitingFetch | None = None
        self._abandoned = abandoned

    @property
    def is_privileged(self) -> bool:
        """Whether it is a follower's session, which a consumer's session never evicts."""
        return self.replica >= 0

    def __len__(self) -> int:
        return len(self.positions)

    def position_changed(self, position: Position, *, committed: bool) -> None:
        self.changed[position] = None
        if self.waiting is not None:
            self.waiting.poke(position.partition, committed=committed)

    def update(self, parts: Iterable[FetchPart], forgotten: Iterable[tuple[bytes, int]]) -> list[Position]:
        """Apply a request's changes. Returns the positions that the request names, in its order. Removals come last."""
        named: dict[Position, None] = {}
        for part in parts:
            key = (part.topic, part.partition)
            position = self.positions.get(key)
            if position is None:
                position = self.positions[key] = Position(self, part)
            else:
                position.update(part)
            named[position] = None
            self.changed[position] = None
        for key in forgotten:
            position = self.positions.pop(key, None)
            if position is not None:
                self._drop(position)
                named.pop(position, None)
        return list(named)

    def park(self, fetch: WaitingFetch) -> None:
        """`fetch` waits for changes."""
        self.waiting = fetch

    def unpark(self, fetch: WaitingFetch) -> None:
        """`fetch` was answered or dropped."""
        if self.waiting is fetch:
            self.waiting = None

    def served(self, position: Position) -> None:
        """Data of this position was sent: move it behind the others, so that they come first next time."""
        if position in self.changed:
            del self.changed[position]
            self.changed[position] = None

    def _drop(self, position: Position, *, leaves: bool = True) -> None:
        position.give_up()
        self.changed.pop(position, None)
        if leaves and position.partition is not None and self.is_privileged:
            position.partition.follower_left(self.replica, self)

    def sleep(self) -> None:
        """The reader's connection is closed: watch nothing until the session is used again.

        A follower's session ends instead, because a follower begins a new one with each connection. So does a large
        session, and one of topics with long names, which need not exist.
        """
        self.dormant = True
        self.waiting = None
        if self._abandoned is not None and not self._may_sleep():
            self._abandoned(self)
            return
        for position in self.positions.values():
            position.unwatch()

    def _may_sleep(self) -> bool:
        if self.is_privileged or len(self.positions) > KEPT_ASLEEP_MAX:
            return False
        return sum(len(topic) for topic, _ in self.positions) <= KEPT_NAMES_BYTES_MAX

    def connection_closed(self) -> None:
        """The connection that last used the session was closed, or uses another session."""
        if self.waiting is None:
            self.sleep()

    def resume(self, now: float) -> None:
        """Another fetch of the session arrived. After `sleep` every position may have changed."""
        self.epoch = next_epoch(self.epoch)
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.superseded()
        self.fetched_at = now
        if self.dormant:
            self.dormant = False
            for position in self.positions.values():
                self.changed[position] = None
                position.watch(position.partition)

    def close(self, *, leaves: bool = True) -> Work[None]:
        """Drop all positions; the cache has already removed the session. Without `leaves`, its partitions still take
        the follower's last fetch as recent: its connection was lost, and it may reconnect in a moment."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.superseded()
        while self.positions:
            self._drop(self.positions.popitem()[1], leaves=leaves)
            if len(self.positions) % DROPS_PER_STEP == 0:
                yield DROPS_PER_STEP


class FetchSessionCache:
    """At most `slots` sessions, with Kafka's rules for eviction.

    A session unused for `EVICTION_S` is evicted first. Otherwise a new session replaces a less valuable one: followers
    are worth more than consumers, and larger sessions more than smaller ones. A consumer only replaces sessions older
    than `EVICTION_S`.
    """

    def __init__(self, slots: int, rng: random.Random, pace: Callable[[Work[None]], object] = at_once) -> None:
        """`pace` runs long work: a session can have as many positions as the cluster has partitions."""
        self._slots = slots
        self.pace = pace
        self._random = rng
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    def resume(self, call: FetchCall, version: int, now: float, tenant: str | None = None) -> FetchSession | None:
        """The session that an incremental fetch continues; None for a full fetch, which ends the session that it names.

        Sessions of other tenants are not found. Raises ProtocolError: FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        session = self._sessions.get(call.session_id)
        if session is not None and session.tenant != tenant:
            session = None
        if call.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self.remove(session.id)
            return None
        if session is None or session.replica != max(call.replica, -1):
            raise ProtocolError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != call.session_epoch:
            raise ProtocolError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids is not (version >= BY_ID_FROM):
            raise ProtocolError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.resume(now)
        self._sessions[session.id] = self._sessions.pop(session.id)
        return session

    def create(self, call: FetchCall, version: int, now: float, tenant: str | None = None) -> FetchSession | None:
        """A new session if the full fetch asks for one and a slot is free, otherwise None."""
        if call.session_epoch != INITIAL_EPOCH or not call.parts:
            return None
        if len(self._sessions) >= self._slots and not self._evict(call, now):
            return None
        by_id = version >= BY_ID_FROM
        session = FetchSession(self._new_id(), max(call.replica, -1), by_id, now, tenant, abandoned=self._abandon)
        self._sessions[session.id] = session
        return session

    def has(self, session: FetchSession) -> bool:
        """Whether this fetch session is open; a later one may have its id."""
        return self._sessions.get(session.id) is session

    def give_up(self, session: FetchSession) -> None:
        """End a session. Called again if it was ended while it was still applying a long request."""
        if self.has(session):
            del self._sessions[session.id]
        self.pace(session.close())

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.pace(session.close())

    def _abandon(self, session: FetchSession) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self.pace(session.close(leaves=False))

    def close(self) -> None:
        for session_id in list(self._sessions):
            self.remove(session_id)

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, 2**31)
            if session_id not in self._sessions:
                return session_id

    def _evict(self, call: FetchCall, now: float) -> bool:
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now - oldest.fetched_at <= EVICTION_S:
            found = self._least_valuable(call, now)
            if found is None:
                return False
            oldest = found
        self.evictions += 1
        self.remove(oldest.id)
        return True

    def _least_valuable(self, call: FetchCall, now: float) -> FetchSession | None:
        privileged = call.replica >= 0
        evictable = [
            session
            for session in self._sessions.values()
            if now - session.created_at > EVICTION_S or (privileged and not session.is_privileged)
        ]
        if not evictable:
            return None
        least = min(evictable, key=lambda session: (session.is_privileged, len(session), session.id))
        return least if (least.is_privileged, len(least)) < (privileged, len(call.parts)) else None


def next_epoch(epoch: int) -> int:
    """The next session epoch; after the largest comes 1."""
    return 1 if epoch >= EPOCH_MAX else epoch + 1
