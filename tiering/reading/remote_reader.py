"""Reads of tiered segments: regions of cached chunks, or a ticket for a download that has to come first.

Bytes go from the store to a thread that checks each batch and writes the chunk's file, and from that file to the
socket. Objects on a disk of the node are only checked, and sent from there. Nothing here waits: a read that cannot be
answered yet returns a ticket and is retried. So one read may need several downloads in turn: the index, then the chunk,
then indexes of aborted transactions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from common.errors import ErrorCode, ProtocolError
from common.ports import Disk
from object_store.store import ObjectStore
from storage.indexes.aborted_look_up import INDEX_COST, AbortedLookUp
from storage.log.aborted_look_ups import AbortedLookUps
from storage.segments.region import Region
from tiering.reading.chunk import OFFSET_MAX, ChunkPlan, Cut, DamagedChunk, Expected
from tiering.reading.chunk_cache import CacheLimits, Chunk, ChunkCache
from tiering.reading.downloads import DownloadLimits, Downloads, Key, Ticket
from tiering.reading.prefetch import PrefetchLimits, Sequences
from tiering.reading.remote_index import (
    DamagedObject,
    IndexLimits,
    RemoteIndexes,
    RemoteSegment,
    borrow,
    damaged,
    fetch,
)

logger = logging.getLogger(__name__)


class TierView(Protocol):
    """One partition's tier as a reader sees it at this moment."""

    @property
    def name(self) -> str:
        """Of the partition, the same for as long as it exists."""
        ...

    def find(self, offset: int) -> RemoteSegment | None:
        """The segment with `offset`, or the next one above it; None after the tier's end.

        Raises ProtocolError for an offset that cannot be served: a segment of another lineage.
        """
        ...

    def find_aborting(self, offset: int) -> RemoteSegment | None:
        """The first segment, from the one that `find` gives on, with an index of aborted transactions.

        Raises as `find`. It is asked for each read: it looks at no segment but that one.
        """
        ...


class RemoteRead(NamedTuple):
    """Batches from the tier. `region` None: nothing before `next_offset`; or, if that is the offset that was asked for,
    nothing that fits `bytes_max` or begins below `until`."""

    region: Region | None
    next_offset: int


class AbortedRead(NamedTuple):
    """`rows` of aborted transactions, as an `AbortedLookUp` finds them, whose markers lie below `until`; `complete`: no
    later segment can add any."""

    rows: bytearray
    until: int
    complete: bool


class _LookUp(AbortedLookUp):
    """`at`: the end of the segments that are done; `is_over`: later ones cannot add any."""

    __slots__ = ("_uuid", "at", "is_over")

    def __init__(self, start_offset: int, end_offset: int) -> None:
        super().__init__(start_offset, end_offset)
        self.at = start_offset
        self.is_over = False
        self._uuid = ""  # of the segment at which it is

    def enter(self, uuid: str) -> bool:
        """Search this segment next. Returns False if it has replaced the one in which the look-up was."""
        is_same = self._uuid in ("", uuid)
        self._uuid = uuid
        return is_same

    def leave(self, end_offset: int, *, is_over: bool) -> None:
        """It has searched the segment that ends there."""
        self.at, self.is_over, self._uuid = end_offset, is_over, ""


@dataclass(slots=True, frozen=True)
class RemoteReadLimits:
    """Of one broker's reads from the tier."""

    downloads: DownloadLimits = field(default_factory=DownloadLimits)
    cache: CacheLimits = field(default_factory=CacheLimits)
    indexes: IndexLimits = field(default_factory=IndexLimits)
    prefetch: PrefetchLimits = field(default_factory=PrefetchLimits)


