"""Reads from the tier: the bytes that were copied, one download for all who wait, errors that name what is wrong."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from common.errors import ErrorCode, ProtocolError
from common.machine_disk import MachineDisk
from storage.indexes.aborted_look_up import unpack_rows
from storage.indexes.transaction_index import AbortedTransaction
from tests.common.call_count import counted_calls
from tests.object_store.test_object_store_lending import open_paths
from tests.tiering.tiered_log import (
    START_MS,
    GatedStore,
    TieredLog,
    Waiter,
    error_of,
    offsets_of,
    read_when_there,
    take,
    values_batch,
)
from tiering.reading.chunk_cache import DIRECTORY, CacheLimits, ChunkCache
from tiering.reading.downloads import DownloadLimits, Ticket
from tiering.reading.prefetch import PrefetchLimits
from tiering.reading.remote_index import IndexLimits
from tiering.reading.remote_reader import RemoteReader, RemoteReadLimits
from tiering.reading.remote_times import first_at_or_after

pytestmark = pytest.mark.virtual_time

CHUNK = 4_096
LIMITS = RemoteReadLimits(
    DownloadLimits(4, 1 << 20),
    CacheLimits(1 << 20, 8, 0),
    IndexLimits(1 << 20, CHUNK, 5.0),
    PrefetchLimits(0, 0, 0),
)
AHEAD = replace(LIMITS, prefetch=PrefetchLimits(4 * CHUNK, 64 * CHUNK, CHUNK))


class Lab:
    """A reader over one log in a store."""

    def __init__(self, root: Path) -> None:
        self.disk = MachineDisk(root)
        self.store = GatedStore()
        self.log = TieredLog(self.store)
        self.readers: list[RemoteReader] = []

    async def reader(self, limits: RemoteReadLimits = LIMITS) -> RemoteReader:
        reader = RemoteReader(self.store, self.disk, limits)
        await reader.open()
        self.readers.append(reader)
        return reader


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.store.gate.set()
    for reader in made.readers:
        await reader.stop()


async def idle(reading: RemoteReader) -> None:
    while reading.downloads.running:  # noqa: ASYNC110  what is awaited has no event
        await asyncio.sleep(0.001)


async def read_all(reading: RemoteReader, log: TieredLog, bytes_max: int, offset: int = 0) -> bytes:
    data = b""
    while log.find(offset) is not None:
        found = await read_when_there(reading, log, offset, bytes_max)
        data += take(found.region)
        offset = found.next_offset
    return data


@pytest.mark.parametrize("bytes_max", [1, 300, 1_000, 5_000, 1 << 20])
@pytest.mark.parametrize("limits", [LIMITS, AHEAD])
async def test_a_reader_gets_exactly_what_was_copied(lab: Lab, bytes_max: int, limits: RemoteReadLimits) -> None:
    await lab.log.fill(3, 60)
    reading = await lab.reader(limits)
    assert await read_all(reading, lab.log, bytes_max) == lab.log.log
    assert len(lab.store.gets) == len(set(lab.store.gets)), "each part is downloaded once"


async def test_every_offset_is_found_from_its_own_batch_on(lab: Lab) -> None:
    await lab.log.fill(2, 40)
    reading = await lab.reader()
    end = lab.log.segments[-1].end_offset
    for offset in [*range(0, end, 7), end - 1]:
        found = await read_when_there(reading, lab.log, offset, 700)
        offsets = offsets_of(take(found.region))
        assert offset in offsets[:3], "of the first batch"
        assert found.next_offset == offsets[-1] + 1


async def test_long_and_short_batches_and_gaps_of_compaction(lab: Lab) -> None:
    await lab.log.add([values_batch(0, [b"a" * 9_000]), values_batch(5, [b"b"] * 2), values_batch(40, [b"c"])], end=90)
    await lab.log.add([values_batch(90, [b"d"]), values_batch(91, [b"e" * 20_000]), values_batch(92, [b"f"] * 400)])
    reading = await lab.reader()
    assert await read_all(reading, lab.log, 100) == lab.log.log
    for offset, first in [(1, 5), (6, 5), (7, 40), (41, 90), (89, 90)]:
        assert offsets_of(take((await read_when_there(reading, lab.log, offset, 1)).region))[0] == first
    assert (await read_when_there(reading, lab.log, 0, 100, at_least_one=False)).region is None
    end = lab.log.segments[-1].end_offset
    assert await read_when_there(reading, lab.log, end) == (None, end)


async def test_many_who_wait_share_one_download(lab: Lab) -> None:
    await lab.log.fill(1, 10)
    reading = await lab.reader()
    lab.store.gate.clear()
    waiting = [asyncio.create_task(read_when_there(reading, lab.log, 0, 1 << 20, reader)) for reader in range(1, 40)]
    await asyncio.sleep(0.01)
    lab.store.gate.set()
    for found in await asyncio.gather(*waiting):
        assert take(found.region) == lab.log.log
    assert len(lab.store.gets) == 2, "the index and the chunk"


async def test_a_download_goes_on_when_nobody_waits_any_more(lab: Lab) -> None:
    await lab.log.fill(1, 10)
    reading = await lab.reader()
    await read_when_there(reading, lab.log, 0)
    reading.cache.drop((lab.log.segments[0].uuid, 0))
    lab.store.gate.clear()
    waiter = Waiter()
    ticket = reading.read(lab.log, 0, 100, 1)
    assert isinstance(ticket, Ticket)
    ticket.listen(waiter)
    ticket.unlisten(waiter)
    lab.store.gate.set()
    await idle(reading)
    assert not waiter.event.is_set()
    found = reading.read(lab.log, 0, 1 << 20, 1)
    assert not isinstance(found, Ticket)
    assert take(found.region) == lab.log.log


@pytest.mark.parametrize("part", ["log", "offset_index"])
async def test_altered_bytes_are_an_error_that_names_the_object(
    lab: Lab, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    await lab.log.fill(1, 40)
    segment = lab.log.segments[0]
    lab.log.damage(segment, segment.log_bytes + 5 if part == "offset_index" else 100)
    reading = await lab.reader()
    with caplog.at_level(logging.ERROR):
        assert (await error_of(reading, lab.log, 0)).code is ErrorCode.KAFKA_STORAGE_ERROR
    (record,) = [record for record in caplog.records if "damaged" in record.message]
    assert record.__dict__["key"] == lab.log.key(segment)
    assert ("[0, " if part == "log" else "offset_index") in record.__dict__["part"]
    if part == "log":
        found = await read_when_there(reading, lab.log, segment.end_offset - 1)
        assert offsets_of(take(found.region))[-1] == segment.end_offset - 1, "the other chunks are sound"


async def test_no_single_bit_of_a_segment_may_change(lab: Lab) -> None:
    await lab.log.add([values_batch(0, [b"abc", b"def"]), values_batch(2, [b"ghi"])])
    segment = lab.log.segments[0]
    sound = lab.store.objects[lab.log.key(segment)]
    second = len(values_batch(0, [b"abc", b"def"]))
    for position in range(segment.log_bytes):
        lab.log.damage(segment, position)
        reading = await lab.reader()
        damaged, other = ((0, 1), 2) if position < second else ((2,), 0)
        for offset in damaged:
            assert (await error_of(reading, lab.log, offset)).code is ErrorCode.KAFKA_STORAGE_ERROR, position
        if 8 <= position < 12:  # its size: where the next one begins is not known
            assert (await error_of(reading, lab.log, other)).code is ErrorCode.KAFKA_STORAGE_ERROR, position
        else:
            data = take((await read_when_there(reading, lab.log, other)).region)
            assert data == (lab.log.log[:second] if other == 0 else lab.log.log[second:])
        lab.store.objects[lab.log.key(segment)] = sound


@pytest.mark.parametrize("loss", ["missing", "truncated"])
async def test_a_missing_or_truncated_object_is_an_error(lab: Lab, loss: str) -> None:
    await lab.log.fill(1, 40)
    reading = await lab.reader()
    await read_when_there(reading, lab.log, 0)
    key = lab.log.key(lab.log.segments[0])
    data, info = lab.store.objects.pop(key)
    if loss == "truncated":
        lab.store.objects[key] = (data[: CHUNK + 100], info)
    assert (await error_of(reading, lab.log, 100)).code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_store_that_is_down_is_asked_seldom_and_found_again(lab: Lab) -> None:
    await lab.log.fill(1, 10)
    reading = await lab.reader()
    lab.store.break_down()
    assert (await error_of(reading, lab.log, 0)).code is ErrorCode.OFFSET_NOT_AVAILABLE
    for _ in range(100):
        with pytest.raises(ProtocolError):
            reading.read(lab.log, 0, 100, 1)
    assert len(lab.store.gets) == 1
    lab.store.failure = None
    await asyncio.sleep(1)
    assert take((await read_when_there(reading, lab.log, 0)).region) == lab.log.log


async def test_prefetch_follows_a_sequential_reader_and_stops_when_it_jumps(lab: Lab) -> None:
    await lab.log.fill(2, 200)
    reading = await lab.reader(AHEAD)
    offset = 0
    for _ in range(6):
        found = await read_when_there(reading, lab.log, offset, 1_000)
        take(found.region)
        offset = found.next_offset
    await idle(reading)
    before = len(lab.store.gets)
    assert before >= 5, "chunks ahead"
    for _ in range(12):
        found = await read_when_there(reading, lab.log, offset, 1_000)
        take(found.region)
        offset = found.next_offset
    lab.store.gate.clear()
    waiting = asyncio.create_task(read_when_there(reading, lab.log, lab.log.segments[1].end_offset - 1, 1_000))
    await asyncio.sleep(0.01)
    assert reading.downloads.queued == 0, "what was to be fetched ahead is no longer wanted"
    lab.store.gate.set()
    take((await waiting).region)
    jumped = len(lab.store.gets)
    for offset in (10, 300, 100):
        take((await read_when_there(reading, lab.log, offset, 100)).region)
    assert len(lab.store.gets) <= jumped + 3, "one chunk each, nothing ahead"


async def test_concurrency_memory_and_disk_are_bounded_however_many_read(lab: Lab) -> None:
    await lab.log.fill(4, 300)
    limits = replace(AHEAD, downloads=DownloadLimits(3, 2 * CHUNK), cache=CacheLimits(8 * CHUNK, 4, 0))
    reading = await lab.reader(limits)
    await asyncio.gather(*(read_all_as(reading, lab.log, number) for number in range(1, 8)))
    assert lab.store.running_most <= 3
    used = sum(lab.disk.file_size(f"tier-cache/{name}") for name in lab.disk.list("tier-cache"))
    assert used <= 12 * CHUNK
    assert reading.cache.open_count <= 4
    assert reading.cache.evicted_total > 0


async def read_all_as(reading: RemoteReader, log: TieredLog, reader: int) -> None:
    data, offset = b"", 0
    while log.find(offset) is not None:
        found = await read_when_there(reading, log, offset, 3_000, reader)
        data += take(found.region)
        offset = found.next_offset
    assert data == log.log


async def test_a_chunk_under_send_stays_while_others_come_and_go(lab: Lab) -> None:
    await lab.log.fill(1, 300)
    reading = await lab.reader(replace(LIMITS, cache=CacheLimits(3 * CHUNK, 4, 0)))
    held = (await read_when_there(reading, lab.log, 0, 2_000)).region
    assert held is not None
    assert await read_all(reading, lab.log, 2_000) == lab.log.log
    assert held.read() == lab.log.log[: held.length]
    held.release()


async def test_a_full_disk_is_a_retriable_error_and_leaves_no_file(lab: Lab) -> None:
    await lab.log.fill(1, 10)
    reading = await lab.reader(replace(LIMITS, cache=CacheLimits(1 << 20, 8, 1 << 60)))
    assert (await error_of(reading, lab.log, 0)).code is ErrorCode.OFFSET_NOT_AVAILABLE
    assert lab.disk.list("tier-cache") == []


async def test_what_an_earlier_run_left_is_removed(lab: Lab) -> None:
    await lab.log.fill(1, 10)
    take((await read_when_there(await lab.reader(), lab.log, 0)).region)
    assert lab.disk.list("tier-cache")
    await lab.reader()
    assert lab.disk.list("tier-cache") == []


async def test_one_reader_with_many_wishes_does_not_delay_another(lab: Lab) -> None:
    await lab.log.fill(1, 400)
    reading = await lab.reader(replace(LIMITS, downloads=DownloadLimits(1, 1 << 20)))
    take((await read_when_there(reading, lab.log, 0, 100)).region)
    lab.store.gate.clear()
    tickets = [reading.read(lab.log, offset, 100, 1) for offset in range(100, 1_100, 50)]
    other = reading.read(lab.log, lab.log.segments[0].end_offset - 1, 100, 2)
    assert isinstance(other, Ticket)
    waiter = Waiter()
    other.listen(waiter)
    before = len(lab.store.gets)
    assert len({id(ticket) for ticket in tickets}) > 5
    lab.store.gate.set()
    await asyncio.wait_for(waiter.event.wait(), 5)
    order = [start for _, start, _ in lab.store.gets]
    last = max(start for start in order[2:])
    assert order.index(last) <= before + 2, "after the one under way and one more"


async def test_what_lies_ahead_is_asked_for_once_per_chunk_and_not_with_each_read(lab: Lab) -> None:
    await lab.log.fill(1, 600)
    reading = await lab.reader(AHEAD)
    offset = reads = 0
    with counted_calls(ChunkCache.__contains__) as looks:  # before a chunk is asked for
        while offset < lab.log.segments[0].end_offset // 2:
            found = await read_when_there(reading, lab.log, offset, 300)
            take(found.region)
            offset, reads = found.next_offset, reads + 1
    window = AHEAD.prefetch.window_bytes // CHUNK
    chunks = len(lab.log.log) // 2 // CHUNK + 1
    assert reads > 5 * chunks
    assert chunks - window <= looks.calls <= window * (chunks + 3), (
        "for each chunk, and each time that the window grows"
    )


async def test_aborted_transactions_come_from_all_segments_in_which_they_may_end(lab: Lab) -> None:
    await lab.log.add([values_batch(0, [b"a"] * 10)], aborted=[AbortedTransaction(1, 2, 4, 5)])
    await lab.log.add([values_batch(10, [b"b"] * 10)])
    late = [AbortedTransaction(2, 3, 22, 8), AbortedTransaction(3, 25, 27, 28)]
    await lab.log.add([values_batch(20, [b"c"] * 10)], aborted=late)
    await lab.log.add([values_batch(30, [b"d"] * 10)], aborted=[AbortedTransaction(4, 30, 31, 40)])
    reading = await lab.reader()

    async def ask(start: int, end: int) -> tuple[list[tuple[int, int]], bool]:
        while isinstance(found := reading.aborted(lab.log, start, end, 1), Ticket):
            waiter = Waiter()
            found.listen(waiter)
            await asyncio.wait_for(waiter.event.wait(), 5)
        return unpack_rows(found.rows), found.complete

    assert await ask(0, 5) == ([(1, 2)], True)
    assert await ask(0, 10) == ([(1, 2), (2, 3)], True)
    assert await ask(5, 10) == ([(2, 3)], True)
    assert await ask(23, 26) == ([(3, 25)], True)
    assert await ask(35, 45) == ([], False), "it may end in the local log"
    assert sum(length is not None and length < 200 for _, _, length in lab.store.gets) == 3


async def test_records_by_time(lab: Lab) -> None:
    await lab.log.fill(2, 100)
    reading = await lab.reader()
    for number, segment in enumerate(lab.log.segments):
        remote = lab.log.find(segment.base_offset)
        assert remote is not None
        for offset in (segment.base_offset, segment.base_offset + 7, segment.base_offset + 200, segment.end_offset - 1):
            found = await first_at_or_after(reading, remote, START_MS + offset, 0, 1)
            assert found == (START_MS + offset, offset, 0), number
        assert await first_at_or_after(reading, remote, START_MS + segment.end_offset, 0, 1) is None
        low = segment.base_offset + 50
        assert await first_at_or_after(reading, remote, 0, low, 1) == (START_MS + low, low, 0)


@pytest.mark.parametrize("how", ["overwritten", "cut off", "removed", "replaced"])
@pytest.mark.parametrize("is_open", [True, False])
async def test_a_cached_chunk_that_was_altered_is_fetched_again(
    lab: Lab, tmp_path: Path, how: str, is_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await lab.log.fill(2, 60)
    reading = await lab.reader(replace(LIMITS, cache=replace(LIMITS.cache, open_files_max=64 if is_open else 1)))
    first = take((await read_when_there(reading, lab.log, 0, 1 << 20)).region)
    await idle(reading)
    (path,) = (tmp_path / DIRECTORY).iterdir()
    if not is_open:  # another file takes its place among those that are open
        take((await read_when_there(reading, lab.log, lab.log.segments[1].base_offset, 1 << 20)).region)
        await idle(reading)
    assert (str(path) in open_paths()) is is_open
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    if how == "overwritten":
        with path.open("r+b") as file:
            file.write(data)
        os.utime(path, (1, 1))  # the write may lie in one tick of the file system with those before it
    elif how == "cut off":
        os.truncate(path, 150)
    elif how == "removed":
        path.unlink()
    else:
        path.with_suffix(".new").write_bytes(data)
        path.with_suffix(".new").rename(path)
    caplog.clear()
    gets = len(lab.store.gets)
    assert take((await read_when_there(reading, lab.log, 0, 1 << 20)).region) == first
    if how != "removed" and not (how == "replaced" and is_open):  # what is open may be the right bytes still
        assert len(lab.store.gets) == gets + 1
        assert [getattr(record, "key", None) for record in caplog.records] == [lab.log.key(lab.log.segments[0])]
    assert reading.cache.bytes_used <= LIMITS.cache.bytes_max


def with_damage(log: TieredLog, number: int, size: int) -> None:
    """In the last byte of batch `number` of equal batches of `size` bytes."""
    segment = log.segments[number * size // log.segments[0].log_bytes]
    log.damage(segment, number * size % log.segments[0].log_bytes + size - 1)


@pytest.mark.parametrize("number", [0, 1, *range(14, 19), 57, 58, 59, 60, 119])
async def test_only_the_batch_that_is_damaged_is_withheld(lab: Lab, number: int) -> None:
    await lab.log.fill(2, 60)
    size = len(lab.log.log) // 120
    assert size * 14 < CHUNK < size * 17, "batches 14 to 18 lie around the end of a chunk"
    with_damage(lab.log, number, size)
    reading = await lab.reader(AHEAD)
    near = {0, 59, 60, 119, *range(max(number - 3, 0), min(number + 4, 120))}
    for batch in sorted(near):
        for offset in range(3 * batch, 3 * batch + 3):
            if batch == number:
                assert (await error_of(reading, lab.log, offset)).code is ErrorCode.KAFKA_STORAGE_ERROR
                continue
            found = await read_when_there(reading, lab.log, offset)
            data = take(found.region)
            assert data
            assert data == lab.log.log[batch * size :][: len(data)]
            assert found.next_offset == 3 * (batch + len(data) // size)
    assert await read_all(reading, lab.log, 700, 3 * (number + 1)) == lab.log.log[(number + 1) * size :]
    assert len(reading.downloads.errors()) == 1


async def test_damaged_batches_on_both_sides_of_the_end_of_a_chunk_are_withheld_whole(lab: Lab) -> None:
    await lab.log.fill(1, 60)
    size = len(lab.log.log) // 60
    for number in range(12, 22):
        with_damage(lab.log, number, size)
    reading = await lab.reader()
    for offset in range(180):
        if offset // 3 in range(12, 22):
            assert (await error_of(reading, lab.log, offset)).code is ErrorCode.KAFKA_STORAGE_ERROR
        else:
            data = take((await read_when_there(reading, lab.log, offset)).region)
            assert data == lab.log.log[offset // 3 * size :][: len(data)]


async def test_a_batch_is_served_once_it_is_mended(lab: Lab) -> None:
    await lab.log.fill(1, 60)
    size = len(lab.log.log) // 60
    with_damage(lab.log, 5, size)
    reading = await lab.reader()
    assert take((await read_when_there(reading, lab.log, 0)).region) == lab.log.log[: 5 * size]
    assert (await error_of(reading, lab.log, 15)).code is ErrorCode.KAFKA_STORAGE_ERROR
    with_damage(lab.log, 5, size)  # the same bit again
    while isinstance(error := await read_or_error(reading, lab.log, 15), ProtocolError):
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.sleep(0.02)
    assert error == lab.log.log[5 * size :][: len(error)]
    assert reading.downloads.errors() == []
    await reading.cache.forget_all()
    assert reading.cache.bytes_used == 0, "the damaged chunk is kept no longer"


async def test_a_leader_epoch_that_was_not_in_force_is_damage(lab: Lab) -> None:
    await lab.log.add(
        [values_batch(0, [b"a"], epoch=3), values_batch(1, [b"b"], epoch=4), values_batch(2, [b"c"], epoch=5)]
    )
    lab.log.segments[0] = msgspec.structs.replace(lab.log.segments[0], epochs=[(3, 0), (5, 2)])
    reading = await lab.reader()
    assert (await read_when_there(reading, lab.log, 0)).next_offset == 1
    assert (await error_of(reading, lab.log, 1)).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (await read_when_there(reading, lab.log, 2)).next_offset == 3


async def read_or_error(reading: RemoteReader, log: TieredLog, offset: int) -> bytes | ProtocolError:
    try:
        return take((await read_when_there(reading, log, offset)).region)
    except ProtocolError as error:
        return error
