"""Settings of tiered topics: what would surprise is refused, and the sentence says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from common.errors import ErrorCode
from kraft.controller.policy import ControllerPolicy
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.records import ConfigRecord, ResourceType
from tests.kraft.decisions import decide_alter_configs, decide_create_topics, decide_incremental_alter_configs
from tests.kraft.images import POLICY, create_topics, new_topic, rng, with_brokers
from wire.messages import AlterConfigsRequest, IncrementalAlterConfigsRequest

WITH_TIER = replace(POLICY, static={"tidelog.tier.uri": "file:///tier"})
TIERED_BY_DEFAULT = replace(WITH_TIER, static={"tidelog.tier.uri": "file:///tier", "tidelog.tier.enable": "true"})
TIERED = {"remote.storage.enable": "true"}


def create(
    configs: Mapping[str, str | None],
    policy: ControllerPolicy = WITH_TIER,
    name: str = "t",
    image: MetadataImage | None = None,
) -> tuple[MetadataImage, Any]:
    image = image or with_brokers(3)
    decision = decide_create_topics(image, create_topics(new_topic(name, configs=dict(configs))), policy, rng(1))
    return replayed(image, decision.records), decision.reply.topics[0]


def alter(
    image: MetadataImage,
    configs: Mapping[str, str | None],
    policy: ControllerPolicy = WITH_TIER,
    resource_type: ResourceType = ResourceType.TOPIC,
    name: str = "t",
) -> Any:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    changes = [
        resource.AlterableConfig(name=setting, config_operation=0 if value is not None else 1, value=value)
        for setting, value in configs.items()
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=resource_type, resource_name=name, configs=changes)], validate_only=False
    )
    return decide_incremental_alter_configs(image, request, policy).reply.responses[0]


def test_a_topic_is_not_tiered_where_there_is_no_tier() -> None:
    _, result = create(TIERED, POLICY)
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert "tidelog.tier.uri" in result.error_message
    image, _ = create({})
    assert alter(image, TIERED, POLICY).error_code == ErrorCode.INVALID_CONFIG
    assert alter(image, TIERED).error_code == ErrorCode.NONE


def test_an_internal_topic_is_never_tiered() -> None:
    _, result = create(TIERED, name="__consumer_offsets")
    assert result.error_code == ErrorCode.INVALID_CONFIG
    image, result = create({}, TIERED_BY_DEFAULT, "__consumer_offsets")
    assert result.error_code == ErrorCode.NONE
    assert image.configs.topic("__consumer_offsets") == {}


def test_the_default_is_written_down_with_the_topic() -> None:
    image, _ = create({}, TIERED_BY_DEFAULT)
    assert image.configs.topic("t") == TIERED
    image, _ = create({"remote.storage.enable": "false"}, TIERED_BY_DEFAULT)
    assert image.configs.topic("t") == {"remote.storage.enable": "false"}
    dynamic = replayed(with_brokers(3), [ConfigRecord(ResourceType.BROKER, "", "tidelog.tier.enable", "true")])
    image, _ = create({}, WITH_TIER, image=dynamic)
    assert image.configs.topic("t") == TIERED
    image, _ = create({}, POLICY, image=dynamic)
    assert image.configs.topic("t") == {}, "there is no tier"


@pytest.mark.parametrize("value", [None, "false"])
def test_tiering_is_not_switched_off(value: str | None) -> None:
    image, _ = create(TIERED)
    reply = alter(image, {"remote.storage.enable": value})
    assert reply.error_code == ErrorCode.INVALID_CONFIG
    assert "remote.log.copy.disable=true" in reply.error_message
    assert "remote.log.delete.on.disable=true" in reply.error_message
    resource = AlterConfigsRequest.AlterConfigsResource
    request = AlterConfigsRequest(resources=[resource(resource_type=2, resource_name="t", configs=[])])
    assert decide_alter_configs(image, request, WITH_TIER).reply.responses[0].error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("configs", "complaint"),
    [
        ({"local.retention.ms": "11", "retention.ms": "10"}, "local.retention.ms (11)"),
        ({"local.retention.bytes": "11", "retention.bytes": "10"}, "local.retention.bytes (11)"),
        ({"local.retention.ms": "-1", "retention.ms": "10"}, "local.retention.ms (without bound)"),
        ({"local.retention.ms": "604800001"}, "retention.ms (604800000)"),
        ({"local.retention.ms": "10", "retention.ms": "10"}, None),
        ({"local.retention.ms": "0"}, None),
        ({"local.retention.ms": "-1", "retention.ms": "-1"}, None),
        ({"local.retention.ms": "11", "retention.ms": "-1"}, None),
        ({"retention.ms": "10"}, None),
        ({"local.retention.ms": "11", "retention.ms": "10", "cleanup.policy": "compact"}, None),
    ],
)
def test_brokers_cannot_keep_what_the_topic_has_lost(configs: dict[str, str], complaint: str | None) -> None:
    _, result = create(TIERED | configs)
    image, _ = create(TIERED)
    reply = alter(image, configs)
    if complaint is None:
        assert (result.error_code, reply.error_code) == (0, 0)
    else:
        assert complaint in result.error_message
        assert complaint in reply.error_message
    _, untiered = create(configs)
    assert untiered.error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("configs", "complaint"),
    [
        ({"local.retention.ms": "9", "retention.ms": "10"}, "local.retention.ms (9)"),
        ({"local.retention.bytes": "9", "retention.bytes": "10"}, "local.retention.bytes (9)"),
        ({"local.retention.bytes": "9"}, "local.retention.bytes (9)"),
        ({"local.retention.ms": "9", "retention.ms": "10", "cleanup.policy": "compact"}, "local.retention.ms (9)"),
        ({"local.retention.ms": "10", "retention.ms": "10"}, None),
        ({"local.retention.bytes": "-1"}, None),
        ({"local.retention.ms": "-2", "retention.bytes": "10"}, None),
    ],
)
def test_what_is_not_copied_is_kept_as_long_as_the_topic(configs: dict[str, str], complaint: str | None) -> None:
    disabled = {"remote.log.copy.disable": "true"}
    _, created = create(TIERED | disabled | configs)
    read_only, first = create(TIERED | disabled)
    changed = alter(read_only, configs)
    image, _ = create(TIERED | configs)
    switched = alter(image, disabled)
    assert first.error_code == ErrorCode.NONE
    for result in (created, changed, switched):
        if complaint is None:
            assert result.error_code == ErrorCode.NONE
        else:
            assert result.error_code == ErrorCode.INVALID_CONFIG
            assert complaint in result.error_message
    assert alter(image, {"remote.log.copy.disable": "false"}).error_code == ErrorCode.NONE
    _, untiered = create(disabled | configs)
    assert untiered.error_code == ErrorCode.NONE


def test_a_clusters_default_of_local_retention_counts() -> None:
    policy = replace(WITH_TIER, static={**WITH_TIER.static, "log.local.retention.ms": "50"})
    _, result = create(TIERED | {"retention.ms": "10"}, policy)
    assert result.error_code == ErrorCode.INVALID_CONFIG
    image, _ = create(TIERED, policy)
    assert alter(image, {"segment.ms": "7"}, policy).error_code == ErrorCode.NONE
    reply = alter(image, {"remote.log.copy.disable": "true"}, policy)
    assert reply.error_code == ErrorCode.INVALID_CONFIG
    assert "local.retention.ms (50)" in reply.error_message


@pytest.mark.parametrize("broker", ["", "1"])
@pytest.mark.parametrize(
    ("configs", "complaint"),
    [
        ({"log.local.retention.ms": "604800001"}, "log.local.retention.ms (604800001)"),
        ({"log.local.retention.ms": "-1"}, "log.local.retention.ms (without bound)"),
        ({"log.local.retention.bytes": "11", "log.retention.bytes": "10"}, "log.local.retention.bytes (11)"),
        ({"log.retention.ms": "49"}, "log.local.retention.ms (50)"),
        ({"log.local.retention.ms": "604800000"}, None),
        ({"log.local.retention.bytes": "11"}, None),
        ({"log.local.retention.ms": "-1", "log.retention.ms": "-1"}, None),
        ({"log.local.retention.ms": "-2", "log.retention.ms": "1"}, None),
    ],
)
def test_nor_by_the_defaults_of_brokers(broker: str, configs: dict[str, str], complaint: str | None) -> None:
    policy = replace(WITH_TIER, static={**WITH_TIER.static, "log.local.retention.ms": "50"})
    reply = alter(with_brokers(3), configs, policy, ResourceType.BROKER, broker)
    if complaint is None:
        assert reply.error_code == ErrorCode.NONE
    else:
        assert reply.error_code == ErrorCode.INVALID_CONFIG
        assert complaint in reply.error_message


def test_a_contradiction_of_defaults_that_was_there_is_let_be() -> None:
    policy = replace(WITH_TIER, static={**WITH_TIER.static, "log.local.retention.ms": "-1"})
    reply = alter(with_brokers(3), {"log.retention.bytes": "7"}, policy, ResourceType.BROKER, "")
    assert reply.error_code == ErrorCode.NONE


@pytest.mark.parametrize("configs", [{"cleanup.policy": "delete"}, {"cleanup.policy": "compact,delete"}])
def test_the_tiers_own_state_stays_compacted(configs: dict[str, str]) -> None:
    image, _ = create({"cleanup.policy": "compact"}, name="__tier_state")
    reply = alter(image, configs, name="__tier_state")
    assert reply.error_code == ErrorCode.INVALID_CONFIG
    assert "compact" in reply.error_message
    resource = AlterConfigsRequest.AlterConfigsResource
    replaced = AlterConfigsRequest(resources=[resource(resource_type=2, resource_name="__tier_state", configs=[])])
    assert decide_alter_configs(image, replaced, WITH_TIER).reply.responses[0].error_code == ErrorCode.INVALID_CONFIG
    assert alter(image, {"segment.bytes": "2048"}, name="__tier_state").error_code == ErrorCode.NONE


GENERATION = "tidelog.tier.generation"
DELETE = "remote.log.delete.on.disable"


def altered(image: MetadataImage, configs: Mapping[str, str | None]) -> MetadataImage:
    """After an alteration that is taken."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    changes = [
        resource.AlterableConfig(name=name, config_operation=0 if value is not None else 1, value=value)
        for name, value in configs.items()
    ]
    rows = [resource(resource_type=ResourceType.TOPIC, resource_name="t", configs=changes)]
    request = IncrementalAlterConfigsRequest(resources=rows, validate_only=False)
    decision = decide_incremental_alter_configs(image, request, WITH_TIER)
    assert decision.reply.responses[0].error_code == ErrorCode.NONE, decision.reply
    return replayed(image, decision.records)


