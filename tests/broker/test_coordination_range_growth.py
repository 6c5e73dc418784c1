"""A cell that began with few brokers has few replicas of its groups; it gets the rest when brokers arrive, a few at a
time and under the throttle, and never loses one on the way."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.config import BrokerConfig
from broker.coordination.groups.config import GroupConfig
from broker.listeners import Listen
from broker.node import BrokerNode
from broker.partitions.config import LogDuties
from common.errors import ErrorCode
from common.node_settings.tenants import TenantSettings
from common.pacing import at_once
from kraft.controller.key_ranges import range_step
from kraft.controller.move_throttles import RATES, REPLICAS
from kraft.controller.node import ControllerConfig, ControllerNode
from kraft.controller.policy import ControllerPolicy
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from kraft.topic_names import GROUP_TOPIC
from tests.broker.replication_lab import SECRET
from tests.broker.reserved_port import LOCALHOST, ReservedPort
from tests.broker.tenant_lab import Wire
from tests.kraft.images import POLICY, new_cluster, new_topic
from tests.kraft.tenants import with_topics
from tests.kraft.test_controller_tenant_moves import caught_up
from tests.virtual_time import lab_ports
from wire.listeners import ListenerConfig, ListenerKind
from wire.messages import CreateTopicsRequest, FindCoordinatorRequest, OffsetCommitRequest, OffsetFetchRequest

PARTITIONS, FACTOR, AT_ONCE = 6, 3, 2
GROWING = replace(
    POLICY,
    default_replication_factor=1,
    group_replication_factor=FACTOR,
    access=TenantSettings(move_partitions_max=AT_ONCE, move_bytes_per_second=1_000),
)
WAIT_S = 60


def joined(image: MetadataImage, broker: int, cell: str) -> MetadataImage:
    record = RegisterBrokerRecord(broker, bytes([broker]) * 16, (), f"rack-{broker % 3}", fenced=True, cell=cell)
    image = replayed(image, [record])
    return fenced(image, broker, fenced=False)


def fenced(image: MetadataImage, broker: int, *, fenced: bool) -> MetadataImage:
    epoch = image.brokers[broker].epoch
    return replayed(image, [BrokerRegistrationChangeRecord(broker, epoch, fenced=fenced)])


def throttled(image: MetadataImage) -> bool:
    """All of it is set, or nothing is."""
    names = [name in image.configs.topic(GROUP_TOPIC) for name in REPLICAS]
    names += [name in image.configs.cluster() for name in RATES]
    assert len(set(names)) == 1, names
    return names[0]


def settled(image: MetadataImage, policy: ControllerPolicy, rng: random.Random) -> MetadataImage:
    """As long as a step changes anything, its moves caught up one at a time."""
    had = {p.partition: set(p.replicas) for p in image.topics.by_name[GROUP_TOPIC].partitions.values()}
    for _ in range(300):
        step = at_once(range_step(image, policy, rng))
        image = replayed(image, step.records)
        partitions = image.topics.by_name[GROUP_TOPIC].partitions.values()
        running = [partition for partition in partitions if partition.is_reassigning]
        assert len(running) <= AT_ONCE
        assert all(had.get(p.partition, set()) <= set(p.replicas) for p in partitions), "replicas are added alone"
        if not running and not step.records:
            assert not throttled(image)
            return image
        assert not running or throttled(image)
        if running:
            image = caught_up(image, rng.choice(running))
    raise AssertionError("the ranges never settle")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ranges_grow_with_their_cells(data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    cells = data.draw(st.sampled_from([("default",), ("default", "b")]))
    image = joined(new_cluster(), 0, "default")
    image, _ = with_topics(image, new_topic(GROUP_TOPIC, PARTITIONS, 1))
    for broker in range(1, data.draw(st.integers(2, 8))):
        image = joined(image, broker, data.draw(st.sampled_from(cells)))
        if data.draw(st.booleans()):
            image = settled(image, GROWING, rng)
        if data.draw(st.integers(0, 3)) == 0:
            image = settled(fenced(image, broker, fenced=True), GROWING, rng)
            image = fenced(image, broker, fenced=False)
    image = settled(image, GROWING, rng)
    topic = image.topics.by_name[GROUP_TOPIC]
    of_cell: dict[str, list[int]] = {}
    for broker, registered in image.brokers.items():
        of_cell.setdefault(registered.cell or "default", []).append(broker)
    ranges = [(held.cell, range(held.first, held.end)) for held in topic.ranges] or [("default", range(PARTITIONS))]
    for cell, indices in ranges:
        partitions = [topic.partitions[index] for index in indices]
        held = Counter(replica for partition in partitions for replica in partition.replicas)
        assert set(held) <= set(of_cell[cell])
        assert {len(partition.replicas) for partition in partitions} == {min(FACTOR, len(of_cell[cell]))}
    assert not at_once(range_step(image, GROWING, rng)).records


def test_new_replicas_and_leaders_are_spread() -> None:
    image = joined(new_cluster(), 0, "default")
    image, _ = with_topics(image, new_topic(GROUP_TOPIC, PARTITIONS, 1))
    for broker in range(1, 6):
        image = joined(image, broker, "default")
    topic = settled(image, GROWING, random.Random(1)).topics.by_name[GROUP_TOPIC]
    held = Counter(r for partition in topic.partitions.values() for r in partition.replicas if r != 0)
    assert max(held.values()) - min(held.values()) <= 2, held
    assert all(len({r % 3 for r in partition.replicas}) == 3 for partition in topic.partitions.values()), "racks"
    leading = Counter(partition.replicas[0] for partition in topic.partitions.values())
    assert max(leading.values()) <= 2, leading


def test_without_the_setting_and_beside_an_operators_throttle_nothing_is_changed() -> None:
    image = joined(new_cluster(), 0, "default")
    image, _ = with_topics(image, new_topic(GROUP_TOPIC, PARTITIONS, 1))
    image = joined(joined(image, 1, "default"), 2, "default")
    assert not at_once(range_step(image, replace(GROWING, group_replication_factor=1), random.Random(1))).records


class Cluster:
    """A controller and three brokers of one process; each starts when it is told to."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held = [ReservedPort() for _ in range(8)]
        consensus, listener, *self._addresses = ((LOCALHOST, port.number) for port in self._held)
        self._controllers = {100: listener}
        policy = ControllerPolicy(group_replication_factor=FACTOR)
        config = ControllerConfig(
            100,
            {100: consensus},
            ListenerConfig("INTERNAL", listener, listener, ListenerKind.INTERNAL),
            SECRET,
            policy=policy,
        )
        self.fatal: list[str] = []
        self.controller = ControllerNode(lab_ports(root / "controller"), config, self.fatal.append)
        self.brokers: list[BrokerNode] = []

    async def start_broker(self) -> BrokerNode:
        number = len(self.brokers)
        clients, internal = self._addresses[2 * number : 2 * number + 2]
        config = BrokerConfig(
            number,
            (Listen("PLAINTEXT", clients, clients), Listen("INTERNAL", internal, internal, "internal")),
            self._controllers,
            SECRET,
            duties=LogDuties(free_bytes_min=0, log_cleaner_enable=False),
            groups=GroupConfig(offsets_topic_num_partitions=PARTITIONS),
        )
        node = BrokerNode(lab_ports(self._root / f"broker-{number}"), config, self.fatal.append)
        self.brokers.append(node)
        await node.start()
        await node.wait_ready()
        return node

    async def wire(self, broker: int) -> Wire:
        return Wire(*await asyncio.open_connection(*self._addresses[2 * broker]))

    async def stop(self) -> None:
        for broker in reversed(self.brokers):
            await broker.stop()
        await self.controller.stop()
        for port in self._held:
            port.close()
        assert not self.fatal


