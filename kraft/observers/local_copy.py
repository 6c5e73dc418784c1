"""An observer's own copy of the metadata on disk: a snapshot and the committed batches after it.

`snapshot` is a complete image, `tail` consecutive frames of `kraft.metadata_log`. A new snapshot is written to another
file, fsynced and renamed before the tail is emptied. Until then, loading skips the tail's batches that the snapshot
contains, so a crash at any point leaves a complete copy. A torn end of the tail is truncated, and its content fetched
again.

All methods block for the disk: call them off the event loop, one at a time.
"""

from __future__ import annotations

import logging

from common.disk_errors import NO_FILES, NO_ROOM
from common.errors import ProtocolError, StorageFailure
from common.ports import Disk, File
from common.whole_files import write_fully
from kraft.image.delta import MetadataDelta, ReplayError
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.snapshot import DamagedSnapshot, decode_snapshot, encode_snapshot
from kraft.metadata_log import unframe_batches

log = logging.getLogger(__name__)

TAIL_BYTES_MAX = 16 << 20


class NoRoom(StorageFailure):
    """The device is full, or no more files can be opened: nothing is lost, and a retry may succeed."""


class LocalCopy:
    """Files in `directory`. Raises StorageFailure if the disk fails or the snapshot is damaged."""

    def __init__(self, disk: Disk, directory: str, tail_bytes_max: int = TAIL_BYTES_MAX) -> None:
        self._disk = disk
        self._directory = directory
        self._snapshot_path = f"{directory}/snapshot"
        self._tail_path = f"{directory}/tail"
        self._tail_bytes_max = tail_bytes_max
        self._tail: File | None = None
        self._position = 0

    def load(self) -> MetadataImage:
        """The saved image; the empty one for a new directory. Opens the tail for `save`."""
        try:
            self._disk.make_directory(self._directory)
            image = self._read_snapshot()
            self._tail = self._disk.open(self._tail_path, create=True)
            image = self._replay_tail(image, self._tail)
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise StorageFailure(f"{self._directory}: the local metadata cannot be read") from error
        return image

    def save(self, frames: bytes, image: MetadataImage) -> None:
        """Make `frames` durable after everything saved before; `image` is the state after them.

        Raises NoRoom if a retry may succeed, as `replace` does.
        """
        if self._tail is None:
            raise StorageFailure(f"{self._directory}: the local metadata is not open")
        try:
            if self._position + len(frames) > self._tail_bytes_max:
                self.replace(image)
                return
            write_fully(self._tail, frames, self._position)
            self._tail.fsync()
            self._position += len(frames)
        except OSError as error:
            raise self._refused(error) from error

    def replace(self, image: MetadataImage) -> None:
        """Replace the whole copy by `image`."""
        if self._tail is None:
            raise StorageFailure(f"{self._directory}: the local metadata is not open")
        aside = self._snapshot_path + ".new"
        try:
            file = self._disk.open(aside, create=True)
            try:
                file.truncate(0)
                write_fully(file, encode_snapshot(image), 0)
                file.fsync()
            finally:
                file.close()
            self._disk.rename(aside, self._snapshot_path)
            self._disk.sync_directory(self._directory)
            self._tail.truncate(0)
            self._tail.fsync()
            self._position = 0
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> StorageFailure:
        kind = NoRoom if error.errno in (*NO_ROOM, *NO_FILES) else StorageFailure
        return kind(f"{self._directory}: the local metadata cannot be written: {error}")

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _read_snapshot(self) -> MetadataImage:
        if not self._disk.exists(self._snapshot_path):
            return EMPTY_IMAGE
        file = self._disk.open(self._snapshot_path)
        try:
            return decode_snapshot(file.pread(file.size(), 0))
        except DamagedSnapshot as error:
            raise StorageFailure(f"{self._snapshot_path}: {error}") from error
        finally:
            file.close()

    def _replay_tail(self, image: MetadataImage, tail: File) -> MetadataImage:
        view = memoryview(tail.pread(tail.size(), 0))
        delta, expected, end = MetadataDelta(image), image.next_offset, 0
        try:
            for framed in unframe_batches(view):
                base = framed.batch.header.base_offset
                if base > expected or base < expected < framed.batch.end_offset:
                    break
                if base == expected:
                    delta.replay_batch(framed.batch)
                    expected = framed.batch.end_offset
                end = framed.position + framed.size
        except (ProtocolError, ReplayError):
            log.warning("the local metadata's tail is damaged and is cut", extra={"position": end})
            return self._cut(tail, end, image)  # the delta may contain half a batch: replay the sound batches again
        if end < len(view):
            tail.truncate(end)
            tail.fsync()
        self._position = end
        return delta.image()

    def _cut(self, tail: File, end: int, image: MetadataImage) -> MetadataImage:
        tail.truncate(end)
        tail.fsync()
        return self._replay_tail(image, tail)
