"""Searches tiered segments for the first record at or after a timestamp."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from common.errors import ErrorCode, ProtocolError
from records.batch import BatchHeader
from records.record import decode_records
from storage.segments.batch_walk import walk
from storage.segments.region import Region
from tiering.reading.downloads import Ticket
from tiering.reading.remote_index import RemoteSegment
from tiering.reading.remote_reader import RemoteReader

INFLATED_BYTES_MAX = 128 << 20  # of one batch

T = TypeVar("T")


class TimedRecord(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


class _Wakeup:
    """Turns a ticket's call into a future's result."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def download_settled(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


async def settled(ask: Callable[[], T | Ticket]) -> T:
    """The result of `ask` once it is no longer a ticket. Bound it with a timeout."""
    loop = asyncio.get_running_loop()
    while isinstance(answer := ask(), Ticket):
        future: asyncio.Future[None] = loop.create_future()
        wakeup = _Wakeup(future)
        answer.listen(wakeup)
        try:
            await future
        finally:
            answer.unlisten(wakeup)
    return answer


async def first_at_or_after(
    reading: RemoteReader, remote: RemoteSegment, timestamp: int, least_offset: int, reader: int
) -> TimedRecord | None:
    """The first record of a segment, from `least_offset` on, at or after `timestamp` (ms); None without one.

    Raises ProtocolError as `RemoteReader.read`.
    """
    times = await settled(partial(reading.indexes.times, remote, reader))
    plan = await settled(partial(reading.indexes.plan, remote, reader))
    start = max(times.offset_before(timestamp) + 1, least_offset)
    for number in range(plan.number_at(start), len(plan)):
        chunk = await settled(partial(reading.whole_chunk, remote, plan, number, reader))
        if chunk.index.end_offset <= start:
            continue
        region = chunk.region(chunk.index.position_before(start), chunk.index.end)
        try:
            found = await asyncio.to_thread(_search, region, timestamp, start)
            _check_intact(region)
        finally:
            region.release()  # on the loop, not in the thread: pins are only counted on the loop
        if found is not None:
            return found
    return None


async def latest(
    reading: RemoteReader, remote: RemoteSegment, least: int, least_offset: int, reader: int
) -> TimedRecord | None:
    """The first record of a segment, from `least_offset` on, with the greatest timestamp there, if that is at least
    `least` (ms). All of the segment is read. Raises ProtocolError as `RemoteReader.read`.
    """
    plan = await settled(partial(reading.indexes.plan, remote, reader))
    best: TimedRecord | None = None
    for number in range(plan.number_at(least_offset), len(plan)):
        chunk = await settled(partial(reading.whole_chunk, remote, plan, number, reader))
        region = chunk.region(chunk.index.position_before(least_offset), chunk.index.end)
        try:
            best = await asyncio.to_thread(_search_latest, region, least, least_offset) or best
            _check_intact(region)
        finally:
            region.release()
        least = least if best is None else best.timestamp + 1
    return best


def _check_intact(region: Region) -> None:
    if not region.is_intact():
        raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE, "it was altered while it was searched")


def _search_latest(region: Region, least: int, least_offset: int) -> TimedRecord | None:
    best: TimedRecord | None = None
    for position, header in walk(region.file, region.position, region.position + region.length):
        if not header.count or header.max_timestamp < least or header.next_offset <= least_offset:
            continue
        data = region.file.pread(header.size, position)
        timestamp = _greatest_in(header, data, least_offset)
        if timestamp >= least:
            best, least = _record_in(header, data, timestamp, least_offset), timestamp + 1
    return best


def _greatest_in(header: BatchHeader, data: bytes, least_offset: int) -> int:
    """-1 if no record is that high."""
    try:
        records = decode_records(memoryview(data), 0, header.size, inflated_bytes_max=INFLATED_BYTES_MAX)
    except (ProtocolError, ValueError):
        return header.max_timestamp
    return max((record.timestamp for record in records if record.offset >= least_offset), default=-1)


def _search(region: Region, timestamp: int, least_offset: int) -> TimedRecord | None:
    for position, header in walk(region.file, region.position, region.position + region.length):
        if header.max_timestamp >= timestamp and header.next_offset > least_offset:
            found = _record_in(header, region.file.pread(header.size, position), timestamp, least_offset)
            if found is not None:
                return found
    return None


def _record_in(header: BatchHeader, data: bytes, timestamp: int, least_offset: int) -> TimedRecord | None:
    """If a batch's records are invalid, its header answers, as in a local log."""
    try:
        records = decode_records(memoryview(data), 0, header.size, inflated_bytes_max=INFLATED_BYTES_MAX)
    except (ProtocolError, ValueError):
        return TimedRecord(header.max_timestamp, max(header.base_offset, least_offset), header.leader_epoch)
    for record in records:
        if record.timestamp >= timestamp and record.offset >= least_offset:
            return TimedRecord(record.timestamp, record.offset, header.leader_epoch)
    return None
