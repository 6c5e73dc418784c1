"""A tenant's transactional ids and groups go to another cell while producers of both protocols go on.

Brokers lag, die, are deposed and are asked twice. Still a transaction whose end was acknowledged ends so in each of its
partitions, no leader refuses a marker of a current coordinator, no producer gets an id and epoch twice, and another
tenant's equal ids are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordination.placement import partition_for
from broker.coordination.transactions import moving_ids, transaction_shard
from kraft.controller.key_moves import KeyStep, keys_are_home
from kraft.image.key_ranges import Keeping, range_for
from kraft.image.tenants import TenantImage
from kraft.records import KeysPhase
from kraft.topic_names import TRANSACTION_TOPIC
from tests.broker.moving_ids_world import IdWorld, play

Replace = Callable[[Any, str, object], None]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(50, 600))
def test_producers_go_on_while_their_tenant_moves(seed: int, steps: int) -> None:
    world = asyncio.run(play(seed, steps))
    assert keys_are_home(world.image, world.tenant)
    for place in world.shards:
        for _ in range(5):
            world.timers(place)
    held = range_for(world.image.topics.by_name[TRANSACTION_TOPIC], world.tenant)
    assert held is not None
    for client in world.clients:
        found = [
            index
            for (topic, index), shard in world.shards.items()
            if topic == TRANSACTION_TOPIC and client.name in shard.committed
        ]
        if client.name.startswith(world.tenant.prefix):
            assert all(index == held.first + partition_for(client.name, held.count) for index in found)
        least = client.producer is not None  # one that has none may have lost the answer with it
        assert least <= len(found) <= 1, "what was left behind was swept, and nothing else"


class WithoutFence(IdWorld):
    """The old leader goes on serving ids while it hands them over."""

    def keeping_of(self, topic: str, index: int) -> Callable[[str], Keeping]:
        known = super().keeping_of(topic, index)

        def unfenced(name: str) -> Keeping:
            return Keeping.SERVED if known(name) is Keeping.LEAVING else known(name)

        return unfenced if topic == TRANSACTION_TOPIC else known

    def asked_for(self, broker: int, topic: str, name: str) -> int | None:
        if topic != TRANSACTION_TOPIC:
            return super().asked_for(broker, topic, name)
        image = self.image_of(broker)
        held = range_for(image.topics.by_name[topic], image.tenants.owner(name))
        return None if held is None else held.first + partition_for(name, held.count)


class WithoutDrain(IdWorld):
    """Groups are fenced whatever transactions have begun to send to them."""

    def key_step(self, tenant: TenantImage) -> KeyStep:
        step = super().key_step(tenant)
        if tenant.keys_phase is KeysPhase.DRAINING and step.record is None:
            step.record = replace(tenant, keys_phase=KeysPhase.COPYING, epoch=tenant.epoch + 1).record()
        return step


class WithoutSecondLook(IdWorld):
    """Groups are fenced as soon as no transaction has offsets of them, while ongoing ones may still send some."""

    def key_step(self, tenant: TenantImage) -> KeyStep:
        step = super().key_step(tenant)
        next_phase = None if step.record is None else step.record.keys_phase
        if (tenant.keys_phase, next_phase) == (KeysPhase.HOLDING, KeysPhase.DRAINING):
            step.record = replace(tenant, keys_phase=KeysPhase.COPYING, epoch=tenant.epoch + 1).record()
        return step


class WithoutWaiting(IdWorld):
    """Transactions begin to send offsets while groups drain."""

    def keys_phase_of(self, name: str) -> KeysPhase:
        return KeysPhase.SETTLED


def fall(replace: Replace) -> None:
    """Where ids come to, coordinator epochs begin with the leader epoch, whatever other leaders have used for them."""
    replace(moving_ids, "raised_floor", lambda floor, leader_epoch, handed_over: floor)


def forget_at_load(replace: Replace) -> None:
    """A new leader does not know to what its predecessors have raised coordinator epochs."""
    replace(transaction_shard, "decode_epoch_floor", lambda value: 0)


@pytest.mark.parametrize("mistake", [fall, forget_at_load])
def test_a_coordinator_epoch_that_falls_is_caught(mistake: Callable[[Replace], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch.setattr)
        with pytest.raises(AssertionError, match="a marker is refused: TRANSACTION_COORDINATOR_FENCED"):
            asyncio.run(_play_many(IdWorld))


@pytest.mark.parametrize("mistaken", [WithoutFence, WithoutDrain, WithoutSecondLook, WithoutWaiting])
def test_a_mistake_is_caught(mistaken: type[IdWorld]) -> None:
    with pytest.raises(AssertionError):
        asyncio.run(_play_many(mistaken))


async def _play_many(world_of: type[IdWorld]) -> None:
    for seed in range(200):
        await play(seed, 400, world_of)
