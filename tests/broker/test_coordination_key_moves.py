"""A tenant's groups go from one cell's range to another's: whoever lags, dies, is deposed or is asked twice, every
commit that was acknowledged is where the newest metadata looks for it, and in the end nothing is left elsewhere."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.group_shard import RETENTION_TURN_S, GroupShard
from broker.coordination.groups.moving_groups import MovingGroups
from broker.coordination.groups.values import CommitRequest, OffsetToCommit
from broker.coordination.placement import keeping_partition, partition_for
from broker.coordination.shard import CoordinatorRecord, Now
from common.errors import ErrorCode, ProtocolError
from kraft.controller.key_moves import KeyStep, keys_are_home
from kraft.image.delta import replayed
from kraft.image.key_ranges import range_for
from kraft.image.tenants import TenantImage
from kraft.records import KeysPhase
from kraft.topic_names import GROUP_TOPIC
from tests.broker.moving_world import MovingWorld, Place

CONFIG = GroupConfig(offsets_retention_check_interval_ms=1_000)
GROUPS = [f"g{number}" for number in range(6)]
TOPIC_ID = b"t" * 16


class World(MovingWorld):
    kinds = (MovingGroups(),)
    topics = (GROUP_TOPIC,)

    def __init__(self, seed: int) -> None:
        self.acked: dict[str, int | None] = {}  # group → the offset that was acknowledged, None when it was deleted
        self.issued = 0
        super().__init__(seed)

    def make_shard(self, topic: str, index: int) -> GroupShard:
        shard = GroupShard(CONFIG, random.Random(1), lambda _: TOPIC_ID, self.keeping_of(topic, index))
        shard.loaded(self.now)
        return shard

    def commit_offset(self, *, deletes: bool = False) -> None:
        """A client's, at any broker that takes the group for its own."""
        name = f"{self.tenant_id}_{self.random.choice(GROUPS)}"
        found = self.serving(GROUP_TOPIC, name)
        if found is None:
            return
        broker, index = found
        self.issued += 1
        offset = None if deletes else self.issued
        item = OffsetToCommit("t", 0, self.issued, -1, "", TOPIC_ID)
        request = CommitRequest(name, "", None, -1, (item,), -1)

        def decide(shard: GroupShard, now: Now) -> Any:
            return shard.delete_group(name) if deletes else shard.commit(request, now)

        try:
            self.append(broker, (GROUP_TOPIC, index), decide)
        except ProtocolError:
            return
        self.acked[name] = offset

    def client(self) -> None:
        self.commit_offset()

    def retention(self, broker: int, place: Place) -> None:
        """The leader's turn of sweeping what is not kept there."""
        if self.leads(broker, place):

            def act(shard: GroupShard, now: Now) -> Any:
                shard.topics_deleted(now)  # has it look at all offsets soon
                now, records = now._replace(monotonic_s=now.monotonic_s + RETENTION_TURN_S), list[CoordinatorRecord]()
                while (due := shard.next_deadline()) is not None and due <= now.monotonic_s:
                    records += shard.expire(now)
                return SimpleNamespace(records=records, reply=None)

            try:
                self.append(broker, place, act)
            except ProtocolError:
                return

    def check(self) -> None:
        held = range_for(self.image.topics.by_name[GROUP_TOPIC], self.tenant)
        assert held is not None
        for name, offset in self.acked.items():
            index = held.first + partition_for(name, held.count)
            found = self.shards[GROUP_TOPIC, index].fetch_offset(name, "t", 0)
            assert (None if found is None else found.offset) == offset, f"{name} was acknowledged at {offset}"


async def play(seed: int, steps: int, world_of: type[World] = World) -> World:
    world = world_of(seed)
    chance = world.random
    for _ in range(steps):
        act = chance.choice(OFTEN * 3 + RARE if chance.random() < 0.5 else OFTEN)
        broker = chance.randrange(6)
        if act == "commit":
            world.commit_offset()
        elif act == "delete":
            world.commit_offset(deletes=True)
        elif act == "retention":
            world.retention(broker, chance.choice(list(world.shards)))
        else:
            await world.act(act, broker)
        world.check()
    await world.settle()
    return world


