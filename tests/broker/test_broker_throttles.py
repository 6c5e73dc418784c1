"""Replication throttles: replicas that catch up keep to the rate, those in sync never wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.partitions.log_settings import LogSettings
from broker.partitions.throttles import ReplicationQuota, ReplicationThrottles
from common.node_settings.replication import ReplicationSettings
from common.pacing import at_once
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE
from kraft.records import ConfigRecord, PartitionChangeRecord, ResourceType
from tests.broker.replication_lab import TOPIC, TOPIC_ID, Lab, batch, eventually, produce, within
from tests.common.call_count import counted_calls

pytestmark = pytest.mark.virtual_time

RATE = 300_000
BATCH_BYTES = 20_000
FETCH_BYTES = 50_000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def replica(topic: str, index: int) -> Any:
    return SimpleNamespace(topic=topic, index=index)


def test_a_quota_lets_its_rate_through_and_remembers_a_debt() -> None:
    clock = Clock()
    quota = ReplicationQuota(clock)
    quota.set_rate(1_000)
    passed = 0
    for step in range(200):
        clock.now = step / 10
        if not quota.is_exceeded:
            quota.record(700)
            passed += 700
    assert 20_000 <= passed <= 20_000 + 1_000 + 700
    quota.record(5_000)
    assert quota.is_exceeded
    assert clock.now < quota.next_look() <= clock.now + 1.0


def test_a_debt_is_forgiven_in_the_end_and_a_new_rate_begins_without_one() -> None:
    clock = Clock()
    quota = ReplicationQuota(clock)
    quota.set_rate(1)
    quota.record(1_000_000)
    clock.now = 10.0
    assert quota.is_exceeded
    clock.now = 11.5
    assert not quota.is_exceeded
    quota.record(1_000_000)
    quota.set_rate(1_000_000)
    assert not quota.is_exceeded
    quota.set_rate(0)
    assert quota.is_exceeded
    assert quota.next_look() > clock.now


def test_the_throttled_replicas_are_those_of_this_broker() -> None:
    throttles = ReplicationThrottles(2, Clock(), lambda image: LogSettings(2, {}).under(image, ReplicationSettings()))
    delta = MetadataDelta(EMPTY_IMAGE)
    for topic, setting, value in (
        ("a", "leader", "0:2,1:1,5:2"),
        ("b", "follower", "*"),
        ("c", "leader", "0:1"),
    ):
        delta.replay(ConfigRecord(ResourceType.TOPIC, topic, f"{setting}.replication.throttled.replicas", value))
    delta.replay(ConfigRecord(ResourceType.BROKER, "2", "leader.replication.throttled.rate", "0"))
    delta.replay(ConfigRecord(ResourceType.BROKER, "", "follower.replication.throttled.rate", "0"))
    image = delta.image()
    at_once(throttles.configuring(delta.configs_changed, image))
    assert [throttles.leader.covers(replica("a", index)) for index in (0, 1, 5)] == [True, False, True]
    assert throttles.follower.covers(replica("b", 7))
    assert not throttles.leader.covers(replica("b", 7))
    assert list(throttles.leader.topics) == ["a"]
    assert throttles.leader.is_exceeded
    assert throttles.follower.is_exceeded
    later = MetadataDelta(image)
    later.replay(ConfigRecord(ResourceType.TOPIC, "a", "leader.replication.throttled.replicas", None))
    later.replay(ConfigRecord(ResourceType.BROKER, "2", "leader.replication.throttled.rate", None))
    at_once(throttles.configuring(later.configs_changed, later.image()))
    assert not throttles.leader.topics
    assert not throttles.leader.is_exceeded


def test_the_settings_of_many_topics_are_taken_over_in_slices() -> None:
    throttles = ReplicationThrottles(2, Clock(), lambda image: LogSettings(2, {}).under(image, ReplicationSettings()))
    delta = MetadataDelta(EMPTY_IMAGE)
    for number in range(1_000):
        delta.replay(ConfigRecord(ResourceType.TOPIC, f"t{number}", "retention.ms", "5"))
    delta.replay(ConfigRecord(ResourceType.TOPIC, "throttled", "leader.replication.throttled.replicas", "*"))
    work, most = throttles.configuring(delta.configs_changed, delta.image()), 0
    while not throttles.leader.topics:
        with counted_calls() as count:
            next(work, None)
        most = max(most, count.calls)
    assert list(throttles.leader.topics) == ["throttled"]
    assert most < 2_000


async def fill(lab: Lab, batches: int) -> None:
    client = await lab[0].connect()
    for _ in range(batches):
        assert (await produce(client, batch(b"x" * BATCH_BYTES))).error_code == 0
    client.close()


def throttle(side: str, broker: int, replicas: str) -> list[ConfigRecord]:
    return [
        ConfigRecord(ResourceType.BROKER, str(broker), f"{side}.replication.throttled.rate", str(RATE)),
        ConfigRecord(ResourceType.TOPIC, TOPIC, f"{side}.replication.throttled.replicas", replicas),
    ]


@pytest.mark.parametrize(("side", "broker"), [("leader", 0), ("follower", 2)])
async def test_a_new_replica_keeps_to_the_rate_and_those_in_sync_do_not_wait(
    tmp_path: Path, side: str, broker: int
) -> None:
    async with Lab(tmp_path, replica_fetch_max_bytes=FETCH_BYTES, replica_fetch_wait_max_ms=3_000) as lab:
        controller = lab.controller
        controller.create_topic((0, 1), min_insync_replicas="1")
        await fill(lab, 45)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        controller.change(
            *throttle(side, broker, f"0:{broker}"),
            PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1, 2), adding=(2,)),
        )
        client = await lab[0].connect()
        while loop.time() < begin + 0.7:
            assert (await within(0.5, produce(client, batch(b"y")))).error_code == 0
            await asyncio.sleep(0.05)
        end = lab[0].partition.log.log_end_offset
        copied, seconds = lab[2].partition.log.log_end_offset * BATCH_BYTES, loop.time() - begin
        assert copied <= RATE * (seconds + 1) + FETCH_BYTES
        assert 2 not in controller.isr
        await eventually(lambda: lab[2].partition.log.log_end_offset >= end, "the new replica catches up")
        assert loop.time() - begin > 1.2
        await eventually(lambda: 2 in controller.isr, "it joins the ISR")
        client.close()


async def test_without_a_throttle_there_is_no_delay_and_lifting_it_ends_the_wait(tmp_path: Path) -> None:
    async with Lab(tmp_path, replica_fetch_max_bytes=FETCH_BYTES, replica_fetch_wait_max_ms=100) as lab:
        controller = lab.controller
        controller.create_topic((0, 1), min_insync_replicas="1")
        await fill(lab, 45)
        slow = [
            ConfigRecord(ResourceType.BROKER, "2", "follower.replication.throttled.rate", "100"),
            ConfigRecord(ResourceType.TOPIC, TOPIC, "follower.replication.throttled.replicas", "*"),
        ]
        controller.change(*slow, PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1, 2), adding=(2,)))
        await eventually(lambda: lab[2].partition.log.log_end_offset > 0)
        assert lab[2].partition.log.log_end_offset < 20
        controller.change(ConfigRecord(ResourceType.TOPIC, TOPIC, "follower.replication.throttled.replicas", None))
        await within(2.0, eventually(lambda: lab[2].partition.log.log_end_offset == 45))
