"""Chunks of tiered segments on the local disk: bounded in bytes and open files, least recently read out first.

A chunk from another device or machine is written to a new file. An object on a disk of the node is checked and then
read in place. Each read asks the file system once whether the file is still the checked one; an altered file is dropped
and checked again.

The directory is emptied when the node starts. A chunk that is being sent is pinned and stays. All calls run on the
event loop; threads write and remove files. Files are never rewritten, although that would be cheaper, because sendfile
gives the socket the pages themselves, and the peer may not have received them yet.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass

from common.node_settings.tier import TierReads
from common.ports import Disk, File, FileIdentity
from common.settings import same
from storage.disk.cold_reads import ColdReads, PageWait
from storage.disk.open_files import FileHandle, OpenFiles
from storage.segments.region import Region
from tiering.reading.chunk import (
    PIECE_BYTES,
    STEP_BYTES,
    ChunkIndex,
    DamagedChunk,
    Expected,
    check_in_place,
    store_checked,
)
from tiering.reading.downloads import Key

logger = logging.getLogger(__name__)

DIRECTORY = "tier-cache"
AHEAD_REST_S = 0.005  # after each step of prefetching, which still allows 200 MB/s
CHECKS_MAX = 3  # of one chunk whose object is altered meanwhile
YOUNG_NS = 20_000_000  # two of the longest ticks of file systems: later changes have another time
WRITERS_MAX = 2  # threads that check and write at a time, so that some are left for the node's other work


@dataclass(slots=True, frozen=True)
class CacheLimits:
    """`bytes_max`: `tidelog.tier.cache.bytes`. A write that would leave less than `free_bytes_min` on the disk is not
    made.

    A chunk larger than `bytes_max` is cached alone.
    """

    bytes_max: int = same(TierReads, "tier_cache_bytes")
    open_files_max: int = same(TierReads, "tier_cache_open_files_max")
    free_bytes_min: int = 512 << 20
    check_step_bytes: int = STEP_BYTES
    """How much of a lent object is checked before others get their turn."""


class LentFile:
    """An object lent by its store, open until it is retired and its last reader has finished."""

    __slots__ = ("_cold", "_file", "_name", "pins", "retired")

    def __init__(self, file: File, name: str, cold: ColdReads) -> None:
        self._file = file
        self._name = name
        self._cold = cold
        self.pins = 0
        self.retired = False

    def use(self) -> File:
        return self._file

    def bring_in(self, file: File, position: int) -> PageWait | None:
        return self._cold.wait_for(file, self, self._name, position)

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1
        if self.retired and not self.pins:
            self._file.close()

    def retire(self) -> None:
        self.retired = True
        if not self.pins:
            self._file.close()


class Chunk:
    """One chunk on the local disk. `size` is what the cache holds of it in bytes: 0 where the object was lent.

    `name` is the object's, for the log; `identity` the file's when it was checked.
    """

    __slots__ = ("_cut_short", "handle", "identity", "index", "name", "size")

    def __init__(
        self, handle: FileHandle | LentFile, index: ChunkIndex, size: int, identity: FileIdentity, name: str
    ) -> None:
        self.handle = handle
        self.index = index
        self.size = size
        self.identity = identity
        self.name = name
        self._cut_short = False

    def trouble(self) -> str | None:
        """Why it must not be read: its file is not the checked one, or cannot be read. None if it may be."""
        if self._cut_short:
            return "it could not be read to its end"
        try:
            return None if self.handle.use().identity() == self.identity else "it was altered"
        except OSError as error:
            return str(error)

    def region(self, start: int, end: int) -> Region:
        """A part of it, pinned until the region's release. OSError when the file cannot be opened."""
        file = self.handle.use()
        self.handle.pin()
        return Region(file, start, end - start, self)

    # of its regions ----------------------------------------------------------------------------------------

    def unpin(self) -> None:
        self.handle.unpin()

    def bring_in(self, file: File, position: int) -> PageWait | None:
        return self.handle.bring_in(file, position)

    def is_intact(self) -> bool:
        """Whether the bytes are unchanged. Unlike `trouble` it accepts that the file was unlinked meanwhile."""
        try:
            found = self.handle.use().identity()
        except OSError:
            return False
        return found.modified_ns == self.identity.modified_ns and found.size == self.identity.size

    def cut_short(self) -> str:
        """The next reader checks it again."""
        self._cut_short = True
        return self.name


