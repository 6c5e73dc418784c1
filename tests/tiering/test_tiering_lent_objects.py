"""Objects on a disk of the node's own: checked where they lie, sent from there, and never written a second time."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ErrorCode, ProtocolError
from common.machine_disk import MachineDisk, MachineFile
from common.ports import File
from object_store.directory_store import DirectoryStore
from object_store.limits import StoreLimits
from tests.tiering.test_tiering_chunks import (
    FIRST,
    HIGH,
    MISPLACED,
    SECOND,
    THIRD,
    MemoryFile,
    batches,
    build,
)
from tests.tiering.tiered_log import TieredLog, error_of, read_when_there, take, values_batch
from tiering.reading import chunk_cache
from tiering.reading.chunk import (
    PIECE_BYTES,
    STEP_BATCHES,
    STEP_BYTES,
    DamagedChunk,
    Expected,
    check_in_place,
    store_checked,
)
from tiering.reading.chunk_cache import DIRECTORY, CacheLimits
from tiering.reading.downloads import DownloadLimits, Downloads
from tiering.reading.prefetch import PrefetchLimits
from tiering.reading.remote_index import IndexLimits
from tiering.reading.remote_reader import RemoteReader, RemoteReadLimits

CHUNK, OPEN_MAX, STEP = 4_096, 3, 900


def scratch() -> memoryview:
    return memoryview(bytearray(PIECE_BYTES))


LIMITS = RemoteReadLimits(
    DownloadLimits(4, 1 << 20),
    CacheLimits(1 << 20, OPEN_MAX, 0),
    IndexLimits(1 << 20, CHUNK, 5.0),
    PrefetchLimits(2 * CHUNK, 64 * CHUNK, CHUNK),
)


class WatchedFile(MachineFile):
    """Calls `seen` before each read into a buffer, which is what a check does."""

    def __init__(self, fd: int, seen: Callable[[File], None]) -> None:
        super().__init__(fd)
        self._seen = seen

    def pread_into(self, view: memoryview, position: int) -> int:
        self._seen(self)
        return super().pread_into(view, position)


class WatchedStore(DirectoryStore):
    seen: Callable[[File], None] | None = None

    async def lend(self, key: str, start: int = 0, length: int = 0) -> File | None:
        file = await super().lend(key, start, length)
        assert isinstance(file, MachineFile)
        return WatchedFile(file.fd, self.seen) if self.seen is not None else file


class Lab:
    """A log in a directory store beside the reader's own disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = WatchedStore(str(root / "tier"), StoreLimits(own_directory=str(root)))
        self.log = TieredLog(self.store)
        self.reading = RemoteReader(self.store, MachineDisk(root / "broker"), LIMITS)

    async def take_small_steps(self) -> None:
        await self.reading.stop()
        limits = replace(LIMITS, cache=replace(LIMITS.cache, check_step_bytes=STEP))
        self.reading = RemoteReader(self.store, MachineDisk(self.root / "broker"), limits)
        await self.reading.open()

    def path(self, segment: int) -> Path:
        return self.root / "tier" / self.log.key(self.log.segments[segment])

    def written(self) -> list[str]:
        return os.listdir(self.root / "broker" / DIRECTORY)

    def open_objects(self) -> int:
        """How many descriptors of this process lead into the store."""
        count = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                count += os.readlink(f"/proc/self/fd/{name}").startswith(str(self.root / "tier"))
            except FileNotFoundError:
                continue
        return count


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(tmp_path)
    await made.store.open()
    await made.reading.open()
    yield made
    await made.reading.stop()
    await made.store.close()


async def read_all(lab: Lab, bytes_max: int) -> bytes:
    data, offset = b"", 0
    while lab.log.find(offset) is not None:
        found = await read_when_there(lab.reading, lab.log, offset, bytes_max)
        data += take(found.region)
        offset = found.next_offset
    return data


@pytest.mark.parametrize("bytes_max", [1, 700, 5_000, 1 << 20])
async def test_a_reader_gets_exactly_what_was_copied_and_nothing_is_written(lab: Lab, bytes_max: int) -> None:
    await lab.log.fill(3, 60)
    assert await read_all(lab, bytes_max) == lab.log.log
    assert lab.written() == []
    assert lab.reading.cache.bytes_used == 0
    assert lab.reading.cache.open_count == lab.open_objects() <= OPEN_MAX
    await lab.reading.stop()
    assert lab.open_objects() == 0


async def test_a_long_batch_and_gaps(lab: Lab) -> None:
    await lab.take_small_steps()
    await lab.log.add([values_batch(0, [b"a" * 9_000]), values_batch(5, [b"b"] * 2), values_batch(40, [b"c"])], end=90)
    await lab.log.add([values_batch(90, [b"d"]), values_batch(91, [b"e" * 20_000]), values_batch(92, [b"f"] * 400)])
    assert await read_all(lab, 100) == lab.log.log


