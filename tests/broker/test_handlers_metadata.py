"""Metadata, ApiVersions, DescribeCluster and FindCoordinator, in every version, over an image."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from broker.handlers.cluster import ClusterHandlers
from broker.handlers.metadata import CREATED_PER_REQUEST, MISSING_COST, MetadataConfig, MetadataHandler
from common.errors import ErrorCode
from common.pacing import CLIENTS_SHARE, SLICE_COST, Pacer
from kraft.controller.policy import ControllerPolicy
from kraft.observers.controller_channel import ControllerUnavailable
from kraft.records import PartitionChangeRecord
from kraft.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC
from tests.broker.broker_world import BrokerWorld, context, over_the_wire, reply_over_the_wire, versions_of
from tests.common.call_count import counted_calls
from wire.apis import APIS
from wire.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    DescribeClusterRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)

pytestmark = pytest.mark.virtual_time

_Asked = MetadataRequest.MetadataRequestTopic


def handler(world: BrokerWorld, auto_create: bool = True) -> MetadataHandler:
    return MetadataHandler(world.forwarder, world.internal_topics, MetadataConfig(0, auto_create))


async def ask(world: BrokerWorld, version: int, topics: list[Any] | None, **fields: Any) -> Any:
    ctx = context("Metadata", version, fields.pop("listener", "PLAINTEXT"))
    auto_create = fields.pop("auto_create", True)
    request = over_the_wire(version, MetadataRequest(topics=topics, **fields))
    return reply_over_the_wire(ctx, await handler(world, auto_create).metadata(ctx, request))


async def create(world: BrokerWorld, *names: str, partitions: int = 2) -> None:
    creatable = [
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=2, assignments=[], configs=[]
        )
        for name in names
    ]
    ctx = context("CreateTopics", 7)
    response = await world.forwarder.serve(ctx, CreateTopicsRequest(topics=creatable))
    assert [result.error_code for result in response.topics] == [0] * len(names)


@pytest.mark.parametrize("version", versions_of("Metadata"))
async def test_every_version_shows_brokers_and_topics(version: int) -> None:
    world = BrokerWorld()
    await create(world, "a", "b")
    response = await ask(world, version, [] if version == 0 else None)
    assert [(b.node_id, b.host, b.port) for b in response.brokers] == [(i, f"host-{i}", 9092 + i) for i in range(3)]
    assert [topic.name for topic in response.topics] == ["a", "b"]
    assert [len(topic.partitions) for topic in response.topics] == [2, 2]
    if version >= 1:
        assert response.controller_id == 0
    if version >= 2:
        assert response.cluster_id == "cluster-1"
    if version >= 10:
        assert response.topics[0].topic_id == uuid.UUID(bytes=world.image.topics.by_name["a"].topic_id)


async def test_an_empty_list_asks_for_no_topic() -> None:
    world = BrokerWorld()
    await create(world, "a")
    assert (await ask(world, 12, [])).topics == []


async def test_a_leader_that_was_lost_sight_of_is_not_shown() -> None:
    world = BrokerWorld()
    await create(world, "a", partitions=3)
    leaders = [p.leader_id for p in (await ask(world, 12, None)).topics[0].partitions]
    doubted = leaders[0]
    doubting = MetadataHandler(world.forwarder, world.internal_topics, MetadataConfig(0), lambda b: b == doubted)
    ctx = context("Metadata", 12)
    response = reply_over_the_wire(ctx, await doubting.metadata(ctx, MetadataRequest(topics=None)))
    for before, shown in zip(leaders, response.topics[0].partitions, strict=True):
        expected = (-1, ErrorCode.LEADER_NOT_AVAILABLE) if before == doubted else (before, ErrorCode.NONE)
        assert (shown.leader_id, shown.error_code) == expected
    assert len(response.brokers) == 3


async def test_each_listener_has_its_own_addresses() -> None:
    response = await ask(BrokerWorld(), 12, None, listener="INTERNAL")
    assert (response.brokers[0].host, response.brokers[0].port) == ("internal", 19092)
    assert (await ask(BrokerWorld(), 12, None, listener="UNKNOWN")).brokers == []


async def test_fenced_brokers_are_not_shown_and_their_replicas_are_offline() -> None:
    world = BrokerWorld()
    await create(world, "a")
    partition = world.image.topics.by_name["a"].partitions[0]
    world.set_fenced(partition.leader, True)
    response = await ask(world, 12, [_Asked(name="a")])
    assert partition.leader not in [broker.node_id for broker in response.brokers]
    shown = response.topics[0].partitions[0]
    assert (shown.error_code, shown.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert shown.offline_replicas == [partition.leader]
    assert response.controller_id != partition.leader or partition.leader != 0


async def test_a_leader_without_this_listener_is_told_apart() -> None:
    world = BrokerWorld()
    await create(world, "a")
    response = await ask(world, 12, [_Asked(name="a")], listener="OTHER")
    assert response.topics[0].partitions[0].error_code == ErrorCode.LISTENER_NOT_FOUND
    response = await ask(world, 5, [_Asked(name="a")], listener="OTHER")
    assert response.topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_leader_epochs_and_missing_leaders() -> None:
    world = BrokerWorld()
    await create(world, "a")
    topic_id = world.image.topics.by_name["a"].topic_id
    world.replay(PartitionChangeRecord(topic_id, 1, leader=-1))
    shown = (await ask(world, 12, [_Asked(name="a")])).topics[0].partitions
    assert (shown[0].error_code, shown[0].leader_epoch) == (0, 0)
    assert (shown[1].error_code, shown[1].leader_id, shown[1].leader_epoch) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, 1)


async def test_topics_by_id() -> None:
    world = BrokerWorld()
    await create(world, "a")
    known = uuid.UUID(bytes=world.image.topics.by_name["a"].topic_id)
    unknown = uuid.UUID(int=99)
    response = await ask(world, 12, [_Asked(name=None, topic_id=known), _Asked(name=None, topic_id=unknown)])
    assert [(topic.error_code, topic.name) for topic in response.topics] == [
        (0, "a"),
        (ErrorCode.UNKNOWN_TOPIC_ID, None),
    ]
    assert response.topics[1].topic_id == unknown
    response = await ask(world, 10, [_Asked(name="a", topic_id=known)])
    assert response.topics[0].error_code == ErrorCode.INVALID_REQUEST


async def test_unknown_topics_are_created_and_answered_at_once() -> None:
    world = BrokerWorld()
    response = await ask(world, 12, [_Asked(name="new"), _Asked(name="bad name")])
    assert [topic.error_code for topic in response.topics] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert len(response.topics[0].partitions) == 3  # num.partitions
    assert len(response.topics[0].partitions[0].replica_nodes) == 2
    assert world.waited == [world.image.offset]


async def test_unknown_topics_are_not_created_where_broker_or_client_say_so() -> None:
    world = BrokerWorld()
    off = await ask(world, 12, [_Asked(name="new")], auto_create=False)
    unwanted = await ask(world, 12, [_Asked(name="new")], allow_auto_topic_creation=False)
    for response in (off, unwanted):
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not world.forwarded
    old = await ask(world, 3, [_Asked(name="new")])  # cannot say so
    assert old.topics[0].error_code == 0


async def test_a_topic_that_cannot_be_created_says_why() -> None:
    world = BrokerWorld()
    world.failure = ControllerUnavailable("none")
    response = await ask(world, 12, [_Asked(name="new")])
    assert response.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    world = BrokerWorld(ControllerPolicy(default_replication_factor=4))
    response = await ask(world, 12, [_Asked(name="new")])
    assert response.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


async def test_a_request_for_very_many_unknown_topics_creates_them_over_several_attempts() -> None:
    world = BrokerWorld()
    names = [f"new-{number}" for number in range(CREATED_PER_REQUEST * 2 + 1)]
    for made in (1, 2, 3):
        response = await ask(world, 12, [_Asked(name=name) for name in names])
        codes = [topic.error_code for topic in response.topics]
        assert codes.count(ErrorCode.NONE) == min(made * CREATED_PER_REQUEST, len(names))
        assert set(codes) <= {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}


class Steps:
    """Awaits a coroutine and counts what each of its steps calls, beside the paced work that it waits for."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.calls: list[int] = []
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        while True:
            with counted_calls() as count:
                try:
                    waits_for = self._work.send(None)
                except StopIteration as end:
                    return end.value
                finally:
                    self.calls.append(count.calls)
            yield waits_for


