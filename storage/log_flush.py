"""Which files of a log a flush takes, and how far its recovery point may move then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.whole_files import join
from storage.checkpoint_files import PARTITION_METADATA
from storage.log_flusher import FlushDepth, FlushJob
from storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    file_stem,
)

if TYPE_CHECKING:
    from storage.log_appends import AppendableLog


def plan_flush(log: AppendableLog, depth: FlushDepth) -> FlushJob | None:
    """None when all that `depth` asks for is on the device.

    The recovery point moves past a segment only if all its indexes go along: while the disk is slow their newest
    entries stay in memory and the point stays where it is.
    """
    upto = log.ends.readable
    if depth is FlushDepth.CLOSED:
        upto = min(upto, log.active.base_offset)
    job = FlushJob(log.directory, log.ends.generation, upto, log.ends.recovery_point)
    indexes_follow = True
    unnamed = log.context.snapshots.least(log)  # below it the recovery point stays
    for segment, end_offset in _segments_from(log, log.ends.recovery_point):
        if segment.base_offset > upto or (segment is log.active and depth is FlushDepth.CLOSED):
            break
        if segment.exists and end_offset > log.ends.flushed:
            job.paths.append(segment.stem + LOG_SUFFIX)
        if upto < end_offset or (segment is log.active and depth is not FlushDepth.COMPLETE):
            indexes_follow = False
        elif indexes_follow and end_offset > job.recovery_point:
            indexes_follow = (unnamed is None or end_offset < unnamed) and log.write_index_lumps(segment)
            if indexes_follow:
                job.paths += _index_paths(segment)
                job.recovery_point = end_offset
    if upto <= log.ends.flushed and job.recovery_point == log.ends.recovery_point:
        return None
    _add_small_files(log, job)
    return job


def plan_again(log: AppendableLog, job: FlushJob) -> None:
    """The job was not done: what it alone was to make durable is for the next one."""
    if job.epochs is not None:
        log.epochs_changed = True
    if join(log.directory, PARTITION_METADATA) in job.paths:
        log.is_new = True
    if log.directory in job.directories:
        log.names_changed = True


def _segments_from(log: AppendableLog, offset: int) -> list[tuple[Segment, int]]:
    """Each segment with an offset at or after `offset`, and where it ends."""
    ends = [segment.base_offset for segment in log.segments[1:]]
    ends.append(log.ends.log_end)
    return [(segment, end) for segment, end in zip(log.segments, ends, strict=True) if end >= offset]


def _index_paths(segment: Segment) -> list[str]:
    if not segment.exists:
        return []
    paths = [segment.stem + INDEX_SUFFIX, segment.stem + TIME_INDEX_SUFFIX]
    indexes = segment.loaded_indexes
    if indexes is not None:  # the name of a file without bytes is durable with its directory
        files = (indexes.offset_file, indexes.time_file)
        paths = [path for path, file in zip(paths, files, strict=True) if not file.is_blank]
    elif segment.is_fresh:
        paths = []
    if segment.transaction_bytes:
        paths.append(segment.stem + TRANSACTION_INDEX_SUFFIX)
    return paths


def _add_small_files(log: AppendableLog, job: FlushJob) -> None:
    if job.recovery_point > log.ends.recovery_point:
        job.paths += [
            file_stem(log.directory, offset) + SNAPSHOT_SUFFIX
            for offset in log.producer_history.snapshots
            if log.ends.recovery_point < offset <= job.recovery_point
        ]
        if log.epochs_changed:
            log.epochs_changed = False
            job.epochs = log.leader_epochs.encode()
    if log.is_new:
        job.paths.append(join(log.directory, PARTITION_METADATA))
        job.directories.append(log.directory.rpartition("/")[0])
        log.is_new = False
    if log.names_changed:
        job.directories.append(log.directory)
        log.names_changed = False
