"""One replica of one partition: its role, its high watermark, and who waits for what. No I/O but the log's.

A leader appends what clients produce, learns from fetches how far its followers are, and commits: the high watermark
is what all of the maximal ISR hold (`replica_set.py`). A follower appends what its leader sent and takes the high
watermark from it. Roles and epochs come from the metadata image alone.

Invariants: `high_watermark <= log_end_offset`; within a leader epoch the high watermark never falls; only
`log.written_end_offset` counts as this replica's own end.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

from broker.partitions.replica_set import FetchingSession, Follower, IsrProposal, ReplicaSet
from broker.partitions.waiters import CommitCallback, CommitQueue, CommitWaiter
from common.errors import ErrorCode, ProtocolError
from common.invariants import check
from kraft.image.partitions import PartitionImage
from records.batch import BatchHeader, ProduceLimits, check_produced
from storage.leader_epochs import EpochEnd
from storage.log_config import LogConfig
from storage.partition_log import Appended, PartitionLog
from storage.region import Region

NO_LEADER = -1


class Role(IntEnum):
    """What this broker is to the partition."""

    OFFLINE = 0
    FOLLOWER = 1
    LEADER = 2


class Watcher(Protocol):
    """A fetch, or a fetch session, that wants to know when there may be something new to read."""

    def partition_changed(self, partition: Partition, *, committed: bool) -> None:
        """The log grew; or, with `committed`, the high watermark moved or the role changed."""
        ...


class PartitionHost(Protocol):
    """What a partition tells the broker that hosts it. All calls are cheap and never raise."""

    def unsettled(self, partition: Partition) -> None:
        """Records wait to be committed: look at its followers from time to time."""
        ...

    def follower_written(self, partition: Partition) -> None:
        """What a follower appended has reached its page cache (or device) only now."""
        ...

    def isr_proposed(self, partition: Partition, proposal: IsrProposal) -> None:
        """Ask the controller for a changed ISR."""
        ...

    def is_eligible(self, node: int, broker_epoch: int) -> bool:
        """Whether that broker, in that life, may join an ISR (KIP-903)."""
        ...


class Partition:
    """See the module. Created by `HostedPartitions`; every call runs on the event loop."""

    __slots__ = (
        "_host",
        "_lag_max_s",
        "_now",
        "_produce_limits",
        "_unwritten",
        "_waiting",
        "epoch_start_offset",
        "high_watermark",
        "image",
        "index",
        "leader_epoch",
        "leader_id",
        "log",
        "name",
        "node_id",
        "replica_set",
        "role",
        "shares_reads",
        "topic",
        "topic_id",
        "watchers",
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
        """`high_watermark` is the checkpointed one; it is bounded by what the log holds. `now` is the loop's time."""
        self.topic = topic
        self.name = topic.encode()
        self.index = index
        self.topic_id = topic_id
        self.node_id = node_id
        self.log: PartitionLog = log
        self.role = Role.OFFLINE
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.epoch_start_offset = 0
        self.image: PartitionImage | None = None
        self.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)
        self.replica_set: ReplicaSet | None = None
        self.watchers: dict[Watcher, None] = {}
        self.shares_reads = False
        self._waiting = CommitQueue()
        self._unwritten: CommitQueue | None = None
        self._host = host
        self._now = now
        self._lag_max_s = lag_max_s
        self._produce_limits: ProduceLimits = log.config.produce_limits()
        log.on_written = self._written

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    # roles -------------------------------------------------------------------------------------------------

    @property
    def inspects_records(self) -> bool:
        """Whether a produced batch must be looked into: for null keys, or to be compressed anew."""
        config = self.log.config
        return config.is_compacted or config.compression_type != "producer"

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    def become_leader(self, image: PartitionImage) -> bool:
        """Lead in `image.leader_epoch`, or take over what changed in it; whether a new epoch of this leader begins.

        The high watermark stays what it was; the ends of all followers are unknown until they fetch.
        """
        if image.leader_epoch < self.leader_epoch:
            return False
        begins = self.role is not Role.LEADER or image.leader_epoch > self.leader_epoch
        self.image = image
        min_insync = self.log.config.min_insync_replicas
        if begins:
            self.role = Role.LEADER
            self.leader_id = self.node_id
            self.leader_epoch = image.leader_epoch
            self.epoch_start_offset = self.log.log_end_offset
            self.log.leader_epochs.assign(image.leader_epoch, self.epoch_start_offset)
            self.replica_set = ReplicaSet(
                self.node_id, image.replicas, image.isr, image.partition_epoch, min_insync, self._now()
            )
        elif self.replica_set is not None and image.partition_epoch > self.replica_set.partition_epoch:
            self.replica_set.adopt(image.replicas, image.isr, image.partition_epoch)
        self._isr_changed()
        self._notify(committed=True)
        return begins

    def become_follower(self, image: PartitionImage) -> bool:
        """Follow `image.leader` (-1: nobody, for now); whether leader or epoch changed."""
        if image.leader_epoch < self.leader_epoch:
            return False
        changed = self.role is not Role.FOLLOWER or image.leader_epoch > self.leader_epoch
        self.image = image
        if changed:
            self._stand_down(Role.FOLLOWER)
            self.leader_id = image.leader
            self.leader_epoch = image.leader_epoch
        return changed

    def go_offline(self, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """The replica is deleted, or its log directory failed: everybody who waits is told."""
        self._stand_down(Role.OFFLINE, error)
        self.leader_id = NO_LEADER

    def _stand_down(self, role: Role, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        self.role = role
        self.replica_set = None
        self._waiting.refuse_all(error)
        if self._unwritten is not None:
            self._unwritten.refuse_all(error)
        self._notify(committed=True)

    def configure(self, config: LogConfig) -> None:
        """The topic's settings changed."""
        self.log.config = config
        self._produce_limits = config.produce_limits()
        if self.replica_set is not None:
            self.replica_set.min_insync = config.min_insync_replicas
            self._isr_changed()

    # appending as leader -----------------------------------------------------------------------------------

    def check_appendable(self, acks: int) -> None:
        """Raises NOT_LEADER_OR_FOLLOWER, or NOT_ENOUGH_REPLICAS where `acks` asks for what the ISR cannot give."""
        replicas = self.replica_set
        if replicas is None:
            offline = self.role is Role.OFFLINE
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and replicas.is_starved:
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
        if header.producer_id >= 0 and (known := self.log.producers.check(header)) is not None:
            stamped = known.timestamp if self._produce_limits.log_append_time else -1
            return Appended(known.base_offset, known.next_offset, stamped, True)
        return self._append(buffer, view, at, end, header, now_ms)

    def check_batch(self, view: memoryview, at: int, end: int, now_ms: int) -> BatchHeader:
        """The header of a client's batch that will be appended later, checked as `append_produced` does."""
        return check_produced(view, at, end, self._produce_limits, now_ms)

    def append_records(self, batch: bytearray, leader_epoch: int, now_ms: int) -> int:
        """Append one batch that this broker made itself (a coordinator's); the log end after it.

        Raises ProtocolError: NOT_LEADER_OR_FOLLOWER unless this broker leads in exactly `leader_epoch`,
        NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE, KAFKA_STORAGE_ERROR.
        """
        if leader_epoch != self.leader_epoch:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.check_appendable(-1)
        if len(batch) > self.log.config.max_message_bytes:
            raise ProtocolError(ErrorCode.MESSAGE_TOO_LARGE)
        with memoryview(batch) as view:
            return self._append(batch, view, 0, len(batch), None, now_ms).next_offset

    def _append(
        self,
        buffer: bytearray | memoryview,
        view: memoryview,
        at: int,
        end: int,
        header: BatchHeader | None,
        now_ms: int,
    ) -> Appended:
        log = self.log
        before = log.log_end_offset
        appended = log.append_as_leader(buffer, view, at, end, self.leader_epoch, now_ms, header)
        replicas = self.replica_set
        if replicas is not None and self.high_watermark == before:
            replicas.whole_at = self._now()
            if not replicas.is_alone:
                self._host.unsettled(self)
        if log.written_end_offset == appended.next_offset:
            self._written()
        return appended

    def _written(self) -> None:
        """More of the log counts as held by this replica."""
        if self.replica_set is None:
            if self.role is Role.FOLLOWER:
                self._host.follower_written(self)
            return
        if self._unwritten is not None:
            self._unwritten.release(self.log.written_end_offset)
        for watcher in self.watchers:
            watcher.partition_changed(self, committed=False)
        self.advance()

    def advance(self) -> None:
        """Commit what all that count have."""
        replicas = self.replica_set
        if replicas is None:
            return
        offset = replicas.high_watermark(self.log.written_end_offset, self._now(), self._lag_max_s)
        if offset > self.high_watermark:
            check(offset <= self.log.log_end_offset, "the high watermark lies within the log")
            self.high_watermark = offset
            for watcher in self.watchers:
                watcher.partition_changed(self, committed=True)
            self._waiting.release(offset)

    def when_committed(self, offset: int, waiter: CommitWaiter) -> bool:
        """Have `waiter` called once `offset` is committed; False when it is already, and nobody will be called."""
        if offset <= self.high_watermark:
            return False
        self._waiting.add(offset, waiter)
        return True

    def on_commit(self, offset: int, done: Callable[[ErrorCode | None], None]) -> bool:
        """As `when_committed`: `done(None)` once committed, `done(error)` when this broker leads no longer."""
        return self.when_committed(offset, CommitCallback(done))

    def when_written(self, offset: int, waiter: CommitWaiter) -> bool:
        """As `when_committed`, for acks=1: once this replica itself holds everything before `offset`."""
        if offset <= self.log.written_end_offset:
            return False
        if self._unwritten is None:
            self._unwritten = CommitQueue()
        self._unwritten.add(offset, waiter)
        return True

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits to be committed."""
        return self.high_watermark >= self.log.log_end_offset

    # followers of this leader ------------------------------------------------------------------------------

    def follower_fetched(
        self,
        node: int,
        offset: int,
        log_start_offset: int,
        broker_epoch: int,
        session: FetchingSession | None = None,
    ) -> None:
        """A follower of this epoch asked for `offset`: it holds everything before, on the same lineage.

        It keeps its place in `session`, whose later fetches show that it still follows.
        Raises ProtocolError(UNKNOWN_TOPIC_OR_PARTITION) when that broker is no replica here.
        """
        replicas = self.replica_set
        follower = replicas.followers.get(node) if replicas is not None else None
        if replicas is None or follower is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no replica of this partition")
        follower.log_start_offset = log_start_offset
        follower.session = session
        moved = follower.end_offset != offset
        replicas.fetched(follower, offset, self.log.written_end_offset, self._now())
        if node not in replicas.isr:
            self._consider_joining(replicas, follower, broker_epoch)
            self.advance()
        elif moved:
            self.advance()

    def follower_left(self, node: int, session: FetchingSession) -> None:
        """A follower no longer keeps its place in `session`."""
        follower = self.replica_set.followers.get(node) if self.replica_set is not None else None
        if follower is not None and follower.session is session:
            follower.session = None

    def followers_fetched_within(self, seconds: float) -> bool:
        """Whether this broker leads and every ISR follower has fetched in its epoch within the last `seconds`."""
        return self.replica_set is not None and self.replica_set.heard_since(self._now() - seconds)

    def _consider_joining(self, replicas: ReplicaSet, follower: Follower, broker_epoch: int) -> None:
        follower.broker_epoch = broker_epoch
        follower.eligible = self._host.is_eligible(follower.node, broker_epoch)
        if replicas.may_join(follower, self.high_watermark, self.epoch_start_offset):
            self._host.isr_proposed(self, replicas.propose_join(follower.node))

    def shrink_isr(self) -> None:
        """Propose an ISR without the replicas that lag; to be called from time to time while unsettled."""
        replicas = self.replica_set
        if replicas is None or replicas.proposal is not None:
            return
        lagging = replicas.lagging(self.log.written_end_offset, self._now(), self._lag_max_s)
        if lagging:
            self._host.isr_proposed(self, replicas.propose_leave(lagging))

    def isr_committed(self, isr: tuple[int, ...], leader_epoch: int, partition_epoch: int) -> None:
        """The controller's answer to a proposal; the image will say the same a little later."""
        replicas = self.replica_set
        if replicas is None or leader_epoch != self.leader_epoch or partition_epoch <= replicas.partition_epoch:
            return
        replicas.adopt((self.node_id, *replicas.followers), isr, partition_epoch)
        self._isr_changed()

    def isr_refused(self, proposal: IsrProposal) -> None:
        """The controller will not have it; it may be proposed again."""
        if self.replica_set is not None:
            self.replica_set.withdraw(proposal)
            self.advance()

    def _isr_changed(self) -> None:
        replicas = self.replica_set
        if replicas is None:
            return
        if replicas.is_starved:
            self._waiting.starve()
        self.advance()
        if not self.is_settled:
            self._host.unsettled(self)

    # following ---------------------------------------------------------------------------------------------

    def append_fetched(self, view: memoryview, at: int, end: int) -> None:
        """Append what the leader of this epoch sent. Raises ProtocolError (CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE,
        KAFKA_STORAGE_ERROR); nothing is appended then."""
        check(self.role is Role.FOLLOWER, "only a follower appends what was fetched")
        self.log.append_as_follower(view, at, end)

    def leader_said(self, high_watermark: int, log_start_offset: int) -> None:
        """Take over what a fetch response tells of the leader. The high watermark only rises."""
        log = self.log
        if log.log_start_offset < log_start_offset <= log.log_end_offset:
            log.advance_log_start(log_start_offset, "leader's log start")
            self.high_watermark = max(self.high_watermark, log.log_start_offset)
        reached = min(high_watermark, log.log_end_offset)
        if reached > self.high_watermark:
            self.high_watermark = reached
            self._notify(committed=True)

    def truncate(self, offset: int) -> None:
        """Give up what the leader of this epoch does not have, from `offset` on."""
        check(self.role is Role.FOLLOWER, "only a follower truncates")
        end = self.log.truncate_to(offset)
        self.high_watermark = min(self.high_watermark, end)
        self._notify(committed=True)

    def start_again_at(self, offset: int) -> None:
        """Give up everything and begin at `offset`, the leader's log start."""
        check(self.role is Role.FOLLOWER, "only a follower starts again")
        self.log.truncate_fully_and_start_at(offset)
        self.high_watermark = offset
        self._notify(committed=True)

    # reading -----------------------------------------------------------------------------------------------

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raises FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH unless the client means the present epoch (-1: any)."""
        if current_leader_epoch in (-1, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise ProtocolError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ProtocolError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    @property
    def knows_high_watermark(self) -> bool:
        """Whether the high watermark has reached this leader's epoch; before, it may be lower than what the last
        leader showed (KIP-207)."""
        return self.high_watermark >= self.epoch_start_offset

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def read_committed(self, offset: int, bytes_max: int, *, stable: bool, at_least_one: bool) -> Region | None:
        """What a consumer may have: below the high watermark, or with `stable` below the last stable offset.

        None when nothing is there yet or it does not fit. The caller releases the region. Raises ProtocolError:
        OFFSET_OUT_OF_RANGE; OFFSET_NOT_AVAILABLE for an offset that exists and may not be shown yet (KIP-392).
        """
        log = self.log
        until = self.last_stable_offset if stable else self.high_watermark
        if offset < until:
            return log.read(offset, bytes_max, until, at_least_one=at_least_one)
        if offset > log.log_end_offset or offset < log.log_start_offset:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset > self.high_watermark and (self.role is not Role.LEADER or not self.knows_high_watermark):
            raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return None

    def read_as_replica(self, offset: int, bytes_max: int, *, at_least_one: bool) -> Region | None:
        """What a follower may have: up to this leader's own end."""
        log = self.log
        if log.log_start_offset <= offset <= log.log_end_offset:
            if offset >= log.written_end_offset:
                return None
            return log.read(offset, bytes_max, log.written_end_offset, at_least_one=at_least_one)
        raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)

    def read_log(self, offset: int, bytes_max: int) -> bytes:
        """Whole batches from the one that holds `offset`, committed or not, copied; empty at the end of the log."""
        region = self.read_as_replica(offset, bytes_max, at_least_one=True)
        if region is None:
            return b""
        try:
            return region.read()
        finally:
            region.release()

    def diverging_epoch(self, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
        """Where a reader's lineage leaves this log (KIP-595): the largest epoch both know and its end here.

        None when a reader at `offset`, whose last record is of `last_fetched_epoch`, is on this lineage. Raises
        ProtocolError(OFFSET_OUT_OF_RANGE) when this log knows nothing of that epoch or before it.
        """
        if last_fetched_epoch < 0:
            return None
        found = self.log.end_offset_for_epoch(last_fetched_epoch)
        if found.epoch < 0 or found.end_offset < 0:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, "an epoch before this log's first")
        if found.epoch < last_fetched_epoch or found.end_offset < offset:
            return found
        return None

    def _notify(self, *, committed: bool) -> None:
        for watcher in list(self.watchers):
            watcher.partition_changed(self, committed=committed)
