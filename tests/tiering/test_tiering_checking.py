"""Each way in which manifest, state and objects can disagree is found and named; and a restored topic agrees."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.tiering.segments import segment, uuid_of
from tests.tiering.tier_world import PATH, ROOT, TierWorld
from tiering.checking import State, compare
from tiering.inventory import find_clusters, find_topics
from tiering.keys import PartitionPath
from tiering.manifest import Manifest, read_manifest
from tiering.manifest_writer import ManifestWriter
from tiering.partition_tier import PartitionTier
from tiering.restoring import (
    CannotRestore,
    NewTopic,
    check_restorable,
    copy_topic,
    first_epochs,
    remove_copies,
    write_manifests,
)
from tiering.segment import PRODUCER_SNAPSHOT, SegmentId, TieredSegment

NEW = NewTopic("again", bytes([7] * 16), "", 1)


def state_of(tier: PartitionTier) -> State:
    segments = [found for one in tier.ids(1_000) if (found := tier.get(one)) is not None]
    record = tier.record
    return State(
        not tier.is_empty,
        tier.log_start_offset,
        tier.tier_end_offset,
        record.dropped_ms,
        tier.state_offset,
        segments,
    )


async def world_of(count: int = 3) -> tuple[TierWorld, State, Manifest, dict[SegmentId, int]]:
    """A partition in which all agree."""
    world = TierWorld()
    world.claim(1)
    world.copy([10 * number for number in range(count)], 10)
    await world.upload()
    await ManifestWriter(world.services, world.view()).publish()
    manifest = await read_manifest(world.store, ROOT, PATH)
    assert manifest is not None
    sizes = {found.id: found.object_bytes for found in world.tier.segments(0)}
    return world, state_of(world.tier), manifest, sizes


def texts(state: State, manifest: Manifest | None, objects: dict[SegmentId, int]) -> list[str]:
    return [f"{one.what}: {one.text}" for one in compare(state, manifest, objects)]


async def test_what_agrees_is_not_complained_about() -> None:
    _, state, manifest, objects = await world_of()
    assert compare(state, manifest, objects) == []


async def test_objects_that_are_missing_or_of_another_size() -> None:
    _, state, manifest, objects = await world_of()
    first, second, _ = objects
    del objects[first]
    objects[second] -= 1
    told = texts(state, manifest, objects)
    assert len(told) == 2
    assert "is missing" in told[0]
    assert f"has {objects[second]} bytes, not {objects[second] + 1}" in told[1]


async def test_an_object_that_nobody_names_is_harmless() -> None:
    _, state, manifest, objects = await world_of()
    objects[SegmentId(7, uuid_of(99))] = 5
    (found,) = compare(state, manifest, objects)
    assert found.is_harmless
    assert "named by nobody" in found.text


async def test_a_manifest_that_is_behind_or_ahead_or_absent() -> None:
    world, state, manifest, objects = await world_of()
    world.copy([30], 10)
    later = state_of(world.tier)
    assert any("shows __tier_state up to" in text for text in texts(later, manifest, objects))
    early = state._replace(state_offset=state.state_offset - 1)
    assert any("the state ends at" in text for text in texts(early, manifest, objects))
    assert any("there is none" in text for text in texts(state, None, objects))
    assert any("knows nothing" in text for text in texts(state._replace(known=False, segments=[]), manifest, objects))
    behind = [compare(later, manifest, objects), compare(state, None, {})]
    assert all(one.is_behind for found in behind for one in found), "the next manifest cures it"
    ahead = compare(early, manifest, objects)
    assert not any(one.is_behind for one in ahead)


async def test_a_manifest_that_says_something_else() -> None:
    _, state, manifest, objects = await world_of()
    segments: list[TieredSegment] = list(state.segments)
    told = texts(state._replace(segments=segments[:-1]), manifest, objects)
    assert any("__tier_state does not have segment [20, 30)" in text for text in told)
    extra = [*segments, segment(30, 40)]
    objects_too = objects | {extra[-1].id: extra[-1].object_bytes}
    told = texts(state._replace(segments=extra), manifest, objects_too)
    assert told == ["manifest: it does not name segment [30, 40) " + uuid_of(30)]
    changed = [replace(segments[0], log_crc32c=1234), *segments[1:]]
    assert any("other things" in text for text in texts(state._replace(segments=changed), manifest, objects))
    assert any("log start is 0" in text for text in texts(state._replace(log_start_offset=5), manifest, objects))


# restoring -------------------------------------------------------------------------------------------------


async def dropped() -> TierWorld:
    world, *_ = await world_of()
    world.drop()
    await ManifestWriter(world.services, world.view()).publish()
    return world


async def test_a_bucket_tells_what_it_holds() -> None:
    world = await dropped()
    assert await find_clusters(world.store) == ["cluster-1"]
    (topic,) = await find_topics(world.store, ROOT)
    assert (topic.name, topic.topic_id, topic.is_dropped) == ("flights", PATH.topic_id, True)
    assert [(p.log_start_offset, p.end_offset, p.leader_epoch) for p in topic.partitions.values()] == [(0, 30, 1)]
    assert await find_topics(world.store, ROOT, "other") == []


async def test_a_restored_topic_has_the_same_objects_and_no_producers() -> None:
    world = await dropped()
    (topic,) = await find_topics(world.store, ROOT)
    check_restorable(topic)
    done: list[tuple[int, int]] = []
    await copy_topic(world.store, ROOT, topic, NEW, lambda *progress: done.append(progress))
    assert done[-1] == (3, 3)
    await write_manifests(world.store, ROOT, topic, NEW, 5, lambda: uuid_of(1))
    path = PartitionPath("again", NEW.topic_id, 0)
    manifest = await read_manifest(world.store, ROOT, path)
    assert manifest is not None
    assert (manifest.head.log_start_offset, manifest.head.end_offset, manifest.head.dropped_ms) == (0, 30, 0)
    assert [found.id for found in manifest.segments] == [found.id for found in world.tier.segments(0)]
    for found in manifest.segments:
        assert PRODUCER_SNAPSHOT not in found.sections
        assert await world.store.get(ROOT.segment_key(path, found.id)) == b"x" * 10
    assert first_epochs(topic) == [2]
    await remove_copies(world.store, ROOT, NEW)
    assert [found.name for found in await find_topics(world.store, ROOT)] == ["flights"]


async def test_a_long_partition_is_restored_with_pages() -> None:
    world = TierWorld()
    world.claim(1)
    world.copy(range(1_700), 1)
    await world.upload()
    await ManifestWriter(world.services, world.view()).publish()
    (topic,) = await find_topics(world.store, ROOT)
    (partition,) = topic.partitions.values()
    assert partition.manifest is not None
    numbers = iter(range(1, 100))
    await write_manifests(world.store, ROOT, topic, NEW, 5, lambda: uuid_of(next(numbers)))
    manifest = await read_manifest(world.store, ROOT, PartitionPath("again", NEW.topic_id, 0))
    assert manifest is not None
    assert len(manifest.head.pages) == 2
    assert [found.id for found in manifest.segments] == [found.id for found in partition.manifest.segments]


async def test_what_is_gone_cannot_be_restored() -> None:
    world = await dropped()
    await ManifestWriter(world.services, world.view()).publish(empty=True)
    (topic,) = await find_topics(world.store, ROOT)
    with pytest.raises(CannotRestore, match="delay has passed"):
        check_restorable(topic)


async def test_an_object_that_went_meanwhile_is_told() -> None:
    world = await dropped()
    (topic,) = await find_topics(world.store, ROOT)
    first = next(iter(world.tier.segments(0)))
    await world.store.delete([ROOT.segment_key(PATH, first.id)])
    with pytest.raises(CannotRestore, match="is gone"):
        await copy_topic(world.store, ROOT, topic, NEW, lambda *_: None)