async def test_what_is_under_send_outlives_its_object(lab: Lab) -> None:
    await lab.log.fill(1, 10)
    region = (await read_when_there(lab.reading, lab.log, 0)).region
    assert region is not None
    await lab.store.delete([lab.log.key(lab.log.segments[0])])
    lab.reading.cache.drop((lab.log.segments[0].uuid, 0))
    assert lab.open_objects() == 1
    assert take(region) == lab.log.log
    assert lab.open_objects() == 0
    assert (await error_of(lab.reading, lab.log, 0)).code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("damage", ["altered", "cut", "gone"])
async def test_damage_is_told_and_leaves_nothing_open(lab: Lab, damage: str) -> None:
    await lab.log.fill(1, 60)
    path = lab.path(0)
    data = bytearray(path.read_bytes())
    await read_when_there(lab.reading, lab.log, 0)  # the index is known from here on
    lab.reading.cache.drop((lab.log.segments[0].uuid, 0))
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        os.truncate(path, 100)
    else:
        data[100] ^= 1
        path.write_bytes(data)
    while lab.reading.downloads.running:  # noqa: ASYNC110  what is awaited has no event
        await asyncio.sleep(0.001)
    before = lab.open_objects()
    assert (await error_of(lab.reading, lab.log, 0)).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert lab.open_objects() == before + (damage == "altered"), "the batches that are sound can be read"


@settings(max_examples=150, deadline=None)
@given(batches, st.integers(0, 3_000), st.integers(61, 30_000), st.integers(1, 30_000), st.integers(1, 20))
def test_checking_in_place_finds_what_checking_a_copy_finds(
    shape: list[tuple[int, int, int]], before: int, piece_bytes: int, step_bytes: int, step_batches: int
) -> None:
    data = b"".join(build(shape))
    expected = Expected(0, HIGH)
    copied = store_checked(MemoryFile(), data, expected)
    file = MemoryFile(data=bytearray(b"\xff" * before + data + b"\xff" * 50))
    scratch = memoryview(bytearray(piece_bytes))
    for index in check_in_place(file, before, len(data), expected, scratch, step_bytes, step_batches):
        found = index
        scratch[:] = b"\xa5" * piece_bytes  # it is anybody's between two steps
    assert (found.end, found.end_offset) == (before + copied.end, copied.end_offset)
    assert list(found.offsets) == list(copied.offsets)
    assert list(found.positions) == [before + position for position in copied.positions]


def test_the_same_is_damage_in_place_as_in_a_copy() -> None:
    for data, expected, holes in MISPLACED:
        checked = check_in_place(MemoryFile(data=bytearray(data)), 0, len(data), expected, scratch())
        if holes is None:
            with pytest.raises(DamagedChunk):
                list(checked)
        else:
            index = list(checked)[-1]
            assert [(hole.low, hole.high) for hole in index.holes] == holes
    file, length = MemoryFile(data=bytearray(FIRST + SECOND)), len(FIRST + SECOND + THIRD)
    (hole,) = list(check_in_place(file, 0, length, Expected(10, 14, dense=True), scratch()))[-1].holes
    assert (hole.low, hole.high) == (13, -1)
    assert "ends at position" in hole.reason


def test_many_small_batches_are_many_steps() -> None:
    data = b"".join(values_batch(at, [b"x"]) for at in range(1_000))
    steps = list(check_in_place(MemoryFile(data=bytearray(data)), 0, len(data), Expected(0, HIGH), scratch()))
    assert len(steps) >= 1_000 // STEP_BATCHES


def test_a_long_batch_is_many_steps() -> None:
    data = values_batch(0, [b"x" * 5 * STEP_BYTES])
    steps = list(check_in_place(MemoryFile(data=bytearray(data)), 0, len(data), Expected(0, HIGH), scratch()))
    assert len(steps) >= 5


@pytest.mark.virtual_time
async def test_what_is_read_ahead_is_checked_with_rests_until_somebody_waits(lab: Lab) -> None:
    await lab.take_small_steps()
    loop, rest_s = asyncio.get_running_loop(), chunk_cache.AHEAD_REST_S
    began = loop.time()

    def rests() -> int:
        return int((loop.time() - began) / rest_s)

    segment = await lab.log.add([values_batch(at, [b"x" * 900]) for at in range(6)])
    cache, expected = lab.reading.cache, Expected(0, 6)
    for is_awaited, wanted in [
        (lambda: False, -(-segment.log_bytes // STEP)),
        (lambda: True, 0),
        (lambda: rests() >= 2, 2),
    ]:
        file = await lab.store.lend(lab.log.key(segment))
        assert file is not None
        while file.identity().age_ns < chunk_cache.YOUNG_NS:
            continue
        assert cache.reserve(segment.log_bytes)
        began = loop.time()
        await cache.adopt((segment.uuid, 0), "x", file, 0, segment.log_bytes, expected, is_awaited)
        assert rests() == wanted
        cache.drop((segment.uuid, 0))


async def test_who_asks_for_what_is_being_read_ahead_is_waited_for() -> None:
    downloads, began, told = Downloads(DownloadLimits(2, 1 << 20)), asyncio.Event(), asyncio.Event()

    class Slow:
        key, size = ("uuid", 0), 1

        def admit(self) -> bool:
            return True

        async def run(self, is_awaited: Callable[[], bool]) -> None:
            assert not is_awaited()
            began.set()
            while not is_awaited():  # noqa: ASYNC110  what is awaited has no event
                await asyncio.sleep(0)
            told.set()

        def release(self) -> None: ...

    downloads.want_ahead(Slow.key, Slow, 1)
    async with asyncio.timeout(10):
        await began.wait()
        downloads.want(Slow.key, Slow, 2)
        await told.wait()
    await downloads.stop()


# altered after it was checked --------------------------------------------------------------------------------


def alter(path: Path, how: str, at: int) -> None:
    """Anything but the right bytes, unless it is "append", "touch" or "rewrite"; `at` is a position, more or less."""
    data = path.read_bytes() if path.exists() else bytes(100)
    at %= max(len(data), 1)
    if how == "delete":
        path.unlink(missing_ok=True)
    elif how == "truncate" and path.exists():
        os.truncate(path, at)
    elif how == "overwrite" and path.exists():
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ 0x40]) if data else b"x")
    elif how == "replace":
        path.with_suffix(".new").write_bytes(data[:at] + bytes(7) + data[at + 7 :])
        path.with_suffix(".new").rename(path)
    elif how == "append" and path.exists():
        with path.open("ab") as file:
            file.write(b"more")
    elif how == "touch" and path.exists():
        path.touch()
    elif how == "rewrite":
        path.write_bytes(data)


