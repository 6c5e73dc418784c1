"""A tenant's groups go from one cell's range to another's: whoever lags, dies, is deposed or is asked twice, every
commit that was acknowledged is where the newest metadata looks for it, and in the end nothing is left elsewhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.group_shard import RETENTION_TURN_S, GroupShard
from broker.coordination.groups.key_moves import KeyHandover
from broker.coordination.groups.key_store import KeyStore
from broker.coordination.groups.values import CommitRequest, OffsetToCommit
from broker.coordination.placement import keeping_partition, partition_for
from broker.coordination.shard import CoordinatorRecord, Now
from broker.handlers.internal import ImportKeys
from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from kraft.batches import MetadataRecord
from kraft.controller.key_moves import KeyReports, KeyStep, Report, key_step, keys_are_home
from kraft.image.delta import replayed
from kraft.image.key_ranges import Keeping, keeping, range_for
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.observers.controller_channel import ControllerUnavailable
from kraft.records import Cause, KeysPhase, PartitionChangeRecord, TenantState
from kraft.topic_names import GROUP_TOPIC
from tests.broker.test_coordination_key_ranges import with_group_topic
from tests.kraft.decisions import decide_move_tenant
from tests.kraft.images import POLICY
from tests.kraft.tenants import cells_of_three, created
from wire.client import ConnectionLost
from wire.messages import MoveTenantRequest, raw_uuid

CONFIG = GroupConfig(offsets_retention_check_interval_ms=1_000)
GROUPS = [f"g{number}" for number in range(6)]
TOPIC_ID = b"t" * 16


class Place:
    """One partition: what its log holds. Its leader is in the newest image."""

    def __init__(self, shard: GroupShard) -> None:
        self.shard = shard


class World:
    """Six brokers in two cells, each with an image that may lag; the newest one is the truth about who leads."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        image = with_group_topic(cells_of_three())
        image, reply = created(image, "a", cell="east")
        self.tenant_id: str = reply.tenant_id
        self.images = [image]
        self.seen = dict.fromkeys(range(6), 0)  # broker → the image that it has
        self.reports = KeyReports()
        self.underway: list[tuple[int, bytes, list[Report]]] = []
        self.acked: dict[str, int | None] = {}  # group → the offset that was acknowledged, None when it was deleted
        self.issued = 0
        self.acting: int | None = None
        self.now = Now(0.0, 0)
        self.topic = image.topics.by_name[GROUP_TOPIC]
        self.places = {index: Place(self._shard(index)) for index in self.topic.partitions}
        self.brokers = {broker: Broker(self, broker) for broker in self.seen}

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    def _shard(self, index: int) -> GroupShard:
        def keeping_of(group_id: str) -> Keeping:
            image = self.image if self.acting is None else self.image_of(self.acting)
            topic = image.topics.by_name[GROUP_TOPIC]
            return keeping(topic, image.tenants.owner(group_id), index)

        shard = GroupShard(CONFIG, random.Random(1), lambda _: TOPIC_ID, keeping_of)
        shard.loaded(self.now)
        return shard

    def image_of(self, broker: int) -> MetadataImage:
        return self.images[self.seen[broker]]

    def commit_metadata(self, records: list[MetadataRecord]) -> None:
        if records:
            self.images.append(replayed(self.image, records))

    def leads(self, broker: int, index: int) -> bool:
        return self.image_of(broker).topics.by_name[GROUP_TOPIC].partitions[index].leader == broker

    def append(self, broker: int, index: int, act: Callable[[GroupShard, Now], Any]) -> Any:
        """A decision of whoever leads there as far as it knows: what a deposed one decides is never committed."""
        self.now = self.now._replace(monotonic_s=self.now.monotonic_s + 0.001, wall_ms=self.now.wall_ms + 1)
        self.acting = broker
        try:
            place = self.places[index]
            decision = act(place.shard, self.now)
            if self.image.topics.by_name[GROUP_TOPIC].partitions[index].leader != broker:
                raise ProtocolError(ErrorCode.NOT_COORDINATOR)
            for record in decision.records:
                place.shard.replay(record.key, record.value)
            return decision.reply
        finally:
            self.acting = None

    # what happens ------------------------------------------------------------------------------------------

    def catch_up(self, broker: int) -> None:
        if self.seen[broker] == len(self.images) - 1:
            return
        self.seen[broker] += 1
        self.brokers[broker].keeping_changed()

    def elect(self, index: int) -> None:
        """Another replica leads from now on; it knows of its election, and so of all that was committed before."""
        partition = self.image.topics.by_name[GROUP_TOPIC].partitions[index]
        leader = self.random.choice([r for r in partition.replicas if r != partition.leader])
        record = PartitionChangeRecord(self.topic.topic_id, index, leader=leader, cause=Cause.BROKER_FENCED)
        self.commit_metadata([record])
        while self.seen[leader] < len(self.images) - 1:
            self.catch_up(leader)

    def controller(self) -> None:
        tenant = self.image.tenants[self.tenant_id]
        if tenant.state is TenantState.MOVING:
            step = self.key_step(tenant)
            if step.record is not None:
                self.commit_metadata([step.record])
            elif step.settled:
                done = replace(tenant, state=TenantState.ACTIVE, cell=tenant.home, target_cell=None)
                self.commit_metadata([done.record()])

    def key_step(self, tenant: TenantImage) -> KeyStep:
        return key_step(self.image, tenant, self.reports)

    def move(self, cell: str) -> None:
        request = MoveTenantRequest(tenant="a", cell=cell)
        self.commit_metadata(decide_move_tenant(self.image, request, POLICY, self.random).records)

    def commit_offset(self, *, deletes: bool = False) -> None:
        """A client's, at any broker that takes the group for its own."""
        name = f"{self.tenant_id}_{self.random.choice(GROUPS)}"
        brokers = list(self.brokers)
        self.random.shuffle(brokers)
        for broker in brokers:
            index = self.asked_for(broker, name)
            if index is not None and self.leads(broker, index):
                break
        else:
            return
        self.issued += 1
        offset = None if deletes else self.issued
        item = OffsetToCommit("t", 0, self.issued, -1, "", TOPIC_ID)
        request = CommitRequest(name, "", None, -1, (item,), -1)
        try:
            self.append(
                broker, index, lambda shard, now: shard.delete_group(name) if deletes else shard.commit(request, now)
            )
        except ProtocolError:
            return
        self.acked[name] = offset

    def asked_for(self, broker: int, name: str) -> int | None:
        """The partition in which the broker would serve the group now."""
        image = self.image_of(broker)
        topic, index = image.topics.by_name[GROUP_TOPIC], keeping_partition(image, GROUP_TOPIC, name)
        served = index is not None and keeping(topic, image.tenants.owner(name), index) is Keeping.SERVED
        return index if served else None

    def retention(self, broker: int, index: int) -> None:
        """The leader's turn of sweeping what is not kept there."""
        if self.leads(broker, index):

            def act(shard: GroupShard, now: Now) -> Any:
                shard.topics_deleted(now)  # has it look at all offsets soon
                now, records = now._replace(monotonic_s=now.monotonic_s + RETENTION_TURN_S), list[CoordinatorRecord]()
                while (due := shard.next_deadline()) is not None and due <= now.monotonic_s:
                    records += shard.expire(now)
                return SimpleNamespace(records=records, reply=None)

            try:
                self.append(broker, index, act)
            except ProtocolError:
                return

    async def work(self, broker: int) -> None:
        """One round of what the broker does for keys that move."""
        await self.brokers[broker].handover.advance(self.tenant_id)

    # what must be true -------------------------------------------------------------------------------------

    def check(self) -> None:
        tenant = self.image.tenants[self.tenant_id]
        topic = self.image.topics.by_name[GROUP_TOPIC]
        held = range_for(topic, tenant)
        assert held is not None
        for name, offset in self.acked.items():
            index = held.first + partition_for(name, held.count)
            found = self.places[index].shard.fetch_offset(name, "t", 0)
            assert (None if found is None else found.offset) == offset, f"{name} was acknowledged at {offset}"

    async def settle(self) -> None:
        for _ in range(400):
            for broker in self.brokers:
                while self.seen[broker] < len(self.images) - 1:
                    self.catch_up(broker)
                await self.work(broker)
                self.commit_offset()
            self.deliver(all_of_them=True)
            self.controller()
            self.check()
            if self.image.tenants[self.tenant_id].state is TenantState.ACTIVE:
                return
        raise AssertionError("the move never ends")

    def deliver(self, *, all_of_them: bool = False) -> None:
        self.random.shuffle(self.underway)
        while self.underway:
            broker, topic_id, reports = self.underway.pop()
            self.reports.take(self.image, broker, topic_id, reports)
            if not all_of_them:
                return


