"""Changes of the settings of topics, brokers, the cluster and subscriptions to clients' metrics. No I/O.

The consequences for partitions of a change of `min.insync.replicas` or of unclean elections are in
`kraft.controller.setting_effects`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.node_settings.catalogue import NODE_SETTINGS
from common.node_settings.listeners import counts_by_address
from common.pacing import SLICE_COST, Work
from common.settings import Setting
from common.topic_settings import TOPIC_SETTINGS
from kraft.batches import MetadataRecord
from kraft.controller.client_metrics import check_client_metrics
from kraft.controller.policy import MIN_ISR, UNCLEAN_ELECTION, ControllerPolicy
from kraft.controller.setting_effects import with_effects
from kraft.controller.static_settings import STATIC_NAMES
from kraft.controller.tier_configs import GENERATION, check_generation, check_tier, check_tier_defaults, with_generation
from kraft.controller.topic_configs import topic_config
from kraft.image.configs import BROKER_LOGGER, CATALOGUES, CLUSTER_DEFAULT, GROUP, ResourceKey
from kraft.image.metadata import MetadataImage
from kraft.records import ConfigRecord, ResourceType
from wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    Struct,
)

OWN_PREFIX = "tidelog."
CONNECTIONS_OF_ADDRESSES = "max.connections.per.ip.overrides"
_Resource = AlterConfigsRequest.AlterConfigsResource | IncrementalAlterConfigsRequest.AlterConfigsResource
_Setting = AlterConfigsRequest.AlterConfigsResource.AlterableConfig
_Change = IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig
_Wanted = Callable[[ResourceType, Mapping[str, str], Any], dict[str, str | None]]
"""Returns a resource's new overrides from its type, its current overrides and the request."""
R = TypeVar("R")

_RESOURCES_PER_STEP = 100  # that are counted
_RESOURCE_COST, _SETTING_COST = 40, 5
_SUBSCRIPTION_COST = SLICE_COST  # to read all its patterns
LEAST_LAG, GREATEST_LAG = "min.compaction.lag.ms", "max.compaction.lag.ms"