async def _checked(
    file: File,
    start: int,
    length: int,
    expected: Expected,
    is_awaited: Callable[[], bool],
    scratch: memoryview,
    step_bytes: int,
) -> tuple[ChunkIndex, FileIdentity]:
    """The index of a chunk in `file`, and who the file was from before the check until after it."""
    index = ChunkIndex()
    for _ in range(CHECKS_MAX):
        before = file.identity()
        if 0 <= before.age_ns < YOUNG_NS:
            await asyncio.sleep(YOUNG_NS / 1e9)
            before = file.identity()
            if 0 <= before.age_ns < YOUNG_NS:
                continue
        try:
            for checked in check_in_place(file, start, length, expected, scratch, step_bytes):
                index = checked
                await asyncio.sleep(0 if is_awaited() else AHEAD_REST_S)
        except DamagedChunk:
            if file.identity() == before:
                raise
        else:
            if file.identity() == before:
                return index, before
    raise DamagedChunk("it was altered each time that it was checked")


class ChunkCache:
    """The chunks on one node's disk, within its limits. `reserve` room, then `store` into it or `cancel`."""

    def __init__(self, disk: Disk, limits: CacheLimits, directory: str = DIRECTORY) -> None:
        self._disk = disk
        self._limits = limits
        self._directory = directory
        self._open_files = OpenFiles(disk, limits.open_files_max)
        self._chunks: dict[Key, Chunk] = {}  # least recently read first
        self._doomed: list[str] = []  # files that the next writer removes first
        self._writers = asyncio.Semaphore(WRITERS_MAX)
        self._scratch = memoryview(bytearray(min(PIECE_BYTES, limits.check_step_bytes)))
        self._serial = 0
        self._reserved = 0
        self._kept = 0
        self._lent = 0
        self._doomed_bytes = 0
        self.evicted_total = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._chunks

    @property
    def bytes_used(self) -> int:
        """Bytes of the cache's own files that exist or are being written."""
        return self._kept + self._doomed_bytes

    @property
    def open_count(self) -> int:
        return len(self._open_files) + self._lent

    async def open(self) -> None:
        """Remove what an earlier run left behind. OSError when the directory cannot be made."""
        await asyncio.to_thread(self._clear)

    def _clear(self) -> None:
        self._disk.make_directory(self._directory)
        for name in self._disk.list(self._directory):
            self._disk.remove(f"{self._directory}/{name}")

    def get(self, key: Key) -> Chunk | None:
        """A cached chunk, which counts as read now."""
        chunk = self._chunks.pop(key, None)
        if chunk is not None:
            self._chunks[key] = chunk
        return chunk

    def reserve(self, size: int) -> bool:
        """Reserve room; False while too much is being sent or downloaded."""
        room = max(self._limits.bytes_max, size) - size - self._reserved
        if room < 0:
            return False
        self._evict(self._kept - room)
        if self._kept > room:
            return False
        self._reserved += size
        return True

    def cancel(self, size: int) -> None:
        """Give a reservation back."""
        self._reserved -= size

    async def store(self, key: Key, name: str, data: bytes, expected: Expected) -> Chunk:
        """Check and keep a chunk of the object `name`; its reservation, of exactly its size, is used up either way.

        Raises DamagedChunk, OSError. It waits for the local disk alone.
        """
        self._serial += 1
        path = f"{self._directory}/{self._serial}"
        size = len(data)
        self._kept += size
        self._reserved -= size
        try:
            async with self._writers:
                doomed, self._doomed = self._doomed, []
                self._doomed_bytes = 0
                index, identity = await asyncio.to_thread(self._write, path, data, expected, doomed)
        except BaseException as error:
            self._kept -= size
            self._doomed.append(path)
            if isinstance(error, OSError):
                self._evict(self._kept // 2)  # the disk is short of room, or sick
            raise
        return self._keep(key, Chunk(FileHandle(self._open_files, path), index, size, identity, name))

    async def adopt(
        self,
        key: Key,
        name: str,
        file: File,
        start: int,
        length: int,
        expected: Expected,
        is_awaited: Callable[[], bool],
    ) -> Chunk:
        """Check and keep a chunk where it lies in a lent object; a reservation of `length` bytes is given back.

        Unless a reader waits for it, the work pauses between steps. The file is closed when the chunk is dropped.
        Raises DamagedChunk, OSError.
        """
        try:
            steps = self._scratch, self._limits.check_step_bytes
            index, identity = await _checked(file, start, length, expected, is_awaited, *steps)
        except BaseException:
            file.close()
            raise
        finally:
            self._reserved -= length
        while self._lent >= self._limits.open_files_max and self._evict_lent():
            pass
        self._lent += 1
        return self._keep(key, Chunk(LentFile(file, name, self._open_files.cold), index, 0, identity, name))

    def _keep(self, key: Key, chunk: Chunk) -> Chunk:
        self.drop(key)  # it was damaged, and is there again
        self._chunks[key] = chunk
        return chunk

    def _write(self, path: str, data: bytes, expected: Expected, doomed: list[str]) -> tuple[ChunkIndex, FileIdentity]:
        self._remove(doomed)
        if self._disk.free_bytes() < self._limits.free_bytes_min + len(data):
            raise OSError(errno.ENOSPC, f"less than {self._limits.free_bytes_min} bytes would be left")
        file = self._disk.open(path, create=True)
        try:
            return store_checked(file, data, expected), file.identity()
        finally:
            file.close()

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            try:
                self._disk.remove(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("a cached chunk stays on the disk", extra={"path": path, "reason": str(error)})

    def drop(self, key: Key) -> None:
        """Drop a chunk whose file is bad; readers that are sending it keep it."""
        chunk = self._chunks.pop(key, None)
        if chunk is not None:
            self._retire(chunk)

    async def forget_all(self) -> None:
        """Drop all chunks and their files, except those that are being sent or downloaded."""
        for key in list(self._chunks):
            self.drop(key)
        doomed, self._doomed = self._doomed, []
        self._doomed_bytes = 0
        await asyncio.to_thread(self._remove, doomed)

    def _evict(self, size: int) -> None:
        """Free at least `size` bytes, unless too much is pinned."""
        if size <= 0:
            return
        for key, chunk in list(self._chunks.items()):
            if chunk.size and not chunk.handle.pins:
                del self._chunks[key]
                self._retire(chunk)
                self.evicted_total += 1
                size -= chunk.size
                if size <= 0:
                    return

    def _evict_lent(self) -> bool:
        """Give back the lent object that was read longest ago; False when all are under send."""
        for key, chunk in self._chunks.items():
            if isinstance(chunk.handle, LentFile) and not chunk.handle.pins:
                del self._chunks[key]
                self._retire(chunk)
                self.evicted_total += 1
                return True
        return False

    def _retire(self, chunk: Chunk) -> None:
        chunk.handle.retire()
        if isinstance(chunk.handle, LentFile):
            self._lent -= 1
            return
        self._kept -= chunk.size
        self._doomed_bytes += chunk.size
        self._doomed.append(chunk.handle.path)

    def close(self) -> None:
        """The files are left to the next start."""
        for chunk in self._chunks.values():
            if isinstance(chunk.handle, LentFile):
                chunk.handle.retire()
        self._chunks.clear()
        self._open_files.close_all()