class RemoteReader:
    """Make it while the event loop runs; `open` it before the first read."""

    def __init__(self, store: ObjectStore, disk: Disk, limits: RemoteReadLimits) -> None:
        self._store = store
        self._timeout_s = limits.indexes.timeout_s
        self._loop = asyncio.get_running_loop()
        self.cache = ChunkCache(disk, limits.cache)
        self.downloads = Downloads(limits.downloads)
        self.indexes = RemoteIndexes(store, self.downloads, limits.indexes)
        self.sequences: Sequences[tuple[int, str]] = Sequences(limits.prefetch)
        self._look_ups = AbortedLookUps()
        self.read_bytes_total = 0

    async def open(self) -> None:
        """Empty the cache's directory. Raises OSError."""
        await self.cache.open()

    async def stop(self) -> None:
        """End all downloads. Regions under send are cut off; the store stays open."""
        await self.downloads.stop()
        self.cache.close()

    def read(
        self,
        view: TierView,
        offset: int,
        bytes_max: int,
        reader: int,
        *,
        until: int = OFFSET_MAX,
        at_least_one: bool = True,
    ) -> RemoteRead | Ticket:
        """Batches of one chunk from the one with `offset` on that begin below `until`, or a ticket to wait for.

        `reader`: a number for the client's connection, whose sequential reads are prefetched. The caller releases the
        region. Raises ProtocolError: KAFKA_STORAGE_ERROR for a damaged or missing object, OFFSET_NOT_AVAILABLE while
        the store does not answer.
        """
        wanted = offset
        self.indexes.begin(reader, view.name, offset)
        while True:
            remote = view.find(wanted)
            if remote is None:
                return RemoteRead(None, wanted)
            if wanted >= until:
                return RemoteRead(None, offset)
            plan = self.indexes.plan(remote, reader)
            if isinstance(plan, Ticket):
                return plan
            found = self._find(remote, plan, wanted, reader)
            if isinstance(found, Ticket):
                self.indexes.wait()
                self._drop_stale_prefetch(view, reader, offset)
                return found
            if found is not None:
                number, chunk = found
                return self._serve(view, remote, plan, number, chunk, offset, bytes_max, until, reader, at_least_one)
            wanted = remote.segment.end_offset  # a compacted segment may end before its range

    def _find(
        self, remote: RemoteSegment, plan: ChunkPlan, wanted: int, reader: int
    ) -> tuple[int, Chunk] | Ticket | None:
        """The chunk with the first batch that ends after `wanted`, and its number. Raises as `read`: also where
        `wanted` is, or may be, in a batch that is damaged."""
        number, doubtful = plan.number_at(wanted), -1
        while number < len(plan):
            chunk = self.chunk(remote, plan, number, reader)
            if isinstance(chunk, Ticket):
                return chunk
            index = chunk.index
            if not index.is_lost(wanted) and (doubtful < 0 or index.offsets[0] <= wanted):
                if index.end_offset > wanted:
                    return number, chunk
                doubtful = number if index.is_open else -1
                number += 1
                if doubtful < 0 or number < len(plan):
                    continue
            # The hole is between here and the batch before, which may be in the chunk before.
            number, doubtful = number if index.is_lost(wanted) else doubtful, -1
            mended = self.whole_chunk(remote, plan, number, reader)
            if isinstance(mended, Ticket):
                return mended
        return None

    def whole_chunk(self, remote: RemoteSegment, plan: ChunkPlan, number: int, reader: int) -> Chunk | Ticket:
        """As `chunk`, but no part may be damaged; a damaged one is read from the store again now and then."""
        chunk = self.chunk(remote, plan, number, reader)
        if isinstance(chunk, Ticket) or not chunk.index.holes:
            return chunk
        key = (remote.segment.uuid, number)
        return self.downloads.want(key, lambda: _ChunkDownload(self, remote, plan, number), reader)

    def chunk(self, remote: RemoteSegment, plan: ChunkPlan, number: int, reader: int) -> Chunk | Ticket:
        """Chunk `number` of a segment, or what to wait for. Raises as `read`."""
        key = (remote.segment.uuid, number)
        chunk = self.cache.get(key)
        trouble = chunk.trouble() if chunk is not None else None
        if trouble is not None:
            extra = {"key": remote.key, "chunk": number, "reason": trouble}
            logger.warning("bytes read from the tier differ from the checked ones: they are checked again", extra=extra)
            self.cache.drop(key)
        elif chunk is not None:
            plan.learn(number, chunk.index.known_end)
            return chunk
        return self.downloads.want(key, lambda: _ChunkDownload(self, remote, plan, number), reader, _is_partial)

    def _serve(
        self,
        view: TierView,
        remote: RemoteSegment,
        plan: ChunkPlan,
        number: int,
        chunk: Chunk,
        offset: int,
        bytes_max: int,
        until: int,
        reader: int,
        at_least_one: bool,
    ) -> RemoteRead:
        try:
            cut = chunk.index.cut(chunk.handle.use(), offset, bytes_max, until, at_least_one=at_least_one)
            region = chunk.region(cut.start, cut.end) if cut is not None else None
        except (OSError, ProtocolError) as error:
            logger.warning("a cached chunk cannot be read", extra={"key": remote.key, "reason": str(error)})
            self.cache.drop((remote.segment.uuid, number))
            raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE) from None
        if region is None or cut is None:
            return RemoteRead(None, offset)
        self.read_bytes_total += region.length
        self._fetch_ahead(view, remote, plan, number, cut, offset, reader)
        return RemoteRead(region, cut.next_offset)

    # ahead of the reader -----------------------------------------------------------------------------------

    def _drop_stale_prefetch(self, view: TierView, reader: int, offset: int) -> None:
        if self.sequences.jumps((reader, view.name), offset):
            self.downloads.forget_ahead(reader)

    def _fetch_ahead(
        self, view: TierView, remote: RemoteSegment, plan: ChunkPlan, number: int, cut: Cut, offset: int, reader: int
    ) -> None:
        self._drop_stale_prefetch(view, reader, offset)
        place = (reader, view.name)
        window = self.sequences.read(place, offset, cut.next_offset, self._loop.time())
        asked = (remote.segment.uuid, number, window)
        if self.sequences.asked(place) == asked:
            return  # several reads are of one chunk
        while window > 0:
            number += 1
            if number == len(plan):
                try:
                    following = view.find(remote.segment.end_offset)
                except ProtocolError:
                    return
                following_plan = self.indexes.plan_ahead(following, reader) if following is not None else None
                if following is None or following_plan is None:
                    return
                remote, plan, number = following, following_plan, 0
            window -= plan.range(number)[1]
            self._want_chunk_ahead(remote, plan, number, reader)
        self.sequences.note_asked(place, asked)

    def _want_chunk_ahead(self, remote: RemoteSegment, plan: ChunkPlan, number: int, reader: int) -> None:
        key = (remote.segment.uuid, number)
        if key not in self.cache:
            self.downloads.want_ahead(key, lambda: _ChunkDownload(self, remote, plan, number), reader)

    # aborted transactions ----------------------------------------------------------------------------------

    def aborted(self, view: TierView, start: int, end: int, reader: int) -> AbortedRead | Ticket:
        """Aborted transactions that touch [start, end), from the tiered segments from `start` on.

        Raises as `read`, and PagesMissing if it has to go on in another turn of the event loop.
        """
        key, look_ups = (reader, view.name), self._look_ups
        look_up = look_ups.kept(key)
        if not isinstance(look_up, _LookUp) or look_up.start_offset != start or look_up.end_offset < end:
            look_up = _LookUp(start, end)
        look_up.begin_turn()
        while not look_up.is_over and (remote := view.find_aborting(look_up.at)) is not None:
            known = self.indexes.aborted(remote, reader)
            if isinstance(known, Ticket):
                return known
            if not look_up.enter(remote.segment.uuid):
                look_up = _LookUp(start, end)
                continue
            if known.search(look_up, look_ups.admits):
                look_up.leave(remote.segment.end_offset, is_over=look_up.is_complete(known.windows))
                if look_up.is_over or look_ups.admits(INDEX_COST):
                    continue
            look_ups.keep(key, look_up)
            self.indexes.wait()
            raise look_ups.next_turn()
        return AbortedRead(look_up.rows, look_up.at, look_up.is_over)

    # downloads ---------------------------------------------------------------------------------------------

    async def download(
        self, remote: RemoteSegment, plan: ChunkPlan, number: int, is_awaited: Callable[[], bool]
    ) -> Chunk:
        """Fetch, check and keep one chunk, for which room is reserved. Raises ProtocolError."""
        position, length = plan.range(number)
        segment = remote.segment
        key: Key = (segment.uuid, number)
        try:
            lent = await borrow(self._store, remote.key, position, length, self._timeout_s)
            data = b"" if lent else await fetch(self._store, remote.key, position, length, self._timeout_s)
        except BaseException:
            self.cache.cancel(length)
            raise
        dense = segment.records == segment.end_offset - segment.base_offset
        expected = Expected(
            segment.base_offset, segment.end_offset, plan.first_last(number), dense, tuple(segment.epochs)
        )
        try:
            if lent is not None:
                chunk = await self.cache.adopt(key, remote.key, lent, position, length, expected, is_awaited)
            else:
                chunk = await self.cache.store(key, remote.key, data, expected)
        except DamagedChunk as error:
            raise damaged(remote.key, f"bytes [{position}, {position + length})", str(error)) from None
        except OSError as error:
            logger.warning("no room for what is read from the tier", extra={"key": remote.key, "reason": str(error)})
            raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE, "the local disk does not take it") from None
        plan.learn(number, chunk.index.known_end)
        return chunk


