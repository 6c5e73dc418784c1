"""Readers of more segments than there is memory for indexes: each gets on, and what it waits for comes once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.machine_disk import MachineDisk
from storage.indexes.aborted_look_up import unpack_rows
from storage.indexes.transaction_index import AbortedTransaction
from tests.tiering.tiered_log import START_MS, GatedStore, TieredLog, Waiter, take, values_batch
from tiering.bucket.segment import OFFSET_INDEX
from tiering.reading.chunk import ChunkPlan
from tiering.reading.chunk_cache import CacheLimits
from tiering.reading.downloads import DownloadLimits, Ticket
from tiering.reading.prefetch import PrefetchLimits
from tiering.reading.remote_index import READ_HOLD_S, READS_MAX, IndexLimits, RemoteSegment
from tiering.reading.remote_reader import RemoteReader, RemoteReadLimits
from tiering.reading.remote_times import first_at_or_after

pytestmark = pytest.mark.virtual_time

CHUNK = 4_096
LOOKING = 1_000_000  # a reader that reads nothing
READERS = 5
BATCHES, RECORDS = 30, 3


class IndexStore(GatedStore):
    """Gives each index once until somebody has read something."""

    def __init__(self) -> None:
        super().__init__()
        self.indexes: list[tuple[str, int]] = []
        self.first_index = 0

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if start >= self.first_index:
            assert (key, start) not in self.indexes, "it came, and went before it was of any use"
            self.indexes.append((key, start))
        return await super().get(key, start, length)


class Room:
    """A log whose readers need an index of every segment from where they are on, and a reader with little memory."""

    def __init__(self, root: Path) -> None:
        self.disk = MachineDisk(root)
        self.store = IndexStore()
        self.log = TieredLog(self.store)
        self.reading: RemoteReader

    async def open(self, memory_bytes: int, cache_bytes: int, places: int) -> RemoteReader:
        limits = RemoteReadLimits(
            DownloadLimits(places, 1 << 20),
            CacheLimits(cache_bytes, 8, 0),
            IndexLimits(memory_bytes, CHUNK, 5.0),
            PrefetchLimits(0, 0, 0),
        )
        self.reading = RemoteReader(self.store, self.disk, limits)
        await self.reading.open()
        for number in range(READERS):
            base = number * BATCHES * RECORDS
            # the last stable offset never rules out that there are more
            aborted = [AbortedTransaction(number, base, base + BATCHES * RECORDS - 1, 0)]
            batches = [values_batch(base + n * RECORDS, [b"x" * 60] * RECORDS) for n in range(BATCHES)]
            segment = await self.log.add(batches, aborted=aborted)
        self.store.first_index = segment.sections[OFFSET_INDEX].position
        return self.reading

    async def read(self, offset: int, reader: int) -> tuple[bytes, int]:
        """As a fetch of committed records does: all of it anew, whenever something came."""
        while True:
            found = self.reading.read(self.log, offset, 1 << 20, reader)
            if not isinstance(found, Ticket):
                assert found.region is not None
                waits = self.reading.aborted(self.log, offset, found.next_offset, reader)
                if not isinstance(waits, Ticket):
                    assert len(unpack_rows(waits.rows)) == 1
                    self.store.indexes.clear()
                    return take(found.region), found.next_offset
                found.region.release()
                found = waits
            waiter = Waiter()
            found.listen(waiter)
            await waiter.event.wait()

    async def read_segment(self, number: int, reader: int) -> bytes:
        segment, data = self.log.segments[number], b""
        offset = segment.base_offset
        while offset < segment.end_offset:
            part, offset = await self.read(offset, reader)
            data += part
        return data

    def remote(self, number: int) -> RemoteSegment:
        found = self.log.find(self.log.segments[number].base_offset)
        assert found is not None
        return found

    def has_plan(self, number: int) -> bool:
        return isinstance(self.reading.indexes.plan(self.remote(number), LOOKING), ChunkPlan)

    async def look_up(self, number: int) -> int:
        """The offset of the last record of a segment, by its time."""
        remote = self.remote(number)
        last = remote.segment.end_offset - 1
        found = await first_at_or_after(self.reading, remote, START_MS + last, 0, 0)
        assert found is not None
        self.store.indexes = [one for one in self.store.indexes if one[0] != remote.key]
        return found.offset


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    made = Room(tmp_path)
    yield made
    await made.reading.stop()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    memory_bytes=st.integers(1, 4_000),
    cache_bytes=st.sampled_from([1, CHUNK, 3 * CHUNK, 1 << 20]),
    places=st.integers(1, 2 * READERS),
    connections=st.lists(st.integers(1, READERS), min_size=READERS, max_size=READERS, unique=True),
)
async def test_readers_take_no_index_from_one_another_before_it_is_used(
    tmp_path_factory: pytest.TempPathFactory, memory_bytes: int, cache_bytes: int, places: int, connections: list[int]
) -> None:
    room = Room(tmp_path_factory.mktemp("room"))
    reading = await room.open(memory_bytes, cache_bytes, places)
    try:
        async with asyncio.timeout(60):
            reads = [room.read_segment(number, reader) for number, reader in enumerate(connections)]
            assert b"".join(await asyncio.gather(*reads)) == room.log.log
    finally:
        await reading.stop()


@pytest.mark.parametrize("places", [1, 2, 2 * READERS])
async def test_look_ups_take_no_index_from_one_another(room: Room, places: int) -> None:
    await room.open(1, 1 << 20, places)
    async with asyncio.timeout(60):
        found = await asyncio.gather(*[room.look_up(number) for number in range(READERS)])
    assert found == [segment.end_offset - 1 for segment in room.log.segments]


async def test_what_nobody_waits_for_makes_room(room: Room) -> None:
    reading = await room.open(1, 1 << 20, 1)
    given_up = room.log.segments[3]
    assert isinstance(reading.read(room.log, given_up.base_offset, 1 << 20, 2), Ticket), "and it is never asked again"
    for number in range(3):
        await room.look_up(number)
    assert room.has_plan(3)
    await asyncio.sleep(READ_HOLD_S + 1)
    for number in range(3):
        await room.look_up(number)
    newest = reading.indexes.plan(room.remote(2), LOOKING)
    assert isinstance(newest, ChunkPlan)
    assert reading.indexes.memory_bytes == newest.memory_bytes
    assert not room.has_plan(3)


@pytest.mark.parametrize("others", [READS_MAX - READERS, READS_MAX])
async def test_only_so_many_reads_are_waited_with(room: Room, others: int) -> None:
    """The one that waits for longest has to have its index fetched again when it comes back."""
    reading = await room.open(1, 1 << 20, 1)
    room.store.gate.clear()
    assert isinstance(reading.read(room.log, room.log.segments[3].base_offset, 1 << 20, 1), Ticket)
    for number in range(others):
        assert isinstance(reading.read(room.log, room.log.segments[4].base_offset, 1 << 20, 2 + number), Ticket)
    room.store.gate.set()
    for number in range(3):
        await room.look_up(number)
    assert room.has_plan(4)
    assert room.has_plan(3) is (others < READS_MAX)
