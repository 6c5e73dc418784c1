"""Creating, deleting and describing topics and settings over a broker that forwards them."""

from __future__ import annotations

import logging
import uuid
from types import GeneratorType
from typing import Any

import pytest

from broker.handlers.certificate_reloads import CertificateReloads
from broker.handlers.configs import ConfigHandlers
from broker.handlers.logger_levels import LoggerLevels
from broker.handlers.topics import TopicHandlers
from common.errors import ErrorCode, OutcomeUnknown
from common.pacing import at_once
from kraft.observers.controller_channel import ControllerUnavailable
from kraft.records import ConfigRecord, ResourceType, TenantRecord
from tests.broker.broker_world import BrokerWorld, context, over_the_wire, reply_over_the_wire, versions_of
from wire.messages import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)

pytestmark = pytest.mark.virtual_time

_Resource = DescribeConfigsRequest.DescribeConfigsResource


def creatable(name: str, partitions: int = 2, **configs: str) -> Any:
    config_class = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=2,
        assignments=[],
        configs=[config_class(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def topics(world: BrokerWorld) -> TopicHandlers:
    return TopicHandlers(world.forwarder, 0)


def configs(world: BrokerWorld, **given: str) -> ConfigHandlers:
    settings = {key.replace("_", "."): value for key, value in given.items()}
    levels = LoggerLevels(0, logging.root.manager)
    return ConfigHandlers(world.forwarder, 0, settings, CertificateReloads(0, list), levels)


@pytest.mark.parametrize("version", versions_of("CreateTopics"))
async def test_create_topics_is_answered_from_the_own_image(version: int) -> None:
    world = BrokerWorld()
    ctx = context("CreateTopics", version)
    request = over_the_wire(version, CreateTopicsRequest(topics=[creatable("a", retention_ms="5"), creatable("a b")]))
    response = reply_over_the_wire(ctx, await world.forwarder.serve(ctx, request))
    codes = {result.name: result.error_code for result in response.topics}
    assert codes == {"a": 0, "a b": ErrorCode.INVALID_TOPIC_EXCEPTION}
    # up to version 5 clients know no THROTTLING_QUOTA_EXCEEDED: the controller has to see that
    assert world.forwarded == [(19, 5 if version <= 5 else 7)]
    assert world.waited == [world.image.offset]
    assert world.image.configs.topic("a") == {"retention.ms": "5"}
    if version >= 7:
        created = next(result for result in response.topics if result.name == "a")
        assert created.topic_id == uuid.UUID(bytes=world.image.topics.by_name["a"].topic_id)


async def test_validate_only_creates_nothing() -> None:
    world = BrokerWorld()
    request = over_the_wire(4, CreateTopicsRequest(topics=[creatable("a")], validate_only=True))
    response = await world.forwarder.serve(context("CreateTopics", 4), request)
    assert [result.error_code for result in response.topics] == [0]
    assert "a" not in world.image.topics


@pytest.mark.parametrize("version", versions_of("DeleteTopics"))
async def test_delete_topics_by_name(version: int) -> None:
    world = BrokerWorld()
    await world.forwarder.serve(context("CreateTopics", 7), CreateTopicsRequest(topics=[creatable("a")]))
    state = DeleteTopicsRequest.DeleteTopicState
    if version >= 6:
        request = DeleteTopicsRequest(topics=[state(name="a"), state(name="b")], timeout_ms=1000)
    else:
        request = DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=1000)
    ctx = context("DeleteTopics", version)
    response = reply_over_the_wire(ctx, await topics(world).delete_topics(ctx, over_the_wire(version, request)))
    assert [(row.name, row.error_code) for row in response.responses] == [
        ("a", 0),
        ("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert world.forwarded[-1] == (20, 4 if version <= 4 else 6)
    assert "a" not in world.image.topics


async def test_delete_topics_by_id() -> None:
    world = BrokerWorld()
    await world.forwarder.serve(context("CreateTopics", 7), CreateTopicsRequest(topics=[creatable("a")]))
    topic_id = uuid.UUID(bytes=world.image.topics.by_name["a"].topic_id)
    state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)
    request = over_the_wire(6, DeleteTopicsRequest(topics=[state], timeout_ms=1000))
    response = await topics(world).delete_topics(context("DeleteTopics", 6), request)
    assert [(row.name, row.error_code) for row in response.responses] == [("a", 0)]


@pytest.mark.parametrize("version", versions_of("CreatePartitions"))
async def test_create_partitions(version: int) -> None:
    world = BrokerWorld()
    await world.forwarder.serve(context("CreateTopics", 7), CreateTopicsRequest(topics=[creatable("a")]))
    more = CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=5, assignments=None)
    request = over_the_wire(version, CreatePartitionsRequest(topics=[more], timeout_ms=1000, validate_only=False))
    ctx = context("CreatePartitions", version)
    response = reply_over_the_wire(ctx, await world.forwarder.serve(ctx, request))
    assert [row.error_code for row in response.results] == [0]
    assert len(world.image.topics.by_name["a"].partitions) == 5


@pytest.mark.parametrize(
    ("failure", "code"),
    [(ControllerUnavailable("x"), ErrorCode.NOT_CONTROLLER), (OutcomeUnknown("x"), ErrorCode.REQUEST_TIMED_OUT)],
)
async def test_without_a_controller_everything_asked_for_fails(failure: Exception, code: ErrorCode) -> None:
    world = BrokerWorld()
    world.failure = failure
    created = await world.forwarder.serve(
        context("CreateTopics", 7), CreateTopicsRequest(topics=[creatable("a"), creatable("b")])
    )
    assert [row.error_code for row in created.topics] == [code, code]
    deleted = await topics(world).delete_topics(
        context("DeleteTopics", 1), over_the_wire(1, DeleteTopicsRequest(topic_names=["a"], timeout_ms=1))
    )
    assert [(row.name, row.error_code) for row in deleted.responses] == [("a", code)]
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="a", configs=[])
    altered = await configs(world).alter_configs(context("AlterConfigs", 2), AlterConfigsRequest(resources=[resource]))
    assert [(row.resource_name, row.error_code) for row in altered.responses] == [("a", code)]


