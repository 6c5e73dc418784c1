"""Moving replicas and leaders over a broker that forwards the request, in every version."""

from __future__ import annotations

from typing import Any

import pytest

from broker.handlers.elections import ElectLeaders
from common.errors import ErrorCode
from kraft.observers.controller_channel import ControllerUnavailable
from tests.broker.broker_world import BrokerWorld, context, over_the_wire, reply_over_the_wire, versions_of
from wire.codec import encode_response
from wire.messages import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    ElectLeadersRequest,
    EnvelopeResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

pytestmark = pytest.mark.virtual_time


async def with_topic() -> BrokerWorld:
    world = BrokerWorld()
    topic = CreateTopicsRequest.CreatableTopic
    assignment = topic.CreatableReplicaAssignment(partition_index=0, broker_ids=[0, 1])
    request = CreateTopicsRequest(
        topics=[topic(name="a", num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=[])]
    )
    await world.forwarder.serve(context("CreateTopics", 7), request)
    return world


def moved(replicas: list[int] | None) -> Any:
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = topic.ReassignablePartition(partition_index=0, replicas=replicas)
    return AlterPartitionReassignmentsRequest(topics=[topic(name="a", partitions=[partition])], timeout_ms=1_000)


@pytest.mark.parametrize("version", versions_of("AlterPartitionReassignments"))
async def test_a_reassignment_starts_is_listed_and_cancelled(version: int) -> None:
    world = await with_topic()
    ctx = context("AlterPartitionReassignments", version)
    request = over_the_wire(version, moved([2, 1]))
    response = reply_over_the_wire(ctx, await world.forwarder.serve(ctx, request))
    assert (response.error_code, response.responses[0].partitions[0].error_code) == (0, 0)
    assert list(world.image.topics.by_name["a"].partitions[0].replicas) == [2, 1, 0]
    listing = context("ListPartitionReassignments", 0)
    asked = over_the_wire(0, ListPartitionReassignmentsRequest(topics=None, timeout_ms=1_000))
    listed = reply_over_the_wire(listing, await world.forwarder.serve(listing, asked))
    row = listed.topics[0].partitions[0]
    assert (row.replicas, row.adding_replicas, row.removing_replicas) == ([2, 1, 0], [2], [0])
    request = over_the_wire(version, moved(None))
    response = reply_over_the_wire(ctx, await world.forwarder.serve(ctx, request))
    assert response.responses[0].partitions[0].error_code == 0
    assert list(world.image.topics.by_name["a"].partitions[0].replicas) == [1, 0]


@pytest.mark.parametrize("version", versions_of("ElectLeaders"))
async def test_leaders_are_elected(version: int) -> None:
    world = await with_topic()
    ctx = context("ElectLeaders", version)
    asked = [ElectLeadersRequest.TopicPartitions(topic="a", partitions=[0, 9])]
    request = over_the_wire(version, ElectLeadersRequest(election_type=0, topic_partitions=asked, timeout_ms=1_000))
    response = reply_over_the_wire(ctx, await ElectLeaders(world.forwarder).handle(ctx, request))
    codes = {row.partition_id: row.error_code for row in response.replica_election_results[0].partition_result}
    assert codes == {0: ErrorCode.ELECTION_NOT_NEEDED, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("version", versions_of("ElectLeaders"))
async def test_without_a_controller_everybody_is_told(version: int) -> None:
    world = await with_topic()
    world.failure = ControllerUnavailable("none")
    ctx = context("ElectLeaders", version)
    asked = [ElectLeadersRequest.TopicPartitions(topic="a", partitions=[0])]
    request = over_the_wire(version, ElectLeadersRequest(election_type=0, topic_partitions=asked, timeout_ms=1_000))
    response = reply_over_the_wire(ctx, await ElectLeaders(world.forwarder).handle(ctx, request))
    rows = [row for topic in response.replica_election_results for row in topic.partition_result]
    assert (rows[0].error_code if version < 1 else response.error_code) == ErrorCode.NOT_CONTROLLER
    moving = await world.forwarder.serve(context("AlterPartitionReassignments", 1), moved([1]))
    assert (moving.error_code, moving.responses) == (ErrorCode.NOT_CONTROLLER, [])


async def test_more_moves_are_listed_than_a_request_may_have_elements() -> None:
    """A controller's answer is bounded by its bytes: 250,000 elements are some 40,000 moves."""
    topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment
    move = topic.OngoingPartitionReassignment(
        partition_index=0, replicas=list(range(2_000)), adding_replicas=[], removing_replicas=[]
    )
    listed = ListPartitionReassignmentsResponse(topics=[topic(name="a", partitions=[move] * 150)])
    framed = encode_response(46, 0, 1, listed)

    class ManyMoves(BrokerWorld):
        async def call(self, request: Any, version: int, **_: Any) -> Any:
            return EnvelopeResponse(error_code=0, response_data=framed[4:], committed_offset=-1)

    request = ListPartitionReassignmentsRequest(topics=None, timeout_ms=1_000)
    response = await ManyMoves().forwarder.serve(context("ListPartitionReassignments", 0), request)
    assert [len(row.replicas) for row in response.topics[0].partitions] == [2_000] * 150