class Broker:
    """`KeyStore` and `KeyHandover` of one broker, over the world's partitions."""

    def __init__(self, world: World, broker: int) -> None:
        self.world, self.id = world, broker
        self.store = KeyStore(self, lambda: world.image_of(broker))  # type: ignore[arg-type]
        self.handover = KeyHandover(
            self.store,
            lambda: world.image_of(broker),
            self,
            lambda: self,  # type: ignore[arg-type,return-value]
            lambda: (broker, world.image_of(broker).brokers[broker].epoch),
        )
        self._peer = -1

    def keeping_changed(self) -> None:
        prefix = self.world.image.tenants[self.world.tenant_id].prefix
        self.store.keeping_changed(prefix)

    # as the runtime

    def leader_epoch(self, topic: str, index: int) -> int | None:
        partition = self.world.image_of(self.id).topics.by_name[topic].partitions[index]
        return partition.leader_epoch if partition.leader == self.id else None

    def notify(self, topic: str, act: Callable[[Any, Now], Any]) -> None:
        """Groups in memory are not what this is about."""

    async def write(self, topic: str, index: int, decide: Any) -> Any:
        if not self.world.leads(self.id, index):
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        return self.world.append(self.id, index, lambda shard, now: decide(shard, now, 0))

    async def read(self, topic: str, index: int, query: Any) -> Any:
        if not self.world.leads(self.id, index):
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        return query(self.world.places[index].shard, self.world.now)

    async def read_slowly(self, topic: str, index: int, work: Any, lane: str, *, own: bool) -> Any:
        return at_once(await self.read(topic, index, work))

    # as a link to another broker, and as the channel to the controller

    async def to(self, broker: int) -> Any:
        if self.world.random.random() < 0.1:
            raise ConnectionLost("cut")
        self._peer = broker
        return SimpleNamespace(call=self._import)

    async def _import(self, request: Any, version: int, timeout_s: float) -> Any:
        answer = await ImportKeys(self.world.brokers[self._peer].store).handle(None, request)  # type: ignore[arg-type]
        if self.world.random.random() < 0.1:
            raise ConnectionLost("the answer is lost")
        return answer

    def drop(self) -> None:
        pass

    async def call(self, request: Any, version: int, *, timeout_s: float, repeatable: bool = True) -> Any:
        reports = [
            Report(row.tenant, row.keys_epoch, row.phase, tuple((p.partition_index, p.leader_epoch) for p in rows))
            for row in request.tenants
            for rows in [row.partitions]
        ]
        self.world.underway.append((request.broker_id, raw_uuid(request.topic_id), reports))
        if self.world.random.random() < 0.2:
            raise ControllerUnavailable("away")