# DescribeTopicPartitions ----------------------------------------------------------------------------------------


async def pages(world: BrokerWorld, names: list[str], limit: int) -> tuple[list[tuple[str, int]], int]:
    """Everything described, page by page, and the number of pages."""
    ctx = context("DescribeTopicPartitions", 0)
    asked = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names]
    cursor, seen, count = None, [], 0
    while True:
        request = DescribeTopicPartitionsRequest(topics=asked, response_partition_limit=limit, cursor=cursor)
        response = at_once(topics(world).describe_topic_partitions(ctx, over_the_wire(0, request)))
        response = reply_over_the_wire(ctx, response)
        count += 1
        seen += [(topic.name, p.partition_index) for topic in response.topics for p in topic.partitions]
        assert sum(len(topic.partitions) for topic in response.topics) <= max(limit, 1)
        if response.next_cursor is None:
            return seen, count
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index
        )


@pytest.mark.parametrize(("limit", "count"), [(2000, 1), (3, 3), (4, 2), (1, 7), (0, 7)])
async def test_topics_are_described_in_pages(limit: int, count: int) -> None:
    world = BrokerWorld()
    request = CreateTopicsRequest(topics=[creatable("b", 4), creatable("a", 3)])
    await world.forwarder.serve(context("CreateTopics", 7), request)
    expected = [("a", n) for n in range(3)] + [("b", n) for n in range(4)]
    assert await pages(world, [], limit) == (expected, count)
    assert (await pages(world, ["b"], limit))[0] == expected[3:]


