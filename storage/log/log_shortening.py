"""Truncation of a log's end, moves of its start, deletion of old segments.

A follower truncates its log where it diverged from its leader, or completely if the leader's log begins above its end.
First the audit's event becomes durable, and all checkpoints are lowered to what remains, so that new records in place
of the truncated ones are scanned after a power loss. Then the log changes, then the files. They are renamed at once, on
the event loop: a rename changes two names and no data. Each call renames a bounded number, and none while writes of the
log wait for a slow disk; the next call of `delete_old_segments` continues.

Producers are truncated with the log: they are restored from the newest snapshot or mark at or below the new end, and
the headers after it.
"""

from typing import Any, NamedTuple

from msgspec import Struct

from common.errors import ErrorCode, ProtocolError
from records.audit_event import AuditKind
from storage.audit.audit_trail import Act, require
from storage.disk.checkpoint_files import LOG_STARTS, RECOVERY_POINTS
from storage.disk.log_flusher import FlushDepth
from storage.log import retention
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.log_context import LogContext
from storage.log.log_durability import LogDurability
from storage.log.log_ends import LogEnds
from storage.log.log_files import LogFiles
from storage.log.log_tail import LogTail
from storage.log.retention import RetentionPlan
from storage.log.segment_list import SegmentList
from storage.producers.producer_history import ProducerHistory
from storage.producers.producer_replay import Replay
from storage.producers.producer_state import ProducerStates
from storage.segments.segment import Segment


class Reason(NamedTuple):
    """Cause and initiator of a truncation, as recorded in the audit."""

    cause: str
    actor: str = ""
    leader_epoch: int = -1


DIVERGED = Reason("diverged from the leader")
FROM_TIER = Reason("begins where the tier ends")
TOO_FAR_BEHIND = Reason("the leader's log begins above this one's end")
UNREAD = "its producers have not been read since it was cut"