def _is_partial(error: ProtocolError) -> bool:
    """Whether a chunk that was found damaged, and has left the cache since, had something to read."""
    return isinstance(error, DamagedObject) and error.is_partial


class _ChunkDownload:
    """One chunk of one segment."""

    __slots__ = ("_came", "_number", "_plan", "_reader", "_remote", "key", "size")

    def __init__(self, reader: RemoteReader, remote: RemoteSegment, plan: ChunkPlan, number: int) -> None:
        self._reader = reader
        self._remote = remote
        self._plan = plan
        self._number = number
        self.key: Key = (remote.segment.uuid, number)
        self.size = plan.range(number)[1]
        self._came: Chunk | None = None  # pinned for the waiting readers

    def admit(self) -> bool:
        return self._reader.cache.reserve(self.size)

    async def run(self, is_awaited: Callable[[], bool]) -> None:
        chunk = self._came = await self._reader.download(self._remote, self._plan, self._number, is_awaited)
        chunk.handle.pin()
        if chunk.index.holes:  # sound batches are served nevertheless
            position, length = self._plan.range(self._number)
            part = f"bytes [{position}, {position + length})"
            raise damaged(self._remote.key, part, chunk.index.holes[0].reason, is_partial=True)

    def release(self) -> None:
        if self._came is not None:
            self._came.unpin()
            self._came = None