async def test_unknown_topics_are_described_as_such() -> None:
    world = BrokerWorld()
    ctx = context("DescribeTopicPartitions", 0)
    asked = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in ("none", "bad name")]
    response = at_once(topics(world).describe_topic_partitions(ctx, DescribeTopicPartitionsRequest(topics=asked)))
    assert {topic.name: topic.error_code for topic in response.topics} == {
        "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


# settings -------------------------------------------------------------------------------------------------------


def describe(handlers: ConfigHandlers, version: int, kind: int, name: str, keys: list[str] | None = None) -> Any:
    ctx = context("DescribeConfigs", version)
    resource = _Resource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    if version >= 3:
        request.include_documentation = True
    return reply_over_the_wire(ctx, handlers.describe_configs(ctx, over_the_wire(version, request))).results[0]


async def listed(world: BrokerWorld, *types: int, version: int = 1, tenant: str | None = None) -> Any:
    ctx = context("ListConfigResources", version)
    ctx.session.tenant = tenant
    request = over_the_wire(version, ListConfigResourcesRequest(resource_types=list(types)))
    answer = configs(world).list_config_resources(ctx, request)
    return reply_over_the_wire(ctx, at_once(answer) if isinstance(answer, GeneratorType) else answer)


async def test_topics_and_brokers_have_settings() -> None:
    world = BrokerWorld()
    await world.forwarder.serve(context("CreateTopics", 7), CreateTopicsRequest(topics=[creatable("a")]))
    rows = {
        types: [(row.resource_type, row.resource_name) for row in (await listed(world, *types)).config_resources]
        for types in ((), (2,), (4,), (8,), (16, 32))
    }
    brokers = [(4, str(broker)) for broker in sorted(world.image.brokers)]
    assert brokers
    loggers = [(8, name) for _, name in brokers]
    assert rows == {
        (): [*brokers, *loggers, (2, "a")],
        (2,): [(2, "a")],
        (4,): brokers,
        (8,): loggers,
        (16, 32): [],
    }


async def test_the_first_version_asks_for_metrics_of_clients_which_there_are_not() -> None:
    answer = await listed(BrokerWorld(), version=0)
    assert (answer.error_code, answer.config_resources) == (0, [])


async def test_resources_of_an_unknown_type_are_not_listed() -> None:
    answer = await listed(BrokerWorld(), 2, 3)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


async def test_a_tenant_has_settings_of_its_topics_alone() -> None:
    world, tenant = BrokerWorld(), "lkc-aaaaaa"
    names = [creatable("a"), creatable(f"{tenant}_b")]
    world.replay(TenantRecord(tenant, "t", "default", 1, {}))
    await world.forwarder.serve(context("CreateTopics", 7), CreateTopicsRequest(topics=names))
    answer = await listed(world, tenant=tenant)
    assert [(row.resource_type, row.resource_name) for row in answer.config_resources] == [(2, f"{tenant}_b")]


@pytest.mark.parametrize("version", versions_of("DescribeConfigs"))
async def test_a_topics_settings_with_their_sources(version: int) -> None:
    world = BrokerWorld()
    request = CreateTopicsRequest(topics=[creatable("a", retention_ms="5")])
    await world.forwarder.serve(context("CreateTopics", 7), request)
    world.replay(ConfigRecord(ResourceType.BROKER, "", "log.segment.bytes", "2048"))
    result = describe(configs(world, log_retention_ms="9"), version, 2, "a")
    found = {config.name: config for config in result.configs}
    assert (result.error_code, found["retention.ms"].value, found["retention.ms"].config_source) == (0, "5", 1)
    assert [(s.name, s.value, s.source) for s in found["retention.ms"].synonyms] == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", "9", 4),
        ("log.retention.ms", "604800000", 5),
    ]
    assert (found["segment.bytes"].value, found["segment.bytes"].config_source) == ("2048", 3)
    assert (found["cleanup.policy"].value, found["cleanup.policy"].config_source) == ("delete", 5)
    if version >= 3:
        assert found["retention.ms"].config_type == 5
        assert found["retention.ms"].documentation


async def test_only_the_settings_asked_for() -> None:
    world = BrokerWorld()
    await world.forwarder.serve(context("CreateTopics", 7), CreateTopicsRequest(topics=[creatable("a")]))
    result = describe(configs(world), 4, 2, "a", ["retention.ms", "unknown"])
    assert [config.name for config in result.configs] == ["retention.ms"]


async def test_broker_settings() -> None:
    world = BrokerWorld()
    world.replay(ConfigRecord(ResourceType.BROKER, "", "message.max.bytes", "4096"))
    handlers = configs(world, num_partitions="7")
    found = {config.name: config for config in describe(handlers, 4, 4, "0").configs}
    assert (found["num.partitions"].value, found["num.partitions"].config_source) == ("7", 4)
    assert found["num.partitions"].read_only
    assert (found["message.max.bytes"].value, found["message.max.bytes"].read_only) == ("4096", False)
    assert [config.name for config in describe(handlers, 4, 4, "").configs] == ["message.max.bytes"]


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (2, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, "bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (4, "1", ErrorCode.INVALID_REQUEST),
        (8, "1", ErrorCode.INVALID_REQUEST),
        (32, "group", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_resources_that_cannot_be_described(kind: int, name: str, code: ErrorCode) -> None:
    assert describe(configs(BrokerWorld()), 4, kind, name).error_code == code


async def test_settings_of_groups_are_refused_in_words() -> None:
    assert describe(configs(BrokerWorld()), 4, 32, "group").error_message == "Groups have no settings here."


@pytest.mark.parametrize("version", versions_of("IncrementalAlterConfigs"))
async def test_settings_are_changed_step_by_step(version: int) -> None:
    world = BrokerWorld()
    await world.forwarder.serve(context("CreateTopics", 7), CreateTopicsRequest(topics=[creatable("a")]))
    resource_class = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = resource_class.AlterableConfig(name="retention.ms", config_operation=0, value="77")
    wrong = resource_class.AlterableConfig(name="tidelog.no.such.thing", config_operation=0, value="77")
    resources = [
        resource_class(resource_type=2, resource_name="a", configs=[change]),
        resource_class(resource_type=2, resource_name="none", configs=[change]),
        resource_class(resource_type=4, resource_name="", configs=[wrong]),
    ]
    ctx = context("IncrementalAlterConfigs", version)
    request = over_the_wire(version, IncrementalAlterConfigsRequest(resources=resources, validate_only=False))
    response = reply_over_the_wire(ctx, await configs(world).incremental_alter_configs(ctx, request))
    assert [row.error_code for row in response.responses] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_CONFIG,
    ]
    assert world.image.configs.topic("a") == {"retention.ms": "77"}
    assert world.waited[-1] == world.image.offset