async def play(seed: int, steps: int, world_of: type[World] = World) -> World:
    world = world_of(seed)
    chance = world.random
    for _ in range(steps):
        act = chance.choice(OFTEN * 3 + RARE if chance.random() < 0.5 else OFTEN)
        broker = chance.randrange(6)
        if act == "see":
            world.catch_up(broker)
        elif act == "commit":
            world.commit_offset()
        elif act == "delete":
            world.commit_offset(deletes=True)
        elif act == "work":
            await world.work(broker)
        elif act == "report":
            world.deliver()
        elif act == "controller":
            world.controller()
        elif act == "restart":
            world.reports.restart()
        elif act == "elect":
            world.elect(chance.choice(list(world.places)))
        elif act == "move":
            world.move(chance.choice(["east", "west"]))
        elif act == "retention":
            world.retention(broker, chance.choice(list(world.places)))
        world.check()
    await world.settle()
    return world


OFTEN = ["see", "see", "see", "commit", "commit", "work", "work", "report", "controller"]
RARE = ["restart", "elect", "move", "retention", "delete"]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(50, 400))
def test_nothing_that_was_committed_is_lost_on_the_way(seed: int, steps: int) -> None:
    world = asyncio.run(play(seed, steps))
    tenant = world.image.tenants[world.tenant_id]
    assert keys_are_home(world.image, tenant)
    for index in world.places:
        leader = world.image.topics.by_name[GROUP_TOPIC].partitions[index].leader
        world.retention(leader, index)
    world.check()
    held = range_for(world.image.topics.by_name[GROUP_TOPIC], tenant)
    assert held is not None
    left = [index for index, place in world.places.items() if list(filter(None, place.shard.names((tenant.id,))))]
    assert all(index in held for index in left), "what was left behind was swept"


class WithoutFence(World):
    """Whoever leads where the groups were goes on serving them."""

    def asked_for(self, broker: int, name: str) -> int | None:
        image = self.image_of(broker)
        held = range_for(image.topics.by_name[GROUP_TOPIC], image.tenants.owner(name))
        return None if held is None else held.first + partition_for(name, held.count)


class WithoutClearing(World):
    """The controller waits for no broker to have cleared what an earlier move left."""

    def key_step(self, tenant: TenantImage) -> KeyStep:
        step = super().key_step(tenant)
        if tenant.keys_phase is KeysPhase.CLEARING and step.record is None:
            step.record = replace(tenant, keys_phase=KeysPhase.COPYING, epoch=tenant.epoch + 1).record()
        return step


@pytest.mark.parametrize(("mistaken", "first_seed"), [(WithoutFence, 0), (WithoutClearing, 50)])
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
