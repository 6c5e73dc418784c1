"""Indexes of tiered segments in bounded memory: chunk plans, time indexes, aborted transactions.

Each comes from a section of the segment's object, downloaded on demand and checked against the CRC in the segment's
entry. A new index stays until its waiting readers have retried, and a read's indexes stay while it waits for more, even
beyond the memory limit. Otherwise readers of different segments, or one that needs two indexes, would evict them for
ever.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from common.checksum import crc32c
from common.errors import ErrorCode, ProtocolError
from common.node_settings.tier import TierReads
from common.ports import File
from common.settings import same
from object_store.errors import ObjectAltered, ObjectMissing, ObjectTruncated, StoreError
from object_store.store import ObjectStore
from storage.indexes import offset_index, time_index
from storage.indexes.aborted_look_up import AbortedLookUp, Admits
from storage.indexes.transaction_windows import TransactionWindows
from tiering.bucket.segment import OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, Section, TieredSegment
from tiering.reading.chunk import ChunkPlan, plan_chunks
from tiering.reading.downloads import Downloads, Key, Ticket

logger = logging.getLogger(__name__)

OFFSETS, TIMES, ABORTED = -1, -2, -3  # in place of a chunk's number
THREAD_FROM_BYTES = 64 << 10
READS_MAX = 1_000  # waiting reads whose indexes stay
READ_HOLD_S = 30.0  # after its last attempt, because its reader may have left


class RemoteSegment(NamedTuple):
    """A finished segment and the key of its object."""

    key: str
    segment: TieredSegment


class TimeEntries:
    """A segment's time index, searched as bytes."""

    __slots__ = ("_base_offset", "_data")

    def __init__(self, data: bytes, base_offset: int) -> None:
        self._data = data
        self._base_offset = base_offset

    @property
    def memory_bytes(self) -> int:
        return len(self._data) + 100

    def offset_before(self, timestamp: int) -> int:
        """All records up to and including this offset are earlier than `timestamp`; below the base offset if none is
        known."""
        entry = time_index.ENTRY_BYTES
        slots = range(len(self._data) // entry)
        slot = bisect_right(slots, timestamp - 1, key=lambda at: self._number(at * entry, 8)) - 1
        return self._base_offset + self._number(slot * entry + 8, 4) if slot >= 0 else self._base_offset - 1

    def _number(self, at: int, length: int) -> int:
        return int.from_bytes(self._data[at : at + length], "big", signed=True)


class AbortedEntries:
    """A segment's aborted transactions, searched as bytes. ValueError if they are damaged."""

    __slots__ = ("_data", "windows")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.windows = TransactionWindows.load(self._pread, len(data))

    @property
    def memory_bytes(self) -> int:
        return len(self._data) + self.windows.memory_bytes + 100

    def search(self, look_up: AbortedLookUp, admits: Admits) -> bool:
        """Returns False if it has to go on in another turn of the event loop."""
        return look_up.search(self.windows, self._pread, self.windows.count, admits)

    def _pread(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]


Known = ChunkPlan | TimeEntries | AbortedEntries
A = TypeVar("A")
T = TypeVar("T", ChunkPlan, TimeEntries, AbortedEntries)


@dataclass(slots=True, frozen=True)
class IndexLimits:
    """`memory_bytes`: `tidelog.tier.index.bytes`; `chunk_bytes`: `tidelog.tier.chunk.bytes`, of the plans."""

    memory_bytes: int = same(TierReads, "tier_index_bytes")
    chunk_bytes: int = same(TierReads, "tier_chunk_bytes")
    timeout_s: float = 120.0


class _Read:
    """A read that may need several attempts: the keys it has requested, and whether it still waits."""

    __slots__ = ("key", "offset", "reader", "touched", "tried_at", "waits")

    def __init__(self, reader: int, name: str, offset: int) -> None:
        self.key = (reader, name)
        self.reader = reader
        self.offset = offset
        self.tried_at = 0.0
        self.touched: dict[Key, None] = {}
        self.waits = False

    def begin(self, now: float) -> None:
        """Begin an attempt."""
        self.waits, self.tried_at = False, now

    def wait(self) -> None:
        """It has to be retried."""
        self.waits = True


class RemoteIndexes:
    """Indexes with least-recently-used eviction. Each method returns the index or the ticket to wait for.

    They raise the ProtocolError of a failed download until it may be retried.
    """

    def __init__(self, store: ObjectStore, downloads: Downloads, limits: IndexLimits) -> None:
        self._store = store
        self._downloads = downloads
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._known: dict[Key, Known] = {}
        self._coming: dict[Key, None] = {}  # their readers are about to retry
        self._reads: dict[tuple[int, str], _Read] = {}  # waiting reads; the most recently tried one is last
        self._current: _Read | None = None
        self.memory_bytes = 0

    def begin(self, reader: int, name: str, offset: int) -> None:
        """Begin an attempt of `reader` to read the partition `name` at `offset`. Requests until the next `begin` belong
        to this read."""
        reads, current, now = self._reads, self._current, self._loop.time()
        if current is not None and not current.waits:
            reads.pop(current.key, None)
        read = reads.pop((reader, name), None)
        if read is None or read.offset != offset:
            read = _Read(reader, name, offset)
        read.begin(now)
        self._current = reads[read.key] = read
        while len(reads) > READS_MAX or next(iter(reads.values())).tried_at < now - READ_HOLD_S:
            del reads[next(iter(reads))]

    def wait(self) -> None:
        """Note that the read that began last will be retried."""
        if self._current is not None:
            self._current.wait()

    def plan(self, remote: RemoteSegment, reader: int) -> ChunkPlan | Ticket:
        return self._find(remote, OFFSETS, OFFSET_INDEX, ChunkPlan, self._make_plan, reader)

    def times(self, remote: RemoteSegment, reader: int) -> TimeEntries | Ticket:
        return self._find(remote, TIMES, TIME_INDEX, TimeEntries, _make_times, reader)

    def aborted(self, remote: RemoteSegment, reader: int) -> AbortedEntries | Ticket:
        return self._find(remote, ABORTED, TRANSACTION_INDEX, AbortedEntries, _make_aborted, reader)

    def plan_ahead(self, remote: RemoteSegment, reader: int) -> ChunkPlan | None:
        """The plan if it is cached; otherwise None, and it is downloaded in the background."""
        key = (remote.segment.uuid, OFFSETS)
        known = self._known.get(key)
        if isinstance(known, ChunkPlan):
            return known
        self._downloads.want_ahead(key, lambda: self._download(remote, key, OFFSET_INDEX, self._make_plan), reader)
        return None

    def _find(
        self,
        remote: RemoteSegment,
        number: int,
        name: str,
        kind: type[T],
        make: Callable[[TieredSegment, bytes], T],
        reader: int,
    ) -> T | Ticket:
        key = (remote.segment.uuid, number)
        read = self._current if self._current is not None and self._current.reader == reader else None
        if read is not None:
            read.touched[key] = None
        known = self._known.pop(key, None)
        if isinstance(known, kind):
            self._known[key] = known
            return known
        if read is not None:
            read.wait()
        return self._downloads.want(key, lambda: self._download(remote, key, name, make), reader)

    def _download(
        self, remote: RemoteSegment, key: Key, name: str, make: Callable[[TieredSegment, bytes], Known]
    ) -> _SectionDownload:
        return _SectionDownload(self, self._store, remote, key, name, make, self._limits.timeout_s)

    def keep(self, key: Key, known: Known) -> None:
        """Keep it until `release` at least."""
        self._known[key] = known
        self._coming[key] = None
        self.memory_bytes += known.memory_bytes
        self._make_room()

    def release(self, key: Key) -> None:
        """Note that the waiting readers of `key` have retried."""
        if self._coming.pop(key, self) is None:
            self._make_room()

    def _make_room(self) -> None:
        """Evict, except the newest index and those of waiting reads, which may exceed the memory limit."""
        surplus = self.memory_bytes - self._limits.memory_bytes
        if surplus <= 0:
            return
        least, newest, doomed = self._loop.time() - READ_HOLD_S, next(reversed(self._known)), []
        needed = {key for read in self._reads.values() if read.waits and read.tried_at >= least for key in read.touched}
        for key, known in self._known.items():
            if surplus <= 0:
                break
            if key not in needed and key not in self._coming and key != newest:
                doomed.append(key)
                surplus -= known.memory_bytes
        for key in doomed:
            self.memory_bytes -= self._known.pop(key).memory_bytes

    def _make_plan(self, segment: TieredSegment, data: bytes) -> ChunkPlan:
        return plan_chunks(
            data,
            offset_index.ENTRY_BYTES,
            segment.base_offset,
            segment.end_offset,
            segment.log_bytes,
            self._limits.chunk_bytes,
        )


class _SectionDownload:
    """One section of one segment's object."""

    __slots__ = ("_indexes", "_make", "_name", "_remote", "_store", "_timeout_s", "key", "size")

    def __init__(
        self,
        indexes: RemoteIndexes,
        store: ObjectStore,
        remote: RemoteSegment,
        key: Key,
        name: str,
        make: Callable[[TieredSegment, bytes], Known],
        timeout_s: float,
    ) -> None:
        section = remote.segment.sections.get(name)
        self._indexes = indexes
        self._store = store
        self._remote = remote
        self._name = name
        self._make = make
        self._timeout_s = timeout_s
        self.key = key
        self.size = section.length if section is not None else 0

    def admit(self) -> bool:
        return True

    async def run(self, is_awaited: Callable[[], bool]) -> None:
        remote = self._remote
        section = remote.segment.sections.get(self._name)
        data = b""
        if section is not None and section.length:
            data = await fetch(self._store, remote.key, section.position, section.length, self._timeout_s)
        try:
            if len(data) < THREAD_FROM_BYTES:
                known = self._build(section, data)
            else:
                known = await asyncio.to_thread(self._build, section, data)
        except ValueError as error:
            raise damaged(remote.key, f"section {self._name}", str(error)) from None
        self._indexes.keep(self.key, known)

    def release(self) -> None:
        self._indexes.release(self.key)

    def _build(self, section: Section | None, data: bytes) -> Known:
        if section is not None and crc32c(data) != section.crc32c:
            raise ValueError("wrong CRC")
        return self._make(self._remote.segment, data)


def _make_times(segment: TieredSegment, data: bytes) -> TimeEntries:
    if len(data) % time_index.ENTRY_BYTES:
        raise ValueError(f"a time index of {len(data)} bytes")
    return TimeEntries(data, segment.base_offset)


def _make_aborted(segment: TieredSegment, data: bytes) -> AbortedEntries:
    return AbortedEntries(data)


async def fetch(store: ObjectStore, key: str, position: int, length: int, timeout_s: float) -> bytes:
    """A part of an object. Raises ProtocolError: OFFSET_NOT_AVAILABLE (try later), KAFKA_STORAGE_ERROR (damage)."""
    return await _asked(store.get(key, position, length), key, f"bytes [{position}, {position + length})", timeout_s)


async def borrow(store: ObjectStore, key: str, position: int, length: int, timeout_s: float) -> File | None:
    """An object as an open file, if the store lends it, with a part of it in memory. Raises as `fetch`."""
    return await _asked(store.lend(key, position, length), key, "the object", timeout_s)


async def _asked(answer: Coroutine[None, None, A], key: str, part: str, timeout_s: float) -> A:
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except (ObjectMissing, ObjectTruncated, ObjectAltered) as error:
        raise damaged(key, part, error.reason) from None
    except StoreError as error:
        reason = str(error)
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s"
    logger.warning("the tier cannot be read now", extra={"key": key, "part": part, "reason": reason})
    raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE, "the object store does not answer")


class DamagedObject(ProtocolError):
    """KAFKA_STORAGE_ERROR: what is wrong with which object, for operators. `is_partial`: not all of `part` is."""

    def __init__(self, key: str, part: str, reason: str, *, is_partial: bool = False) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, "an object of the tier is missing or damaged")
        self.key = key
        self.part = part
        self.reason = reason
        self.is_partial = is_partial


def damaged(key: str, what: str, reason: str, *, is_partial: bool = False) -> DamagedObject:
    """Log the damage of an object, and return the error for the client."""
    logger.error("an object of the tier is missing or damaged", extra={"key": key, "part": what, "reason": reason})
    return DamagedObject(key, what, reason, is_partial=is_partial)