class Operation(IntEnum):
    """The operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def check_topic_configs(configs: Mapping[str, str | None]) -> None:
    """Raises INVALID_CONFIG, with the reason, unless each of these may be an override of a topic."""
    for name, value in configs.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}.")
        _parsed(setting, value)


def check_together(
    image: MetadataImage,
    policy: ControllerPolicy,
    before: Mapping[str, str | None],
    after: Mapping[str, str | None],
) -> None:
    """Raises INVALID_CONFIG if settings of a topic contradict each other with the overrides `after` and the cluster's
    values; not for a contradiction that existed before."""
    if all(before.get(name) == after.get(name) for name in (LEAST_LAG, GREATEST_LAG)):
        return
    least, greatest = (
        _parsed(TOPIC_SETTINGS[name], topic_config(image, after, policy, TOPIC_SETTINGS[name])[0])
        for name in (LEAST_LAG, GREATEST_LAG)
    )
    if least > greatest:
        raise ProtocolError(
            ErrorCode.INVALID_CONFIG, f"{LEAST_LAG} ({least}) is larger than {GREATEST_LAG} ({greatest})."
        )


def check_broker_configs(resource_name: str, configs: Mapping[str, str | None]) -> None:
    """Raises INVALID_CONFIG or INVALID_REQUEST unless these may be overrides of a broker, or of all ("").

    As in Apache Kafka, unknown names are accepted, except those with Tidelog's prefix. Names that Apache Kafka reads
    only at the start are rejected, even if they have no effect here.
    """
    static = sorted(name for name in configs if _is_static(name))
    if static:
        text = f"Cannot update these configs dynamically: Set({', '.join(static)})"
        raise ProtocolError(ErrorCode.INVALID_REQUEST, text)
    for name, value in configs.items():
        setting = NODE_SETTINGS.get(name)
        if setting is None and name.startswith(OWN_PREFIX):
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}.")
        if setting is None:  # Apache Kafka keeps names that its plug-ins might read, for one broker and for all
            continue
        if resource_name == CLUSTER_DEFAULT and setting.update == "per-broker":
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{name} is set per broker, not for the whole cluster.")
        # settings that only the controller uses
        if resource_name != CLUSTER_DEFAULT and name in (MIN_ISR, UNCLEAN_ELECTION):
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"{name} is set per topic or for the whole cluster.")
        parsed = _parsed(setting, value)
        if name == CONNECTIONS_OF_ADDRESSES:
            try:
                counts_by_address(parsed)
            except ValueError as error:
                raise ProtocolError(ErrorCode.INVALID_CONFIG, f"{name}: {str(error)!r} is not ADDRESS:COUNT.") from None


def _is_static(name: str) -> bool:
    setting = NODE_SETTINGS.get(name)
    return name in STATIC_NAMES if setting is None else setting.needs_restart


def incremental_alter_configs(
    image: MetadataImage, request: IncrementalAlterConfigsRequest, policy: ControllerPolicy
) -> Work[Decision[MetadataRecord, IncrementalAlterConfigsResponse]]:
    """IncrementalAlterConfigs (44): each resource changes completely or not at all."""
    response = IncrementalAlterConfigsResponse
    return _alter(image, request, policy, response, response.AlterConfigsResourceResponse, _incremental)


def alter_configs(
    image: MetadataImage, request: AlterConfigsRequest, policy: ControllerPolicy
) -> Work[Decision[MetadataRecord, AlterConfigsResponse]]:
    """AlterConfigs (33): the given settings replace all overrides of the resource."""
    response = AlterConfigsResponse
    return _alter(image, request, policy, response, response.AlterConfigsResourceResponse, _replacing)


def _alter(
    image: MetadataImage,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    policy: ControllerPolicy,
    response_class: Callable[..., R],
    result_class: Callable[..., Struct],
    wanted: _Wanted,
) -> Work[Decision[MetadataRecord, R]]:
    records: list[MetadataRecord] = []
    results = []
    seen: dict[tuple[int, str], int] = {}
    resources: Sequence[_Resource] = request.resources
    for number, resource in enumerate(resources, 1):
        key = (resource.resource_type, resource.resource_name)
        seen[key] = seen.get(key, 0) + 1
        if number % _RESOURCES_PER_STEP == 0:
            yield _RESOURCES_PER_STEP
    for resource in resources:
        code, message = ErrorCode.NONE, None
        is_subscription = resource.resource_type == ResourceType.CLIENT_METRICS
        yield _RESOURCE_COST + _SETTING_COST * len(resource.configs) + _SUBSCRIPTION_COST * is_subscription
        try:
            if seen[resource.resource_type, resource.resource_name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            records += _resource_records(image, resource, policy, wanted)
        except ProtocolError as error:
            code, message = error.code, error.message
        results.append(
            result_class(
                error_code=int(code),
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    reply = response_class(responses=results)
    if request.validate_only:
        return Decision(reply)
    return (yield from with_effects(image, records, reply, policy))


def _resource_records(
    image: MetadataImage, resource: _Resource, policy: ControllerPolicy, wanted: _Wanted
) -> list[MetadataRecord]:
    resource_type, name = _checked_resource(image, resource.resource_type, resource.resource_name)
    current = image.configs.of(resource_type, name)
    target = wanted(resource_type, current, resource.configs)
    changed = {n: v for n, v in target.items() if current.get(n) != v}
    if resource_type is ResourceType.TOPIC:
        check_topic_configs(changed)
        check_generation(changed)
        check_together(image, policy, current, target)
        check_tier(image, policy, name, current, target)
        target = with_generation(current, target)
        changed.update({n: v for n, v in target.items() if n == GENERATION and current.get(n) != v})
    elif resource_type is ResourceType.CLIENT_METRICS:
        check_client_metrics(image, name, target)
    else:
        check_broker_configs(name, changed)
        check_tier_defaults(image, policy, name, current, target)
    changed.update({n: None for n in current if n not in target})
    return [ConfigRecord(resource_type, name, n, v) for n, v in changed.items()]


def _checked_resource(image: MetadataImage, resource_type: int, name: str) -> ResourceKey:
    if resource_type == ResourceType.TOPIC:
        if name not in image.topics:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return ResourceType.TOPIC, name
    if resource_type == ResourceType.BROKER:
        if name != CLUSTER_DEFAULT and not (name.isascii() and name.isdigit() and int(name) in image.brokers):
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"There is no broker {name!r}.")
        return ResourceType.BROKER, name if name == CLUSTER_DEFAULT else str(int(name))
    if resource_type == ResourceType.CLIENT_METRICS:
        return ResourceType.CLIENT_METRICS, name
    if resource_type == BROKER_LOGGER:
        message = "The levels of loggers are changed by IncrementalAlterConfigs alone, which their broker answers."
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
    named = "Groups" if resource_type == GROUP else f"Resources of type {resource_type}"
    raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{named} have no settings here.")


def _incremental(
    resource_type: ResourceType, current: Mapping[str, str], changes: list[_Change]
) -> dict[str, str | None]:
    target: dict[str, str | None] = dict(current)
    seen: dict[str, None] = {}
    for change in changes:
        name = change.name
        if name in seen:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{name} is given twice.")
        seen[name] = None
        if change.config_operation == Operation.DELETE:
            target.pop(name, None)
            continue
        if change.value is None:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{name} has no value.")
        if change.config_operation == Operation.SET:
            target[name] = change.value
        elif change.config_operation in (Operation.APPEND, Operation.SUBTRACT):
            added = change.config_operation == Operation.APPEND
            target[name] = _edited_list(resource_type, name, target.get(name), change.value, added)
        else:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown operation {change.config_operation}.")
    return target


def _edited_list(resource_type: ResourceType, name: str, present: str | None, value: str, added: bool) -> str:
    setting = CATALOGUES[resource_type].get(name)
    if setting is None or setting.type_name != "list":
        raise ProtocolError(ErrorCode.INVALID_CONFIG, f"{name} is not a list: only SET and DELETE change it.")
    text = setting.text(setting.default) if present is None else present
    items = dict.fromkeys(item.strip() for item in text.split(",") if item.strip())
    for item in (part.strip() for part in value.split(",")):
        if added and item:
            items[item] = None
        elif not added:
            items.pop(item, None)
    return ",".join(items)


def _replacing(
    resource_type: ResourceType, current: Mapping[str, str], settings: list[_Setting]
) -> dict[str, str | None]:
    target: dict[str, str | None] = {}
    for setting in settings:
        if setting.name in target:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{setting.name} is given twice.")
        if setting.value is None:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{setting.name} has no value.")
        target[setting.name] = setting.value
    return target


def _parsed(setting: Setting, value: str | None) -> Any:
    if value is None:
        raise ProtocolError(ErrorCode.INVALID_CONFIG, f"{setting.name} has no value.")
    try:
        return setting.parse(value)
    except ValueError as error:  # the error's text is for users: name, value and range
        raise ProtocolError(ErrorCode.INVALID_CONFIG, str(error)) from None
