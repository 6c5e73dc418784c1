"""One replica of one partition: its role, its high watermark, and the requests that wait. No I/O except the log's.

A leader appends what clients produce, learns from fetches how far its followers are, and commits: the high watermark is
the lowest end in the maximal ISR (`replica_set.py`). A follower appends what its leader sends and takes the high
watermark from it. Roles and epochs come only from the metadata image.

Invariants: `high_watermark <= log_end_offset`; within a leader epoch the high watermark never falls; only
`log.written_end_offset` counts as this replica's own end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.partitions.ack_delays import TimesAcks
from broker.partitions.replica import LEADER, NO_LEADER, ByteWatch, Replica, Role
from broker.partitions.replica_set import FetchingSession, Follower, IsrProposal, ReplicaSet, ReviewResult
from broker.partitions.transactional_appends import LedTransactions, Marked, Marker, Permission, TransactionalAppends
from broker.partitions.waiters import CommitCallback, CommitQueue, CommitWaiter
from common.errors import ErrorCode, ProtocolError
from common.invariants import check
from kraft.image.partitions import PartitionImage
from records.batch import BatchHeader, ProduceLimits, check_produced
from records.framing import check_framing
from storage.log.log_config import LogConfig
from storage.log.partition_log import Appended, PartitionLog

FIRST_BATCH_PATIENCE_S = 3.0  # a client resends a rejected batch after its retry.backoff.ms

__all__ = ["NO_LEADER", "Partition", "PartitionHost", "Role"]


class PartitionHost(ByteWatch, TimesAcks, Protocol):
    """The broker that hosts a partition, as the partition calls it. All calls are cheap and never raise."""

    def unsettled(self, partition: Partition) -> None:
        """Records wait to be committed: review the followers from time to time."""
        ...

    def follower_written(self, partition: Partition) -> None:
        """An append of a follower that was delayed by the disk has reached the page cache or the device."""
        ...

    def isr_proposed(self, partition: Partition, proposal: IsrProposal) -> None:
        """Ask the controller to change the ISR."""
        ...

    def is_alive(self, node: int) -> bool:
        """Whether that broker is registered and not fenced."""
        ...

    def is_eligible(self, node: int, broker_epoch: int, in_need: bool) -> bool:
        """Whether that broker, with that epoch, may join an ISR (KIP-903); `in_need`: one too small to commit."""
        ...


class Partition(Replica):
    """One replica: role, high watermark, waiting producers. `HostedPartitions` creates it; calls run on the loop."""

    __slots__ = (
        "_host",
        "_lag_max_s",
        "_now",
        "_produce_limits",
        "_refused_at",
        "_unwritten",
        "_waiting",
        "epoch_start_offset",
        "image",
        "inspects_records",
        "led_transactions",
        "node_id",
        "replica_set",
        "shares_reads",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        log: PartitionLog,
        high_watermark: int,
        node_id: int,
        host: PartitionHost,
        now: Callable[[], float],
        lag_max_s: float,
    ) -> None:
        """`high_watermark`: from the checkpoint; limited to what the log holds. `now`: loop time in seconds."""
        super().__init__(topic, index, topic_id, log, high_watermark, host)
        self.node_id = node_id
        self.epoch_start_offset = 0
        self.image: PartitionImage | None = None
        self.replica_set: ReplicaSet | None = None
        self.shares_reads = False  # consumers were redirected to a follower, which needs the high watermark soon
        self.led_transactions: LedTransactions | None = None  # of this leadership, once there was a transaction
        self._waiting = CommitQueue()
        self._unwritten: CommitQueue | None = None
        self._host = host
        self._now = now
        self._lag_max_s = lag_max_s
        self._refused_at = float("-inf")  # when a batch was last rejected for a temporary reason
        self._produce_limits: ProduceLimits = log.config.produce_limits()
        self.inspects_records = log.config.inspects_records
        log.ends.notify(self._written)

    # roles -------------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self.role is LEADER

    def become_leader(self, image: PartitionImage) -> bool:
        """Become leader in `image.leader_epoch`, or apply the image's changes within the same epoch. Return whether a
        new epoch of this leader begins.

        The high watermark does not change; the followers' ends are unknown until they fetch.
        """
        if image.leader_epoch < self.leader_epoch:
            return False
        begins = self.role is not Role.LEADER or image.leader_epoch > self.leader_epoch
        self.image = image
        if begins:
            self._refused_at = self._now()
            self.led_transactions = None
            self.role = Role.LEADER
            self.leader_id = self.node_id
            self.leader_epoch = image.leader_epoch
            self.withhold_tier_end()
            self.epoch_start_offset = self.log.log_end_offset
            self.log.leader_epochs.assign(image.leader_epoch, self.epoch_start_offset)
            self.replica_set = ReplicaSet(
                self.node_id,
                image.replicas,
                image.isr,
                image.partition_epoch,
                self.log.config.min_insync_replicas,
                self._now(),
                image.settled_replica_count,
                self._host.ack_delays,
            )
        elif self.replica_set is not None:
            self.replica_set.adopt_image(image.replicas, image.isr, image.partition_epoch, image.settled_replica_count)
        self._isr_changed()
        self._notify(committed=True)
        return begins

    def become_follower(self, image: PartitionImage) -> bool:
        """Follow `image.leader` (-1: no leader at present). Returns whether leader or epoch changed."""
        if image.leader_epoch < self.leader_epoch:
            return False
        changed = self.role is not Role.FOLLOWER or image.leader_epoch > self.leader_epoch
        self.image = image
        if changed:
            self._stand_down(Role.FOLLOWER)
            self.leader_id = image.leader
            self.leader_epoch = image.leader_epoch
        return changed

    def await_tier(self, image: PartitionImage) -> None:
        """Serve nothing until the tier has answered, or another is elected: this leader may lack committed records."""
        if image.leader_epoch < self.leader_epoch:
            return
        self._stand_down(Role.OFFLINE)
        self.image = image
        self.leader_id = NO_LEADER
        self.leader_epoch = image.leader_epoch

    def go_offline(self, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """Fail all waiting requests with `error`: the replica was deleted, or its log directory failed."""
        self._stand_down(Role.OFFLINE, error)
        self.leader_id = NO_LEADER

    def _stand_down(self, role: Role, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        self.role = role
        self.replica_set = None
        self.led_transactions = None
        self._waiting.refuse_all(error)
        if self._unwritten is not None:
            self._unwritten.refuse_all(error)
        self._notify(committed=True)

    def configure(self, config: LogConfig) -> None:
        """The topic's settings changed."""
        super().configure(config)
        self._produce_limits = config.produce_limits()
        self.inspects_records = config.inspects_records
        if self.replica_set is not None:
            self.replica_set.configure(config.min_insync_replicas)
            self._isr_changed()

    # appending as leader -----------------------------------------------------------------------------------

    def check_appendable(self, acks: int) -> None:
        """Raises NOT_LEADER_OR_FOLLOWER; with acks=-1, NOT_ENOUGH_REPLICAS if the ISR is too small."""
        replicas = self.replica_set
        if replicas is None:
            offline = self.role is Role.OFFLINE
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and replicas.is_starved:
            self.note_refusal()
            message = f"{len(replicas.isr)} in-sync replicas where {replicas.effective_min_insync} are needed"
            raise ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS, message)

    def append_produced(
        self, buffer: bytearray | memoryview, view: memoryview, at: int, end: int, acks: int, now_ms: int
    ) -> Appended:
        """Check and append the one batch that a client sent as `view[at:end]`; `buffer` is the same memory.

        Raises ProtocolError with the code for the client. A duplicate is answered with its original's offsets.
        """
        self.check_appendable(acks)
        header = check_produced(view, at, end, self._produce_limits, now_ms)
        try:
            if header.producer_id >= 0 and (repeated := self.find_repeated(header)) is not None:
                return repeated
            check_framing(buffer, at, end, header)
            return self.append_batch(buffer, view, at, end, header, now_ms)
        except ProtocolError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:  # others, such as a wrong sequence, concern one producer
                self.note_refusal()
            raise

    def note_refusal(self) -> None:
        """A batch was rejected for a temporary reason: what was sent behind it must not come before it."""
        self._refused_at = self._now()

    @property
    def has_just_refused(self) -> bool:
        return self._now() - self._refused_at < FIRST_BATCH_PATIENCE_S

    def find_repeated(self, header: BatchHeader) -> Appended | None:
        """The answer to a batch of a producer if it repeats an earlier one, else None. As in Apache Kafka, a forgotten
        producer may continue with any sequence, unless a new one's first batch may have been refused just now."""
        try:
            known = self.log.find_duplicate(header)
        except ProtocolError as error:
            if error.code is not ErrorCode.UNKNOWN_PRODUCER_ID:
                raise
            if self.has_just_refused:
                raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "a batch before it was refused") from error
            return None
        if known is None:
            return None
        stamped = known.timestamp if self._produce_limits.log_append_time else -1
        return Appended(known.base_offset, known.next_offset, stamped, True)

    def check_batch(
        self, view: memoryview, at: int, end: int, now_ms: int, *, transactional: bool = False
    ) -> BatchHeader:
        """Check a client's batch as `append_produced` does, for an append later. Returns its header."""
        header = check_produced(view, at, end, self._produce_limits, now_ms, transactional=transactional)
        check_framing(view, at, end, header)
        return header

    def check_room(self, size: int) -> None:
        """Raises as `append_records` does if the log cannot take `size` bytes now, or the ISR could not commit them."""
        self.check_appendable(-1)
        self.log.check_admits(size)

    @property
    def is_starved(self) -> bool:
        """Whether this broker leads and the committed ISR is too small to commit anything."""
        return self.replica_set is not None and self.replica_set.is_starved

    def append_records(self, batch: bytearray, leader_epoch: int, now_ms: int) -> int:
        """Append one batch that this broker created itself. Returns the log end offset after it.

        The coordinator has already decided its content, so neither the topic's limits nor the ISR size reject it: call
        `check_room` before. Raises ProtocolError: NOT_LEADER_OR_FOLLOWER unless this broker leads in exactly
        `leader_epoch`, KAFKA_STORAGE_ERROR.
        """
        if leader_epoch != self.leader_epoch:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.check_appendable(0)
        with memoryview(batch) as view:
            return self.append_batch(batch, view, 0, len(batch), None, now_ms).next_offset

    @property
    def transactions(self) -> TransactionalAppends:
        """What this leader appends in transactions."""
        if self.led_transactions is None:
            self.led_transactions = LedTransactions(self.epoch_start_offset)
        return TransactionalAppends(self, self.led_transactions)

    def check_permission(self, permission: Permission) -> None:
        self.transactions.check(permission)

    def append_marker(self, marker: Marker, now_ms: int) -> Marked:
        return self.transactions.append_marker(marker, now_ms)

    def append_batch(
        self,
        buffer: bytearray | memoryview,
        view: memoryview,
        at: int,
        end: int,
        header: BatchHeader | None,
        now_ms: int,
    ) -> Appended:
        """Append a batch that was checked or created here; no `header`: read it."""
        log, ends = self.log, self.log.ends  # attributes, here and below: this runs for every record
        before = ends.log_end
        appended = log.append_as_leader(buffer, view, at, end, self.leader_epoch, now_ms, header)
        if not self._is_busy:
            self._begin_busy()
        self.bytes_in += end - at
        replicas = self.replica_set
        if replicas is not None and replicas.appended(appended.next_offset, self.high_watermark == before, self._now()):
            self._host.unsettled(self)
        if ends.readable == appended.next_offset:
            for watcher in self.watchers:
                watcher.partition_changed(self, committed=False)
        if ends.written == appended.next_offset:
            self.advance()
        return appended

    def _written(self) -> None:
        """More of the log is written, so more counts as held by this replica."""
        if self.replica_set is None:
            if self.role is Role.FOLLOWER:
                self._host.follower_written(self)
            return
        if self._unwritten is not None:
            self._unwritten.release(self.log.written_end_offset)
        for watcher in self.watchers:
            watcher.partition_changed(self, committed=False)
        self.advance()

    def _moved_late(self) -> None:
        if self.role is Role.FOLLOWER:
            self._host.follower_written(self)

    def advance(self) -> None:
        """Advance the high watermark."""
        replicas = self.replica_set
        if replicas is None:
            return
        ends = self.log.ends
        offset = replicas.high_watermark(ends.written, self._now(), self._lag_max_s)
        if offset > self.high_watermark:
            check(offset <= ends.log_end, "the high watermark lies within the log")
            self.high_watermark = offset
            self.log.note_high_watermark()
            for watcher in self.watchers:
                watcher.partition_changed(self, committed=True)
            self._waiting.release(offset)

    def tier_reaches(self, offset: int) -> None:
        """A leader also advances its high watermark, because what the tier holds was committed."""
        if self.replica_set is not None and self.high_watermark < offset <= self.log.written_end_offset:
            self.high_watermark = offset
            self.log.note_high_watermark()
            self._waiting.release(offset)
        super().tier_reaches(offset)

    def when_committed(self, offset: int, waiter: CommitWaiter) -> bool:
        """Call `waiter` when `offset` is committed. Returns False, and never calls it, if it already is."""
        if offset <= self.high_watermark:
            return False
        self._waiting.add(offset, waiter)
        return True

    def on_commit(self, offset: int, done: Callable[[ErrorCode | None], None]) -> bool:
        """As `when_committed`: calls `done(None)` when committed, `done(error)` when this broker stops leading."""
        return self.when_committed(offset, CommitCallback(done))

    def when_written(self, offset: int, waiter: CommitWaiter) -> bool:
        """As `when_committed`, for acks=1: when this replica itself holds everything before `offset`."""
        if offset <= self.log.ends.written:
            return False
        if self._unwritten is None:
            self._unwritten = CommitQueue()
        self._unwritten.add(offset, waiter)
        return True

    def share_reads(self) -> None:
        """From now on consumers may be redirected to a follower."""
        self.shares_reads = True

    @property
    def is_settled(self) -> bool:
        """Whether no record waits to be committed."""
        return self.high_watermark >= self.log.ends.log_end

    # followers of this leader ------------------------------------------------------------------------------

    def follower_fetched(
        self,
        node: int,
        offset: int,
        log_start_offset: int,
        broker_epoch: int,
        session: FetchingSession | None = None,
        tier_generation: int = 0,
        lacks_below: int = 0,
    ) -> None:
        """A follower in this epoch fetched at `offset`: it holds everything before, on the same lineage.

        Later fetches in `session` show that it still follows. `tier_generation` and `lacks_below`: see `Held`. Raises
        ProtocolError(UNKNOWN_TOPIC_OR_PARTITION) if that broker has no replica of this partition.
        """
        replicas = self.replica_set
        follower = replicas.followers.get(node) if replicas is not None else None
        if replicas is None or follower is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no replica of this partition")
        written = self.log.ends.written
        moved = follower.fetched(
            offset, log_start_offset, broker_epoch, session, tier_generation, lacks_below, written, self._now()
        )
        if node not in replicas.isr:
            self._consider_joining(replicas, follower)
            self.advance()
            if replicas.outside:
                self._host.unsettled(self)
        elif moved:
            self.advance()

    def follower_left(self, node: int, session: FetchingSession) -> None:
        """The follower's fetch session `session` no longer includes this partition."""
        follower = self.replica_set.followers.get(node) if self.replica_set is not None else None
        if follower is not None:
            follower.left(session)

    def followers_fetched_within(self, seconds: float) -> bool:
        """Whether this broker leads and every ISR follower has fetched in its epoch within the last `seconds`."""
        return self.replica_set is not None and self.replica_set.isr_has_fetched_since(self._now() - seconds)

    def _consider_joining(self, replicas: ReplicaSet, follower: Follower) -> None:
        follower.check_eligible(self._host.is_eligible, replicas.is_starved)
        may_join = replicas.may_join(follower, self.high_watermark, self.epoch_start_offset, self._now())
        if may_join and self.admits(follower.held):
            self._host.isr_proposed(self, replicas.propose_join(follower.node))

    def review(self, stalled_s: float = 0.0) -> ReviewResult:
        """Review the followers; called from time to time while the partition is unsettled.

        Lagging replicas leave the ISR, and caught-up replicas outside it may join. Fetches alone do not show this,
        because a fetch without progress does not name the partition. `stalled_s`: how long this process was stalled
        within the last lag time and read no fetch; followers are given that much longer.
        """
        replicas = self.replica_set
        if replicas is None:
            return ReviewResult.SETTLED
        now = self._now()
        replicas.note_whole(self.log.written_end_offset, now)
        if replicas.proposal is None:
            lagging = replicas.lagging(self.log.written_end_offset, now, self._lag_max_s + stalled_s)
            if lagging:
                self._host.isr_proposed(self, replicas.propose_leave(lagging))
        fetching = replicas.fetching_outside(now)
        for follower in fetching:
            self._consider_joining(replicas, follower)
        self.advance()
        return ReviewResult.UNSETTLED if fetching or not self.is_settled else replicas.outlook

    def isr_committed(self, isr: tuple[int, ...], leader_epoch: int, partition_epoch: int) -> None:
        """The controller's answer to a proposal, which the image will confirm a little later."""
        replicas = self.replica_set
        if replicas is None or leader_epoch != self.leader_epoch or partition_epoch <= replicas.partition_epoch:
            return
        adding = self.image.adding if self.image is not None else ()
        # This may have ended a reassignment: then all replicas count. The image will confirm it.
        settled = None if all(node in isr for node in adding) else replicas.settled
        replicas.adopt((self.node_id, *replicas.followers), isr, partition_epoch, settled)
        self._isr_changed()

    def isr_refused(self, proposal: IsrProposal) -> None:
        """The controller rejected the proposal; it may be proposed again."""
        replicas = self.replica_set
        if replicas is not None:
            replicas.withdraw(proposal, self._now())
            self.advance()
            if replicas.outside:  # its fetches need not name this partition, so it must be reviewed
                self._host.unsettled(self)

    def _isr_changed(self) -> None:
        replicas = self.replica_set
        if replicas is None:
            return
        if replicas.is_starved:
            self._waiting.starve()
        self.advance()
        if replicas.outside or not self.is_settled:
            self._host.unsettled(self)

    # positions ---------------------------------------------------------------------------------------------

    @property
    def low_watermark(self) -> int:
        """The lowest log start of this leader and its live followers."""
        own, replicas = self.log.log_start_offset, self.replica_set
        return own if replicas is None else replicas.low_watermark(own, self._host.is_alive)

    @property
    def knows_high_watermark(self) -> bool:
        """Whether this broker leads and its high watermark has reached the start of its epoch. Before that it may be
        lower than what the previous leader exposed (KIP-207)."""
        return self.role is Role.LEADER and self.high_watermark >= self.epoch_start_offset
