"""Cutting a log's end: a follower diverged from its leader, or starts over where the leader's log begins.

Before anything is cut, the audit tells of it on the device, and no checkpoint does: what is written in its place is
scanned after a loss of power. Files go newest first, so that a crash in between leaves a shorter log and no hole.
Producer state is cut with the log: the newest snapshot at or below the cut is loaded and the headers from there on are
replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from common.errors import ErrorCode, ProtocolError
from records.audit_event import AuditKind
from storage.audit_trail import Act, require
from storage.batch_walk import walk
from storage.checkpoint_files import RECOVERY_POINTS
from storage.log_reads import segment_at
from storage.segment import SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX, Segment, file_stem
from storage.segment_removal import remove_segments
from storage.transaction_index import bytes_below, decode

if TYPE_CHECKING:
    from storage.partition_log import PartitionLog


class Reason(NamedTuple):
    """Cause and initiator of a truncation, as recorded in the audit."""

    cause: str
    actor: str = ""
    leader_epoch: int = -1


DIVERGED = Reason("diverged from the leader")
UNREAD = "its producers have not been read since it was cut"


def truncate_to(log: PartitionLog, offset: int, reason: Reason = DIVERGED, *, only_in_memory: bool = False) -> int:
    """The new log end: `offset`, or the base of the batch that holds it."""
    _check_idle(log)
    if offset >= log.log_end_offset:
        # A leader that was deposed before its first append has an epoch that begins at its end: it must go as well, or
        # the next leader, which does not know it, would find this log diverged for ever.
        log.cut_epochs(log.log_end_offset)
        return log.log_end_offset
    if offset < log.segments[0].base_offset or offset <= log.log_start_offset:
        offset = min(offset, log.log_start_offset)  # the tiered part of the log diverged, too: it is read anew
        truncate_fully_and_start_at(log, offset, reason)
        return offset
    number = segment_at(log, offset)
    segment = log.segments[number]
    try:
        if only_in_memory:
            _require_in_memory(log, segment, offset)
        position, end_offset = _cut_point(segment, offset)
        if end_offset <= log.log_start_offset:  # that batch was cut by the log's start already
            truncate_fully_and_start_at(log, log.log_start_offset, reason)
            return log.log_end_offset
        _check_announced(log, segment.base_offset, end_offset, log.log_start_offset, reason)
        if number + 1 < len(log.segments):
            remove_segments(log, log.segments[number + 1 :])
        segment.truncate(position, end_offset)
        _truncate_transactions(log, segment, end_offset)
        log.ends.cut(end_offset, segment.base_offset)
        log.context.checkpoints.note(RECOVERY_POINTS)
        log.end_at(end_offset, segment)
        _reload_producers(log)
    except OSError as error:
        log.context.health.fail(f"truncate {log.directory}: {error}")
        raise log.context.health.error() from error
    return end_offset


def _check_idle(log: PartitionLog) -> None:
    if log.context.health.offline is not None or log.barred is not None:
        raise log.refusal()
    if log.pending_writes:
        raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "writes wait for a slow disk")


def _check_announced(
    log: PartitionLog, recovery_point: int, end_offset: int, log_start_offset: int, reason: Reason
) -> None:
    """The audit's event and the checkpoints come first, both at once. Without the latter a start after a loss of power
    would trust, unseen, what was written in the place of what is cut now, or what was cut and has come back."""
    checkpoints, who, audit = log.context.checkpoints, (log.topic, log.partition), log.context.audit
    act = Act(
        AuditKind.LOG_TRUNCATED,
        log.topic,
        log.topic_id,
        log.partition,
        reason.cause,
        reason.actor,
        reason.leader_epoch,
        before={"log_start_offset": log.log_start_offset, "log_end_offset": log.log_end_offset},
        after={"log_start_offset": log_start_offset, "log_end_offset": end_offset},
    )
    if checkpoints.exceed(who, recovery_point, end_offset):
        audit.announce(act)
        log.ends.withdraw_recovery_point(recovery_point)
        checkpoints.note(RECOVERY_POINTS)
        checkpoints.limit(who, recovery_point, end_offset)
        message = f"checkpoints past offset {end_offset} are being withdrawn"
        raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, message)
    require(audit, act)


def _require_in_memory(log: PartitionLog, segment: Segment, offset: int) -> None:
    """PagesMissing unless all that a cut at `offset` reads of the segment is in memory."""
    cold = log.context.open_files.cold
    cold.is_strict = True
    try:
        segment.look_at_cut(offset)
    finally:
        cold.is_strict = False


def _cut_point(segment: Segment, offset: int) -> tuple[int, int]:
    """Where the first batch lies that does not end at or before `offset`, and what the log's end becomes."""
    position = segment.find(offset)
    if position < segment.written:
        _, header = next(walk(segment.log.use(), position, segment.written))
        return position, min(header.base_offset, offset)
    return position, offset


def _truncate_transactions(log: PartitionLog, segment: Segment, end_offset: int) -> None:
    if segment.transaction_bytes:
        file = log.context.disk.open(segment.stem + TRANSACTION_INDEX_SUFFIX)
        try:
            segment.transaction_bytes = bytes_below(decode(file.pread(segment.transaction_bytes, 0)), end_offset)
            file.truncate(segment.transaction_bytes)
        finally:
            file.close()


def _reload_producers(log: PartitionLog) -> None:
    """Snapshots past the cut go; state is what the rest of the log says."""
    end_offset = log.log_end_offset
    for offset in log.producer_history.cut(end_offset):
        log.context.disk.remove(file_stem(log.directory, offset) + SNAPSHOT_SUFFIX)
    if not len(log.producers):
        log.producers.reset(end_offset)
        return
    log.bar(UNREAD)
    log.context.reloads.reload(log)


def truncate_fully_and_start_at(
    log: PartitionLog, offset: int, reason: Reason, log_start_offset: int | None = None
) -> None:
    """An empty log that begins and ends at `offset`; `log_start_offset` is for the audit, where the caller is to set
    another one."""
    _check_idle(log)
    _check_announced(log, offset, offset, offset if log_start_offset is None else log_start_offset, reason)
    context = log.context
    try:
        remove_segments(log, log.segments)
        for snapshot in log.producer_history.cut(-1):
            context.disk.remove(file_stem(log.directory, snapshot) + SNAPSHOT_SUFFIX)
    except OSError as error:
        context.health.fail(f"truncate {log.directory}: {error}")
        raise context.health.error() from error
    log.start_segment(offset, context.clock.wall_ms())
    log.leader_epochs.clear()
    log.producers.reset(offset)
    log.serve_from(offset)
    log.ends.begin_at(offset)
    context.checkpoints.note(RECOVERY_POINTS)
    log.end_at(offset, log.active)
    try:
        log.create_active_files()
    except ProtocolError:
        if context.health.offline is not None:
            raise
        log.active.exists = False  # for want of room: they come with the first batch
