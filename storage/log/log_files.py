"""A log's directory and settings: whether it accepts changes, writes and renames of its small files, and names that are
not durable yet."""

from collections.abc import Callable
from typing import cast

from common.errors import ProtocolError
from common.ports import Buffer
from common.whole_files import join
from storage.disk.checkpoint_files import LOG_STARTS, PARTITION_METADATA, TopicPartition
from storage.disk.log_flusher import FlushJob
from storage.disk.open_files import FileHandle
from storage.log.loaded_log import LoadedLog
from storage.log.log_config import LogConfig
from storage.log.log_context import LogContext
from storage.segments.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    file_stem,
)


class LogFiles:
    """One per log. `who`: topic and partition. A `WriteOwner`, because small files may wait for a slow disk."""

    __slots__ = (
        "_context",
        "_is_new",
        "_names_changed",
        "barred",
        "closed",
        "config",
        "directory",
        "pending_writes",
        "topic_id",
        "who",
    )

    def __init__(self, context: LogContext, loaded: LoadedLog) -> None:
        self._context = context
        self.who: TopicPartition = (loaded.topic, loaded.partition)
        self.topic_id = loaded.topic_id  # from partition.metadata
        self.config = loaded.config
        self.directory = loaded.directory
        self.pending_writes = 0  # of this log, waiting for a slow disk
        self.closed = False
        # why the log rejects appends and truncations, temporarily or, if closed, permanently
        self.barred: str | None = None
        self._is_new = loaded.is_new  # the directory's own name and its metadata are not on the device yet
        self._names_changed = loaded.names_changed  # some names in it are not on the device yet

    def configure(self, config: LogConfig) -> None:
        """Apply new topic settings."""
        self.config = config
        if config.is_compacted:
            self._context.compacted[self.who] = None
        else:
            self._context.compacted.pop(self.who, None)
        if config.may_begin_in_tier:
            self._context.checkpoints.note(LOG_STARTS)  # now checkpointed: the tier holds what is below

    def bar(self, reason: str) -> None:
        """Make the log reject appends and truncations until `unbar`."""
        if not self.closed:
            self.barred = reason

    def unbar(self) -> None:
        """End `bar`, unless the log was closed meanwhile."""
        if not self.closed:
            self.barred = None

    def close(self) -> None:
        self.closed = True
        self._context.compacted.pop(self.who, None)
        self.barred = "the log is closed"

    # Writes

    def begin_write(self) -> None:
        """A write of the log waits for a slow disk."""
        self.pending_writes += 1

    def write_finished(self, tag: object) -> None:
        """See `WriteOwner`."""
        self.pending_writes -= 1
        if tag is not None:
            cast(Callable[[], None], tag)()

    def write(self, path: str, data: Buffer, position: int = 0, on_written: Callable[[], None] | None = None) -> None:
        """Write a file that is not kept open. While the disk is slow, the write queues behind others. `on_written` is
        called when the bytes are in the page cache, maybe at once."""
        handle = FileHandle(self._context.open_files, path)
        if not self._context.writer.write(handle, data, position, self, on_written):
            self.begin_write()
        elif on_written is not None:
            on_written()
        handle.retire()
        self._names_changed = True

    def create(self, segment: Segment) -> None:
        """Create the index files of `segment`; its `.log` is created with the first batch."""
        segment.made_files()
        self._names_changed = True
        if not self._context.writer.slow:  # otherwise they appear with their first write
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                self.write(segment.stem + suffix, b"")

    def write_index_lumps(self, segment: Segment) -> bool:
        """Write index entries that wait in memory. Returns whether none waits. They keep waiting while the disk is slow
        or full, or their file cannot be opened."""
        indexes, writer = segment.loaded_indexes, self._context.writer
        if indexes is None:
            return True
        for file in (indexes.offset_file, indexes.time_file):
            if file.pending:
                if writer.slow:
                    return False
                try:
                    writer.write(file.handle, bytes(file.pending), file.flushed, self)
                except ProtocolError:
                    return False
                file.note_written()
        return True

    # Removal

    def discard_segment(self, segment: Segment) -> None:
        """Delete its files; regions being sent keep theirs open. OSError."""
        segment.retire()
        for suffix in SEGMENT_SUFFIXES:  # also for a segment without room: some files may exist
            if suffix != SEGMENT_SUFFIXES[-1] or segment.has_transaction_file:
                self.discard(segment.stem + suffix)

    def discard_snapshot(self, offset: int) -> None:
        self.discard(file_stem(self.directory, offset) + SNAPSHOT_SUFFIX)

    def discard(self, path: str) -> None:
        """Rename a file if it exists; it is deleted after file.delete.delay.ms. OSError."""
        context = self._context
        try:
            context.disk.rename(path, path + DELETED_SUFFIX)
        except FileNotFoundError:
            return
        context.trash.add(path + DELETED_SUFFIX, context.clock.monotonic() + self.config.file_delete_delay_ms / 1000)

    # What of it is not on the device

    def renew(self, topic_id: bytes) -> None:
        """The directory was created again, with its metadata."""
        self.topic_id = topic_id
        self._is_new = True

    def names_changed(self) -> None:
        """A file was created, deleted or renamed."""
        self._names_changed = True

    def add_names(self, job: FlushJob) -> None:
        """Add making the names durable to `job`."""
        if self._is_new:
            job.paths.append(join(self.directory, PARTITION_METADATA))
            job.directories.append(self.directory.rpartition("/")[0])
        if self._names_changed:
            job.directories.append(self.directory)
        self._is_new = self._names_changed = False

    def postponed(self, job: FlushJob) -> None:
        """`job` was not done: the next one must include the names."""
        self._is_new |= join(self.directory, PARTITION_METADATA) in job.paths
        self._names_changed |= self.directory in job.directories