async def test_thousands_of_unknown_topics_are_gone_through_in_slices() -> None:
    async def asked_for(count: int) -> tuple[int, int]:
        """Calls of the longest step beside slices, and slices."""
        world, ctx = BrokerWorld(), context("Metadata", 12)
        ctx.pacer = pacer = Pacer(inline_cost=0)
        asked = [_Asked(name=f"new-{number:04}") for number in range(count)]
        steps = Steps(handler(world).metadata(ctx, MetadataRequest(topics=asked)))
        await steps
        return max(steps.calls), pacer.slices

    (calls, slices), (more_calls, more_slices) = await asked_for(1_000), await asked_for(4_000)
    assert more_calls < calls + 1_000  # of them, nearly all are of the creation, which is of as many topics
    checked_and_answered = 2 * MISSING_COST * 3_000
    assert (more_slices - slices) * SLICE_COST / CLIENTS_SHARE > checked_and_answered


class GatedWorld(BrokerWorld):
    """The controller gets no request before `made` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.made = asyncio.Event()
        self.asked: list[bytes] = []

    async def call(self, request: Any, version: int, **limits: Any) -> Any:
        self.asked.append(bytes(request.request_data))
        await self.made.wait()
        return await super().call(request, version, **limits)


async def test_a_topic_that_two_requests_want_is_created_by_one_of_them() -> None:
    world = GatedWorld()
    shared = handler(world)
    internal_too, alone = (
        asyncio.create_task(
            shared.metadata(
                context("Metadata", 12),
                over_the_wire(12, MetadataRequest(topics=[_Asked(name=name) for name in names])),
            )
        )
        for names in (["new", GROUP_TOPIC], ["new"])
    )
    while len(world.asked) < 2:  # noqa: ASYNC110  what is awaited has no event
        await asyncio.sleep(0)
    world.made.set()
    await asyncio.gather(internal_too, alone)
    assert [b"new" in one for one in world.asked] == [False, True]
    response = await ask(world, 12, [_Asked(name="new")])
    assert response.topics[0].error_code == 0


async def test_the_group_topic_is_made_as_an_internal_topic() -> None:
    world = BrokerWorld()
    response = await ask(world, 12, [_Asked(name=GROUP_TOPIC)])
    assert (response.topics[0].error_code, response.topics[0].is_internal) == (0, True)
    assert world.image.configs.topic(GROUP_TOPIC)["cleanup.policy"] == "compact"


async def test_operations_are_told_when_asked_for() -> None:
    world = BrokerWorld()
    await create(world, "a")
    response = await ask(
        world, 9, None, include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    assert response.topics[0].authorized_operations == {3, 4, 5, 6, 7, 8, 10, 11}
    assert response.authorized_operations == {5, 7, 8, 9, 10, 11, 12}
    assert (await ask(world, 9, None)).topics[0].authorized_operations is None


# the cluster ----------------------------------------------------------------------------------------------------


def cluster(world: BrokerWorld) -> ClusterHandlers:
    return ClusterHandlers(world.forwarder, world.internal_topics, 0)


@pytest.mark.parametrize("version", versions_of("ApiVersions"))
async def test_api_versions_tells_what_is_served_and_finalised(version: int) -> None:
    world = BrokerWorld()
    ctx = context("ApiVersions", version)
    request = ApiVersionsRequest(client_software_name="kafka-python", client_software_version="3.0.12")
    response = reply_over_the_wire(ctx, cluster(world).api_versions(ctx, over_the_wire(version, request)))
    assert {row.api_key for row in response.api_keys} == {
        api.key for api in APIS.values() if any(kind == "operator" for kind in api.kinds)
    }
    if version >= 3:
        assert [(f.name, f.max_version_level) for f in response.finalized_features] == [("metadata.version", 27)]


async def test_api_versions_wants_a_proper_name_of_the_client() -> None:
    world = BrokerWorld()
    ctx = context("ApiVersions", 3)
    request = ApiVersionsRequest(client_software_name="-bad-", client_software_version="1")
    assert cluster(world).api_versions(ctx, request).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", versions_of("DescribeCluster"))
async def test_describe_cluster(version: int) -> None:
    world = BrokerWorld()
    world.set_fenced(2, True)
    ctx = context("DescribeCluster", version)
    request = over_the_wire(version, DescribeClusterRequest(include_fenced_brokers=True))
    response = reply_over_the_wire(ctx, cluster(world).describe_cluster(ctx, request))
    expected = [0, 1, 2] if version >= 2 else [0, 1]
    assert [broker.broker_id for broker in response.brokers] == expected
    assert (response.cluster_id, response.controller_id) == ("cluster-1", 0)
    if version >= 2:
        assert [broker.is_fenced for broker in response.brokers] == [False, False, True]
    if version >= 1:
        for endpoint_type, code in ((2, 114), (7, 115)):
            asked = DescribeClusterRequest(endpoint_type=endpoint_type)
            assert cluster(world).describe_cluster(ctx, asked).error_code == code


@pytest.mark.parametrize("version", versions_of("FindCoordinator"))
async def test_find_coordinator_makes_the_topic_first(version: int) -> None:
    world = BrokerWorld()
    ctx = context("FindCoordinator", version)
    many = version >= 4
    request = FindCoordinatorRequest(key="" if many else "g", coordinator_keys=["g", "h"] if many else [])
    response = await cluster(world).find_coordinator(ctx, over_the_wire(version, request))
    response = reply_over_the_wire(ctx, response)
    leader = world.image.topics.by_name[GROUP_TOPIC].partitions[0].leader
    found = response.coordinators if many else [response]
    assert [(row.error_code, row.node_id, row.port) for row in found] == [(0, leader, 9092 + leader)] * len(found)
    assert len(world.image.topics.by_name[GROUP_TOPIC].partitions[0].replicas) == 3
    if many:
        assert [row.key for row in found] == ["g", "h"]


async def test_seekers_of_another_coordinator_are_told_for_good() -> None:
    world = BrokerWorld()
    ctx = context("FindCoordinator", 4)
    response = await cluster(world).find_coordinator(ctx, FindCoordinatorRequest(key_type=2, coordinator_keys=["t"]))
    (told,) = response.coordinators
    assert (told.error_code, told.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "Only groups and transactions have a coordinator here.",
    )
    assert GROUP_TOPIC not in world.image.topics


@pytest.mark.parametrize("version", [1, 4])
async def test_the_topic_of_transactions_is_created_for_the_first_that_asks(version: int) -> None:
    world = BrokerWorld()
    ctx = context("FindCoordinator", version)
    request = FindCoordinatorRequest(key_type=1, key="t", coordinator_keys=["t"])
    response = await cluster(world).find_coordinator(ctx, over_the_wire(version, request))
    (found,) = response.coordinators if version >= 4 else [response]
    leader = world.image.topics.by_name[TRANSACTION_TOPIC].partitions[0].leader
    assert (found.error_code, found.node_id, found.port) == (0, leader, 9092 + leader)
    assert GROUP_TOPIC not in world.image.topics


async def test_no_controller_no_coordinator_and_no_storm_of_requests() -> None:
    world = BrokerWorld()
    world.failure = ControllerUnavailable("none")
    ctx = context("FindCoordinator", 4)
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    answers = await asyncio.gather(*(cluster(world).find_coordinator(ctx, request) for _ in range(3)))
    for response in answers:
        assert response.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.failure = None
    response = await cluster(world).find_coordinator(ctx, request)
    assert not world.forwarded  # it pauses before it asks again
    assert response.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