@pytest.mark.parametrize("value", [None, "false"])
@pytest.mark.parametrize("is_earlier", [True, False])
def test_tiering_is_switched_off_where_what_is_tiered_may_go(value: str | None, is_earlier: bool) -> None:
    image, _ = create(TIERED)
    if is_earlier:
        image = altered(image, {DELETE: "true"})
    assert GENERATION not in image.configs.topic("t")
    image = altered(image, {"remote.storage.enable": value} | ({} if is_earlier else {DELETE: "true"}))
    assert image.configs.topic("t")[GENERATION] == "1"


def test_each_time_that_tiering_is_disabled_is_counted_and_the_count_stays() -> None:
    image, _ = create(TIERED | {DELETE: "true"})
    for count in ("1", "2"):
        image = altered(image, {"remote.storage.enable": "false"})
        image = altered(image, {"remote.storage.enable": "false", "segment.ms": "7"})
        image = altered(image, TIERED)
        assert image.configs.topic("t")[GENERATION] == count
    resource = AlterConfigsRequest.AlterConfigsResource
    rows = [
        resource(
            resource_type=ResourceType.TOPIC,
            resource_name="t",
            configs=[resource.AlterableConfig(name="segment.ms", value="9")],
        )
    ]
    refused = decide_alter_configs(image, AlterConfigsRequest(resources=rows, validate_only=False), WITH_TIER)
    assert refused.reply.responses[0].error_code == ErrorCode.INVALID_CONFIG, "it would lose both settings"
    rows[0].configs.append(resource.AlterableConfig(name=DELETE, value="true"))
    replacing = decide_alter_configs(image, AlterConfigsRequest(resources=rows, validate_only=False), WITH_TIER)
    image = replayed(image, replacing.records)
    assert image.configs.topic("t") == {"segment.ms": "9", DELETE: "true", GENERATION: "3"}


@pytest.mark.parametrize("value", ["0", "5", None])
def test_nobody_but_the_controllers_counts(value: str | None) -> None:
    image, _ = create(TIERED | {DELETE: "true"})
    image = altered(image, {"remote.storage.enable": "false"})
    if value is not None:
        assert alter(image, {GENERATION: value}).error_code == ErrorCode.INVALID_CONFIG
        assert create({GENERATION: value})[1].error_code == ErrorCode.INVALID_CONFIG
    else:
        assert altered(image, {GENERATION: None}).configs.topic("t")[GENERATION] == "1"
