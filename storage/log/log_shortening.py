"""How a log becomes shorter: its end is cut, its start moves, old segments go.

A follower's end is cut where it diverged from its leader, or all of it goes where the leader's log begins above its
end. First the audit's event is on the device, and no checkpoint there says more than what is left: what is written in
the place of what was cut is scanned after a loss of power. Then the log changes, then the files. They are renamed at
once, on the event loop: a rename changes two names and no data. So many at a time are bounded; what is left goes with
the next call of `delete_old_segments`.

Producers are truncated with the log: they are read again from the newest snapshot or mark at or below the cut and the
headers behind it.
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
    """Carries out a `Cut` or a `RetentionPlan` of one log. A `Reloadable` while producers are read again."""

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
            # A leader that was deposed before its first append has an epoch that begins at its end: it must go as well,
            # or the next leader, which does not know it, would find this log diverged for ever.
            self._epochs.truncate_from_end(self._ends.log_end)
            return self._ends.log_end
        if offset < self._segments.all[0].base_offset or offset <= self._ends.log_start:
            offset = min(offset, self._ends.log_start)  # the tiered part of the log diverged too: it is read again
            self.truncate_fully_and_start_at(offset, reason)
            return offset
        try:
            plan = self._segments.plan_cut(offset, only_in_memory=only_in_memory)
            if plan.end_offset <= self._ends.log_start:  # that batch was cut by the log's start already
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
        """The audit's event and the checkpoints come first, both at once. Without the latter a start after a loss of
        power would trust, unseen, what was written in the place of what is cut now, or what was cut and has come back.
        """
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

    def truncate_fully_and_start_at(self, offset: int, reason: Reason, log_start_offset: int | None = None) -> None:
        """As `PartitionLog.truncate_fully_and_start_at`."""
        self._tail.check_idle()
        self._check_announced(offset, offset, offset if log_start_offset is None else log_start_offset, reason)
        try:
            self._segments.remove(self._segments.all)
            self._discard_snapshots(self._history.cut(-1))
        except OSError as error:
            raise self._failed("truncate", error) from error
        self._tail.begin_segment(offset, self._context.clock.wall_ms())
        self._epochs.clear()
        self._producers.reset(offset)
        self.serve_from(offset)
        self._ends.begin_at(offset)
        self._context.checkpoints.note(RECOVERY_POINTS)
        try:
            self._tail.create_files()
        except ProtocolError:
            if self._context.health.offline is not None:
                raise
            self._segments.active.lacks_files()

    def _discard_snapshots(self, offsets: list[int]) -> None:
        for offset in offsets:
            self._files.discard_snapshot(offset)

    def serve_from(self, offset: int) -> None:
        """Have the log start at `offset`."""
        self._ends.start_at(offset)
        self._context.checkpoints.note(LOG_STARTS)

    # Producers after a truncation

    def _reload_producers(self) -> None:
        """Snapshots past the cut go; state is what the rest of the log says. OSError."""
        end_offset = self._ends.log_end
        self._discard_snapshots(self._history.cut(end_offset))
        if not len(self._producers):
            self._producers.reset(end_offset)
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
        """Take the restored producers. The log's start may have moved since the replay was planned."""
        self._producers.adopt(producers)
        self._producers.advance_log_start(self._ends.log_start)
        self._files.unbar()

    def producers_unreadable(self, error: ProtocolError) -> None:
        """Only a start that scans the log can mend it: it stays barred until then."""
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
        self.serve_from(offset)
        self._epochs.truncate_from_start(offset)
        self._producers.advance_log_start(offset)
        count = min(self._segments.index_of(offset), retention.SEGMENTS_AT_ONCE_MAX)
        if count:
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
        """As `delete_old_segments` of a tiered log. Nothing at or past `tier_end_offset`, up to where the tier is known
        to hold everything, but what lies below the log's start."""
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
        """Up to where local segments may go to the tier's care, at most `tier_end_offset`.

        What producers did in them is then known from the snapshot where the next segment begins alone, and a loss of
        power may take that: it is on the device up to the recovery point. What is not is asked for, and goes the next
        time.
        """
        if self._ends.recovery_point < min(tier_end_offset, self._segments.active.base_offset):
            self._durability.request(FlushDepth.CLOSED)
        return min(tier_end_offset, self._ends.recovery_point)

    def _carry_out(self, plan: RetentionPlan, now_ms: int) -> int:
        """Remove what `plan` says; the number of segments. AuditPending, and nothing has gone."""
        if not plan.doomed:
            return 0
        doomed = self._segments.all[: plan.doomed]
        if plan.doomed == len(self._segments.all):
            self._tail.roll(now_ms)
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