OFTEN = ["see", "see", "see", "commit", "commit", "work", "work", "report", "controller"]
RARE = ["restart", "elect", "move", "retention", "delete", "wait"]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(50, 400))
def test_nothing_that_was_committed_is_lost_on_the_way(seed: int, steps: int) -> None:
    world = asyncio.run(play(seed, steps))
    tenant = world.image.tenants[world.tenant_id]
    assert keys_are_home(world.image, tenant)
    for place in world.shards:
        world.retention(world.partition(place).leader, place)
    world.check()
    held = range_for(world.image.topics.by_name[GROUP_TOPIC], tenant)
    assert held is not None
    left = [index for (_, index), shard in world.shards.items() if list(filter(None, shard.names((tenant.id,))))]
    assert all(index in held for index in left), "what was left behind was swept"


class WithoutFence(World):
    """Whoever leads where the groups were goes on serving them."""

    def asked_for(self, broker: int, topic: str, name: str) -> int | None:
        image = self.image_of(broker)
        held = range_for(image.topics.by_name[topic], image.tenants.owner(name))
        return None if held is None else held.first + partition_for(name, held.count)


class WithoutClearing(World):
    """The controller waits for no broker to have cleared what an earlier move left."""

    def key_step(self, tenant: TenantImage) -> KeyStep:
        step = super().key_step(tenant)
        if tenant.keys_phase is KeysPhase.CLEARING and step.record is None:
            step.record = replace(tenant, keys_phase=KeysPhase.COPYING, epoch=tenant.epoch + 1).record()
        return step


class WithoutNewAttempt(World):
    """What a fence that was taken back has left in the new range passes for cleared."""

    def key_step(self, tenant: TenantImage) -> KeyStep:
        step = super().key_step(tenant)
        if tenant.keys_phase is KeysPhase.COPYING and step.record is not None:
            step.record = structs.replace(step.record, keys_epoch=tenant.keys_epoch)
        return step


@pytest.mark.parametrize(
    ("mistaken", "first_seed"), [(WithoutFence, 0), (WithoutClearing, 50), (WithoutNewAttempt, 100)]
)
def test_a_mistake_is_caught(mistaken: type[World], first_seed: int) -> None:
    with pytest.raises(AssertionError, match="acknowledged"):
        asyncio.run(_play_many(range(first_seed, first_seed + 200), mistaken))


async def _play_many(seeds: range, world_of: type[World]) -> None:
    for seed in seeds:
        await play(seed, 400, world_of)


async def test_while_groups_are_handed_over_clients_are_sent_where_they_come_to() -> None:
    world = World(1)
    tenant = world.image.tenants[world.tenant_id]
    copying = replace(tenant, keys_target="west", keys_phase=KeysPhase.COPYING, keys_epoch=1)
    image = replayed(world.image, [copying.record()])
    name = f"{tenant.id}_g"
    index = keeping_partition(image, GROUP_TOPIC, name)
    assert index is not None and index in image.topics.by_name[GROUP_TOPIC].ranges[1]
    for leads, code in ((True, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), (False, ErrorCode.NOT_COORDINATOR)):
        runtime: Any = SimpleNamespace(
            host=lambda *_: None,
            leads=lambda _, __, leads=leads: leads,
            is_loading=lambda _: False,
            active=lambda _: [],
        )
        coordinator = GroupCoordinator(runtime, CONFIG, lambda: image, random.Random(1))
        with pytest.raises(ProtocolError) as refused:
            coordinator.partition_of(name)
        assert refused.value.code is code
        with pytest.raises(ProtocolError) as refused:
            await coordinator.list_groups(tenant.prefix)
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert coordinator.partition_of("operators") == partition_for("operators", 5)
        assert await coordinator.list_groups() == []
