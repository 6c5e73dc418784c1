"""One shard in one leader epoch: it takes decisions, appends one batch per turn of the loop, and replies after the
commit.

Invariants: records are replayed in the order in which they are appended; a reply is sent only when everything that its
decision saw is committed; a decision that the log would reject is rejected before it is made, and the shard stays. If
the device fills up in between, the decisions of that turn are taken back. Only a new leader epoch, or another disk
failure, drops the shard.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from msgspec import Struct, field

from broker.coordination.partition_access import CoordinatedPartition
from broker.coordination.shard import (
    PARKED,
    CoordinatorRecord,
    Decide,
    Now,
    Query,
    Reply,
    RevocableShard,
    ShardType,
    Ticket,
)
from broker.coordination.snapshots import Progress
from common.errors import ErrorCode, ProtocolError, StorageFailure
from common.node_settings.groups import GroupSettings
from common.ports import Clock
from common.settings import same, seconds
from records.builder import build_batch
from records.record import Record

RECORD_OVERHEAD_BYTES = 32  # maximal varint overhead of one record below 1 GB
BATCH_OVERHEAD_BYTES = 61
BATCH_BYTES_MAX = 1_048_588  # for batches of internal topics, independent of `message.max.bytes`

Waiter = tuple["asyncio.Future[Any]", object]
"""A waiting caller's future and its result: a value, or an exception."""


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Times in seconds. `batch_bytes_max` limits a batch and each record of a decision, `batch_records_max` the work of
    building a batch, `parked_max` the requests that wait for other clients, `uncommitted_bytes_max` the records that
    wait for followers, `stale_reads_max` the reads that wait for followers."""

    commit_timeout_s: float = same(GroupSettings, "offsets_commit_timeout_ms", seconds)
    freshness_s: float = 1.0
    stale_read_timeout_s: float = 2.0
    stale_read_poll_s: float = 0.05
    starved_poll_s: float = 0.5
    parked_max: int = 100_000
    stale_reads_max: int = 10_000
    uncommitted_bytes_max: int = 16 << 20
    batch_bytes_max: int = BATCH_BYTES_MAX
    batch_records_max: int = 1_000


class Uncommitted(Struct):
    """One appended batch, and the callers that wait for its commit or an earlier one."""

    end_offset: int
    deadline_s: float  # for the waiters; monotonic seconds
    bytes: int
    waiters: list[Waiter] = field(default_factory=list)

    def add(self, waiters: list[Waiter], deadline_s: float) -> None:
        self.waiters.extend(waiters)
        self.deadline_s = min(self.deadline_s, deadline_s)

    def take_late(self, now_s: float) -> list[Waiter]:
        """The waiters, if their time is up."""
        if self.deadline_s > now_s:
            return []
        late, self.waiters, self.deadline_s = self.waiters, [], float("inf")
        return late


class HostedShard(Generic[ShardType]):
    """`deadline_moved` is called when `next_deadline` may have become earlier outside a call of the runtime; `broken`
    once, when the shard must be reloaded although this broker may still lead."""

    def __init__(
        self,
        shard: ShardType,
        partition: CoordinatedPartition,
        clock: Clock,
        limits: HostLimits,
        loaded_end: int,
        deadline_moved: Callable[[], None],
        broken: Callable[[], None],
        holds_lease: Callable[[], bool],
    ) -> None:
        """`holds_lease()`: whether the controllers consider this broker alive, so that they have not elected another
        leader."""
        self.shard = shard
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.closed = False
        self._armed_s: float | None = None  # the deadline at which the runtime's timer next checks this shard
        self._clock = clock
        self._limits = limits
        self._deadline_moved = deadline_moved
        self._broken = broken
        self._holds_lease = holds_lease
        self._loop = asyncio.get_running_loop()
        self._end = loaded_end
        self._tickets = 0
        self._parked: dict[Ticket, asyncio.Future[Any]] = {}
        self._revocable: RevocableShard | None = shard if isinstance(shard, RevocableShard) else None
        self._undone = 0  # how often records were taken back
        self._open: list[CoordinatorRecord] = []
        self._open_before: list[Any] = []  # what the open records have changed, newest last
        self._open_bytes = 0
        self._open_waiters: list[Waiter] = []
        self._flush_due = False
        self._uncommitted: deque[Uncommitted] = deque()
        self._uncommitted_bytes = 0
        self._commit_deadline_s = float("inf")  # never later than the deadline of any waiter for a commit
        self._stale: deque[tuple[float, Query[ShardType, Any], asyncio.Future[Any]]] = deque()
        self._starved_until: float | None = None
        if loaded_end > partition.high_watermark:
            self._await_commit(Uncommitted(loaded_end, float("inf"), 0))

    def now(self) -> Now:
        return Now(self._clock.monotonic(), self._clock.wall_ms(), self._end + len(self._open))

    def begin(self) -> None:
        """Start the shard's timers after the log was replayed."""
        self._take(self.shard.loaded(self.now()), None)

    @property
    def end(self) -> int:
        """Everything below is in the shard and in the log."""
        return self._end

    def progress(self) -> Progress:
        """For a snapshot that is written while the shard works."""
        return Progress(
            lambda: self._end, lambda: self._end + len(self._open), lambda: -1 if self.closed else self._undone
        )

    # decisions ---------------------------------------------------------------------------------------------

    def submit(self, decide: Decide[ShardType, Any], *, soft: bool) -> asyncio.Future[Any]:
        """Decide now. The future gets the reply when it may be sent. `soft`: the decision never yields records.

        Raises ProtocolError(COORDINATOR_NOT_AVAILABLE) if the log would reject an append, or too much waits already;
        then nothing is decided. UNKNOWN_SERVER_ERROR: the decision has a record that is too long for the log; nothing
        of it is kept.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if not soft:
            self._check_room()
        if (
            len(self._parked) >= self._limits.parked_max
            or self._uncommitted_bytes >= self._limits.uncommitted_bytes_max
        ):
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many requests wait")
        self._tickets += 1
        ticket = self._tickets
        try:
            decision = decide(self.shard, self.now(), ticket)
            self._check_sizes(decision.records)
        except ProtocolError as error:
            self._take([], (future, error))
            return future
        if decision.reply is PARKED:
            self._parked[ticket] = future
            self._take(decision.records, None)
        else:
            self._take(decision.records, (future, decision.reply))
        return future

    def notify(self, act: Callable[[ShardType, Now], list[CoordinatorRecord]]) -> None:
        """Something outside has changed: call `act` on the shard even if nothing can be appended now. Its records may
        get lost, so they must not be essential."""
        self._take(act(self.shard, self.now()), None)

    def query(self, query: Query[ShardType, Reply]) -> asyncio.Future[Reply]:
        """Read the shard. The future gets the result when no newer coordinator can have made it stale.

        COORDINATOR_NOT_AVAILABLE if the followers are silent for longer than the limit.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()
        if not self._stale and self._is_fresh():
            self._answer_query(query, future)
        elif len(self._stale) >= self._limits.stale_reads_max:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many reads wait")
        else:
            self._stale.append((self._clock.monotonic() + self._limits.stale_read_timeout_s, query, future))
        return future

    def _answer_query(self, query: Query[ShardType, Any], future: asyncio.Future[Any]) -> None:
        try:
            reply: object = query(self.shard, self.now())
        except ProtocolError as error:
            reply = error
        self._take([], (future, reply))

    def _is_fresh(self) -> bool:
        """Whether no other broker can have led for longer than the freshness limit.

        A new leader comes from the ISR, whose members follow this one. If the ISR is too small to commit, it may come
        from outside, but only after the controllers have fenced this broker.
        """
        return self.partition.followers_fetched_within(self._limits.freshness_s) and (
            not self.partition.is_starved or self._holds_lease()
        )

    def _check_sizes(self, records: list[CoordinatorRecord]) -> None:
        for record in records:
            if _size(record) > self._limits.batch_bytes_max - BATCH_OVERHEAD_BYTES:
                raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, "a record that is too long for the log")

    def _check_room(self) -> None:
        try:
            self.partition.check_room(self._open_bytes + self._limits.batch_bytes_max)
        except ProtocolError as error:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                code = ErrorCode.NOT_COORDINATOR
            raise ProtocolError(code, error.message) from error

    # time --------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        deadline = self.shard.next_deadline() if self._starved_until is None else self._starved_until
        first = self._commit_deadline_s if deadline is None else min(deadline, self._commit_deadline_s)
        if self._stale:
            first = min(first, self._clock.monotonic() + self._limits.stale_read_poll_s)
        return None if first == float("inf") else first

    def arm(self) -> float | None:
        """The next deadline, at which `take_due` must be called; None if an earlier one is set, or none is needed."""
        deadline = None if self.closed else self.next_deadline()
        if deadline is None or (self._armed_s is not None and self._armed_s <= deadline):
            return None
        self._armed_s = deadline
        return deadline

    def take_due(self, deadline: float) -> bool:
        """Whether the deadline that has passed is the newest that `arm` returned."""
        if self._armed_s != deadline:
            return False
        self._armed_s = None
        return True

    def expire(self, spared_until_s: float) -> None:
        """Do what is due. While nothing can be appended, the shard's own deadlines are postponed."""
        now = self.now()._replace(spared_until_s=spared_until_s)
        self._expire_uncommitted(now.monotonic_s)
        self._retry_stale(now.monotonic_s)
        deadline = self.shard.next_deadline()
        if deadline is None or deadline > now.monotonic_s:
            self._starved_until = None
            return
        try:
            self._check_room()
        except ProtocolError:
            self._starved_until = now.monotonic_s + self._limits.starved_poll_s
            return
        self._starved_until = None
        self._take(self.shard.expire(now), None)

    def _expire_uncommitted(self, now_s: float) -> None:
        if self._commit_deadline_s > now_s:
            return
        for batch in self._uncommitted:
            for future, _ in batch.take_late(now_s):
                _answer(future, ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the write was not confirmed"))
        self._commit_deadline_s = min((batch.deadline_s for batch in self._uncommitted), default=float("inf"))

    def _retry_stale(self, now_s: float) -> None:
        if self._stale and self._is_fresh():
            waiting, self._stale = self._stale, deque()
            for _, query, future in waiting:
                self._answer_query(query, future)
            return
        while self._stale and self._stale[0][0] <= now_s:
            _, _, future = self._stale.popleft()
            _answer(future, ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the followers are silent"))

    # appending ---------------------------------------------------------------------------------------------

    def _take(self, records: list[CoordinatorRecord], waiter: Waiter | None) -> None:
        """Replay and buffer `records`. The waiter, and requests that the shard now answers, get their results after the
        commit."""
        bytes_max = self._limits.batch_bytes_max - BATCH_OVERHEAD_BYTES
        for record in records:
            size = _size(record)
            is_full = self._open_bytes + size > bytes_max or len(self._open) >= self._limits.batch_records_max
            if (is_full and not self._flush()) or self.closed:
                self._refuse_now(waiter)
                return
            if self._revocable is not None:
                self._open_before.append(self._revocable.before(record))
            self.shard.replay(record.key, record.value)
            self._open.append(record)
            self._open_bytes += size
        waiters = self._open_waiters
        if waiter is not None:
            waiters.append(waiter)
        waiters += self._answered()
        if self.closed:
            self._refuse_all()
        elif self._open:
            if not self._flush_due:
                self._flush_due = True
                self._loop.call_soon(self._flush_turn)
        elif waiters:
            self._open_waiters = []
            self._release_or_wait(waiters)

    def _answered(self) -> list[Waiter]:
        """Waiting requests that the shard answers now."""
        waiters: list[Waiter] = []
        for ticket, reply in self.shard.take_answers():
            parked = self._parked.pop(ticket, None)
            if parked is not None:
                waiters.append((parked, reply))
        return waiters

    def _refuse_now(self, waiter: Waiter | None) -> None:
        """Part of a decision was not appended: answer no request for the rest."""
        refused = [*self._answered(), *([] if waiter is None else [waiter])]
        code = ErrorCode.NOT_COORDINATOR if self.closed else ErrorCode.COORDINATOR_NOT_AVAILABLE
        for future, _ in refused:
            _answer(future, ProtocolError(code, "the log refuses appends"))

    def _release_or_wait(self, waiters: list[Waiter]) -> None:
        """The waiters wait for the newest append, if it is not committed yet."""
        if self._uncommitted:
            newest = self._uncommitted[-1]
            newest.add(waiters, self._clock.monotonic() + self._limits.commit_timeout_s)
            self._commit_deadline_s = min(self._commit_deadline_s, newest.deadline_s)
        else:
            for future, reply in waiters:
                _answer(future, reply)

    def _flush_turn(self) -> None:
        self._flush_due = False
        if not self.closed:
            self._flush()
            self._deadline_moved()

    def _flush(self) -> bool:
        """Append the open records. False if the log rejected them: they were taken back, or the shard is closed."""
        if not self._open:
            return True
        now = self.now()
        records = [
            Record(offset, now.wall_ms, record.key, record.value, ())
            for offset, record in enumerate(self._open)
        ]  # fmt: skip
        batch = build_batch(records)
        waiters, size, before = self._open_waiters, self._open_bytes, self._open_before
        self._open, self._open_bytes, self._open_waiters, self._open_before = [], 0, [], []
        try:
            self._end = self.partition.append_records(batch, self.leader_epoch, now.wall_ms)
        except (ProtocolError, StorageFailure) as error:
            self._open_waiters = waiters
            refused = isinstance(error, ProtocolError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR
            if refused and self._revocable is not None and self.partition.is_leader:
                self._take_back(self._revocable, before)
            else:
                self.close()
                self._broken()
            return False
        deadline = now.monotonic_s + self._limits.commit_timeout_s
        self._await_commit(Uncommitted(self._end, deadline, size, waiters))
        return True

    def _take_back(self, shard: RevocableShard, before: list[Any]) -> None:
        """The device filled up between decision and append: reject the requests that saw the decisions."""
        self._undone += 1
        refused, self._open_waiters = self._open_waiters, []
        for future, _ in refused:
            _answer(future, ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the log refuses appends"))
        shard.undo(before[::-1], self.now())
        self._release_or_wait(self._answered())

    def _await_commit(self, batch: Uncommitted) -> None:
        self._uncommitted.append(batch)
        self._uncommitted_bytes += batch.bytes
        self._commit_deadline_s = min(self._commit_deadline_s, batch.deadline_s)
        if not self.partition.on_commit(batch.end_offset, self._commit_changed):
            self._commit_changed(None)

    def _commit_changed(self, error: ErrorCode | None) -> None:
        if self.closed:
            return
        if error is not None:
            self.close()
            self._broken()
            return
        high_watermark = self.partition.high_watermark
        while self._uncommitted and self._uncommitted[0].end_offset <= high_watermark:
            batch = self._uncommitted.popleft()
            self._uncommitted_bytes -= batch.bytes
            for future, reply in batch.waiters:
                _answer(future, reply)

    # the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Drop the shard: waiting requests get NOT_COORDINATOR. Appended records may still be committed. Idempotent."""
        if not self.closed:
            self.closed = True
            self._refuse_all()

    def _refuse_all(self) -> None:
        refused = [future for future, _ in self._open_waiters]
        for batch in self._uncommitted:
            refused.extend(future for future, _ in batch.waiters)
        refused.extend(self._parked.values())
        refused.extend(future for _, _, future in self._stale)
        self._open, self._open_waiters, self._parked = [], [], {}
        self._uncommitted.clear()
        self._stale.clear()
        for future in refused:
            _answer(future, ProtocolError(ErrorCode.NOT_COORDINATOR))


def _size(record: CoordinatorRecord) -> int:
    return len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES


def _answer(future: asyncio.Future[Any], reply: object) -> None:
    if future.done():
        return
    if isinstance(reply, ProtocolError):
        future.set_exception(reply)
    else:
        future.set_result(reply)
