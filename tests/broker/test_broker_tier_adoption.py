"""A partition whose records are in the tier alone serves nobody, and takes nothing, before it knows them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.partitions.replica import Role
from common.errors import ErrorCode
from kraft.batches import MetadataRecord
from kraft.records import ClusterRecord, ConfigRecord, PartitionChangeRecord, PartitionRecord, ResourceType, TopicRecord
from tests.broker.replication_lab import (
    NOW_MS,
    TOPIC,
    TOPIC_ID,
    Lab,
    batch,
    eventually,
    fetch,
    list_offset,
    produce,
    row_of,
)
from tests.broker.test_broker_tier_copy_disable import configure
from tests.broker.test_broker_tier_disable import disable, half_local
from tests.broker.tier_lab import ROOT, TINY, TierLab
from tiering.bucket.cluster_file import begin_incarnation, set_incarnation
from tiering.shard.shard_protocol import Adopt

pytestmark = pytest.mark.virtual_time

CONFIGS = [ConfigRecord(ResourceType.TOPIC, TOPIC, name.replace("_", "."), value) for name, value in TINY.items()]


def rebuilt(*replicas: int, leader: int = -1) -> list[MetadataRecord]:
    """As a rebuild makes it: nobody has led it."""
    isr = () if leader < 0 else (leader,)
    return [
        TopicRecord(TOPIC, TOPIC_ID, adopts_tier=True),
        *CONFIGS,
        PartitionRecord(TOPIC_ID, 0, replicas, isr, leader, 101, 0),
    ]


async def filled_bucket(root: Path) -> tuple[dict[str, tuple[bytes, int]], int]:
    """The objects of an old cluster, and where its tier ended."""
    async with TierLab(root) as old:
        old.create_tiered(0)
        connection = await old[0].connect()
        for _ in range(20):
            assert (await produce(connection, batch(b"v" * 200))).error_code == ErrorCode.NONE
        await old.copied()
        end = old.bucket.tier.tier_end_offset

        def is_published() -> bool:
            published = old.tiers[0].publisher.published(TOPIC_ID, 0)
            return published is not None and published.end_offset == end

        await eventually(is_published)
        return old.bucket.store.objects, end  # type: ignore[return-value]


async def emptied_bucket(root: Path) -> tuple[dict[str, tuple[bytes, int]], int]:
    """What is left of an old cluster's topic for which tiering was disabled, and where its log began then."""
    async with TierLab(root) as old:
        old.create_tiered(0)
        await half_local(old, 0)
        disable(old)
        await eventually(lambda: not old.tiers[0].service.led, "nothing is left to look after")
        return old.bucket.store.objects, old.bucket.tier.tier_end_offset  # type: ignore[return-value]


async def refused(lab: Lab, node: int = 0) -> None:
    """Whatever a client may ask is refused with an error that has it ask again."""
    client = await lab[node].connect()
    again = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
    for rack in ("", "a"):
        assert row_of(await fetch(client, 0, max_wait_ms=0, rack=rack)).error_code in again
    for timestamp in (-1, -2, -3, 0):
        assert (await list_offset(client, timestamp)).error_code in again
    assert (await produce(client, batch(b"too early"))).error_code in again


async def test_a_broker_without_a_tier_does_not_lead_what_is_only_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.change(*rebuilt(0, leader=0))
        await eventually(lambda: lab[0].plane.partitions.get(TOPIC, 0) is not None)
        assert lab[0].partition.role is Role.OFFLINE
        await refused(lab)
        assert "cannot begin without the tier" in caplog.text


async def test_a_partition_that_is_to_adopt_does_so_whatever_its_settings_say(tmp_path: Path) -> None:
    objects, end = await filled_bucket(tmp_path / "old")
    async with TierLab(tmp_path / "new") as lab:
        lab.bucket.store.objects = objects  # type: ignore[assignment]
        records = [record for record in rebuilt(0, leader=0) if not isinstance(record, ConfigRecord)]
        lab.controller.change(*records)
        await eventually(lambda: lab.partition().is_leader)
        assert (lab.partition().log.log_start_offset, lab.partition().log.log_end_offset) == (0, end)
        lab.controller.change(*CONFIGS)
        await eventually(lambda: lab.view() is not None)
        assert (lab.partition().log.log_start_offset, lab.partition().log.log_end_offset) == (0, end)