class LogShortening(Struct, eq=False):
    """Carries out a `Cut` or a `RetentionPlan` of one log. A `Reloadable` while producers are restored."""

    _context: LogContext
    _files: LogFiles
    _ends: LogEnds
    _segments: SegmentList
    _epochs: LeaderEpochCache
    _producers: ProducerStates
    _history: ProducerHistory
    _durability: LogDurability
    _tail: LogTail

    # Truncation

    def truncate_to(self, offset: int, reason: Reason, *, only_in_memory: bool) -> int:
        """As `PartitionLog.truncate_to`."""
        self._tail.check_idle()
        if offset >= self._ends.log_end:
            # The epoch of a leader that was deposed before its first append begins at its end. It must be removed too,
            # or the next leader, which does not know it, would always find this log diverged.
            self._epochs.truncate_from_end(self._ends.log_end)
            return self._ends.log_end
        if offset < self._segments.all[0].base_offset or offset <= self._ends.log_start:
            offset = min(offset, self._ends.log_start)  # the tiered part diverged too: it is read again
            self.truncate_fully_and_start_at(offset, reason)
            return offset
        try:
            plan = self._segments.plan_cut(offset, only_in_memory=only_in_memory)
            if plan.end_offset <= self._ends.log_start:  # the log start had already cut that batch
                self.truncate_fully_and_start_at(self._ends.log_start, reason)
                return self._ends.log_end
            base_offset = self._segments.all[plan.number].base_offset
            self._check_announced(base_offset, plan.end_offset, self._ends.log_start, reason)
            self._segments.cut(plan)
            self._ends.cut(plan.end_offset, base_offset)
            self._context.checkpoints.note(RECOVERY_POINTS)
            self._epochs.truncate_from_end(plan.end_offset)
            self._tail.set_roll_bounds()
            self._reload_producers()
        except OSError as error:
            raise self._failed("truncate", error) from error
        return plan.end_offset

    def _check_announced(self, recovery_point: int, end_offset: int, log_start_offset: int, reason: Reason) -> None:
        """Wait for the audit's event and the lowered checkpoints, both at once. Without the latter, a start after a
        power loss would trust, without a scan, new records in place of truncated ones, or truncated records that have
        reappeared."""
        checkpoints, who, audit = self._context.checkpoints, self._files.who, self._context.audit
        act = self._act(
            AuditKind.LOG_TRUNCATED,
            reason,
            {"log_start_offset": self._ends.log_start, "log_end_offset": self._ends.log_end},
            {"log_start_offset": log_start_offset, "log_end_offset": end_offset},
        )
        if checkpoints.exceed(who, recovery_point, end_offset):
            audit.announce(act)
            self._ends.withdraw_recovery_point(recovery_point)
            checkpoints.note(RECOVERY_POINTS)
            checkpoints.limit(who, recovery_point, end_offset)
            message = f"checkpoints past offset {end_offset} are being withdrawn"
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        require(audit, act)

    def _act(self, kind: AuditKind, reason: Reason, before: dict[str, Any], after: dict[str, Any]) -> Act:
        files = self._files
        who = (files.who[0], files.topic_id, files.who[1])
        return Act(kind, *who, reason.cause, reason.actor, reason.leader_epoch, before=before, after=after)

    def _failed(self, what: str, error: OSError) -> ProtocolError:
        self._context.health.fail(f"{what} {self._files.directory}: {error}")
        return self._context.health.error()

    def truncate_fully_and_start_at(self, offset: int, reason: Reason) -> None:
        """As `PartitionLog.truncate_fully_and_start_at`."""
        self.begin_without_files(offset, reason, offset)
        try:
            self._tail.create_files()
        except ProtocolError:
            if self._context.health.offline is not None:
                raise
            self._segments.active.lacks_files()

    def begin_without_files(self, offset: int, reason: Reason, log_start_offset: int) -> None:
        """Drop everything, and begin and end at `offset`: after a kill from here on the log has no record and begins at
        its start."""
        self._tail.check_idle()
        self._check_announced(offset, offset, log_start_offset, reason)
        try:
            self._segments.remove(self._segments.all)
            self._discard_snapshots(self._history.cut(-1))
        except OSError as error:
            raise self._failed("truncate", error) from error
        self._tail.begin_segment(offset, self._context.clock.wall_ms())
        self._epochs.clear()
        self._producers.reset(offset)
        self._serve_from(log_start_offset)
        self._ends.begin_at(offset)
        self._context.checkpoints.note(RECOVERY_POINTS)

    def _discard_snapshots(self, offsets: list[int]) -> None:
        for offset in offsets:
            self._files.discard_snapshot(offset)

    def _serve_from(self, offset: int) -> None:
        """Move the log start to `offset`."""
        self._ends.start_at(offset)
        self._context.checkpoints.note(LOG_STARTS)

    # Producers after a truncation

    def _reload_producers(self) -> None:
        """Drop snapshots above the new end and restore the state from the rest of the log. OSError."""
        end_offset = self._ends.log_end
        self._discard_snapshots(self._history.cut(end_offset))
        if not self._producers.cut(self._ends.log_start, end_offset):
            return
        self._files.bar(UNREAD)
        self._context.reloads.reload(self)

    @property
    def closed(self) -> bool:
        return self._files.closed

    @property
    def directory(self) -> str:
        return self._files.directory

    @property
    def segments(self) -> list[Segment]:
        return self._segments.all

    def plan_replay(self) -> Replay:
        """How its producers are restored."""
        config, history, end_offset = self._files.config, self._history, self._ends.log_end
        mark = history.newest_mark(self._segments.all, end_offset)
        return Replay(
            self._files.directory,
            list(self._segments.all),
            list(history.snapshots),
            end_offset,
            ProducerStates(config.producer_id_expiration_ms, config.producers_max),
            mark,
            history.batches_behind(mark) if mark is not None else 0,
        )

    def producers_read(self, producers: ProducerStates) -> None:
        """Use the restored producers. The log start may have moved since the replay was planned."""
        self._producers.adopt(producers)
        self._producers.advance_log_start(self._ends.log_start)
        self._files.unbar()

    def producers_unreadable(self, error: ProtocolError) -> None:
        """Only a start that scans the log can repair it: it rejects appends until then."""
        self._context.audit.note(
            "log_damaged", topic=self._files.who[0], partition=self._files.who[1], error=error.message
        )

    # Log start and retention: first the audit's event, on the device, then the log start, then the files

    def advance_log_start(self, offset: int, cause: str, actor: str = "") -> bool:
        """As `PartitionLog.advance_log_start`."""
        if offset > self._ends.log_end:
            raise self._ends.out_of_range(offset)
        if offset <= self._ends.log_start:
            return False
        before, after = {"log_start_offset": self._ends.log_start}, {"log_start_offset": offset}
        require(self._context.audit, self._act(AuditKind.LOG_START_MOVED, Reason(cause, actor), before, after))
        self._serve_from(offset)
        self._epochs.truncate_from_start(offset)
        self._producers.advance_log_start(offset)
        count = min(self._segments.index_of(offset), retention.SEGMENTS_AT_ONCE_MAX)
        if count and self._tail.is_idle:  # a write that waits would make its file again: `delete_old_segments` follows
            self._remove_oldest(count)
        return True

    def delete_old_segments(self, now_ms: int, high_watermark: int, tier_end_offset: int) -> int:
        """As `PartitionLog.delete_old_segments`."""
        if self._files.config.remote_storage_enable:
            return self.drop_local_segments(now_ms, high_watermark, tier_end_offset)
        if not self._tail.is_idle:
            return 0
        limits, start = self._files.config.retention_limits, self._ends.log_start
        views, more_bytes = self._segments.oldest_views(limits.ms, now_ms)
        plan = retention.plan(views, limits, start, high_watermark, now_ms, more_bytes)
        return self._carry_out(plan.bounded(views, start), now_ms)

    def drop_local_segments(self, now_ms: int, high_watermark: int, tier_end_offset: int) -> int:
        """As `delete_old_segments`, for a tiered log. Deletes nothing at or above `tier_end_offset`, below which the
        tier holds everything, except what is below the log start."""
        if not self._tail.is_idle:
            return 0
        limits, start = self._files.config.local_limits, self._ends.log_start
        tier_end_offset = self._removable(tier_end_offset)
        views, more_bytes = self._segments.oldest_views(limits.ms, now_ms)
        plan = retention.plan_local(views, limits, start, high_watermark, tier_end_offset, now_ms, more_bytes)
        return self._carry_out(plan, now_ms)

    def drop_erased(self, now_ms: int, high_watermark: int, tier_end_offset: int, erased_end_offset: int) -> int:
        """As `PartitionLog.drop_erased`."""
        if not self._tail.is_idle:
            return 0
        if self._segments.active.base_offset < erased_end_offset:
            self._tail.roll(now_ms)
        bases = [segment.base_offset for segment in self._segments.all]
        bound = self._removable(min(high_watermark, tier_end_offset))
        return self._carry_out(retention.plan_erasure(bases, erased_end_offset, bound, self._ends.log_start), now_ms)

    def _removable(self, tier_end_offset: int) -> int:
        """The offset up to which local segments may be deleted because the tier holds them, at most `tier_end_offset`.

        The producer state up to there is then only in the snapshot of the next segment, which a power loss may destroy
        unless it is below the recovery point. If it is not durable yet, a flush is requested, and the next call
        continues.
        """
        if self._ends.recovery_point < min(tier_end_offset, self._segments.active.base_offset):
            self._durability.request(FlushDepth.CLOSED)
        return min(tier_end_offset, self._ends.recovery_point)

    def _carry_out(self, plan: RetentionPlan, now_ms: int) -> int:
        """Carry out `plan`. Returns the number of removed segments. AuditPending, before any effect."""
        if plan.doomed == len(self._segments.all):
            self._tail.roll(now_ms)
        if not self._tail.is_idle:  # the new segment's name, which preserves the log's end, waits for a slow disk
            return 0
        plan = self._segments.settle_removal(plan)
        if not plan.doomed:
            return 0
        doomed = self._segments.all[: plan.doomed]
        if not self.advance_log_start(plan.log_start_offset, str(plan.cause)):
            before = {"local_log_start_offset": doomed[0].base_offset, "bytes": sum(one.size for one in doomed)}
            after = {"local_log_start_offset": self._segments.all[plan.doomed].base_offset}
            require(self._context.audit, self._act(AuditKind.SEGMENTS_DELETED, Reason(str(plan.cause)), before, after))
            self._remove_oldest(plan.doomed)
            if self._files.config.remote_storage_enable:
                self._context.checkpoints.note(LOG_STARTS)
        return plan.doomed

    def _remove_oldest(self, count: int) -> None:
        try:
            doomed = self._segments.all[:count]
            self._segments.remove(doomed)
            first = self._segments.all[0].base_offset
            self._discard_snapshots(self._history.drop(lambda at: at < first))
        except OSError as error:
            raise self._failed("delete in", error) from error
