"""What `tidelog tier rebuild` says of records that are not in the object store, partition by partition."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kraft.rebuilding.rebuild import CannotRebuild, NamedBroker
from records.events import Event, EventsHeader, encode_events
from tests.object_store.memory_store import MemoryStore
from tests.tiering.tier_world import PATH, ROOT, TierWorld
from tidelog.tier.rebuild import choose_cluster, look, prepare
from tiering.bucket.cluster_file import begin_incarnation
from tiering.exports.exports import METADATA, POSITIONS, ExportKey, export_key
from tiering.manifests.manifest_writer import ManifestWriter

SEEN_MS = 1_700_000_000_000
LOST = PATH._replace(partition=1)


async def bucket(*, objects: int, **position: int | None) -> MemoryStore:
    """Topic `flights`: partition 0 has 30 records in the tier; of partition 1 so many objects are left."""
    world = TierWorld()
    world.claim(1)
    world.copy([0, 10, 20], 10)
    await world.upload()
    await ManifestWriter(world.services, world.view()).publish()
    store = world.store
    for found in list(world.tier.segments(0))[:objects]:
        await store.put(ROOT.segment_key(LOST, found.id), b"x")
    topic_id = PATH.topic_id.hex()
    await export(store, METADATA, [
        {"event": "topic", "name": PATH.topic, "topic_id": topic_id},
        *({"event": "partition", "topic_id": topic_id, "partition": number, "replicas": [0], "leader_epoch": 1}
          for number in (0, 1)),
        {"event": "config", "resource_type": "topic", "resource_name": PATH.topic, "name": "remote.storage.enable",
         "value": "true"},
    ])  # fmt: skip
    if position:
        fields: dict[str, Any] = {"log_start_offset": 0, "tier_end_offset": None} | position
        of = {"event": "position", "topic": PATH.topic, "topic_id": topic_id, "leader_epoch": 1}
        await export(store, POSITIONS, [
            of | {"partition": 0, "log_start_offset": 0, "high_watermark": 30, "tier_end_offset": 30},
            of | {"partition": 1} | fields,
        ])  # fmt: skip
    return store


async def export(store: MemoryStore, kind: str, events: list[Event]) -> None:
    header = EventsHeader(kind=kind, cluster_id=ROOT.cluster_id, incarnation=1, scope=0, position=7, created_ms=SEEN_MS)
    await store.put(export_key(ROOT, ExportKey(kind, 1, 0, 7)), encode_events(header, events))


async def told(store: MemoryStore) -> tuple[list[str], dict[str, Any]]:
    """Of partition 1: the sentences, and its row."""
    prepared = await prepare(store, ROOT.cluster_id, 2, [NamedBroker(0)], random.Random(1))
    sentences = [text for text in prepared.report["not_there"] if text.startswith("flights-")]
    assert all(text.startswith("flights-1: ") for text in sentences), "partition 0 is whole"
    (topic,) = prepared.report["topics"]
    return [text.removeprefix("flights-1: ") for text in sentences], topic["partitions"][1]


EMPTY = "no manifest of it is in the object store, so it begins empty at offset 0"
AS_OF = "(as of 2023-11-14T22:13:20Z)"


@pytest.mark.parametrize(
    ("objects", "position", "wanted"),
    [
        (0, {}, [EMPTY, "no export shows whether it ever had records"]),
        (2, {}, [f"{EMPTY}; 2 segment objects are there, whose content is not known",
                 "no export shows whether it ever had records"]),
        (0, {"high_watermark": 0, "tier_end_offset": 0}, []),
        (0, {"high_watermark": 40}, [EMPTY, f"records 0 to 39 were on the brokers alone {AS_OF}"]),
        (1, {"high_watermark": 40, "tier_end_offset": 30},
         [f"{EMPTY}; 1 segment objects are there, whose content is not known",
          f"records 0 to 29 were in the object store {AS_OF}, and its manifest is gone",
          f"records 30 to 39 were on the brokers alone {AS_OF}"]),
        (0, {"high_watermark": 30, "tier_end_offset": 30, "log_start_offset": 10},
         [EMPTY, f"records 10 to 29 were in the object store {AS_OF}, and its manifest is gone"]),
    ],
)  # fmt: skip
async def test_what_was_in_the_store_is_told_from_what_was_on_the_brokers_alone(
    objects: int, position: dict[str, int | None], wanted: list[str]
) -> None:
    store = await bucket(objects=objects, **position)
    sentences, row = await told(store)
    assert sentences == wanted
    assert (row["log_start_offset"], row["end_offset"]) == (0, 0)
    assert (row["missing"] is not None) == any("records" in text and "to" in text.split() for text in wanted)


async def test_a_manifest_that_was_behind_is_told() -> None:
    store = await bucket(objects=0, high_watermark=0)
    of = {"event": "position", "topic": PATH.topic, "topic_id": PATH.topic_id.hex(), "leader_epoch": 2}
    await export(store, POSITIONS, [
        of | {"partition": 0, "log_start_offset": 0, "high_watermark": 50, "tier_end_offset": 40}
    ])  # fmt: skip
    prepared = await prepare(store, ROOT.cluster_id, 2, [NamedBroker(0)], random.Random(1))
    assert [text for text in prepared.report["not_there"] if text.startswith("flights-0")] == [
        f"flights-0: records 30 to 39 were in the object store {AS_OF}, and its manifest does not name them",
        f"flights-0: records 40 to 49 were on the brokers alone {AS_OF}",
    ]


async def test_a_damaged_cluster_file_is_told_by_its_name() -> None:
    store = MemoryStore()
    await begin_incarnation(store, ROOT, SEEN_MS)
    body, version = await store.get_with_version(ROOT.cluster_file)
    await store.replace(ROOT.cluster_file, body.replace(b"1", b"2", 1), version)
    for wanted in (None, ROOT.cluster_id):
        chosen = await choose_cluster(store, wanted)
        with pytest.raises(CannotRebuild, match=rf"{ROOT.cluster_file} in .*: its checksum does not fit"):
            await look(store, chosen, [], random.Random(1))
