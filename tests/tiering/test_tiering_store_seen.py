"""A node writes to no store but the one that it has worked with, and to none that ignores the conditions of writes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from common.machine_disk import MachineDisk
from object_store.errors import StoreUnavailable, StoreUnfit
from object_store.store import Body, ObjectInfo
from tests.object_store.memory_store import MemoryStore
from tests.tiering.tier_world import ROOT, WorldClock
from tiering.bucket.cluster_file import (
    CHECK_INTERVAL_S,
    ClusterGuard,
    StaleCluster,
    begin_incarnation,
    read_cluster_file,
)
from tiering.bucket.store_seen import FILE_NAME, StoreSeen

pytestmark = pytest.mark.virtual_time


class CarelessStore(MemoryStore):
    """Takes writes whatever their conditions, as a server does that knows nothing of them."""

    ignored = frozenset({"If-None-Match", "If-Match"})

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        return await super().put(key, body, create_only=create_only and "If-None-Match" not in self.ignored)

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        if "If-Match" in self.ignored:
            expected_version = self.objects[key][1].version if key in self.objects else None
        return await super().replace(key, body, expected_version)


class Node:
    """May be started again on the same disk, and before another store."""

    def __init__(
        self, tmp_path: Path, name: str, clock: WorldClock, store: MemoryStore, *, begins: bool = True
    ) -> None:
        self.clock = clock
        self.begins = begins
        self.directory = tmp_path / name
        self.directory.mkdir(exist_ok=True)
        self.start(store)

    def start(self, store: MemoryStore) -> None:
        disk = MachineDisk(self.directory)
        seen = StoreSeen(disk)
        self.guard = ClusterGuard(store, ROOT, lambda: 1, self.clock, 0.0, seen, lambda: self.begins)


@pytest.fixture
def clock() -> WorldClock:
    return WorldClock()


def store(clock: WorldClock) -> MemoryStore:
    return MemoryStore(clock.wall_ms)


async def test_nothing_is_begun_where_the_clusters_store_is_gone(tmp_path: Path, clock: WorldClock) -> None:
    right, empty = store(clock), store(clock)
    maker, joined = (Node(tmp_path, name, clock, right) for name in ("maker", "joined"))
    for node in (maker, joined):
        assert await node.guard.check() == 1
        node.start(empty)
        with pytest.raises(StoreUnavailable, match="mounted"):
            await node.guard.check()
        assert node.guard.missing is not None
        assert FILE_NAME in node.guard.missing
    assert not empty.objects
    joined.start(right)
    assert await joined.guard.check() == 1
    assert joined.guard.missing is None


async def test_nor_where_it_is_emptied_beneath_a_node_at_work(tmp_path: Path, clock: WorldClock) -> None:
    right = store(clock)
    node = Node(tmp_path, "node", clock, right)
    await node.guard.check()
    kept = await right.get(ROOT.cluster_file)
    await right.delete([ROOT.cluster_file])
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="mounted"):
            await node.guard.check()
    await right.put(ROOT.cluster_file, kept)
    assert await node.guard.check() == 1
    assert node.guard.missing is None


async def test_a_node_that_has_seen_none_begins_and_so_does_one_that_was_told_to(
    tmp_path: Path, clock: WorldClock
) -> None:
    first, second = store(clock), store(clock)
    node = Node(tmp_path, "node", clock, first)
    await node.guard.check()
    (node.directory / FILE_NAME).unlink()
    node.start(second)
    assert await node.guard.check() == 1
    assert await read_cluster_file(second, ROOT) is not None


async def test_a_disk_that_takes_nothing_holds_up_nobody(tmp_path: Path, clock: WorldClock) -> None:
    right = store(clock)
    node = Node(tmp_path, "node", clock, right)
    node.directory.rmdir()
    assert await node.guard.check() == 1
    await right.delete([ROOT.cluster_file])
    with pytest.raises(StoreUnavailable, match="mounted"):
        await node.guard.check()


async def test_nor_where_somebody_else_has_begun_meanwhile(tmp_path: Path, clock: WorldClock) -> None:
    right, empty = store(clock), store(clock)
    node = Node(tmp_path, "node", clock, right)
    await node.guard.check()
    clock.now_s += 1
    assert await Node(tmp_path, "stranger", clock, empty).guard.check() == 1
    node.start(empty)
    with pytest.raises(StoreUnavailable, match="mounted"):
        await node.guard.check()
    node.start(right)
    assert await node.guard.check() == 1


async def test_who_does_not_begin_waits_for_those_who_do(tmp_path: Path, clock: WorldClock) -> None:
    shared = store(clock)
    waiting = Node(tmp_path, "waiting", clock, shared, begins=False)
    with pytest.raises(StoreUnavailable, match="begun"):
        await waiting.guard.check()
    assert not shared.objects
    assert waiting.guard.missing is None
    await Node(tmp_path, "first", clock, shared).guard.check()
    assert await waiting.guard.check() == 1


async def test_a_rebuild_goes_on_in_the_store_and_the_old_cluster_hears_of_it(
    tmp_path: Path, clock: WorldClock
) -> None:
    shared = store(clock)
    node = Node(tmp_path, "node", clock, shared)
    await node.guard.check()
    clock.now_s += 1
    await shared.delete([ROOT.cluster_file])
    for _ in range(2):  # the file was lost, too
        await begin_incarnation(shared, ROOT, clock.wall_ms())
    with pytest.raises(StaleCluster):
        await node.guard.check()


class CountingDisk(MachineDisk):
    """Counts the threads that replace a file at once, and gives each some time."""

    writing = most = 0

    def rename(self, source: str, target: str) -> None:
        self.writing += 1
        self.most = max(self.most, self.writing)
        time.sleep(0.01)
        super().rename(source, target)
        self.writing -= 1


async def test_many_who_find_the_store_at_once_note_it_once(tmp_path: Path) -> None:
    disk = CountingDisk(tmp_path)
    seen = StoreSeen(disk)
    first = asyncio.create_task(seen.note(7))
    while not disk.most:  # noqa: ASYNC110  it is set in a thread
        await asyncio.sleep(0.001)
    first.cancel()
    await asyncio.gather(*[seen.note(7) for _ in range(5)])
    assert first.cancelled()
    assert disk.most == 1
    assert await StoreSeen(disk).noted() == 7


@pytest.mark.parametrize("ignored", ["If-None-Match", "If-Match"])
async def test_nothing_is_written_to_a_store_that_ignores_a_condition(clock: WorldClock, ignored: str) -> None:
    """Until it keeps it: the store is tried again, but not at each call."""
    careless = CarelessStore(clock.wall_ms)
    careless.ignored = frozenset({ignored})
    names = iter("abcdefgh")
    guard = ClusterGuard(careless, ROOT, lambda: 1, clock, probe_name=lambda: next(names))
    for _ in range(3):
        with pytest.raises(StoreUnfit, match=f"the store ignores {ignored}"):
            await guard.check()
    assert guard.missing is not None
    assert ignored in guard.missing
    assert next(names) == "b"
    assert not careless.objects
    careless.ignored = frozenset()
    clock.now_s += CHECK_INTERVAL_S
    assert await guard.check() == 1
    assert guard.missing is None
    assert list(careless.objects) == [ROOT.cluster_file], "the trial write is gone"


async def test_a_store_is_tried_once(clock: WorldClock) -> None:
    names = iter("abc")
    guard = ClusterGuard(store(clock), ROOT, lambda: 1, clock, 0.0, probe_name=lambda: next(names))
    for _ in range(3):
        await guard.check()
    assert next(names) == "b"