@pytest.mark.parametrize("made_anew", [False, True])
async def test_an_empty_store_is_not_taken_for_an_empty_tier(tmp_path: Path, made_anew: bool) -> None:
    """A mount that is not there yet is an empty directory."""
    objects, end = await filled_bucket(tmp_path / "old")
    async with TierLab(tmp_path / "new") as lab:
        store, incarnation = lab.bucket.store, 1 + made_anew
        if made_anew:
            await set_incarnation(store, ROOT, None, None, incarnation, NOW_MS)
        lab.controller.change(ClusterRecord("cluster-1", incarnation), *rebuilt(0, leader=0))
        await eventually(lambda: lab.tiers[0].service.led and lab.tiers[0].service.led[0].failures > 2)
        assert lab.partition().role is Role.OFFLINE
        await refused(lab)
        store.objects.clear()
        store.objects.update(objects)  # type: ignore[arg-type]
        await eventually(lambda: lab.partition().is_leader)
        assert (lab.partition().log.log_start_offset, lab.partition().log.log_end_offset) == (0, end)


@pytest.mark.parametrize("point", ["before Claim", "after Claim", "before Adopt", "after Adopt"])
async def test_leaders_that_change_while_they_adopt_show_nothing_or_all(tmp_path: Path, point: str) -> None:
    objects, end = await filled_bucket(tmp_path / "old")
    async with TierLab(tmp_path / "new", 2) as lab:
        lab.bucket.store.objects = objects  # type: ignore[assignment]
        reached = lab.tiers[0].freeze_at(point)

        def lead(node: int) -> None:
            lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, isr=(node,), leader=node))

        lab.controller.change(*rebuilt(0, 1))
        await eventually(lambda: lab[0].plane.partitions.get(TOPIC, 0) is not None)
        lead(0)
        await asyncio.wait_for(reached.wait(), 10)
        assert lab.partition(0).role is Role.OFFLINE
        await refused(lab, 0)
        lead(1)
        await eventually(lambda: lab.partition(1).is_leader)
        assert lab.partition(0).log.log_end_offset in (0, end)
        await refused(lab, 0)
        log = lab.partition(1).log
        assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, end, end)
        client = await lab[1].connect()
        assert (await list_offset(client, -2)).offset == 0
        assert (await list_offset(client, -1)).offset == end
        assert lab.bucket.count(Adopt) >= 1


@pytest.mark.parametrize("enabled", [False, True])
async def test_a_rebuilt_topic_begins_where_its_tier_was_emptied_and_publishes_again(
    tmp_path: Path, *, enabled: bool
) -> None:
    """No offset comes again: below the log's start in the tier, new records would be lost with the next claim."""
    objects, end = await emptied_bucket(tmp_path / "old")
    assert end > 0
    async with TierLab(tmp_path / "new", 2) as lab:
        lab.bucket.store.objects = objects  # type: ignore[assignment]
        incarnation = (await begin_incarnation(lab.bucket.store, ROOT, NOW_MS)).incarnation
        settings = {"remote.storage.enable": str(enabled).lower(), "tidelog.tier.generation": "1"}
        changed = [ConfigRecord(ResourceType.TOPIC, TOPIC, *setting) for setting in settings.items()]
        lab.controller.change(ClusterRecord("cluster-1", incarnation), *rebuilt(0, 1, leader=0)[:-1], *changed)
        lab.controller.change(rebuilt(0, 1, leader=0)[-1])
        await eventually(lambda: lab.partition(0).is_leader)
        log = lab.partition(0).log
        assert (log.log_start_offset, log.log_end_offset) == (end, end)
        client = await lab[0].connect()
        for number in range(20):
            assert (await produce(client, batch(b"v" * 200))).base_offset == end + number
        if not enabled:
            assert not lab.bucket.segment_keys()
            configure(lab, remote_storage_enable="true")
        await lab.copied(0)
        await eventually(lambda: lab.controller.isr == (0, 1))
        tier = lab.bucket.tier
        assert (tier.log_start_offset, next(tier.segments()).base_offset, tier.generation) == (end, end, 1)

        def is_published() -> bool:
            head = lab.tiers[0].publisher.published(TOPIC_ID, 0)
            return head is not None and (head.incarnation, head.end_offset) == (incarnation, tier.tier_end_offset)

        await eventually(is_published)
        lab.controller.elect(1)
        await eventually(lambda: lab.view(1) is not None)
        assert lab.partition(1).log.log_start_offset == end
        lab.bucket.check()
