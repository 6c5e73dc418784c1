"""Manifests: built from the state, published create-only, read without any broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import pytest

from common.pacing import SLICE_COST, Pacer
from object_store.errors import StoreError, StoreUnavailable
from tests.object_store.faulty_store import FaultyStore
from tests.object_store.memory_store import MemoryStore
from tests.tiering.segments import segment
from tests.tiering.test_tiering_swap import rewritten
from tests.tiering.tier_world import PATH, ROOT, TOPIC_ID, TierWorld
from tiering.bucket.cluster_file import StaleCluster, begin_incarnation, read_cluster_file
from tiering.manifests.manifest import (
    HEAD_SEGMENTS_MAX,
    DamagedManifest,
    Manifest,
    newest_version,
    read_head,
    read_manifest,
    read_newest_head,
)
from tiering.manifests.manifest_publisher import ManifestPublisher, PublisherLimits
from tiering.manifests.manifest_writer import Deposed, ManifestContested, ManifestWriter
from tiering.shard.shard_protocol import Adopt, Done, Empty, Swap
from tiering.shard.tier_records import PartitionRecord, encode_value, partition_key
from tiering.upkeep.sweeper import Sweeper, SweepLimits, SweepReport

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def world() -> TierWorld:
    return TierWorld()


async def manifest(world: TierWorld) -> Manifest:
    found = await read_manifest(world.store, ROOT, PATH)
    assert found is not None
    return found


async def test_a_manifest_says_what_the_state_holds(world: TierWorld) -> None:
    assert await read_manifest(world.store, ROOT, PATH) is None
    world.claim(1)
    world.copy(range(0, 50, 10), 10)
    world.move_log_start(25)
    head = await ManifestWriter(world.services, world.view()).publish()
    found = await manifest(world)
    assert found.head == head
    assert (head.version, head.incarnation, head.leader_epoch) == (1, 1, 1)
    assert (head.log_start_offset, head.end_offset) == (25, 50)
    assert head.tier_state_offset == world.tier.state_offset
    assert list(found.segments) == list(world.tier.segments())
    assert [one.base_offset for one in found.segments] == [20, 30, 40]


async def test_a_long_partition_has_pages_which_its_next_leader_takes_over(world: TierWorld) -> None:
    world.claim(1)
    world.copy(range(2_700), 1)
    first = await ManifestWriter(world.services, world.view()).publish()
    assert len(first.segments) <= HEAD_SEGMENTS_MAX
    assert sum(page.count for page in first.pages) + len(first.segments) == 2_700
    assert list((await manifest(world)).segments) == list(world.tier.segments())
    pages = [key for key in world.store.objects if "/manifest-pages/" in key]
    world.claim(2, broker_id=2)
    world.copy([2_700], 1, leader_epoch=2, broker_id=2)
    world.move_log_start(700, leader_epoch=2)
    second = await ManifestWriter(world.services, world.view()).publish()
    assert [key for key in world.store.objects if "/manifest-pages/" in key][: len(pages)] == pages
    assert second.pages[0].base_offset == 600, "a page wholly below the log start is named no more"
    assert list((await manifest(world)).segments) == list(world.tier.segments())


async def test_a_version_for_one_more_segment_costs_little_and_a_long_beginning_is_sliced(world: TierWorld) -> None:
    view = world.claim(1)
    world.copy(range(5_000), 1)
    view.become(world.view())
    pacer = Pacer()
    writer = ManifestWriter(replace(world.services, pacer=pacer), view)
    first = await writer.publish()
    assert pacer.costliest <= 3 * SLICE_COST
    assert pacer.slices >= len(first.pages) // 2
    world.copy([5_000], 1)
    view.become(world.view())
    second = await writer.publish()
    assert second.end_offset == 5_001
    assert second.pages[: len(first.pages)] == first.pages
    assert len(second.segments) <= HEAD_SEGMENTS_MAX <= 300
    assert list((await manifest(world)).segments) == list(world.tier.segments())


async def test_a_page_that_differs_from_the_state_is_not_taken_over(world: TierWorld) -> None:
    world.claim(1)
    world.copy(range(2_000), 1)
    await ManifestWriter(world.services, world.view()).publish()
    world.move_log_start(700)
    world.start_delete()
    world.claim(2, broker_id=2)
    second = await ManifestWriter(world.services, world.view()).publish()
    assert second.pages == [] or second.pages[0].base_offset >= 700
    assert list((await manifest(world)).segments) == list(world.tier.segments())


@pytest.mark.parametrize("at", [0, 600, 1_990])
async def test_a_swap_shows_in_the_next_version_whatever_page_it_is_in(world: TierWorld, at: int) -> None:
    view = world.claim(1)
    world.copy(range(2_000), 1)
    view.become(world.view())
    writer = ManifestWriter(world.services, view)
    first = await writer.publish()
    inputs = list(world.tier.segments())[at : at + 5]
    reply = world.ask(Swap(1, 10, "p", [one.id for one in inputs], [rewritten(inputs, 9_999)]))
    assert isinstance(reply, Done)
    view.replay(reply.records)
    second = await writer.publish()
    assert second.version == first.version + 1
    assert list((await manifest(world)).segments) == list(world.tier.segments())
    assert len((await manifest(world)).segments) == 1_996
    shared = [page for page in second.pages if page in first.pages]
    assert shared == [page for page in first.pages if page.end_offset <= at]
    assert (await ManifestWriter(world.services, world.view()).publish()) == second


async def test_nothing_is_published_twice(world: TierWorld) -> None:
    world.claim(1)
    world.copy([0], 10)
    writer = ManifestWriter(world.services, world.view())
    assert await writer.publish() is await writer.publish()
    again = ManifestWriter(world.services, world.view())
    assert (await again.publish()).version == 1
    assert await newest_version(world.store, ROOT, PATH) == 1


async def test_a_deposed_leader_stops_before_it_overwrites_anything(world: TierWorld) -> None:
    old_view = world.claim(1)
    old = ManifestWriter(world.services, old_view)
    await old.publish()
    world.claim(2, broker_id=2)
    world.copy([0], 10, leader_epoch=2, broker_id=2)
    new = ManifestWriter(world.services, world.view())
    await new.publish()
    old_view.record = msgspec.structs.replace(old_view.record, log_start_offset=3, state_offset=99)
    old_view.state_offset = 99
    with pytest.raises(Deposed, match="leader epoch 2"):
        await old.publish()
    assert (await manifest(world)).head.leader_epoch == 2


def garble(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


class GarblingStore(MemoryStore):
    """The next answers with a manifest have another last byte."""

    garbled = 0

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        found = await super().get(key, start, length)
        if self.garbled and "/manifest/" in key:
            self.garbled -= 1
            return garble(found)
        return found


@pytest.mark.parametrize("garbled", [1, 2])
async def test_a_deposed_leader_takes_no_garbled_answer_for_a_damaged_manifest(garbled: int) -> None:
    """It would write a version after the newest one, which shows an older state."""
    store = GarblingStore()
    world = TierWorld(store)
    old = ManifestWriter(world.services, world.claim(5))
    world.claim(6, broker_id=2)
    world.copy([0], 10, leader_epoch=6, broker_id=2)
    newest = await ManifestWriter(world.services, world.view()).publish()
    store.garbled = garbled
    with pytest.raises(Deposed, match="leader epoch 6"):
        await old.publish()
    assert (await manifest(world)).head == newest


async def test_a_damaged_manifest_is_followed_by_a_whole_one(world: TierWorld) -> None:
    world.claim(5)
    first = await ManifestWriter(world.services, world.view()).publish()
    key = ROOT.manifest_key(PATH, first.version)
    data, kept = world.store.objects[key]
    world.store.objects[key] = (garble(data), kept)
    world.claim(6)
    head = await ManifestWriter(world.services, world.view()).publish()
    assert head.version == first.version + 1
    assert (await manifest(world)).head == head


async def test_a_late_version_of_a_deposed_leader_is_passed_over(world: TierWorld) -> None:
    """It was created after the new leader looked, and before that one wrote."""
    old = ManifestWriter(world.services, world.claim(1))
    world.claim(2, broker_id=2)
    store = FaultyStore(world.store, random.Random(1))

    async def between(operation: str, key: str) -> None:
        if operation == "put":
            store.before = None
            await old.publish()

    store.before = between
    new = ManifestWriter(replace(world.services, store=store), world.view())
    assert (await new.publish()).version == 2
    assert (await manifest(world)).head.leader_epoch == 2


@pytest.mark.parametrize("fails", [True, False])
async def test_a_leader_looks_again_after_a_failure_and_after_a_long_rest(world: TierWorld, fails: bool) -> None:
    """Its topic may be deleted by then, and its number be free again."""
    store = FaultyStore(world.store, random.Random(1))
    services = replace(world.services, store=store)
    view = world.claim(1)
    old = ManifestWriter(services, view)
    await old.publish()
    world.copy([0], 10)
    view.replay(world.tier.to_records())
    if fails:
        store.faults.down = True
        with pytest.raises(StoreError):
            await old.publish()
        store.faults.down = False
    world.drop()
    for empty in (False, True):
        last = await ManifestWriter(world.services, world.view()).publish(empty=empty)
    await Sweeper(world.store, ROOT, SweepLimits()).remove_partition(PATH, last.version, SweepReport())
    world.clock.now_s += 0 if fails else services.sight_s + 1
    with pytest.raises(Deposed, match="deleted"):
        await old.publish()
    found = await manifest(world)
    assert found.is_emptied


async def test_a_lost_answer_is_recognised(world: TierWorld) -> None:
    """The attempt created the manifest, and its answer is that it exists already."""
    world.claim(1)
    store, twin = FaultyStore(world.store, random.Random(1)), ManifestWriter(world.services, world.view())

    async def between(operation: str, key: str) -> None:
        if operation == "put":
            store.before = None
            await twin.publish()

    store.before = between
    assert await ManifestWriter(replace(world.services, store=store), world.view()).publish() == twin.published


async def test_a_state_that_lost_committed_segments_is_not_published(world: TierWorld) -> None:
    world.claim(1)
    world.copy([0], 10)
    await ManifestWriter(world.services, world.view()).publish()
    forgetful = world.view()
    value = encode_value(PartitionRecord("flights", "", leader_epoch=5, broker_id=1, broker_epoch=10))
    forgetful.replay([(record.key, None) for record in world.tier.records(None, 10)])
    forgetful.replay([(partition_key(TOPIC_ID, 0), value)])
    with pytest.raises(Deposed, match="has lost"):
        await ManifestWriter(world.services, forgetful).publish()


async def test_an_emptied_tier_is_published_without_its_pages_under_any_leader(world: TierWorld) -> None:
    world.claim(1)
    world.copy(range(1_100), 1)
    view = world.view()
    writer = ManifestWriter(world.services, view)
    assert (await writer.publish()).pages
    assert isinstance(world.ask(Empty(1, 10, 1, 1_150)), Done)
    other = ManifestWriter(world.services, world.view())
    view.become(world.view())
    head = await writer.publish()
    assert (head.log_start_offset, head.end_offset, head.generation) == (1_150, 1_150, 1)
    assert (head.pages, head.segments) == ([], [])
    assert await other.publish() == head
    world.copy([1_150], 10)
    assert [one.base_offset for one in (await ManifestWriter(world.services, world.view()).publish()).segments] == [
        1_150
    ]


async def test_a_manifest_with_altered_bytes_is_named(world: TierWorld) -> None:
    world.claim(1)
    world.copy(range(1_100), 1)
    await ManifestWriter(world.services, world.view()).publish()
    page = next(key for key in world.store.objects if "/manifest-pages/" in key)
    await world.store.put(page, (await world.store.get(page)).replace(b'"log_bytes":100', b'"log_bytes":101', 1))
    with pytest.raises(DamagedManifest, match="manifest-pages"):
        await read_manifest(world.store, ROOT, PATH)
    head = ROOT.manifest_key(PATH, 1)
    await world.store.put(head, (await world.store.get(head))[:100])
    with pytest.raises(DamagedManifest, match="manifest/0"):
        await read_newest_head(world.store, ROOT, PATH)


async def test_unknown_fields_pass_and_unknown_formats_do_not(world: TierWorld) -> None:
    world.claim(1)
    await ManifestWriter(world.services, world.view()).publish()
    key = ROOT.manifest_key(PATH, 1)
    fields = msgspec.json.decode(await world.store.get(key))
    await world.store.put(key, msgspec.json.encode(fields | {"later": 1}))
    assert (await read_head(world.store, ROOT, PATH, 1)).version == 1
    await world.store.put(key, msgspec.json.encode(fields | {"format": 2}))
    with pytest.raises(DamagedManifest, match="format 2"):
        await read_head(world.store, ROOT, PATH, 1)


# incarnations ----------------------------------------------------------------------------------------------


async def test_a_rebuilt_cluster_silences_the_old_one(world: TierWorld) -> None:
    world.claim(9)
    world.copy([0], 10, leader_epoch=9)
    old = ManifestWriter(world.services, world.view())
    first = await old.publish()
    await begin_incarnation(world.store, ROOT, 5)
    new_world = TierWorld(world.store, world.clock, incarnation=2)
    new_world.claim(10)
    too_early = ManifestWriter(new_world.services, new_world.view())
    with pytest.raises(ManifestContested, match="adopted"):
        await too_early.publish()
    adopted = new_world.ask(Adopt(10, 10, first.version, 0, first.segments, True))
    assert isinstance(adopted, Done)
    head = await ManifestWriter(new_world.services, new_world.view()).publish()
    assert (head.incarnation, head.version) == (2, 2)
    world.clock.now_s += 60
    world.copy([10], 10, leader_epoch=9)
    with pytest.raises(StaleCluster, match="incarnation 2"):
        await ManifestWriter(world.services, world.view()).publish()
    late_joiner = TierWorld(world.store, world.clock)
    late_joiner.shard = world.shard
    with pytest.raises(StaleCluster):
        await late_joiner.guard.check()
    assert world.guard.stale is not None


async def test_a_manifest_of_a_newer_incarnation_is_enough(world: TierWorld) -> None:
    world.claim(9)
    await world.guard.check()
    await begin_incarnation(world.store, ROOT, 5)
    new_world = TierWorld(world.store, world.clock, incarnation=2)
    new_world.claim(1)
    await ManifestWriter(new_world.services, new_world.view()).publish()
    with pytest.raises(StaleCluster):
        await ManifestWriter(world.services, world.view()).publish()


async def test_the_first_brokers_make_one_cluster_file() -> None:
    world = TierWorld()
    others = [TierWorld(world.store, world.clock) for _ in range(3)]
    incarnations = await asyncio.gather(*(each.guard.check() for each in [world, *others]))
    assert incarnations == [1, 1, 1, 1]
    found = await read_cluster_file(world.store, ROOT)
    assert found is not None
    assert found[0].incarnation == 1


# the publisher ---------------------------------------------------------------------------------------------


class FailingStore(MemoryStore):
    failures = 0

    async def put(self, key: str, body: object, *, create_only: bool = False):  # type: ignore[no-untyped-def]
        if self.failures and "/manifest/" in key:
            self.failures -= 1
            raise StoreUnavailable(self.name, "put", key, "down")
        return await super().put(key, body, create_only=create_only)  # type: ignore[arg-type]


QUICK = PublisherLimits(interval_s=0.05, parallel=2, backoff_min_s=0.01)


@pytest.fixture
async def publisher(world: TierWorld) -> AsyncIterator[ManifestPublisher]:
    made = ManifestPublisher(world.services, QUICK)
    made.start()
    yield made
    await made.stop()


async def published(publisher: ManifestPublisher, state_offset: int) -> bool:
    """Whether a manifest comes to show the tier at `state_offset` or later, before publication stops."""
    while publisher.trouble(TOPIC_ID, 0) is None:
        head = publisher.published(TOPIC_ID, 0)
        if head is not None and head.tier_state_offset >= state_offset:
            return True
        await asyncio.sleep(0.001)
    return False


async def test_the_publisher_gathers_changes(world: TierWorld, publisher: ManifestPublisher) -> None:
    tier = world.claim(1)
    publisher.lead(tier)
    assert await published(publisher, tier.state_offset)
    for base in range(0, 100, 10):
        world.copy([base], 10)
        tier.become(world.view())
        publisher.changed(TOPIC_ID, 0)
    assert await published(publisher, tier.state_offset)
    assert await newest_version(world.store, ROOT, PATH) == 2
    assert (await manifest(world)).head.end_offset == 100


async def test_the_publisher_goes_on_when_the_store_does() -> None:
    store = FailingStore()
    world = TierWorld(store)
    store.failures = 3
    publisher = ManifestPublisher(world.services, QUICK)
    publisher.start()
    tier = world.claim(1)
    publisher.lead(tier)
    assert await published(publisher, tier.state_offset)
    assert store.failures == 0
    await publisher.stop()


async def test_the_publisher_tells_when_it_is_deposed(world: TierWorld) -> None:
    told: list[str] = []
    publisher = ManifestPublisher(world.services, QUICK, lambda _, reason: told.append(reason))
    publisher.start()
    old = world.claim(1)
    world.claim(2, broker_id=2)
    await ManifestWriter(world.services, world.view()).publish()
    publisher.lead(old)
    assert not await published(publisher, old.state_offset)
    assert told and publisher.trouble(TOPIC_ID, 0) == told[0]
    await publisher.stop()


def test_segments_in_manifests_are_what_they_were() -> None:
    one = segment(0, 10)
    assert msgspec.json.decode(msgspec.json.encode(one), type=type(one)) == one
