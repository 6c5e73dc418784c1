"""Topics for which tiering is disabled: the tier is emptied and the log begins where all replicas that count hold it,
whoever leads meanwhile and whenever it is enabled again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from broker.handlers.tier_description import _led_status
from broker.partitions.partition import Partition
from common.errors import ErrorCode, ProtocolError
from tests.broker.replication_lab import eventually
from tests.broker.test_broker_tier import filled
from tests.broker.test_broker_tier_copy_disable import configure
from tests.broker.tier_lab import TierLab
from tiering.manifests.manifest import ManifestHead
from tiering.shard.shard_protocol import Empty

pytestmark = pytest.mark.virtual_time


def disable(lab: TierLab, generation: int = 1) -> None:
    """As the controllers do it, in one batch."""
    configure(
        lab, remote_storage_enable="false", remote_log_delete_on_disable="true", tidelog_tier_generation=str(generation)
    )


async def half_local(lab: TierLab, *nodes: int) -> int:
    """Records in the tier, of which `nodes` have given up different parts; where the tier ends."""
    await filled(lab, 30)
    await lab.copied()
    for node in nodes:
        partition = lab.partition(node)
        await eventually(partial(knows_tier_end, lab, partition))
        log = partition.log
        keep = sum(one.size for one in log.segments[3 + 2 * node :])
        configure(lab, local_retention_bytes=str(keep))
        await lab.drop_local(node)
        assert log.local_log_start_offset > 0
    return lab.bucket.tier.tier_end_offset


def knows_tier_end(lab: TierLab, partition: Partition) -> bool:
    return partition.tier_end_offset == lab.bucket.tier.tier_end_offset


def starts(lab: TierLab, *nodes: int) -> set[int]:
    return {lab.partition(node).log.log_start_offset for node in nodes}


def published(lab: TierLab) -> ManifestHead:
    found = lab.tiers[0].publisher.published(lab.bucket.tier.topic_id, 0)
    assert found is not None
    return found


def is_refused(partition: Partition, offset: int) -> bool:
    try:
        partition.read_committed(offset, 1_000_000, stable=False, at_least_one=True)
    except ProtocolError as error:
        return error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    return False


async def test_the_log_begins_where_all_in_sync_hold_it_and_the_tier_is_emptied(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        tier_end = await half_local(lab, 0, 1)
        held = [lab.partition(node).log.local_log_start_offset for node in (0, 1)]
        assert held[0] < held[1] < tier_end
        disable(lab)
        await eventually(lambda: starts(lab, 0, 1) == {held[1]})
        tier = lab.bucket.tier
        assert (tier.log_start_offset, tier.tier_end_offset, tier.generation) == (held[1], held[1], 1)
        await eventually(lambda: not lab.bucket.segment_keys() and not tier.deleting())
        head = published(lab) if lab.tiers[0].service.led else None
        assert head is None or not (head.segments or head.pages)
        await eventually(lambda: not lab.tiers[0].service.led, "nothing is left to look after")
        for node in (0, 1):
            assert lab.partition(node).log.local_log_start_offset == held[1]
        assert is_refused(lab.partition(0), held[1] - 1)
        assert not is_refused(lab.partition(0), held[1])


async def test_tiering_begins_anew_where_the_log_does(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        old_end = await half_local(lab, 0)
        start = lab.partition(0).log.local_log_start_offset
        disable(lab)
        await eventually(lambda: starts(lab, 0, 1) == {start})
        assert lab.partition(1).tier_end_offset in (-1, start), "it has forgotten where the tier ended"
        copies = lab.tiers[0].freeze_at("before StartCopy")
        configure(lab, remote_storage_enable="true", local_retention_bytes="0")
        await copies.wait()
        for node in (0, 1):
            assert await lab.drop_local(node) == 0, "nothing of it is in the tier"
        lab.tiers[0].calls.before = None
        lab.controller.elect(1)
        await lab.copied(1)
        tier = lab.bucket.tier
        assert (next(tier.segments()).base_offset, tier.generation) == (start, 1)
        assert tier.tier_end_offset >= old_end
        lab.bucket.check()


async def test_enabling_it_again_at_once_empties_the_tier_all_the_same(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await half_local(lab, 0)
        start, before = lab.partition(0).log.local_log_start_offset, set(lab.bucket.segment_keys())
        configure(lab, remote_log_delete_on_disable="true", tidelog_tier_generation="1")
        await eventually(lambda: starts(lab, 0, 1) == {start})
        await lab.copied()
        await eventually(lambda: not before & set(lab.bucket.segment_keys()))
        lab.bucket.check()


def waits_for(lab: TierLab) -> str:
    """As the leader's status shows it."""
    tier = lab.tiers[0]
    return "".join(_led_status(led, tier.publisher, ()).waits_for or "" for led in tier.service.led)


async def test_a_replica_in_sync_that_is_silent_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await half_local(lab, 0)
        await lab.kill(1)
        disable(lab)
        await eventually(lambda: "brokers [1] of ISR" in waits_for(lab))
        logged = [one for one in caplog.records if one.message == "the tier waits"]
        assert "brokers [1] of ISR" in logged[0].cause  # type: ignore[attr-defined]
        assert lab.bucket.count(Empty) == 0
        assert lab.bucket.segment_keys()
        assert lab.partition(0).log.log_start_offset == 0
        await lab[1].start()
        await eventually(lambda: lab.bucket.tier.generation == 1)
        await eventually(lambda: not waits_for(lab))


@pytest.mark.parametrize("point", ["before Empty", "after Empty"])
async def test_a_leader_dies_while_the_tier_is_emptied(tmp_path: Path, point: str) -> None:
    async with TierLab(tmp_path, 3) as lab:
        lab.create_tiered(0, 1, 2)
        await half_local(lab, 0, 1)
        held = lab.partition(1).log.local_log_start_offset
        reached = lab.tiers[0].freeze_at(point)
        disable(lab)
        await reached.wait()
        await lab.kill(0)
        lab.controller.elect(2, isr=(1, 2))
        await eventually(lambda: starts(lab, 1, 2) == {held})
        await eventually(lambda: not lab.bucket.segment_keys())
        assert lab.bucket.tier.generation == 1


async def test_a_replica_that_lacks_more_than_the_rest_starts_again(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 3) as lab:
        lab.create_tiered(0, 1, 2)
        await half_local(lab, 0, 2)
        lacking = lab.partition(2).log.local_log_start_offset
        start = lab.partition(0).log.local_log_start_offset
        await lab.kill(2)
        lab.controller.elect(0, isr=(0, 1))
        disable(lab)
        await eventually(lambda: starts(lab, 0, 1) == {start})
        assert start < lacking
        await lab[2].start()
        await eventually(lambda: lab.partition(2).log.local_log_start_offset == start)
        await eventually(lambda: lab.partition(2).log.log_end_offset == lab.partition(0).log.log_end_offset)
        assert lab[2].bytes() == lab[0].bytes()[-len(lab[2].bytes()) :]
