"""Topics whose tier is read-only: nothing is copied any more, nothing that is not in the tier is lost for that, and
retention goes on over tier and disk together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kraft.records import ConfigRecord, ResourceType
from storage.log.log_config import LogConfig
from tests.broker.replication_lab import TOPIC, eventually
from tests.broker.test_broker_tier import filled
from tests.broker.tier_lab import TierLab
from tiering.shard.shard_protocol import StartCopy

pytestmark = pytest.mark.virtual_time

DISABLE = "remote.log.copy.disable"


def configure(lab: TierLab, **configs: str | None) -> None:
    lab.controller.change(
        *(ConfigRecord(ResourceType.TOPIC, TOPIC, name.replace("_", "."), value) for name, value in configs.items())
    )


async def looked_after(lab: TierLab, node: int = 0) -> None:
    """Until the leader has looked twice at what retention asks for, so that one look lies wholly behind this call."""
    led = lab.tiers[node].service.led[0]
    for before in (led.retained_at, None):
        since = led.retained_at if before is None else before

        def looked(since: float = since) -> bool:
            return led.retained_at > since and not led.is_maintained

        await eventually(looked)


async def disabled(lab: TierLab) -> int:
    """Some segments are in the tier, some that came later are not; where the tier ends."""
    await filled(lab, 10)
    await lab.copied()
    configure(lab, remote_log_copy_disable="true")
    tier_end = lab.bucket.tier.tier_end_offset
    await filled(lab, 20)
    assert len([one for one in lab.partition().log.segments if one.base_offset >= tier_end]) > 3
    await looked_after(lab)
    return tier_end


async def test_nothing_more_is_copied_until_it_is_enabled_again(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        tier_end = await disabled(lab)
        copies, service = lab.bucket.count(StartCopy), lab.tiers[0].service
        assert (lab.bucket.tier.tier_end_offset, service.copy_lag.bytes) == (tier_end, 0)
        lab.controller.elect(1)
        await eventually(lambda: lab.view(1) is not None)
        await looked_after(lab, 1)
        assert (lab.bucket.tier.tier_end_offset, lab.bucket.count(StartCopy)) == (tier_end, copies)
        configure(lab, remote_log_copy_disable="false")
        await lab.copied(1)
        lab.bucket.check()
        assert lab.bucket.log_bytes() == lab[1].bytes()[: len(lab.bucket.log_bytes())]


async def test_brokers_keep_what_is_not_in_the_tier(tmp_path: Path) -> None:
    async with TierLab(tmp_path) as lab:
        lab.create_tiered(0)
        tier_end = await disabled(lab)
        configure(lab, local_retention_ms="0")  # as a default of the cluster might say later
        assert await lab.drop_local() == 0, "retention.ms holds, which is without bound"
        log = lab.partition().log
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 0)
        configure(lab, remote_log_copy_disable="false")
        await lab.copied()
        await lab.drop_local()
        assert log.local_log_start_offset == log.active.base_offset > tier_end


async def test_retention_by_size_counts_tier_and_disk_together(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        tier_end = await disabled(lab)
        log, in_tier = lab.partition().log, list(lab.bucket.tier.segments())
        local = [one for one in log.segments if one.base_offset >= tier_end]
        configure(lab, retention_bytes=str(sum(one.size for one in local) + in_tier[-1].log_bytes))
        await eventually(lambda: lab.bucket.tier.log_start_offset == in_tier[-1].base_offset)
        configure(lab, retention_bytes=str(sum(one.size for one in local[2:])))
        start = local[2].base_offset
        await eventually(lambda: log.log_start_offset == start > tier_end)
        await eventually(lambda: lab.partition(1).log.log_start_offset == start)
        await eventually(lambda: not lab.bucket.segment_keys(), "the tier is empty")
        assert log.local_log_start_offset == start
        configure(lab, remote_log_copy_disable="false", retention_bytes="-1")
        await lab.copied()
        assert next(lab.bucket.tier.segments()).base_offset == start
        lab.bucket.check()


async def test_retention_by_time_reaches_the_active_segment(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await disabled(lab)
        end = lab.partition().log.log_end_offset
        configure(lab, retention_ms="1000")  # the clients' records are years old
        await eventually(lambda: lab.partition(0).log.log_start_offset == end)
        await eventually(lambda: lab.partition(1).log.log_start_offset == end)
        assert lab.bucket.tier.log_start_offset == end
        assert lab.partition().log.local_log_start_offset == end
        lab.controller.elect(1)
        configure(lab, retention_ms="-1")  # else what is produced now goes as well
        await filled(lab, 5, node=1)
        configure(lab, remote_log_copy_disable="false")
        await filled(lab, 5, node=1)
        await lab.copied(1)
        assert next(lab.bucket.tier.segments()).base_offset == end


async def test_the_rest_of_a_segment_that_the_tiers_end_lies_in_goes_in_its_turn(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1, segment_bytes="4096")
        await filled(lab, 5)
        lab.partition(0).log.roll(lab.bucket.now_ms)  # the follower's segment goes on
        await lab.copied()
        assert lab.bucket.tier.tier_end_offset == 5
        configure(lab, remote_log_copy_disable="true")
        await filled(lab, 30)
        lab.controller.elect(1)
        await eventually(lambda: lab.view(1) is not None)
        log = lab.partition(1).log
        assert log.segments[0].base_offset < 5 < log.segments[1].base_offset
        rest = log.segments[0].size - log.segments[0].find(5) + sum(one.size for one in log.segments[1:])
        configure(lab, retention_bytes=str(rest))
        await eventually(lambda: lab.bucket.tier.log_start_offset == 5)
        await looked_after(lab, 1)
        assert log.log_start_offset == 5, "what is in both was counted once"
        configure(lab, retention_bytes=str(sum(one.size for one in log.segments[1:])))
        start = log.segments[1].base_offset
        await eventually(lambda: log.log_start_offset == start)


@pytest.mark.parametrize("state", ["down", "full"])
async def test_a_copy_that_waits_for_the_store_is_given_up(tmp_path: Path, state: str) -> None:
    async with TierLab(tmp_path) as lab:
        lab.create_tiered(0)
        await filled(lab, 1)
        await eventually(lambda: lab.view() is not None)
        tier = lab.tiers[0]

        async def away(operation: str, key: str) -> None:
            if operation == "put" and key.endswith(".segment"):
                setattr(tier.store.faults, state, True)

        tier.store.before = away
        await filled(lab, 9)
        await eventually(lambda: tier.service.copier.counts.failures > 2)
        assert len(lab.bucket.tier.copying()) == 1
        configure(lab, remote_log_copy_disable="true")
        await eventually(lambda: not lab.bucket.tier.copying())
        tier.store.before = None
        setattr(tier.store.faults, state, False)
        await eventually(lambda: not lab.bucket.tier.deleting(), "what was begun is cleared away")
        assert (lab.bucket.tier.tier_end_offset, lab.bucket.segment_keys()) == (0, [])
        configure(lab, remote_log_copy_disable="false")
        await lab.copied()
        lab.bucket.check()


async def test_what_a_cancelled_copy_has_left_is_cleared_away(tmp_path: Path) -> None:
    async with TierLab(tmp_path) as lab:
        lab.create_tiered(0)
        await filled(lab, 1)
        await eventually(lambda: lab.view() is not None)
        service = lab.tiers[0].service
        stuck = asyncio.Event()

        async def wait(operation: str, key: str) -> None:
            if operation == "put" and key.endswith(".segment"):
                stuck.set()
                await asyncio.Event().wait()

        lab.tiers[0].store.before = wait
        await filled(lab, 9)
        await asyncio.wait_for(stuck.wait(), 10)
        configure(lab, remote_log_copy_disable="true")
        next(task for task in service.led[0].tasks if task.get_name() == "tier-copy").cancel()
        lab.tiers[0].store.before = None
        await eventually(lambda: not lab.bucket.tier.copying() and not lab.bucket.tier.deleting())
        assert lab.bucket.tier.tier_end_offset == 0


def test_local_limits_are_the_topics_while_copying_is_disabled() -> None:
    config = LogConfig(
        remote_storage_enable=True, retention_ms=70, retention_bytes=7, local_retention_ms=1, local_retention_bytes=1
    )
    assert config.local_limits == (1, 1)
    assert LogConfig(
        remote_storage_enable=True, remote_log_copy_disable=True, retention_ms=70, retention_bytes=7,
        local_retention_ms=1, local_retention_bytes=1,
    ).local_limits == (70, 7)  # fmt: skip
