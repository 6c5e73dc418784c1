"""Readers of more than the chunk cache has room for: each gets on, and what one waits for is downloaded once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.machine_disk import MachineDisk
from tests.tiering.tiered_log import GatedStore, TieredLog, read_when_there, take
from tiering.reading.chunk_cache import CacheLimits
from tiering.reading.downloads import DownloadLimits, Ticket
from tiering.reading.prefetch import PrefetchLimits
from tiering.reading.remote_index import IndexLimits
from tiering.reading.remote_reader import RemoteReader, RemoteReadLimits

CHUNK = 4_096
READERS = 5


class OnceStore(GatedStore):
    """Gives each part of an object once."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        assert (key, start, length) not in self.gets, "it came, and went before anybody had read it"
        return await super().get(key, start, length)


class Room:
    """A log in a store, and a reader of it whose cache is small."""

    def __init__(self, root: Path) -> None:
        self.disk = MachineDisk(root)
        self.store = OnceStore()
        self.log = TieredLog(self.store)
        self.readers: list[RemoteReader] = []

    async def open(self, places: int, cache_bytes: int) -> RemoteReader:
        limits = RemoteReadLimits(
            DownloadLimits(places, 1 << 20),
            CacheLimits(cache_bytes, 8, 0),
            IndexLimits(1 << 20, CHUNK, 5.0),
            PrefetchLimits(0, 0, 0),
        )
        reading = RemoteReader(self.store, self.disk, limits)
        await reading.open()
        self.readers.append(reading)
        await self.log.fill(2 * READERS, 30)
        return reading

    async def read_part(self, reading: RemoteReader, part: int, reader: int) -> bytes:
        """Two segments of it."""
        segments, data = self.log.segments[2 * part : 2 * part + 2], b""
        offset = segments[0].base_offset
        while offset < segments[-1].end_offset:
            found = await read_when_there(reading, self.log, offset, 1 << 20, reader)
            data += take(found.region)
            offset = found.next_offset
        return data


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    made = Room(tmp_path)
    yield made
    for reading in made.readers:
        await reading.stop()


@pytest.mark.parametrize("places", [1, 2, READERS])
@pytest.mark.parametrize("cache_bytes", [1, CHUNK, 2 * CHUNK, 3 * CHUNK])
@pytest.mark.parametrize("connections", [1, READERS])
async def test_readers_take_nothing_from_one_another_before_it_is_read(
    room: Room, places: int, cache_bytes: int, connections: int
) -> None:
    reading = await room.open(places, cache_bytes)
    reads = [room.read_part(reading, part, part % connections) for part in range(READERS)]
    assert b"".join(await asyncio.gather(*reads)) == room.log.log


async def test_what_nobody_asked_for_again_makes_room(room: Room) -> None:
    reading = await room.open(1, 1)
    assert await room.read_part(reading, 0, 1)
    await reading.cache.forget_all()
    room.store.gets.clear()
    assert isinstance(reading.read(room.log, 0, 1 << 20, 1), Ticket), "and whoever asked never comes back"
    for part in range(1, READERS):
        assert await room.read_part(reading, part, 2)


@pytest.mark.parametrize(("cache_bytes", "at_once"), [(1, 1), (CHUNK, 1), (3 * CHUNK, 2)])
async def test_chunks_on_their_way_have_room_beside_one_another(room: Room, cache_bytes: int, at_once: int) -> None:
    reading = await room.open(READERS, cache_bytes)
    for part in range(READERS):
        await room.read_part(reading, part, part)
    await reading.cache.forget_all()
    room.store.gets.clear()
    for part in range(READERS):
        assert isinstance(reading.read(room.log, room.log.segments[2 * part].base_offset, 1 << 20, part), Ticket)
    assert reading.downloads.running == at_once
    assert reading.downloads.queued == READERS - at_once
    reads = [room.read_part(reading, part, part) for part in range(READERS)]
    assert b"".join(await asyncio.gather(*reads)) == room.log.log
