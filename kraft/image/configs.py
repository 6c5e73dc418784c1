"""Dynamic settings of topics, brokers and the cluster: operators' overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum

from msgspec import Struct, field

from kraft.image.sharded_map import ShardedMap
from kraft.records import ResourceType

ResourceKey = tuple[ResourceType, str]
CLUSTER_DEFAULT = ""
_NONE: Mapping[str, str] = {}


class ConfigSource(IntEnum):
    """Where a setting's value comes from: Kafka's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigsImage(Struct, frozen=True):
    """Overrides as text, by resource; a resource without overrides has no entry."""

    by_resource: ShardedMap[ResourceKey, Mapping[str, str]] = field(default_factory=ShardedMap)

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
