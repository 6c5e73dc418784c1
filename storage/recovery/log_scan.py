"""The scan after an unclean stop: checks batches instead of trusting file lengths, and rebuilds all derived data."""

import contextlib
from collections.abc import Callable

from common.errors import ProtocolError
from common.ports import Disk, File
from common.whole_files import read_whole
from records.audit_event import AuditKind
from records.batch import CONTROL, HEADER_BYTES, MAGIC, BatchHeader, read_header
from storage.audit.audit_trail import Act, AuditPermits, require_agreed
from storage.disk.open_files import OpenFiles
from storage.indexes.index_builder import IndexBuilder
from storage.indexes.transaction_index import ENTRY_BYTES, AbortedTransaction, decode_below, encode
from storage.log.loaded_log import LoadedLog
from storage.producers.producer_replay import load_newest, marker_of, replay_segments
from storage.segments.segment import (
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    SegmentIndexes,
    file_stem,
)
from storage.segments.segment_scan import (
    BATCH_BYTES_MAX,
    IndexedPart,
    SoundBatch,
    nothing_indexed,
    settle_file,
    settle_index_file,
    sound_batches,
    trusted_part,
)


class LogScan:
    """Checks one log's segments. Runs in a thread.

    `epochs`, `producers`, `segments` and `snapshots` are rebuilt from the sound batches, and the log ends at
    `log_end_offset`.
    """

    def __init__(
        self,
        disk: Disk,
        open_files: OpenFiles,
        audit: AuditPermits,
        now_ms: int,
        log: LoadedLog,
        gaps_below: int,
        on_loss: Callable[[], None],
    ) -> None:
        """`on_loss` is called before the log is cut where it has lost records."""
        self._disk = disk
        self._open_files = open_files
        self._audit = audit
        self._now_ms = now_ms
        self._log = log
        self._gaps_below = gaps_below
        self._on_loss = on_loss
        self._aborted: list[AbortedTransaction] = []  # of the segment being scanned
        self._aborted_kept = 0  # so many of them are on the device
        self._replaces = False  # whole files, because trusted bytes are damaged
        self._changed: list[str] = []  # files with changes that are not on the device
        self.directory = log.directory
        self.epochs = log.epochs
        self.producers = log.producers
        self.segments = list(log.segments)
        self.snapshots = list(log.snapshots)
        self.log_end_offset = log.log_end_offset
        self.lost_records = False
        self.cut_segment: int | None = None  # base offset of the segment that was truncated: not on the device yet

    def run(self, first: int, recovery_point: int, *, is_damaged: bool) -> None:
        """Scan from segment number `first` on; in that segment from `recovery_point` on, if its indexes lead there.
        `is_damaged`: the device has more than what lies before `recovery_point`, and it is not trusted any more."""
        self._replaces = is_damaged
        part = self._trusted_part(self.segments[first], recovery_point)
        self._prepare(first, part)
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            if number > first:
                if segment.base_offset != self.log_end_offset and self._is_hole(segment, self.log_end_offset):
                    self._cut(number)
                    break
                part = nothing_indexed(segment.base_offset)
                self._write_snapshot(segment.base_offset)
            is_last = number + 1 == len(self.segments)
            self.log_end_offset, size = self._scan_segment(segment, part, is_last)
            if size < segment.size:
                if not is_last:  # first, as long as the damage shows that they come after it
                    self._cut(number + 1)
                self._truncate(segment, size)
                break
        self.producers.advance_to(self.log_end_offset)
        if self.log_end_offset <= recovery_point:
            self._flush()

    def _trusted_part(self, segment: Segment, recovery_point: int) -> IndexedPart:
        if recovery_point <= segment.base_offset:
            return nothing_indexed(segment.base_offset)
        try:
            part = trusted_part(self._disk, segment, recovery_point)
            self._aborted = self._read_aborted(segment, recovery_point)
            self._aborted_kept = len(self._aborted)
            return part
        except (ValueError, ProtocolError):  # the log is shorter than it was, or its indexes are missing
            self._replaces = True
            return nothing_indexed(segment.base_offset)

    def _prepare(self, first: int, part: IndexedPart) -> None:
        """Load epochs and producers as of the scan's start; later snapshots are rewritten."""
        start_offset = self.log_end_offset = part.end_offset
        self.epochs.truncate_from_end(start_offset)
        for offset in [offset for offset in self.snapshots if offset > start_offset]:
            self._disk.remove(file_stem(self.directory, offset) + SNAPSHOT_SUFFIX)
            self.snapshots.remove(offset)
        load_newest(self._disk, self, start_offset, self._now_ms)
        replay_segments(self._disk, self, self.segments[: first + 1], part.size)

    def _is_hole(self, segment: Segment, end_offset: int) -> bool:
        """Whether records are missing before the segment: it does not begin where the previous one ends, and compaction
        did not leave the gap.

        A power loss can remove the end of one segment, exactly at a batch, and keep the next one. No roll leaves a gap,
        and compaction is recorded on the device before; so above that record a gap is a loss.
        """
        left_by_compaction = self._log.config.is_compacted and segment.base_offset <= self._gaps_below
        return segment.base_offset < end_offset or not left_by_compaction

    def _scan_segment(self, segment: Segment, part: IndexedPart, is_last: bool) -> tuple[int, int]:
        """The end of its sound batches, as offset and position; then its indexes are on disk."""
        indexes = SegmentIndexes(self._open_files, segment.stem, part.offsets, part.times)
        builder = IndexBuilder(indexes, part.largest, self._log.config.index_interval_bytes)
        end_offset, size = part.end_offset, part.size
        file = self._disk.open(segment.stem + LOG_SUFFIX)
        try:
            for batch in sound_batches(file, part.size, segment.size, part.end_offset):
                if self._came_back(batch.header, end_offset):
                    break
                self._take_in(batch)
                builder.add(batch.position, batch.header)
                end_offset = batch.header.next_offset
                size = batch.position + batch.header.size
        finally:
            file.close()
        if not is_last and size == segment.size:
            builder.finish()
        for index in (indexes.offset_file, indexes.time_file):
            if settle_index_file(self._disk, index, replaces=self._replaces):
                self._changed.append(index.handle.path)
        segment.adopt_indexes(indexes, builder.largest)
        segment.recovered(builder.bytes_since_index, self._write_aborted(segment))
        return end_offset, size

    def _came_back(self, header: BatchHeader, end_offset: int) -> bool:
        """Whether a batch was truncated once from this log, and its replacement did not reach the device.

        Such a batch has another leader epoch than its replacement. Epochs never decrease along a log, and only
        compaction leaves gaps. The first batch of a log begins it: what the file says of epochs before may be of a log
        that this replica has given up.
        """
        latest = self.epochs.latest_epoch
        is_first = end_offset == self.segments[0].base_offset and not self._log.config.may_begin_in_tier
        if is_first and header.leader_epoch < latest:
            self.epochs.clear()
            return False
        if header.leader_epoch < 0 or latest < 0 or header.leader_epoch == latest:
            return False
        is_gap = header.base_offset > end_offset and not self._log.config.is_compacted
        return header.leader_epoch < latest or is_gap

    def _take_in(self, batch: SoundBatch) -> None:
        header = batch.header
        if header.leader_epoch >= 0 and header.leader_epoch != self.epochs.latest_epoch:
            self.epochs.assign(header.leader_epoch, header.base_offset)
        marker = marker_of(batch.view, batch.at, header) if header.attributes & CONTROL else None
        ended = self.producers.update(header, marker)
        if ended is not None and ended.aborted:
            self._aborted.append(
                AbortedTransaction(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)
            )

    @property
    def is_flushed(self) -> bool:
        """Whether nothing has changed in place, or all of it is on the device."""
        return not self._changed

    # Aborted transactions and snapshots

    def _read_aborted(self, segment: Segment, below: int) -> list[AbortedTransaction]:
        """Those with markers below that offset. ValueError if the file is damaged there."""
        if not segment.transaction_bytes:
            return []
        return decode_below(read_whole(self._disk, segment.stem + TRANSACTION_INDEX_SUFFIX) or b"", below)

    def _write_aborted(self, segment: Segment) -> int:
        """Returns the length of the file."""
        kept = self._aborted_kept
        data = b"".join(encode(entry) for entry in self._aborted[kept:])
        self._aborted, self._aborted_kept = [], 0
        if data or segment.has_transaction_file:
            path = segment.stem + TRANSACTION_INDEX_SUFFIX
            self._settle(path, kept * ENTRY_BYTES, data)
        return kept * ENTRY_BYTES + len(data)

    def _write_snapshot(self, offset: int) -> None:
        path = file_stem(self.directory, offset) + SNAPSHOT_SUFFIX
        self._settle(path, 0, self.producers.snapshot())
        self.snapshots.append(offset)

    def _settle(self, path: str, kept: int, rest: bytes) -> None:
        if settle_file(self._disk, path, kept, rest, replaces=self._replaces):
            self._changed.append(path)

    def _flush(self) -> None:
        """Have the device lose what lies behind the log's end, too. Later flushes include no file for it, because all
        offsets are on the device."""
        for path in self._changed:
            with contextlib.suppress(FileNotFoundError):  # its segment was removed
                file = self._disk.open(path)
                try:
                    file.fsync()
                finally:
                    file.close()
        self._changed.clear()

    # Cutting

    def _require(self, cause: str, bytes_cut: int) -> None:
        """Wait for the audit. The former log end is unknown: these bytes have no sound batch, or come after a loss."""
        log = self._log
        act = Act(
            AuditKind.LOG_TRUNCATED,
            log.topic,
            log.topic_id,
            log.partition,
            cause,
            before={"bytes_cut": bytes_cut},
            after={"log_start_offset": log.log_start_offset, "log_end_offset": self.log_end_offset},
        )
        require_agreed(self._audit, act)

    def _truncate(self, segment: Segment, size: int) -> None:
        self._require("torn tail", segment.size - size)
        file = self._disk.open(segment.stem + LOG_SUFFIX)
        try:
            if not _is_broken_off(file, size, segment.size):
                self._lost()
            file.truncate(size)
        finally:
            file.close()
        self._changed.append(segment.stem + LOG_SUFFIX)
        segment.appended(size)
        self.cut_segment = segment.base_offset

    def _cut(self, number: int) -> None:
        """Remove segments from `number` on, which come after damage, newest first."""
        gone = self.segments[number:]
        self._require("segments behind damage", sum(segment.size for segment in gone))
        if any(segment.size for segment in gone):
            self._lost()
        for segment in reversed(gone):
            remove_segment_files(self._disk, segment)
        self._disk.sync_directory(self.directory)
        del self.segments[number:]

    def _lost(self) -> None:
        self.lost_records = True
        self._on_loss()


def _is_broken_off(file: File, position: int, size: int) -> bool:
    """Whether the bytes from `position` on are the beginning of a batch, which is all that a killed process leaves
    unsound."""
    left = size - position
    if left < HEADER_BYTES:
        return True
    header = read_header(file.pread(HEADER_BYTES, position), 0)
    return header.magic == MAGIC and left < header.size <= BATCH_BYTES_MAX


def remove_segment_files(disk: Disk, segment: Segment) -> None:
    """Remove the `.log` last: a segment without it is ignored."""
    for suffix in reversed(SEGMENT_SUFFIXES):
        with contextlib.suppress(FileNotFoundError):
            disk.remove(segment.stem + suffix)