HOW = st.sampled_from(["delete", "truncate", "overwrite", "replace", "append", "touch", "rewrite"])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.tuples(HOW, st.integers(0, 1), st.integers(0, 1 << 16)), max_size=2), max_size=3))
def test_whatever_happens_to_an_object_no_wrong_byte_is_read(rounds: list[list[tuple[str, int, int]]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(alter_and_read(Path(root), rounds))


async def alter_and_read(root: Path, rounds: list[list[tuple[str, int, int]]]) -> None:
    lab = Lab(root)
    roomy = replace(LIMITS, cache=replace(LIMITS.cache, open_files_max=64))  # what was checked once stays
    lab.reading = RemoteReader(lab.store, MachineDisk(root / "broker"), roomy)
    await lab.store.open()
    await lab.reading.open()
    await lab.log.fill(2, 60)
    right = [lab.path(0).read_bytes(), lab.path(1).read_bytes()]
    batch_bytes = len(lab.log.log) // 120
    assert await read_all(lab, 1 << 20) == lab.log.log
    for changes in rounds:
        for how, segment, at in changes:
            alter(lab.path(segment), how, at)
        lab.reading.downloads._failures.clear()  # as if some time had passed
        for number in range(120):
            segment, before = number // 60, number % 60 * batch_bytes
            path = lab.path(segment)
            wanted = right[segment][before : before + batch_bytes]
            refused: ProtocolError | None = None
            try:
                found = take((await read_when_there(lab.reading, lab.log, number * 3, 1)).region)
            except ProtocolError as error:
                refused = error
            else:
                assert found == wanted
            if refused is not None:
                assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
                assert not path.exists() or path.read_bytes()[: len(right[segment])] != right[segment]
    await lab.reading.stop()
    await lab.store.close()
    assert lab.open_objects() == 0


@pytest.mark.parametrize("how", ["overwrite", "truncate"])
async def test_what_is_altered_behind_the_check_is_checked_again(lab: Lab, how: str) -> None:
    await lab.take_small_steps()
    await lab.log.fill(1, 30)
    steps = 0

    def seen(_: File) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            alter(lab.path(0), how, 100)  # in what the first step has checked

    lab.store.seen = seen
    assert (await error_of(lab.reading, lab.log, 0)).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert steps >= 3
    assert lab.open_objects() == (how == "overwrite"), "the batches that are sound can be read"


@pytest.mark.parametrize("touches", [1, chunk_cache.CHECKS_MAX])
async def test_what_is_touched_meanwhile_is_served_once_it_holds_still(lab: Lab, touches: int) -> None:
    await lab.log.fill(1, 10)
    touched = 0

    def seen(_: File) -> None:
        nonlocal touched
        if touched < touches:
            touched += 1
            lab.path(0).touch()

    lab.store.seen = seen
    if touches < chunk_cache.CHECKS_MAX:
        assert take((await read_when_there(lab.reading, lab.log, 0)).region) == lab.log.log
    else:
        assert (await error_of(lab.reading, lab.log, 0)).code is ErrorCode.KAFKA_STORAGE_ERROR
        assert lab.open_objects() == 0
    assert touched == touches


async def test_what_was_written_just_now_is_checked_a_little_later(lab: Lab) -> None:
    """Within one tick of the file system's time a second change would leave no trace."""
    ages: list[int] = []
    lab.store.seen = lambda file: ages.append(file.identity().age_ns)
    await lab.log.fill(1, 2)
    take((await read_when_there(lab.reading, lab.log, 0)).region)  # the index is known from here on
    lab.path(0).touch()
    assert take((await read_when_there(lab.reading, lab.log, 0)).region) == lab.log.log
    assert len(ages) >= 2
    assert min(ages) >= 20_000_000
