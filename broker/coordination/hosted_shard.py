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

from broker.coordination.acts import Acts
from broker.coordination.awaiting_commit import NEVER, AwaitingCommit, Waiter, answer
from broker.coordination.open_batch import BATCH_OVERHEAD_BYTES, OpenBatch, size_of
from broker.coordination.partition_access import CoordinatedPartition
from broker.coordination.shard import (
    PARKED,
    ActingShard,
    CoordinatorRecord,
    Decide,
    Now,
    Query,
    Reply,
    RevocableShard,
    ShardType,
    Ticket,
    TransactionalShard,
)
from broker.coordination.snapshots import Progress
from broker.partitions.transactional_appends import Marker, Permission
from common.decision import ProducerStamp
from common.errors import ErrorCode, ProtocolError, StorageFailure
from common.invariants import InvariantViolation
from common.node_settings.groups import GroupSettings
from common.ports import Clock
from common.settings import same, seconds

BATCH_BYTES_MAX = 1_048_588  # for batches of internal topics, independent of `message.max.bytes`


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Times in seconds. `batch_bytes_max` limits a batch and each record of a decision, `batch_records_max` the work of
    building a batch, `parked_max` the requests that wait for other clients, `uncommitted_bytes_max` the records that
    wait for followers, `stale_reads_max` the reads that wait for followers, `stale_reads_at_once` those answered in one
    turn."""

    commit_timeout_s: float = same(GroupSettings, "offsets_commit_timeout_ms", seconds)
    freshness_s: float = 1.0
    stale_read_timeout_s: float = 2.0
    stale_read_poll_s: float = 0.05
    starved_poll_s: float = 0.5
    parked_max: int = 100_000
    stale_reads_max: int = 10_000
    stale_reads_at_once: int = 500
    uncommitted_bytes_max: int = 16 << 20
    batch_bytes_max: int = BATCH_BYTES_MAX
    batch_records_max: int = 1_000


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
        begin_act: Callable[[object], None],
    ) -> None:
        """`holds_lease()`: whether the controllers consider this broker alive, so that they have not elected another
        leader. `begin_act` is called with what the shard wants done, once the records that ask for it are committed."""
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
        self._acting: ActingShard | None = shard if isinstance(shard, ActingShard) else None
        self._transactional: TransactionalShard | None = shard if isinstance(shard, TransactionalShard) else None
        self._undone = 0  # how often records were taken back
        self._open = OpenBatch()
        self._flush_due = False
        self._uncommitted = AwaitingCommit(partition, limits.commit_timeout_s, Acts(begin_act), self._lost)
        self._stale: deque[tuple[float, Query[ShardType, Any], asyncio.Future[Any]]] = deque()
        self._answers_stale = False  # whether the followers' word is fresh, and more of those reads can be answered
        self._starved_until: float | None = None

    def now(self) -> Now:
        return Now(self._clock.monotonic(), self._clock.wall_ms(), self._end + len(self._open))

    def begin(self) -> None:
        """Start the shard's timers after the log was replayed. What the loaded state asks for begins when the high
        watermark has passed the loaded end."""
        records = self.shard.loaded(self.now())
        self._uncommitted.add(self._end, 0, self._take_acts(), [], self._clock.monotonic())
        self._take(records, None)

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

    def submit(
        self, decide: Decide[ShardType, Any], *, soft: bool, permission: Permission | None = None
    ) -> asyncio.Future[Any]:
        """Decide now. The future gets the reply when it may be sent. `soft`: the decision never yields records.
        `permission`: of the producer in whose transaction its records are.

        Raises the error of a permission that is void, and ProtocolError(COORDINATOR_NOT_AVAILABLE) if the log would
        reject an append, or too much waits already; then nothing is decided. UNKNOWN_SERVER_ERROR: the decision has a
        record that is too long for the log; nothing of it is kept.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if not soft:
            self._check_room()
        self._check_backlog()
        if permission is not None:
            self.partition.check_permission(permission)
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
            self._take(decision.records, None, decision.producer)
        else:
            self._take(decision.records, (future, decision.reply), decision.producer)
        return future

    def marker_cost(self, marker: Marker) -> int:
        """What `append_marker` takes for what it ends, in units of `common.pacing`."""
        return self._with_transactions().ending_cost(ProducerStamp(marker.producer_id, marker.producer_epoch))

    def append_marker(self, marker: Marker) -> asyncio.Future[None]:
        """End a producer's transaction here: append the marker and replay it. The future ends when the marker is
        committed; one that repeats another is not appended, and waits for what it repeats.

        Raises ProtocolError if the log refuses the marker; then nothing has changed.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._check_backlog()
        if not self._flush():
            code = ErrorCode.NOT_COORDINATOR if self.closed else ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise ProtocolError(code, "the log refuses appends")
        now = self.now()
        try:
            end, is_repeated = self.partition.append_marker(marker, now.wall_ms)
        except StorageFailure as error:
            self._lost()
            raise ProtocolError(ErrorCode.NOT_COORDINATOR, "the log refuses appends") from error
        if is_repeated:
            self._uncommitted.join_at(end, [(future, None)], now.monotonic_s)
            return future
        shard = self._with_transactions()
        shard.begin_batch(self._end)
        shard.end_transaction(ProducerStamp(marker.producer_id, marker.producer_epoch), commit=marker.commit)
        self._end = end
        self._uncommitted.add(end, BATCH_OVERHEAD_BYTES, self._take_acts(), [(future, None)], now.monotonic_s)
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

    def _check_backlog(self) -> None:
        waiting = len(self._parked) >= self._limits.parked_max
        if waiting or self._uncommitted.bytes >= self._limits.uncommitted_bytes_max:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many requests wait")

    def _check_sizes(self, records: list[CoordinatorRecord]) -> None:
        for record in records:
            if size_of(record) > self._limits.batch_bytes_max - BATCH_OVERHEAD_BYTES:
                raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, "a record that is too long for the log")

    def _check_room(self) -> None:
        try:
            self.partition.check_room(self._open.bytes + self._limits.batch_bytes_max)
        except ProtocolError as error:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                code = ErrorCode.NOT_COORDINATOR
            raise ProtocolError(code, error.message) from error

    # time --------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        deadline = self.shard.next_deadline() if self._starved_until is None else self._starved_until
        first = self._uncommitted.deadline_s if deadline is None else min(deadline, self._uncommitted.deadline_s)
        if self._stale:
            pause_s = 0.0 if self._answers_stale else self._limits.stale_read_poll_s
            first = min(first, self._clock.monotonic() + pause_s)
        return None if first == NEVER else first

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
        """Do what is due. While nothing can be appended, the shard's own deadlines are postponed, but not what it wants
        done for records that are committed."""
        now = self.now()._replace(spared_until_s=spared_until_s)
        self._uncommitted.expire(now.monotonic_s)
        self._retry_stale(now.monotonic_s)
        deadline = self.shard.next_deadline()
        if deadline is None or deadline > now.monotonic_s:
            self._starved_until = None
            return
        try:
            self._check_room()
        except ProtocolError:
            self._starved_until = now.monotonic_s + self._limits.starved_poll_s
            if self._acting is not None:
                self._acting.find_acts(now)
                self._uncommitted.join_acts(self._take_acts())
            return
        self._starved_until = None
        self._take(self.shard.expire(now), None)

    def _retry_stale(self, now_s: float) -> None:
        self._answers_stale = bool(self._stale) and self._is_fresh()
        if self._answers_stale:
            for _ in range(min(len(self._stale), self._limits.stale_reads_at_once)):
                _, query, future = self._stale.popleft()
                self._answer_query(query, future)
            return
        while self._stale and self._stale[0][0] <= now_s:
            _, _, future = self._stale.popleft()
            answer(future, ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the followers are silent"))

    # appending ---------------------------------------------------------------------------------------------

    def _take(
        self, records: list[CoordinatorRecord], waiter: Waiter | None, producer: ProducerStamp | None = None
    ) -> None:
        """Replay and buffer `records`. The waiter, and requests that the shard now answers, get their results after the
        commit."""
        limits = self._limits
        for record in records:
            admitted = self._open.admits(
                size_of(record), producer, bytes_max=limits.batch_bytes_max, records_max=limits.batch_records_max
            )
            if (not admitted and not self._flush()) or self.closed:
                self._refuse_now(waiter)
                return
            self._replay(record, producer)
        waiters = self._answered() if waiter is None else [waiter, *self._answered()]
        if self._open or self.closed:
            self._open.wait(waiters)
        if self.closed:
            self._refuse_all()
        elif self._open:
            if not self._flush_due:
                self._flush_due = True
                self._loop.call_soon(self._flush_turn)
        else:
            self._uncommitted.join_acts(self._take_acts())
            self._uncommitted.join(waiters, self._clock.monotonic())

    def _replay(self, record: CoordinatorRecord, producer: ProducerStamp | None) -> None:
        if self._revocable is not None:
            if producer is None:
                self._open.before.append(self._revocable.before(record))
            else:
                self._open.before.append(self._with_transactions().before_pending(producer, record))
        if self._transactional is not None:
            self._transactional.begin_batch(self._end)
        if producer is None:
            self.shard.replay(record.key, record.value)
        else:
            self._with_transactions().replay_pending(producer, [record])
        self._open.add(record, producer)

    def _with_transactions(self) -> TransactionalShard:
        if self._transactional is None:
            raise InvariantViolation("a transaction in a shard that has none")
        return self._transactional

    def _answered(self) -> list[Waiter]:
        """Waiting requests that the shard answers now."""
        waiters: list[Waiter] = []
        for ticket, reply in self.shard.take_answers():
            parked = self._parked.pop(ticket, None)
            if parked is not None:
                waiters.append((parked, reply))
        return waiters

    def _take_acts(self) -> list[object]:
        return [] if self._acting is None else self._acting.take_acts()

    def _refuse_now(self, waiter: Waiter | None) -> None:
        """Part of a decision was not appended: answer no request for the rest."""
        refused = [*self._answered(), *([] if waiter is None else [waiter])]
        code = ErrorCode.NOT_COORDINATOR if self.closed else ErrorCode.COORDINATOR_NOT_AVAILABLE
        for future, _ in refused:
            answer(future, ProtocolError(code, "the log refuses appends"))

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
        batch, self._open = self._open, OpenBatch()
        acts = self._take_acts()
        try:
            self._end = self.partition.append_records(batch.encoded(now.wall_ms), self.leader_epoch, now.wall_ms)
        except (ProtocolError, StorageFailure) as error:
            self._rejected(batch, acts, error)
            return False
        except Exception:
            self._open.wait(batch.waiters)
            self.give_up()  # it has what its log may not have
            raise
        self._uncommitted.add(self._end, batch.bytes, acts, batch.waiters, now.monotonic_s)
        return True

    def _rejected(self, batch: OpenBatch, acts: list[object], error: ProtocolError | StorageFailure) -> None:
        """A full disk rejects any batch, and a producer's state in the log rejects that producer's."""
        code = error.code if isinstance(error, ProtocolError) else None
        is_harmless = code is ErrorCode.KAFKA_STORAGE_ERROR or (code is not None and batch.producer is not None)
        if is_harmless and self._revocable is not None and self.partition.is_leader:
            self._take_back(self._revocable, batch, acts, code)
            return
        self._open.wait(batch.waiters)
        self._lost()

    def _take_back(self, shard: RevocableShard, batch: OpenBatch, acts: list[object], code: ErrorCode | None) -> None:
        """The log changed between decision and append: reject the requests that saw the decisions."""
        self._undone += 1
        if code is None or code is ErrorCode.KAFKA_STORAGE_ERROR:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        for future, _ in batch.waiters:
            answer(future, ProtocolError(code, "the log refuses appends"))
        shard.undo(batch.before[::-1], self.now())
        if self._acting is not None:
            self._acting.put_back(acts)
        self._uncommitted.join_acts(self._take_acts())
        self._uncommitted.join(self._answered(), self._clock.monotonic())

    # the end -----------------------------------------------------------------------------------------------

    def _lost(self) -> None:
        """The log or its leadership is lost."""
        self.give_up()

    def give_up(self) -> None:
        """Close the shard. The runtime loads it again, or drops it where this broker no longer leads."""
        self.close()
        self._broken()

    def close(self) -> None:
        """Drop the shard: waiting requests get NOT_COORDINATOR. Appended records may still be committed. Idempotent."""
        if not self.closed:
            self.closed = True
            self._refuse_all()

    def _refuse_all(self) -> None:
        refused = [future for future, _ in self._open.waiters]
        refused.extend(self._uncommitted.close())
        refused.extend(self._parked.values())
        refused.extend(future for _, _, future in self._stale)
        self._open, self._parked = OpenBatch(), {}
        self._stale.clear()
        for future in refused:
            answer(future, ProtocolError(ErrorCode.NOT_COORDINATOR))
