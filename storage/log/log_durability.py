"""Which parts of one log are on the device, and what a flush must write.

The recovery point moves past a segment only together with its indexes and the producer snapshot after it.
"""

from collections.abc import Iterator

from msgspec import Struct

from storage.disk.checkpoint_files import RECOVERY_POINTS
from storage.disk.log_flusher import FlushDepth, FlushJob
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.log_context import LogContext
from storage.log.log_ends import LogEnds
from storage.log.log_files import LogFiles
from storage.log.segment_list import SegmentList
from storage.producers.producer_history import ProducerHistory
from storage.producers.producer_state import ProducerStates
from storage.producers.snapshot_writes import AT_ONCE_MAX
from storage.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    file_stem,
)


class LogDurability(Struct, eq=False):
    """One per log. A `Stopping` for the flusher and a `SnapshotOwner` for the writer of producer snapshots."""

    _context: LogContext
    _files: LogFiles
    _ends: LogEnds
    _segments: SegmentList
    _epochs: LeaderEpochCache
    producers: ProducerStates
    _history: ProducerHistory

    @property
    def closed(self) -> bool:
        return self._files.closed

    @property
    def directory(self) -> str:
        return self._files.directory

    # Flush

    def request(self, depth: FlushDepth) -> None:
        """Request a flush of the log."""
        self._context.flusher.request(self, depth)

    def request_within(self, flush_ms: int) -> None:
        """Request a flush of the unflushed batches within that time."""
        self._context.flusher.note_unflushed(self, flush_ms)

    async def flush(self, upto_offset: int, depth: FlushDepth) -> None:
        """As `PartitionLog.flush`."""
        context, ends = self._context, self._ends
        while ends.flushed < min(upto_offset, ends.log_end):
            if context.health.offline is not None:
                raise context.health.error()
            if not await self.flush_once(depth):
                break

    async def flush_once(self, depth: FlushDepth) -> bool:
        """Wait for a slow disk and for one flush. Returns whether there was anything to flush. ProtocolError."""
        if self._files.pending_writes:
            await self._context.writer.drained()
        return await self._context.flusher.flush(self, depth)

    def plan_flush(self, depth: FlushDepth) -> FlushJob | None:
        """None if everything that `depth` includes is on the device.

        The recovery point moves past a segment only if all its indexes are flushed too. While the disk is slow their
        newest entries stay in memory and the point does not move; nor does it move past an unfinished snapshot.
        """
        ends, active = self._ends, self._segments.active
        upto, recovery_point = ends.readable, ends.recovery_point
        if depth is FlushDepth.CLOSED:
            upto = min(upto, active.base_offset)
        unnamed_snapshot = self._context.snapshots.least(self)
        paths: list[str] = []
        indexes_follow = True
        for segment, end_offset in self._segments_from(ends.recovery_point):
            if segment.base_offset > upto or (segment is active and depth is FlushDepth.CLOSED):
                break
            if segment.exists and end_offset > ends.flushed:
                paths.append(segment.stem + LOG_SUFFIX)
            if upto < end_offset or (segment is active and depth is not FlushDepth.COMPLETE):
                indexes_follow = False
            elif indexes_follow and end_offset > recovery_point:
                is_named = unnamed_snapshot is None or end_offset < unnamed_snapshot
                indexes_follow = is_named and self._files.write_index_lumps(segment)
                if indexes_follow:
                    paths += _index_paths(segment)
                    recovery_point = end_offset
        if upto <= ends.flushed and recovery_point == ends.recovery_point:
            return None
        moved = range(ends.recovery_point + 1, recovery_point + 1)
        paths += [self._snapshot_path(offset) for offset in self._history.snapshots if offset in moved]
        epochs = self._epochs.take_unsaved() if moved else None
        job = FlushJob(self.directory, ends.generation, upto, recovery_point, epochs=epochs, paths=paths)
        self._files.add_names(job)
        return job

    def _segments_from(self, offset: int) -> Iterator[tuple[Segment, int]]:
        """Each segment with an offset at or after `offset`, and its end."""
        segments = self._segments
        for number in range(segments.index_of(offset), len(segments.all)):
            yield segments.all[number], segments.end_of(number)

    def _snapshot_path(self, offset: int) -> str:
        return file_stem(self.directory, offset) + SNAPSHOT_SUFFIX

    def flush_postponed(self, job: FlushJob) -> None:
        """See `Flushable`."""
        if job.epochs is not None:
            self._epochs.not_saved()
        self._files.postponed(job)

    def flush_finished(self, job: FlushJob) -> None:
        """The job's files are on the device. A truncation meanwhile invalidates the job, because its bytes may have
        been overwritten."""
        if job.generation != self._ends.generation:
            self.request(FlushDepth.DATA)
            return
        if job.recovery_point > self._ends.recovery_point:
            self._context.checkpoints.note(RECOVERY_POINTS)
        self._ends.on_device(job.upto_offset, job.recovery_point)

    # Producer snapshots

    def write_snapshot(self, offset: int) -> None:
        """Write `<offset>.snapshot`, of many producers a little later; an existing one has the same content."""
        if offset in self._history.snapshots:
            return
        if len(self.producers) > AT_ONCE_MAX:
            self._context.snapshots.begin(self, offset, self._ends.generation)
        else:
            self._files.write(self._snapshot_path(offset), self.producers.snapshot())
            self._history.add(offset)

    def wants_snapshot(self, offset: int, generation: int) -> bool:
        """See `SnapshotOwner`."""
        is_there = self._segments.all[0].base_offset <= offset and offset not in self._history.snapshots
        return is_there and generation == self._ends.generation

    def snapshot_settled(self, offset: int, *, is_named: bool) -> None:
        """See `SnapshotOwner`; now the recovery point may move past it."""
        if is_named:
            self._history.add(offset)
            self._files.names_changed()
        self.request(FlushDepth.CLOSED)

    # A clean stop

    @property
    def is_complete(self) -> bool:
        """See `Stopping`."""
        return self._ends.recovery_point == self._ends.log_end

    def write_end_snapshot(self) -> bool:
        """See `Stopping`."""
        snapshots, end_offset = self._history.snapshots, self._ends.log_end
        is_known = self._files.barred is None and bool(len(self.producers) or snapshots)
        is_lacking = is_known and end_offset not in snapshots
        if is_lacking:
            self.write_snapshot(end_offset)
        return is_lacking

    def plan_stop(self, *, is_new: bool) -> FlushJob | None:
        """See `Stopping`."""
        ends, active = self._ends, self._segments.active
        if ends.recovery_point < ends.log_end and active.size:
            active.close_indexes()  # else a roll after the next start adds the last entry, which no flush would include
        job = self.plan_flush(FlushDepth.COMPLETE)
        wanted = [self._snapshot_path(ends.log_end)] if is_new else []
        if ends.generation and active.exists:  # its files were truncated, maybe below offsets that are flushed
            wanted += [active.stem + LOG_SUFFIX, *_index_paths(active)]
        if wanted:
            job = job or FlushJob(self.directory, ends.generation, ends.log_end, ends.recovery_point)
            job.paths.extend(path for path in wanted if path not in job.paths)
        if is_new and job is not None and self.directory not in job.directories:
            job.directories.append(self.directory)
        return job


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
    if segment.has_transaction_file:  # also when it was cut to nothing: else a loss of power brings the entries back
        paths.append(segment.stem + TRANSACTION_INDEX_SUFFIX)
    return paths
