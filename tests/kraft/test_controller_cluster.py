"""Controllers, observers and broker lifecycles over real sockets and disks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import ErrorCode
from kraft.image.metadata import MetadataImage
from tests.kraft.controller_cluster import BrokerSide, ControllerCluster, until
from wire.messages import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeQuorumRequest,
    schema_uuid,
)

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ControllerCluster]:
    """Its parameter is how long a broker may be silent, in seconds."""
    cluster = ControllerCluster(tmp_path, session_timeout_s=getattr(request, "param", 1.0))
    await cluster.start()
    yield cluster
    await cluster.stop()
    assert not cluster.fatal


@pytest.fixture
async def brokers(cluster: ControllerCluster, tmp_path: Path) -> AsyncIterator[list[BrokerSide]]:
    brokers = [BrokerSide(tmp_path, i, cluster.controllers) for i in range(3)]
    await asyncio.gather(*(broker.start() for broker in brokers))
    yield brokers
    await asyncio.gather(*(broker.stop() for broker in brokers))


async def create_topic(broker: BrokerSide, name: str, partitions: int = -1, factor: int = -1) -> Any:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=5000, validate_only=False)
    response = await broker.forward(request, 7)
    return response.topics[0]


def image_of(cluster: ControllerCluster) -> MetadataImage:
    active = cluster.active()
    assert active is not None
    return active.image


async def test_a_topic_is_created_seen_by_all_and_deleted(
    cluster: ControllerCluster, brokers: list[BrokerSide]
) -> None:
    created = await create_topic(brokers[1], "flights")
    assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 3, 3)
    assert any(c.name == "retention.ms" and c.config_source == 5 for c in created.configs)
    image = brokers[1].observer.image
    topic = image.topics.get("flights")
    assert topic is not None  # forwarding waits until the local image has it
    assert sorted(p.leader for p in topic.partitions.values()) == [0, 1, 2]
    for broker in brokers:
        assert await broker.observer.wait_for(image.offset, 5)
        assert broker.observer.image.topics.get("flights") == topic
    again = await create_topic(brokers[2], "flights")
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=schema_uuid(topic.topic_id))
    gone = await brokers[0].forward(DeleteTopicsRequest(topics=[state], topic_names=[], timeout_ms=5000), 6)
    assert gone.responses[0].error_code == 0
    assert "flights" not in brokers[0].observer.image.topics


async def test_the_leader_changes_the_isr_and_a_stale_epoch_is_refused(
    cluster: ControllerCluster, brokers: list[BrokerSide]
) -> None:
    await create_topic(brokers[0], "t", 1, 3)
    partition = brokers[0].observer.image.partition_by_name("t", 0)
    assert partition is not None
    leader = brokers[partition.leader]
    members = [(b, brokers[b].epoch) for b in partition.isr if b != partition.replicas[2]]
    response = await leader.channel.call(
        alter_partition(partition, partition.leader, leader.epoch, members), 3, timeout_s=5
    )
    answer = response.topics[0].partitions[0]
    assert (answer.error_code, answer.partition_epoch, answer.leader_epoch) == (0, 1, 0)
    stale = await leader.channel.call(
        alter_partition(partition, partition.leader, leader.epoch, members), 3, timeout_s=5
    )
    assert stale.topics[0].partitions[0].error_code == ErrorCode.INVALID_UPDATE_VERSION


def alter_partition(partition: Any, broker_id: int, broker_epoch: int, members: list[tuple[int, int]]) -> Any:
    data = AlterPartitionRequest.TopicData
    change = data.PartitionData(
        partition_index=partition.partition,
        leader_epoch=partition.leader_epoch,
        new_isr_with_epochs=[data.PartitionData.BrokerState(broker_id=b, broker_epoch=e) for b, e in members],
        leader_recovery_state=0,
        partition_epoch=partition.partition_epoch,
    )
    topic = data(topic_id=schema_uuid(partition.topic_id), partitions=[change])
    return AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch, topics=[topic])


@pytest.mark.parametrize("cluster", [60.0], indirect=True)
async def test_a_broker_that_vanishes_is_fenced_before_its_silence_tells_and_its_leaderships_move(
    cluster: ControllerCluster, brokers: list[BrokerSide], tmp_path: Path
) -> None:
    await create_topic(brokers[0], "t", 30, 3)
    await brokers[2].stop()
    observer = brokers[0].observer
    assert await observer.wait_until(lambda image: image.brokers[2].fenced, 10)
    topic = observer.image.topics.get("t")
    assert topic is not None
    assert all(p.leader in (0, 1) and 2 not in p.isr for p in topic.partitions.values())
    brokers[2] = BrokerSide(tmp_path, 2, cluster.controllers)
    await brokers[2].start()
    image = brokers[2].observer.image
    assert not image.brokers[2].fenced
    assert image.brokers[2].epoch == brokers[2].epoch


async def test_controlled_shutdown_moves_leaderships_first_and_a_clean_return_keeps_the_elr(
    cluster: ControllerCluster, brokers: list[BrokerSide], tmp_path: Path
) -> None:
    await create_topic(brokers[0], "t", 9, 3)
    await create_topic(brokers[0], "single", 3, 1)
    lifecycle = brokers[1].lifecycle
    assert lifecycle is not None
    assert await lifecycle.shut_down()
    assert all(p.leader != 1 for p in image_of(cluster).topics.partitions())
    alone = [p for p in image_of(cluster).topics.partitions() if p.replicas == (1,)]
    assert [(p.isr, p.elr, p.last_known_leader) for p in alone] == [((), (1,), 1)]
    epoch = brokers[1].epoch
    await brokers[1].stop()
    brokers[1] = BrokerSide(tmp_path, 1, cluster.controllers, previous_epoch=epoch)
    await brokers[1].start()
    await until(lambda: all(p.has_leader for p in image_of(cluster).topics.partitions()))


async def test_the_cluster_survives_the_loss_of_its_active_controller(
    cluster: ControllerCluster, brokers: list[BrokerSide]
) -> None:
    await create_topic(brokers[0], "before", 3, 3)
    old = cluster.active()
    assert old is not None
    old_id = next(node_id for node_id, node in cluster.nodes.items() if node is old)
    before = old.image
    await cluster.stop_node(old_id)
    created = await create_topic(brokers[0], "after", 3, 3)
    assert created.error_code == 0
    image = brokers[0].observer.image
    assert image.epoch > before.epoch
    assert image.cluster_id == before.cluster_id
    assert image.topics.get("before") == before.topics.get("before")
    await asyncio.sleep(1.2)  # longer than a session: nobody was fenced by the change
    assert [b.broker_id for b in image_of(cluster).unfenced_brokers()] == [0, 1, 2]
    await cluster.start_node(old_id)
    await until(lambda: cluster.nodes[old_id].image.offset >= image.offset)


async def test_producer_ids_are_never_given_twice(cluster: ControllerCluster, brokers: list[BrokerSide]) -> None:
    requests = [
        broker.channel.call(AllocateProducerIdsRequest(broker_id=i, broker_epoch=broker.epoch), 0, timeout_s=5)
        for i, broker in enumerate(brokers)
        for _ in range(5)
    ]
    answers = await asyncio.gather(*requests)
    starts = sorted(answer.producer_id_start for answer in answers)
    assert starts == [1000 * i for i in range(15)]
    assert {answer.producer_id_len for answer in answers} == {1000}


async def test_an_observer_restarts_from_its_copy_and_fetches_only_what_it_missed(
    cluster: ControllerCluster, brokers: list[BrokerSide], tmp_path: Path
) -> None:
    await create_topic(brokers[0], "one", 3, 3)
    assert await brokers[2].observer.wait_for(brokers[0].observer.image.offset, 5)
    held = brokers[2].observer.image
    await brokers[2].stop()
    await create_topic(brokers[0], "two", 3, 2)
    brokers[2] = BrokerSide(tmp_path, 2, cluster.controllers)
    seen: list[tuple[int, int]] = []
    brokers[2].observer.subscribe(lambda delta, image: seen.append((delta.base.offset, image.offset)))
    await brokers[2].start()
    assert seen[0][0] == -1
    assert seen[0][1] >= held.offset
    assert await brokers[2].observer.wait_until(lambda image: "two" in image.topics, 5)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(seen))


async def test_an_observer_far_behind_gets_a_snapshot(
    cluster: ControllerCluster, brokers: list[BrokerSide], tmp_path: Path
) -> None:
    await create_topic(brokers[0], "t", 50, 3)
    for node in cluster.nodes.values():  # as after a restart from a snapshot
        node.machine.log.reset(node.image.next_offset, node.image.epoch)
    late = BrokerSide(tmp_path, 7, cluster.controllers)
    await late.observer.start()
    try:
        assert await late.observer.wait_until(lambda image: "t" in image.topics, 5)
        assert late.observer.image.topics.get("t") == image_of(cluster).topics.get("t")
    finally:
        await late.stop()


async def test_a_restarted_cluster_is_the_same_cluster(cluster: ControllerCluster, brokers: list[BrokerSide]) -> None:
    await create_topic(brokers[0], "t", 5, 3)
    before = image_of(cluster)
    for node_id in list(cluster.nodes):
        await cluster.stop_node(node_id)
    await cluster.start()
    await until(lambda: image_of(cluster).offset > before.offset)
    after = image_of(cluster)
    assert (after.cluster_id, after.topics.get("t")) == (before.cluster_id, before.topics.get("t"))
    assert after.epoch > before.epoch
    created = await create_topic(brokers[0], "u", 1, 3)
    assert created.error_code == 0
    assert not any(broker.fatal for broker in brokers)


async def test_a_broker_of_another_cluster_is_stopped_with_a_sentence(
    cluster: ControllerCluster, brokers: list[BrokerSide], tmp_path: Path
) -> None:
    other = ControllerCluster(tmp_path / "other", count=1)
    await other.start()
    stranger = BrokerSide(tmp_path, 0, other.controllers)  # broker 0's disk, the other cluster's controllers
    await brokers[0].stop()
    try:
        await stranger.observer.start()
        await until(lambda: stranger.fatal)
        assert "cluster" in stranger.fatal[0]
    finally:
        await stranger.stop()
        await other.stop()


def quorum_request(topic: str = "__cluster_metadata") -> DescribeQuorumRequest:
    partition = DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)
    return DescribeQuorumRequest(topics=[DescribeQuorumRequest.TopicData(topic_name=topic, partitions=[partition])])


async def asked_quorum(broker: BrokerSide, topic: str = "__cluster_metadata") -> Any:
    return await broker.channel.call(quorum_request(topic), 2, timeout_s=5)


async def test_describe_quorum_names_leader_and_voters(cluster: ControllerCluster, brokers: list[BrokerSide]) -> None:
    answer = await asked_quorum(brokers[0])
    found = answer.topics[0].partitions[0]
    assert found.leader_id == image_of(cluster).leader_id
    assert [voter.replica_id for voter in found.current_voters] == [100, 101, 102]
    assert [(node.node_id, node.listeners[0].name) for node in answer.nodes] == [
        (voter, "CONTROLLER") for voter in (100, 101, 102)
    ]
    answer = await asked_quorum(brokers[0], "another")
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_describe_quorum_shows_how_far_each_voter_is(
    cluster: ControllerCluster, brokers: list[BrokerSide]
) -> None:
    async def asked() -> Any:
        return (await asked_quorum(brokers[0])).topics[0].partitions[0]

    await asyncio.sleep(2.0)  # of virtual time, in which voters answer and brokers are heard
    found = await asked()
    assert {voter.log_end_offset for voter in found.current_voters} == {found.high_watermark}
    assert [broker.replica_id for broker in found.observers] == [0, 1, 2]
    gone = next(voter.replica_id for voter in found.current_voters if voter.replica_id != found.leader_id)
    await cluster.stop_node(gone)
    await create_topic(brokers[0], "behind", 1, 3)
    await asyncio.sleep(0.5)
    found = await asked()
    rows = {voter.replica_id: voter for voter in found.current_voters}
    assert rows[found.leader_id].log_end_offset == found.high_watermark
    assert 0 < rows[gone].log_end_offset < found.high_watermark
    assert 0 < rows[gone].last_caught_up_timestamp <= rows[gone].last_fetch_timestamp
    assert rows[gone].last_fetch_timestamp < rows[found.leader_id].last_fetch_timestamp
