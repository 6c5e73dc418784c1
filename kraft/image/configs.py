"""Dynamic settings of topics, brokers, the cluster and subscriptions to clients' metrics: operators' overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum

from msgspec import Struct, field

from common.client_metrics import CLIENT_METRICS_SETTINGS
from common.node_settings.catalogue import NODE_SETTINGS
from common.settings import Catalogue
from common.topic_settings import TOPIC_SETTINGS
from kraft.image.sharded_map import ShardedMap
from kraft.records import ResourceType

ResourceKey = tuple[ResourceType, str]
CLUSTER_DEFAULT = ""
BROKER_LOGGER, GROUP = 8, 32
"""Kafka's numbers of types of resources that have nothing in the metadata: the levels of a broker's loggers are in its
process alone, and groups have no settings."""
CATALOGUES: Mapping[ResourceType, Catalogue] = {
    ResourceType.TOPIC: TOPIC_SETTINGS,
    ResourceType.BROKER: NODE_SETTINGS,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_SETTINGS,
}
"""The settings that resources of a type have."""
_NONE: Mapping[str, str] = {}


class ConfigSource(IntEnum):
    """Where a setting's value comes from: Kafka's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7


class ConfigsImage(Struct, frozen=True):
    """Overrides as text, by resource; a resource without overrides has no entry."""

    by_resource: ShardedMap[ResourceKey, Mapping[str, str]] = field(default_factory=ShardedMap)
    client_metrics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Those of the subscriptions to clients' metrics, by name. The same object until one of them changes."""

    def changed(self, changes: Mapping[ResourceKey, Mapping[str, str] | None]) -> ConfigsImage:
        """With the overrides of these resources; None for a resource without any."""
        of_metrics = {name: given for (kind, name), given in changes.items() if kind is ResourceType.CLIENT_METRICS}
        metrics = self.client_metrics
        if of_metrics:
            metrics = {name: given for name, given in {**metrics, **of_metrics}.items() if given is not None}
        return ConfigsImage(self.by_resource.changed(changes), metrics)

    def __iter__(self) -> Iterator[ResourceKey]:
        return iter(self.by_resource)

    def of(self, resource_type: ResourceType, resource_name: str) -> Mapping[str, str]:
        return self.by_resource.get((resource_type, resource_name), _NONE)

    def topic(self, topic_name: str) -> Mapping[str, str]:
        return self.of(ResourceType.TOPIC, topic_name)

    def broker(self, broker_id: int) -> Mapping[str, str]:
        """The overrides of one broker only."""
        return self.of(ResourceType.BROKER, str(broker_id))

    def cluster(self) -> Mapping[str, str]:
        """The overrides for all brokers (DYNAMIC_DEFAULT_BROKER_CONFIG)."""
        return self.of(ResourceType.BROKER, CLUSTER_DEFAULT)
