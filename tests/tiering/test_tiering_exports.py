"""Exports in the bucket: written when something changed, a few kept, the newest readable one found."""

from __future__ import annotations

import random

import pytest

from object_store.errors import StoreUnavailable
from object_store.store import ObjectStore
from tests.object_store.faulty_store import Faults, FaultyStore
from tests.object_store.memory_store import MemoryStore
from tests.tiering.tier_world import ROOT, WorldClock
from tiering.bucket.cluster_file import ClusterGuard, StaleCluster, begin_incarnation
from tiering.exports.exports import (
    KEPT,
    METADATA,
    Export,
    Exporter,
    ExporterServices,
    ExportKey,
    ExportWriter,
    NotExported,
    ReadyExport,
    export_key,
    newest_exports,
    parse_export_key,
)


class World:
    """One exporting node; `value` is what there is to export."""

    def __init__(self, store: ObjectStore | None = None, incarnation: int = 1) -> None:
        self.clock = WorldClock()
        self.store = store or MemoryStore(self.clock.wall_ms)
        self.value = 1
        self.refused: int | None = None
        self.unreadable: int | None = None

        guard = ClusterGuard(self.store, ROOT, lambda: incarnation, self.clock)
        self.writer = ExportWriter(self.store, ROOT, guard, self.clock)
        self.whole_rounds = 0

        async def after(writer: ExportWriter) -> None:
            self.whole_rounds += 1

        services = ExporterServices(lambda: self.writer, self.exports, self.clock, random.Random(1), 60.0, after)
        self.exporter = Exporter(services)

    async def exports(self) -> list[Export]:
        return [self._export(scope) for scope in (0, 7)]

    def _export(self, scope: int) -> Export:
        value = self.value

        def events() -> list[dict[str, int | str]]:
            if scope == self.refused:
                raise NotExported("moved")
            if scope == self.unreadable:
                raise ValueError("damaged")
            return [{"event": "thing", "value": value}] * 1_200

        return ReadyExport(METADATA, scope, value, value, events)

    async def keys(self) -> list[str]:
        return [info.key async for info in self.store.list(ROOT.metadata_prefix)]


async def newest(world: World) -> list[tuple[int, int]]:
    found = await newest_exports(world.store, ROOT, METADATA)
    return [(events.header.scope, events.events[0]["value"]) for events in found]


def test_names_of_exports_are_read_back() -> None:
    key = ExportKey(METADATA, 2, 17, 12345)
    name = export_key(ROOT, key)
    assert name == "cluster-1/metadata/metadata/0000000002/0000000017/00000000000000012345.events"
    assert parse_export_key(ROOT, name) == key
    assert parse_export_key(ROOT, name + "x") is None
    assert parse_export_key(ROOT, "cluster-2" + name[9:]) is None


async def test_what_changed_is_written_and_a_few_are_kept() -> None:
    world = World()
    assert await world.exporter.round() == 2
    assert await world.exporter.round() == 0
    for value in range(2, 10):
        world.value = value
        assert await world.exporter.round() == 2
    assert len(await world.keys()) == 2 * KEPT
    assert await newest(world) == [(0, 9), (7, 9)]


async def test_one_that_is_not_exported_here_leaves_the_others_alone() -> None:
    world = World()
    world.refused = 0
    assert await world.exporter.round() == 1
    world.refused = None
    assert await world.exporter.round() == 1


async def test_one_that_cannot_be_made_holds_up_no_other() -> None:
    """But what a whole round allows, like giving up older incarnations, waits for one."""
    world = World()
    world.unreadable = 0
    with pytest.raises(ValueError, match="damaged"):
        await world.exporter.round()
    assert await newest(world) == [(7, 1)]
    assert world.whole_rounds == 0
    world.unreadable = None
    assert await world.exporter.round() == 1
    assert (await newest(world), world.whole_rounds) == ([(0, 1), (7, 1)], 1)


async def test_a_damaged_export_gives_way_to_the_one_before() -> None:
    world = World()
    await world.exporter.round()
    world.value = 2
    await world.exporter.round()
    name = export_key(ROOT, ExportKey(METADATA, 1, 7, 2))
    body = await world.store.get(name)
    await world.store.put(name, body[: len(body) // 2])
    assert await newest(world) == [(0, 2), (7, 1)]


async def test_the_store_may_be_down_and_it_is_said() -> None:
    store = FaultyStore(MemoryStore(), random.Random(1))
    world = World(store)
    store.faults = Faults(down=True)
    with pytest.raises(StoreUnavailable):
        await world.exporter.round()
    store.faults = Faults()
    assert await world.exporter.round() == 2


async def test_an_old_cluster_exports_nothing_more_once_the_bucket_was_taken_over() -> None:
    old = World()
    await old.exporter.round()
    await begin_incarnation(old.store, ROOT, 5)
    old.clock.now_s += 60
    old.value = 2
    with pytest.raises(StaleCluster, match="incarnation 2"):
        await old.exporter.round()
    assert await newest(old) == [(0, 1), (7, 1)]
    new = World(old.store, incarnation=2)
    new.value = 1
    await new.exporter.round()
    assert [events.header.incarnation for events in await newest_exports(old.store, ROOT, METADATA)] == [2, 2]
    await new.writer.forget_incarnations_before(2)
    assert len(await new.keys()) == 2
