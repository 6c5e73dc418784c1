"""Leaders, followers and their tier: what is copied, what survives whom, and what happens when the store does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.partitions.replica import Role
from common.errors import ErrorCode
from kraft.records import ConfigRecord, PartitionChangeRecord, PartitionRecord, ResourceType, TopicRecord
from records.batch import iterate_batches
from storage.producers.producer_snapshot import decode_snapshot
from tests.broker.replication_lab import TOPIC, TOPIC_ID, Lab, batch, eventually, produce, values_of
from tests.broker.tier_lab import PATH, ROOT, TINY, TierLab
from tiering.manifests.manifest import read_manifest
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import Adopt, FinishCopy, StartCopy
from tiering.upkeep.sweeper import Sweeper, SweepLimits, SweepReport

pytestmark = pytest.mark.virtual_time
VALUE = b"v" * 200


async def filled(lab: Lab, count: int = 20, node: int = 0) -> None:
    """`count` batches of one record each, acknowledged by all."""
    connection = await lab[node].connect()
    for _ in range(count):
        assert (await produce(connection, batch(VALUE))).error_code == ErrorCode.NONE


async def test_what_is_closed_and_committed_is_copied_byte_for_byte(tmp_path: Path) -> None:
    async with TierLab(tmp_path) as lab:
        lab.create_tiered(0)
        await filled(lab)
        await lab.copied()
        log, bucket = lab.partition().log, lab.bucket
        assert len(log.segments) > 3
        bucket.check()
        assert bucket.log_bytes() == lab[0].bytes()[: len(bucket.log_bytes())]
        assert bucket.tier.tier_end_offset == log.active.base_offset
        first = next(bucket.tier.segments())
        data = bucket.object(first)[: first.log_bytes]
        starts = [at for at, _ in iterate_batches(memoryview(data), 0, len(data))]
        assert bucket.index_positions(first) == starts[1:]
        assert (first.records, first.broker_id, first.leader_epoch) == (len(starts), 0, 0)
        await eventually(lambda: any("/manifest/" in key for key in bucket.store.objects))
        assert lab.tiers[0].service.copy_lag.bytes == 0


async def test_an_untiered_topic_is_left_alone(tmp_path: Path) -> None:
    async with TierLab(tmp_path) as lab:
        lab.controller.create_topic((0,), segment_bytes="1024")
        await filled(lab, 10)
        await asyncio.sleep(0.1)
        assert lab.bucket.requests == []
        assert await lab.drop_local() == 0
        lab.controller.change(ConfigRecord(ResourceType.TOPIC, TOPIC, "remote.storage.enable", "true"))
        await lab.copied()


async def test_local_copies_go_once_the_tier_holds_them_and_reads_say_so(tmp_path: Path) -> None:
    async with TierLab(tmp_path) as lab:
        lab.create_tiered(0, local_retention_ms="0")
        lab.tiers[0].store.faults.down = True
        await filled(lab)
        assert await lab.drop_local() == 0, "nothing is in the tier"
        lab.tiers[0].store.faults.down = False
        await lab.copied()
        before = len(lab.partition().log.segments)
        assert await lab.drop_local() == before - 1
        log = lab.partition().log
        assert (log.log_start_offset, log.local_log_start_offset) == (0, log.active.base_offset)


async def test_a_store_that_is_away_costs_neither_producers_nor_entries(tmp_path: Path) -> None:
    async with TierLab(tmp_path) as lab:
        lab.create_tiered(0)
        tier = lab.tiers[0]
        await filled(lab, 1)
        await eventually(lambda: lab.view() is not None)
        tier.store.faults.down = True
        await filled(lab, 30)
        await eventually(lambda: tier.service.copier.counts.failures > 5 or tier.service.led[0].failures > 5)
        assert tier.service.copy_lag.bytes > 0
        assert lab.bucket.count(StartCopy) <= 1
        tier.store.faults.down = False
        await lab.copied()
        lab.bucket.check()
        assert tier.service.copier.counts.refused_since_ms == 0
        assert len(lab.bucket.segment_keys()) == lab.bucket.tier.finished_count


async def test_an_upload_in_an_outage_goes_on_under_its_key(tmp_path: Path) -> None:
    async with TierLab(tmp_path) as lab:
        lab.create_tiered(0)
        tier = lab.tiers[0]
        await filled(lab, 1)
        await eventually(lambda: lab.view() is not None)
        tier.store.faults.full = True
        await filled(lab, 9)
        await eventually(lambda: tier.service.copier.counts.failures > 5)
        assert tier.service.copier.counts.refused_since_ms > 0
        assert lab.bucket.count(StartCopy) == 1
        tier.store.faults.full = False
        await lab.copied()
        assert len(lab.bucket.segment_keys()) == lab.bucket.tier.finished_count


async def test_lost_answers_of_the_shard_double_nothing(tmp_path: Path) -> None:
    async with TierLab(tmp_path) as lab:
        lab.create_tiered(0)
        await filled(lab, 1)
        await eventually(lambda: lab.view() is not None)
        lab.tiers[0].calls.lost = 6
        await filled(lab, 19)
        await lab.copied()
        lab.bucket.check()
        assert len(lab.bucket.segment_keys()) == lab.bucket.tier.finished_count


async def test_a_new_leader_goes_on_where_the_old_one_was(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await filled(lab, 10)
        await lab.copied()
        lab.partition(0).log.roll(lab.bucket.now_ms)  # the follower's segments end elsewhere
        await lab.copied()
        lab.controller.elect(1)
        await filled(lab, 10, node=1)
        await lab.copied(1)
        lab.bucket.check()
        assert lab.bucket.log_bytes() == lab[1].bytes()[: len(lab.bucket.log_bytes())]
        assert lab.view(0) is None
        assert [segment.leader_epoch for segment in lab.bucket.tier.segments()][-1] == 1


async def test_a_deposed_leader_cannot_finish_its_copy(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await filled(lab, 1)
        await eventually(lambda: lab.view() is not None)
        gate = asyncio.Event()

        async def wait(operation: str, key: str) -> None:
            if operation == "put" and key.endswith(".segment"):
                await gate.wait()

        lab.tiers[0].store.before = wait
        await filled(lab, 9)
        await eventually(lambda: bool(lab.bucket.tier.copying()))
        lab.controller.publishes = False
        lab.controller.elect(1)
        lab[1].catch_up(lab.controller.image)  # the old leader hears nothing
        await lab.copied(1)
        gate.set()
        await eventually(lambda: lab.bucket.count(FinishCopy) > lab.bucket.tier.finished_count)
        await asyncio.sleep(0.05)
        lab.bucket.check()
        assert all(segment.leader_epoch == 1 for segment in lab.bucket.tier.segments())
        assert lab.view(0) is None
        await eventually(lambda: not lab.bucket.tier.deleting())
        assert len(lab.bucket.segment_keys()) <= lab.bucket.tier.finished_count + 1  # a late upload is the sweeper's
        lab.controller.publishes = True
        lab.controller.publish()


@pytest.mark.parametrize("delay_s", [0, 0.013, 0.03, 0.06, 0.1])
async def test_a_new_replica_begins_where_the_tier_ends(tmp_path: Path, delay_s: float) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, local_retention_ms="0", message_timestamp_type="LogAppendTime")
        connection = await lab[0].connect()
        for number in range(20):
            await produce(connection, batch(VALUE, producer_id=5, producer_epoch=0, base_sequence=number))
        await lab.copied()
        tier_end = lab.bucket.tier.tier_end_offset
        assert await lab.drop_local(log_append_time=True) > 3
        assert lab.partition(0).log.local_log_start_offset == tier_end > 0
        lab.tiers[1].store.faults.delay_s = delay_s
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1)))
        await eventually(lambda: lab.controller.isr == (0, 1))
        old, new = lab.partition(0).log, lab.partition(1).log
        assert (new.log_start_offset, new.local_log_start_offset) == (0, tier_end)
        assert lab.tiers[1].service.started_from_tier == 1
        assert new.log_end_offset == old.log_end_offset == 20
        assert new.leader_epochs.entries() == old.leader_epochs.entries()
        assert decode_snapshot(new.producers.snapshot()) == decode_snapshot(old.producers.snapshot())
        assert lab.partition(1).tier_end_offset == lab.partition(0).tier_end_offset
        lab.controller.elect(1)
        row = await produce(await lab[1].connect(), batch(VALUE, producer_id=5, producer_epoch=0, base_sequence=19))
        assert (row.error_code, row.base_offset) == (0, 19), "a duplicate is known by its sequence"


async def test_followers_hear_of_the_tiers_end_and_drop_their_copies(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 3) as lab:
        lab.create_tiered(0, 1, 2, local_retention_ms="0")
        await filled(lab)
        await lab.copied()
        for node in (1, 2):
            await filled(lab, 1)
            await eventually(lambda: lab.partition(node).tier_end_offset == lab.bucket.tier.tier_end_offset)  # noqa: B023
            assert await lab.drop_local(node) > 0
            assert lab.partition(node).log.local_log_start_offset <= lab.bucket.tier.tier_end_offset


async def test_a_leader_that_lacks_what_the_tier_holds_begins_at_its_end(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await filled(lab, 5)
        await lab.kill(1)
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, isr=(0,)))
        await filled(lab)
        await lab.copied()
        tier_end = lab.bucket.tier.tier_end_offset
        epochs = lab.partition(0).log.leader_epochs.entries()
        await lab.kill(0)
        await lab[1].start()
        assert lab.partition(1).log.log_end_offset == 5
        lab.controller.elect(1, isr=(1,))  # the last known leader is gone for good
        await eventually(lambda: lab.partition(1).is_leader)
        partition = lab.partition(1)
        assert partition.log.log_start_offset == 0
        assert partition.log.local_log_start_offset == tier_end
        assert partition.high_watermark >= tier_end
        assert partition.log.leader_epochs.entries() == [*epochs, (1, tier_end)]
        await filled(lab, 10, node=1)
        await lab.copied(1)
        lab.bucket.check()
        assert lab.bucket.tier.tier_end_offset > tier_end
        assert "log_behind_tier" in [event for event, _ in lab[1].audited]


async def test_a_leader_that_went_another_way_than_the_tier_begins_at_its_end(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await filled(lab, 5)
        await lab.kill(0)
        lab.tiers[1].store.faults.down = True
        lab.controller.elect(1, isr=(1,))
        await eventually(lambda: lab.partition(1).is_leader)
        await filled(lab, 60, node=1)
        await lab.kill(1)
        await lab[0].start()
        lab.controller.elect(0, isr=(0,))
        await eventually(lambda: lab.partition(0).is_leader)
        await filled(lab)
        await lab.copied()
        tier_end, kept = lab.bucket.tier.tier_end_offset, lab.partition(0).log.leader_epochs.entries()
        await lab.kill(0)
        await lab[1].start()
        assert lab.partition(1).log.log_end_offset > tier_end > 5
        lab.controller.elect(1, isr=(1,))
        await eventually(lambda: lab.partition(1).is_leader)
        partition = lab.partition(1)
        assert partition.log.local_log_start_offset == tier_end
        assert partition.log.leader_epochs.entries()[: len(kept)] == kept
        await filled(lab, 10, node=1)
        await lab.copied(1)
        lab.bucket.check()
        assert "log_behind_tier" in [event for event, _ in lab[1].audited]


async def test_nobody_is_served_while_the_tier_has_not_said_what_it_holds(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await filled(lab, 2)
        await lab.kill(1)
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, isr=(0,)))
        await filled(lab)
        await lab.copied()
        await lab.kill(0)
        await lab[1].start()
        lab.tiers[1].store.faults.down = True
        lab.controller.elect(1, isr=(1,))
        row = await produce(await lab[1].connect(), batch(VALUE))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert lab.partition(1).role is Role.OFFLINE
        lab.tiers[1].store.faults.down = False
        await eventually(lambda: lab.partition(1).is_leader)
        row = await produce(await lab[1].connect(), batch(VALUE))
        assert row.error_code == ErrorCode.NONE


async def test_retention_moves_the_log_start_and_deletes_objects(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await filled(lab)
        await lab.copied()
        segments = list(lab.bucket.tier.segments())
        total = sum(segment.log_bytes for segment in segments) + lab.partition().log.active.size
        lab.controller.change(
            ConfigRecord(ResourceType.TOPIC, TOPIC, "retention.bytes", str(total - segments[0].log_bytes))
        )
        await eventually(lambda: lab.bucket.tier.finished_count == len(segments) - 1)
        await eventually(lambda: len(lab.bucket.segment_keys()) == len(segments) - 1)
        assert lab.partition().log.log_start_offset == segments[0].end_offset
        await eventually(lambda: lab.partition(1).log.log_start_offset == segments[0].end_offset)
        assert not lab.bucket.tier.deleting()
        manifest = await read_manifest(lab.bucket.store, ROOT, PATH) or pytest.fail("there is none")
        assert [segment.base_offset for segment in manifest.segments] == [s.base_offset for s in segments[1:]]
        newest = lab.tiers[0].publisher.published  # it catches up, and nothing more has to happen for that
        await eventually(lambda: newest(TOPIC_ID, 0).tier_state_offset == lab.bucket.tier.state_offset)  # type: ignore[union-attr]


async def test_objects_stay_for_the_delay_and_until_a_manifest_lacks_them(tmp_path: Path) -> None:
    async with TierLab(tmp_path) as lab:
        lab.create_tiered(0)
        await filled(lab)
        await lab.copied()
        tier = lab.tiers[0]

        async def no_manifests(operation: str, key: str) -> None:
            if operation == "put" and "/manifest" in key:
                await asyncio.Event().wait()

        tier.store.before = no_manifests
        count = len(lab.bucket.segment_keys())
        await tier.service.delete_records(lab.partition(), lab.bucket.tier.tier_end_offset, 5)
        await eventually(lambda: len(lab.bucket.tier.deleting()) == count)
        await asyncio.sleep(0.1)
        assert len(lab.bucket.segment_keys()) == count


async def test_delete_records_is_committed_before_it_is_done(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await filled(lab)
        await lab.copied()
        lab.tiers[0].calls.lost = 2
        await lab.tiers[0].service.delete_records(lab.partition(), 7, 5)
        assert lab.partition().log.log_start_offset == 7
        assert lab.bucket.tier.log_start_offset == 7
        lab.controller.elect(1)
        await eventually(lambda: lab.view(1) is not None)
        assert lab.partition(1).log.log_start_offset == 7


async def test_a_restored_partition_begins_with_what_its_manifest_says(tmp_path: Path) -> None:
    async with TierLab(tmp_path / "old") as old:
        old.create_tiered(0)
        await filled(old)
        await old.copied()
        await eventually(lambda: old.tiers[0].publisher.published(TOPIC_ID, 0) is not None)
        end = old.bucket.tier.tier_end_offset
        await eventually(lambda: old.tiers[0].publisher.published(TOPIC_ID, 0).end_offset == end)  # type: ignore[union-attr]
        store = old.bucket.store
    async with TierLab(tmp_path / "new") as lab:
        lab.bucket.store.objects = store.objects
        configs = [
            ConfigRecord(ResourceType.TOPIC, TOPIC, name.replace("_", "."), value) for name, value in TINY.items()
        ]
        lab.controller.change(
            TopicRecord(TOPIC, TOPIC_ID, adopts_tier=True), *configs, PartitionRecord(TOPIC_ID, 0, (0,), (0,), 0, 7, 0)
        )
        await eventually(lambda: lab.partition().is_leader)
        log = lab.partition().log
        assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, end, end)
        assert lab.bucket.count(Adopt) == 1
        await filled(lab, 10)
        await lab.copied()
        lab.bucket.check()
        assert values_of(lab.bucket.log_bytes())[:5] == [VALUE] * 5
        await lab.kill(0)
        await lab[0].start()
        await lab.copied()
        assert lab.bucket.count(Adopt) == 1


COPY_STEPS = [f"{when} {name}" for name in ("Claim", "StartCopy", "put", "FinishCopy") for when in ("before", "after")]
DELETE_STEPS = [
    f"{when} {name}"
    for name in ("MoveLogStart", "StartDelete", "delete", "FinishDelete")
    for when in ("before", "after")
]


async def swept(lab: TierLab) -> None:
    """Nothing is left that no manifest and no entry names, and all that they name is there."""
    await eventually(lambda: not lab.bucket.tier.copying() and not lab.bucket.tier.deleting())
    tier = lab.bucket.tier

    async def state() -> PartitionTier:
        return tier

    await Sweeper(lab.bucket.store, ROOT, SweepLimits(age_ms=0)).sweep_partition(PATH, state, 1, SweepReport())
    named = {ROOT.segment_key(PATH, segment.id) for segment in tier.segments(0)}
    assert named == set(lab.bucket.segment_keys())
    lab.bucket.check()


@pytest.mark.parametrize("returns", [True, False], ids=["it returns", "another leads"])
@pytest.mark.parametrize("point", COPY_STEPS)
async def test_a_leader_dies_at_a_step_of_a_copy(tmp_path: Path, point: str, returns: bool) -> None:
    async with TierLab(tmp_path, 2) as lab:
        reached = lab.tiers[0].freeze_at(point)
        lab.create_tiered(0, 1)
        await filled(lab)
        await asyncio.wait_for(reached.wait(), 10)
        await lab.kill(0)
        if returns:
            await lab[0].start()
        lab.controller.elect(0 if returns else 1)
        leader = 0 if returns else 1
        await eventually(lambda: lab.partition(leader).is_leader)
        await lab.copied(leader)
        log = lab.partition(leader).log
        assert lab.bucket.log_bytes() == lab[leader].bytes()[: len(lab.bucket.log_bytes())]
        assert lab.bucket.tier.tier_end_offset == log.active.base_offset
        await swept(lab)


@pytest.mark.parametrize("returns", [True, False], ids=["it returns", "another leads"])
@pytest.mark.parametrize("point", DELETE_STEPS)
async def test_a_leader_dies_at_a_step_of_a_deletion(tmp_path: Path, point: str, returns: bool) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await filled(lab)
        await lab.copied()
        reached = lab.tiers[0].freeze_at(point)
        start = list(lab.bucket.tier.segments())[1].end_offset + 1
        deleting = asyncio.ensure_future(lab.tiers[0].service.delete_records(lab.partition(), start, 5))
        await asyncio.wait_for(reached.wait(), 10)
        deleting.cancel()
        await lab.kill(0)
        leader = 0 if returns else 1
        if returns:
            await lab[0].start()
        lab.controller.elect(leader)
        await eventually(lambda: lab.view(leader) is not None)
        moved = point != "before MoveLogStart"
        assert lab.partition(leader).log.log_start_offset == (start if moved else 0)
        await lab.tiers[leader].service.delete_records(lab.partition(leader), start, 5)
        await eventually(lambda: not list(lab.bucket.tier.segments_below_log_start()))
        assert lab.bucket.tier.log_start_offset == lab.partition(leader).log.log_start_offset == start
        await swept(lab)
        assert next(lab.bucket.tier.segments()).base_offset <= start