async def committed(cluster: Cluster, wire: Wire) -> int:
    """What the group has for partition 0, asked until its coordinator, who may have become another, answers."""
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)], require_stable=True
    )
    async with asyncio.timeout(WAIT_S):
        while True:
            found = (await wire.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)).coordinators[0]
            if found.error_code == ErrorCode.NONE:
                there = await cluster.wire(found.node_id)
                answer = (await there.call(request, 8)).groups[0]
                there.close()
                if answer.error_code == ErrorCode.NONE:
                    return int(answer.topics[0].partitions[0].committed_offset)
            await asyncio.sleep(0.02)


async def test_the_first_brokers_groups_are_on_three_when_two_more_have_come(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await cluster.controller.start()
    try:
        first = await cluster.start_broker()
        wire = await cluster.wire(0)
        row = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = row.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=5, committed_leader_epoch=-1, committed_metadata=""
        )
        new = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        made = await wire.call(CreateTopicsRequest(topics=[new], timeout_ms=20_000, validate_only=False), 5)
        assert made.topics[0].error_code == ErrorCode.NONE
        topics = [row(name="t", partitions=[partition])]
        commit = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics)
        await wire.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        assert await first.observer.wait_until(lambda image: GROUP_TOPIC in image.topics, WAIT_S)
        async with asyncio.timeout(WAIT_S):
            while (await wire.call(commit, 8)).topics[0].partitions[0].error_code:  # until its coordinator has loaded
                pass
        replicas = [p.replicas for p in first.observer.image.topics.by_name[GROUP_TOPIC].partitions.values()]
        assert replicas == [(0,)] * PARTITIONS
        for _ in range(2):
            await cluster.start_broker()

        def grown(image: MetadataImage) -> bool:
            partitions = image.topics.by_name[GROUP_TOPIC].partitions.values()
            whole = all(len(p.isr) == len(p.replicas) == FACTOR and not p.is_reassigning for p in partitions)
            return whole and not throttled(image)

        assert await first.observer.wait_until(grown, WAIT_S)
        assert await committed(cluster, wire) == 5
        wire.close()
    finally:
        await cluster.stop()
