"""What a bucket holds, by names alone: topics of tenants, and nothing of the directories beside them."""

from __future__ import annotations

import pytest

from tests.object_store.memory_store import MemoryStore
from tests.tiering.tier_world import ROOT
from tiering.bucket.keys import NOT_TENANTS, PartitionPath
from tiering.upkeep.inventory import TopicPlace, find_topics, list_partitions

ONE, OTHER = bytes(range(16)), bytes(range(16, 32))


async def test_partitions_are_listed_by_their_topics() -> None:
    store = MemoryStore()
    paths = [
        PartitionPath("flights", ONE, 0),
        PartitionPath("flights", ONE, 12),
        PartitionPath("flights", OTHER, 3, "lkc-1"),
        PartitionPath("planes", OTHER, 0),
    ]
    for path in paths:
        await store.put(ROOT.manifest_prefix(path) + "0" * 20, b"")
    found = await list_partitions(store, ROOT)
    assert {topic: sorted(of_topic) for topic, of_topic in found.items()} == {
        TopicPlace("flights", ONE, ""): paths[:2],
        TopicPlace("flights", OTHER, "lkc-1"): [paths[2]],
        TopicPlace("planes", OTHER, ""): [paths[3]],
    }
    assert list(await list_partitions(store, ROOT, "planes")) == [TopicPlace("planes", OTHER, "")]


@pytest.mark.parametrize("reserved", sorted(NOT_TENANTS))
async def test_what_lies_beside_the_tenants_is_no_topic(reserved: str) -> None:
    store = MemoryStore()
    key = f"{ROOT.prefix}{reserved}/flights-{ONE.hex()}/0/manifest/{0:020d}"
    await store.put(key, b"")
    assert not await list_partitions(store, ROOT)
    assert not await find_topics(store, ROOT)
    assert ROOT.parse_key(key) is None
    with pytest.raises(ValueError, match="a tenant cannot have the name"):
        ROOT.tenant_prefix(reserved)
