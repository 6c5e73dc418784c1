"""A bounded number of open files for any number of segments.

Eviction is second chance (a clock): using a file costs one attribute store, no reordering. Pinned files are skipped, so
regions being sent may exceed the limit; at `is_at_pin_limit` few regions are created for clients. When the system runs
out of file descriptors, some files are closed. All calls run on the event loop; threads open their own files.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from common.node_settings.topics import BrokerLogSettings
from common.ports import Disk, File
from storage.disk.cold_reads import ColdReads, PagesMissing, PageWait
from storage.disk.directory_health import is_out_of_files

OPEN_FILES_MAX = BrokerLogSettings().open_files_max
PINNED_SHARE = 2  # replies may pin at most one in this many files
GIVEN_UP_AT_ONCE = 16  # files closed when the system has no descriptors left


class FileHandle:
    """A path whose file may be open. Pins keep the file open through eviction and deletion."""

    __slots__ = ("_owner", "file", "path", "pins", "recently_used", "retired")

    def __init__(self, owner: OpenFiles, path: str) -> None:
        self._owner = owner
        self.path = path
        self.file: File | None = None
        self.pins = 0
        self.recently_used = False
        self.retired = False

    def pread(self, size: int, position: int) -> bytes:
        """Bytes of the file; only from memory while reads are strict (`ColdReads.is_strict`).

        PagesMissing if bytes are not in memory or the file is not open. OSError if it cannot be opened or read.
        """
        cold = self._owner.cold
        if not cold.is_strict:
            return self.use().pread(size, position)
        file = self.file or self.use_if_open()
        self.recently_used = True
        data = file.pread_now(size, position)
        return cold.pread_trusted(file, self, self.path, size, position) if data is None else data

    def use_if_open(self) -> File:
        """As `use`, but PagesMissing while reads are strict and the file is not open: a thread opens it."""
        cold = self._owner.cold
        if self.file is None and cold.is_strict:
            opening = OpenFile(self._owner, self)
            if not cold.trusts(opening.key):
                raise PagesMissing(cold.begin(opening))
        return self.use()

    def use(self, *, create: bool = False) -> File:
        """The file, opened if necessary. OSError if it cannot be opened."""
        file = self.file
        if file is None:
            file = self._owner.open(self, create=create)
        self.recently_used = True
        return file

    def opened(self, file: File) -> None:
        self.file = file
        self.recently_used = True

    def release(self) -> None:
        """Close its file."""
        file, self.file = self.file, None
        if file is not None:
            file.close()

    def was_used(self) -> bool:
        """Whether it was used since the last call, or is pinned."""
        was_used, self.recently_used = self.recently_used, False
        return was_used or self.pins > 0

    def bring_in(self, file: File, position: int) -> PageWait | None:
        return self._owner.cold.wait_for(file, self, self.path, position)

    def pin(self) -> None:
        """Keep the file open while it is in use."""
        self.recently_used = True
        if not self.pins:
            self._owner.pinned_files.add(self)
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1
        if not self.pins:
            self._owner.pinned_files.discard(self)
            if self.retired:
                self._owner.close(self)

    def is_intact(self) -> bool:
        return True  # only its log writes to it

    def cut_short(self) -> str:
        return self.path

    def retire(self) -> None:
        """The segment is deleted: close the file when its last reader has finished."""
        self.retired = True
        if self.pins == 0:
            self._owner.close(self)


class Readable(Protocol):
    """A file that is read batch by batch or entry by entry."""

    def pread(self, size: int, position: int) -> bytes: ...


class OpenFile:
    """Opens a handle's file in a thread, because looking up its name may wait for the device."""

    __slots__ = ("_file", "_handle", "_owner", "key")

    def __init__(self, owner: OpenFiles, handle: FileHandle) -> None:
        self._owner = owner
        self._handle = handle
        self._file: File | None = None
        self.key = (handle.path, -1)

    def run(self) -> None:
        self._file = self._owner.disk.open(self._handle.path)

    def finish(self) -> None:
        if self._file is not None:
            self._owner.adopt(self._handle, self._file)


class OpenFiles:
    """All open segment files of one log directory."""

    def __init__(self, disk: Disk, open_files_max: int = OPEN_FILES_MAX) -> None:
        self.disk = disk
        self.cold = ColdReads()
        self._open_files_max = open_files_max
        self._clock: OrderedDict[FileHandle, None] = OrderedDict()  # open handles; the clock's hand is at the beginning
        self._pinned_max = open_files_max // PINNED_SHARE
        self.opened_count = 0
        self.pinned_files: set[FileHandle] = set()  # being read or written; they stay open

    @property
    def pinned(self) -> int:
        return len(self.pinned_files)

    @property
    def is_at_pin_limit(self) -> bool:
        """Whether so many files are pinned that clients with pinned files in their replies get no more for now."""
        return len(self.pinned_files) >= self._pinned_max

    def __len__(self) -> int:
        return len(self._clock)

    def open(self, handle: FileHandle, *, create: bool) -> File:
        if len(self._clock) >= self._open_files_max:
            self._evict()
        file = self.open_apart(handle.path, create=create)
        handle.opened(file)
        self._clock[handle] = None
        self.opened_count += 1
        return file

    def adopt(self, handle: FileHandle, file: File) -> None:
        """A thread has opened the file of `handle`."""
        if handle.file is not None or handle.retired:
            file.close()
            return
        if len(self._clock) >= self._open_files_max:
            self._evict()
        handle.opened(file)
        self._clock[handle] = None
        self.opened_count += 1

    def open_apart(self, path: str, *, create: bool = False) -> File:
        """A file that the caller closes soon; if the system has no descriptors left, others are closed for it."""
        try:
            return self.disk.open(path, create=create)
        except OSError as error:
            if not is_out_of_files(error) or not self._clock:
                raise
        for _ in range(min(GIVEN_UP_AT_ONCE, len(self._clock))):
            self._evict()
        return self.disk.open(path, create=create)

    def close(self, handle: FileHandle) -> None:
        if handle.file is not None:
            del self._clock[handle]
            handle.release()

    def close_all(self) -> None:
        """Close all files at the end of the node, also those with unsent regions."""
        while self._clock:
            handle, _ = self._clock.popitem(last=False)
            handle.release()

    def _evict(self) -> None:
        """Close the first file that was not used since the hand passed it; every handle is checked at most twice."""
        clock = self._clock
        for _ in range(2 * len(clock)):
            handle = next(iter(clock))
            if handle.was_used():
                clock.move_to_end(handle)
                continue
            del clock[handle]
            handle.release()
            return
