"""Each way in which manifest, state and objects can disagree is found and named; and a restored topic agrees."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from records.events import EventsHeader, encode_events
from tests.tiering.segments import segment, uuid_of
from tests.tiering.tier_world import PATH, ROOT, TierWorld
from tiering.bucket.keys import PartitionPath
from tiering.bucket.segment import PRODUCER_SNAPSHOT, SegmentId, TieredSegment
from tiering.exports.exports import METADATA, POSITIONS, ExportKey, export_key
from tiering.manifests.manifest import HEAD_SEGMENTS_MAX, Manifest, read_manifest
from tiering.manifests.manifest_writer import ManifestWriter
from tiering.shard.partition_tier import PartitionTier
from tiering.upkeep.checking import State, compare
from tiering.upkeep.inventory import FoundTopic, find_clusters, find_topics
from tiering.upkeep.restoring import (
    CannotRestore,
    NewTopic,
    ObjectsLost,
    PartitionsLost,
    check_restorable,
    check_whole,
    copy_topic,
    first_epochs,
    known_partitions,
    remove_copies,
    write_manifests,
)

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
    assert "is unreferenced" in found.text


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


async def test_segments_of_two_histories() -> None:
    _, state, manifest, objects = await world_of()
    first, second, third = manifest.segments
    other = replace(second, epochs=[(7, 10)])
    odd = manifest._replace(segments=(first, other, third))
    assert texts(state._replace(segments=[first, other, third]), odd, objects) == [
        f"manifest: leader epochs of segment [20, 30) {third.uuid} cannot follow those of the segment before"
    ]


# restoring -------------------------------------------------------------------------------------------------


async def dropped() -> TierWorld:
    world, *_ = await world_of()
    world.drop()
    await ManifestWriter(world.services, world.view()).publish()
    return world


async def test_a_bucket_tells_what_it_holds() -> None:
    world = await dropped()
    assert await find_clusters(world.store) == ["cluster-1"]
    body, version = await world.store.get_with_version(ROOT.cluster_file)
    damaged = await world.store.replace(ROOT.cluster_file, body[:20] + body[21:], version)
    assert await find_clusters(world.store) == ["cluster-1"], "who reads it is told"
    await world.store.replace(ROOT.cluster_file, body, damaged.version)
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
    world.copy(range(2 * HEAD_SEGMENTS_MAX), 1)
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


async def sized(world: TierWorld) -> TierWorld:
    """Each object as large as the manifest says."""
    for found in world.tier.segments(0):
        await world.store.put(ROOT.segment_key(PATH, found.id), b"x" * found.object_bytes)
    return world


async def lost(world: TierWorld, partition: int) -> PartitionPath:
    """Another partition of the topic, of which the segment objects alone are there."""
    path = PATH._replace(partition=partition)
    for found in world.tier.segments(0):
        await world.store.put(ROOT.segment_key(path, found.id), b"x" * 10)
    return path


async def whole(world: TierWorld, known: set[int] | None = None, without: list[int] | None = None) -> FoundTopic:
    (topic,) = await find_topics(world.store, ROOT)
    check_restorable(topic, without or [])
    await check_whole(world.store, ROOT, topic, known or set(), without or [])
    return topic


async def test_a_partition_whose_manifests_are_gone_is_no_empty_one() -> None:
    world = await sized(await dropped())
    await lost(world, 1)
    with pytest.raises(PartitionsLost, match=r"partition 1 \(3 segment objects are there\)") as told:
        await whole(world)
    assert told.value.partitions == [1]
    topic = await whole(world, without=[1])
    assert [(index, found.end_offset) for index, found in topic.partitions.items()] == [(0, 30), (1, 0)]
    assert first_epochs(topic) == [2, 1]


async def test_a_partition_of_which_nothing_is_there_is_missed_below_others_and_where_others_know_of_it() -> None:
    world = await sized(await dropped())
    await lost(world, 3)
    with pytest.raises(PartitionsLost) as told:
        await whole(world, without=[3])
    assert told.value.partitions == [1, 2]
    with pytest.raises(PartitionsLost) as told:
        await whole(world, {0, 5}, without=[1, 2, 3])
    assert told.value.partitions == [4, 5]
    topic = await whole(world, {5}, without=[1, 2, 3, 4, 5])
    assert list(topic.partitions) == [0, 1, 2, 3, 4, 5]
    assert [found.path.partition for found in topic.partitions.values()] == [0, 1, 2, 3, 4, 5]


async def test_what_is_there_is_not_left_out() -> None:
    world = await sized(await dropped())
    with pytest.raises(CannotRestore, match="partition 0 is not lost"):
        await whole(world, without=[0])


async def test_a_manifest_that_cannot_be_read_can_be_left_out() -> None:
    world = await sized(await dropped())
    path = PATH._replace(partition=1)
    await world.store.put(ROOT.manifest_key(path, 1), b"no manifest")
    with pytest.raises(CannotRestore, match="partition 1"):
        await whole(world)
    topic = await whole(world, without=[1])
    assert (topic.partitions[1].end_offset, topic.partitions[1].trouble) == (0, "")


@pytest.mark.parametrize("kind", [METADATA, POSITIONS])
async def test_every_kept_export_tells_of_partitions(kind: str) -> None:
    world = await sized(await dropped())
    name = {METADATA: "partition", POSITIONS: "position"}[kind]
    for position, topic_id, index in ((1, PATH.topic_id, 4), (2, bytes(16), 9), (3, PATH.topic_id, 2)):
        event = {"event": name, "topic_id": topic_id.hex(), "partition": index}
        header = EventsHeader(
            kind=kind, cluster_id=ROOT.cluster_id, incarnation=1, scope=0, position=position, created_ms=5
        )
        key = export_key(ROOT, ExportKey(kind, 1, 0, position))
        await world.store.put(key, encode_events(header, [event]))
    await world.store.put(export_key(ROOT, ExportKey(kind, 1, 0, 4)), b"damaged")
    assert await known_partitions(world.store, ROOT, PATH.topic_id) == {2, 4}


async def test_objects_that_are_gone_or_of_another_size_are_all_named_before_anything_is_copied() -> None:
    world = await sized(await dropped())
    first, second, third = (ROOT.segment_key(PATH, found.id) for found in world.tier.segments(0))
    await world.store.put(first, b"x" * 9)
    await world.store.delete([third])
    with pytest.raises(CannotRestore) as told:
        await whole(world)
    assert "has 9 bytes, not 1050" in str(told.value)
    assert "[20, 30)" in str(told.value)
    assert "is missing" in str(told.value)
    assert "[10, 20)" not in str(told.value)
    assert second in world.store.objects


@pytest.mark.parametrize("gone", [{0}, {1}, {2}, {0, 1}, {0, 2}, {0, 1, 2}])
async def test_with_holes_a_log_begins_behind_the_last_one_and_what_is_left_out_is_told(gone: set[int]) -> None:
    world = await sized(await dropped())
    segments = list(world.tier.segments(0))
    await world.store.delete([ROOT.segment_key(PATH, segments[at].id) for at in gone])
    with pytest.raises(ObjectsLost):
        await whole(world)
    (topic,) = await find_topics(world.store, ROOT)
    (left_out,) = await check_whole(world.store, ROOT, topic, set(), allow_holes=True)
    start = segments[max(gone)].end_offset
    assert (left_out.partition, left_out.start, left_out.end) == (0, 0, start)
    assert [str(segments[at].uuid) in str(left_out) for at in range(3)] == [at in gone for at in range(3)]
    await copy_topic(world.store, ROOT, topic, NEW, lambda *_: None)
    await write_manifests(world.store, ROOT, topic, NEW, 5, lambda: "0" * 32)
    (restored,) = await find_topics(world.store, ROOT, NEW.name)
    partition = restored.partitions[0]
    assert partition.manifest is not None
    assert (partition.log_start_offset, partition.end_offset) == (start, segments[-1].end_offset)
    assert [one.id for one in partition.manifest.segments] == [one.id for one in segments[max(gone) + 1 :]]
    assert await check_whole(world.store, ROOT, restored, set()) == []


async def test_what_is_whole_loses_nothing_where_holes_are_allowed() -> None:
    world = await sized(await dropped())
    (topic,) = await find_topics(world.store, ROOT)
    before = dict(topic.partitions)
    assert await check_whole(world.store, ROOT, topic, set(), allow_holes=True) == []
    assert topic.partitions == before


async def test_no_more_objects_are_named_than_one_can_read() -> None:
    world = await sized((await world_of(count=25))[0])
    await world.store.delete([ROOT.segment_key(PATH, found.id) for found in world.tier.segments(0)])
    with pytest.raises(CannotRestore, match="; and 15 more") as told:
        await whole(world)
    assert str(told.value).count("is missing") == 10
