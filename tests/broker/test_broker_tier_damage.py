"""What readers of the tier were refused, as operators are told of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.handlers.tier_description import _led_status
from broker.tier.led import LedPartition
from common.errors import ErrorCode
from records.batch import HEADER_BYTES
from tests.broker.replication_lab import TOPIC_ID, eventually, fetch, row_of
from tests.broker.test_broker_cold_reads import Tiered, tiered
from tiering.shard.description import LedStatus

pytestmark = pytest.mark.virtual_time

PUBLISHER: Any = SimpleNamespace(published=lambda *place: None, trouble=lambda *place: None)


def status(world: Tiered) -> LedStatus:
    partition = world.partition()
    led = LedPartition(partition, partition.leader_epoch, 0, held_back=False, on_unclaimed=lambda _: None)
    led.claimed(world.tier.tiers[partition])
    cold = world.broker.plane.fetch.reader.cold
    assert cold is not None
    damage = cold.damage()
    assert set(damage) <= {(TOPIC_ID, 0)}
    return _led_status(led, PUBLISHER, damage.get((TOPIC_ID, 0), []))


@pytest.mark.parametrize("fault", ["missing", "altered"])
async def test_status_names_what_readers_were_refused_until_it_is_read(tmp_path: Path, fault: str) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(4)
        tier = await world.tier.copy(world.partition(), keep=1)
        first, second, *_ = tier.segments()
        key = world.tier.key(tier, second.id)
        objects = world.tier.store.objects
        right = objects[key]
        if fault == "missing":
            del objects[key]
        else:
            at = HEADER_BYTES  # the first batch's records
            data = bytearray(right[0])
            data[at] ^= 0xFF
            objects[key] = (bytes(data), *right[1:])
        assert row_of(await fetch(world.client, first.base_offset)).error_code == ErrorCode.NONE
        assert status(world).unreadable == 0
        assert row_of(await fetch(world.client, second.base_offset)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        told = status(world)
        assert told.unreadable == 1
        assert told.read_trouble is not None
        assert key in told.read_trouble

        objects[key] = right
        await eventually(lambda: not world.tier.remote.downloads.running)
        await asyncio.sleep(60)  # longer than it rests before it asks again
        assert row_of(await fetch(world.client, second.base_offset)).error_code == ErrorCode.NONE
        assert (status(world).unreadable, status(world).read_trouble) == (0, None)


async def test_status_does_not_name_segments_that_are_gone(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(3)
        tier = await world.tier.copy(world.partition(), keep=1)
        first = next(tier.segments())
        del world.tier.store.objects[world.tier.key(tier, first.id)]
        assert row_of(await fetch(world.client, 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert status(world).unreadable == 1
        tier.replay_segment(first.id, None)
        assert (status(world).unreadable, status(world).read_trouble) == (0, None)
