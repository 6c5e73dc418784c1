"""One replica's state in any role: its log, its high watermark, reads, and following."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

from broker.partitions.replica_set import Held
from common.errors import ErrorCode, ProtocolError
from common.invariants import check
from storage.audit.audit_trail import AuditPending
from storage.log.leader_epochs import EpochEnd
from storage.log.log_config import LogConfig
from storage.log.partition_log import PartitionLog, Reason
from storage.producers.producer_state import ProducerStates
from storage.segments.region import Region

NO_LEADER = -1
NO_TIER_END = -1


class Role(IntEnum):
    """The role of this broker for the partition."""

    OFFLINE = 0
    FOLLOWER = 1
    LEADER = 2


OFFLINE, FOLLOWER, LEADER = Role.OFFLINE, Role.FOLLOWER, Role.LEADER
"""Module constants for the hot path: an attribute look-up in the enum class is slow."""


class Watcher(Protocol):
    """A fetch or a fetch session that is notified when there may be something new to read."""

    def partition_changed(self, partition: Replica, *, committed: bool) -> None:
        """The log grew. If `committed`, the high watermark moved or the role changed."""
        ...


class ByteWatch(Protocol):
    """Hears of replicas through which bytes pass. The call is cheap and never raises."""

    def busy(self, replica: Replica) -> None:
        """Its bytes are about to be counted, for the first time since `look_at_bytes`."""
        ...


class Replica:
    """Base of `Partition`. Invariant: `high_watermark <= log.log_end_offset`.

    `tier_end_offset`: the tier is known to hold everything below it; -1 if unknown. Local retention stops there. It
    never falls within a generation of the tier, under any leader, because what the tier holds is committed. A new
    generation begins when tiering is disabled: the old value is dropped until a leader reports where the emptied tier
    ends.

    `tier_generation`: how often tiering was disabled, as far as this replica knows.

    `erased_end_offset`: records below it were erased from the tier by key; this disk must drop them.
    """

    __slots__ = (
        "_byte_watch",
        "_is_busy",
        "_start_wanted",
        "bytes_in",
        "bytes_out",
        "erased_end_offset",
        "high_watermark",
        "index",
        "leader_epoch",
        "leader_id",
        "log",
        "name",
        "role",
        "tier_end_offset",
        "tier_generation",
        "topic",
        "topic_id",
        "watchers",
    )

    def __init__(
        self, topic: str, index: int, topic_id: bytes, log: PartitionLog, high_watermark: int, byte_watch: ByteWatch
    ) -> None:
        self.topic = topic
        self.name = topic.encode()
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.role = Role.OFFLINE
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self._start_wanted = -1  # the leader's log start while it waits for the audit
        self.tier_end_offset = NO_TIER_END
        self.tier_generation = log.config.tidelog_tier_generation
        self.erased_end_offset = 0
        self.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)
        self.watchers: dict[Watcher, None] = {}
        self.bytes_in = 0  # of records appended as leader, since the replica was opened
        self.bytes_out = 0  # of records sent to consumers, likewise
        self._is_busy = False  # whether the watch knows that they move
        self._byte_watch = byte_watch

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def knows_high_watermark(self) -> bool:
        """Whether no reader can have seen more than this replica's high watermark."""
        return False

    # counting ----------------------------------------------------------------------------------------------

    def count_out(self, size: int) -> None:
        """A consumer gets so many bytes of records."""
        if not self._is_busy:
            self._begin_busy()
        self.bytes_out += size

    def _begin_busy(self) -> None:
        self._is_busy = True
        self._byte_watch.busy(self)

    def look_at_bytes(self) -> tuple[int, int]:
        """Bytes in and out so far; the watch hears of the next ones again."""
        self._is_busy = False
        return self.bytes_in, self.bytes_out

    # following ---------------------------------------------------------------------------------------------

    def append_fetched(self, view: memoryview, at: int, end: int) -> bool:
        """Append what the leader of this epoch sent. Returns False if it contains no whole batch.

        Raises ProtocolError (CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR); then nothing is appended.
        """
        check(self.role is FOLLOWER, "only a follower appends what was fetched")
        return self.log.append_as_follower(view, at, end, self.high_watermark) is not None

    @property
    def lacks_below(self) -> int:
        """The offset below which this disk lacks records of the log; 0 if it lacks none."""
        first = self.log.segments[0].base_offset
        return first if first > self.log.log_start_offset else 0

    @property
    def lacks_untiered(self) -> bool:
        """Whether it lacks records that the tier does not hold either, since it was emptied."""
        known = self.tier_generation > 0 and self.tier_end_offset != NO_TIER_END
        return known and self.lacks_below > self.tier_end_offset

    def configure(self, config: LogConfig) -> None:
        """The topic's settings changed."""
        self.log.update_config(config)
        if config.tidelog_tier_generation != self.tier_generation:
            self.tier_generation = config.tidelog_tier_generation
            self.tier_end_offset = NO_TIER_END
            self._moved_late()

    def withhold_tier_end(self) -> None:
        """Forget the tier's end when leadership begins, until the tier's shard has answered. Followers delete their
        logs if they lack records that an emptied tier lacks, so a stale end must not reach them."""
        if self.tier_generation:
            self.tier_end_offset = NO_TIER_END

    def admits(self, held: Held) -> bool:
        """Whether a follower with this state lacks only records that the tier holds. After tiering was disabled the
        tier may have been emptied. Until its end is known, the follower may lack no more than this leader does."""
        generation = self.tier_generation
        if not generation:
            return True
        allowed = max(self.tier_end_offset, self.log.log_start_offset, self.lacks_below)
        return held.tier_generation >= generation and held.lacks_below <= allowed

    def apply_leader_state(
        self,
        high_watermark: int,
        log_start_offset: int,
        tier_end_offset: int = NO_TIER_END,
        erased_end_offset: int = 0,
        tier_generation: int = 0,
    ) -> None:
        """Apply what a fetch response reports about the leader. The high watermark only rises."""
        ends = self.log.ends  # attributes, here and below: this runs for every record
        if tier_end_offset > self.tier_end_offset and tier_generation == self.tier_generation:
            self.tier_end_offset = tier_end_offset
        if erased_end_offset:
            self.erased_end_offset = max(self.erased_end_offset, erased_end_offset)
        if ends.log_start < log_start_offset <= ends.log_end:
            self._start_at_leaders(log_start_offset)
        if high_watermark > self.high_watermark:
            reached = min(high_watermark, ends.readable)  # not records that a slow disk has not written yet
            if reached > self.high_watermark:
                self.high_watermark = reached
                self.log.note_high_watermark()
                self._notify(committed=True)

    def _start_at_leaders(self, log_start_offset: int) -> None:
        """Move the log start to the leader's. If the audit must record that first, it moves a moment later."""
        log = self.log
        if self.role is not Role.FOLLOWER or log.closed or log_start_offset > log.log_end_offset:
            return
        try:
            log.advance_log_start(log_start_offset, "the leader's log start", f"broker-{self.leader_id}")
        except AuditPending as pending:
            if self._start_wanted < 0:
                pending.then(self._start_audited)
            self._start_wanted = log_start_offset
            return
        self.high_watermark = max(self.high_watermark, log.log_start_offset)
        self.log.note_high_watermark()

    def _start_audited(self) -> None:
        """Retry after the audit. The leader sends each log start once, so the last one is kept."""
        log_start_offset, self._start_wanted = self._start_wanted, -1
        try:
            self._start_at_leaders(log_start_offset)
        except ProtocolError:
            return  # a disk failure, which the log directory reports
        self._notify(committed=True)
        self._moved_late()

    def _moved_late(self) -> None:
        """The log start or the tier's generation changed outside a fetch response, so the next fetch must report it."""

    def _reason(self, cause: str) -> Reason:
        return Reason(cause, f"broker-{self.leader_id}", self.leader_epoch)

    def truncate(self, offset: int) -> None:
        """Truncate to `offset`, where the log diverges from the leader of this epoch. Raises as
        `PartitionLog.truncate_to`, and PagesMissing."""
        check(self.role is Role.FOLLOWER, "only a follower truncates")
        end = self.log.truncate_to(offset, self._reason("diverged from the leader"), only_in_memory=True)
        # An epoch that this replica once led without writing has no records to cut, yet the leader does not know it.
        self.log.leader_epochs.truncate_from_end(end)
        self.high_watermark = min(self.high_watermark, end)
        self.log.note_high_watermark()
        self._notify(committed=True)

    def start_again_at(self, offset: int, cause: str = "the leader's log begins above this one's end") -> None:
        """Delete all records and start at `offset`, the leader's log start."""
        check(self.role is Role.FOLLOWER, "only a follower starts again")
        self.log.truncate_fully_and_start_at(offset, self._reason(cause))
        self.high_watermark = offset
        self.log.note_high_watermark()
        self._notify(committed=True)

    def start_from_tier(
        self, offset: int, log_start_offset: int, epochs: Sequence[tuple[int, int]], producers: ProducerStates
    ) -> None:
        """Delete all records and start at `offset`, the tier's end, as `PartitionLog.start_at` does."""
        check(self.role is not Role.LEADER, "a leader does not start again")
        self.log.start_at(offset, log_start_offset, epochs, producers)
        self.high_watermark = offset
        self.log.note_high_watermark()
        self.tier_end_offset = max(self.tier_end_offset, offset)
        self._notify(committed=True)

    def delete_old_segments(self, now_ms: int) -> int:
        """See `PartitionLog.delete_old_segments`; with the tier's end as known now."""
        return self.log.delete_old_segments(now_ms, self.high_watermark, self.tier_end_offset)

    def log_start_moved(self) -> None:
        """Notify readers and followers of the new log start."""
        self._notify(committed=True)

    def tier_reaches(self, offset: int) -> None:
        """The tier holds everything below `offset`. Notifies readers and followers."""
        if offset > self.tier_end_offset:
            self.tier_end_offset = offset
            self._notify(committed=True)

    def erased_below(self, offset: int) -> None:
        """Records below `offset` were erased from the tier. Notifies followers."""
        if offset > self.erased_end_offset:
            self.erased_end_offset = offset
            self._notify(committed=True)

    @property
    def holds_erased(self) -> bool:
        """Whether this disk may still have records that were erased from the tier."""
        log = self.log
        return self.erased_end_offset > log.local_log_start_offset and log.log_end_offset > log.local_log_start_offset

    def drop_erased(self, now_ms: int) -> int:
        """Delete segments with erased records, as far as the tier holds all their other records. Returns how many were
        deleted; call it again until that is 0. Raises AuditPending, before anything is deleted; ProtocolError."""
        return self.log.drop_erased(now_ms, self.high_watermark, self.tier_end_offset, self.erased_end_offset)

    # reading -----------------------------------------------------------------------------------------------

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raises FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH unless the client's epoch is the current one (-1: any)."""
        if current_leader_epoch in (-1, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise ProtocolError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ProtocolError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def read_committed(
        self, offset: int, bytes_max: int, *, stable: bool, at_least_one: bool, only_in_memory: bool = False
    ) -> Region | None:
        """What a consumer may read: below the high watermark, or with `stable` below the last stable offset.

        None if nothing is there yet or it does not fit. The caller releases the region. Raises ProtocolError:
        OFFSET_OUT_OF_RANGE; OFFSET_NOT_AVAILABLE for an offset that exists but may not be read yet (KIP-392).
        """
        log = self.log
        until = self.last_stable_offset if stable else self.high_watermark
        if offset < until:
            return log.read(offset, bytes_max, until, at_least_one=at_least_one, only_in_memory=only_in_memory)
        if offset > log.log_end_offset or offset < log.log_start_offset:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset > self.high_watermark and not self.knows_high_watermark:
            raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return None

    def read_as_replica(
        self, offset: int, bytes_max: int, *, at_least_one: bool, only_in_memory: bool = False
    ) -> Region | None:
        """What a follower may read: everything that this leader has written, whether or not it is on its device."""
        ends = self.log.ends
        if ends.log_start <= offset <= ends.log_end:
            until = ends.readable
            if offset >= until:
                return None
            return self.log.read(offset, bytes_max, until, at_least_one=at_least_one, only_in_memory=only_in_memory)
        raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)

    def diverging_epoch(self, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
        """The epoch and offset at which a reader's lineage diverges from this log (KIP-595): the largest common epoch
        and its end here.

        None if a reader at `offset`, whose last record has `last_fetched_epoch`, is on this log's lineage. Raises
        ProtocolError(OFFSET_OUT_OF_RANGE) if this log knows neither that epoch nor an earlier one.
        """
        log = self.log
        if last_fetched_epoch == log.leader_epochs.latest_epoch and offset <= log.ends.log_end:
            return None  # the usual case; the code below would also find no divergence
        if last_fetched_epoch < 0:
            return None
        found = log.end_offset_for_epoch(last_fetched_epoch)
        if found.epoch < 0 or found.end_offset < 0:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, "an epoch before this log's first")
        if found.epoch < last_fetched_epoch or found.end_offset < offset:
            return found
        return None

    def _notify(self, *, committed: bool) -> None:
        for watcher in list(self.watchers):
            watcher.partition_changed(self, committed=committed)
