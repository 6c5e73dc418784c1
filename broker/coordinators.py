"""The coordinators of one broker: the runtime, the group coordinator on it, and the internal topics they live in."""

from __future__ import annotations

from typing import Any

from broker.config import BrokerConfig
from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.hosted_shard import HostLimits
from broker.coordination.internal_topics import InternalTopics, group_topic
from broker.coordination.runtime import CoordinatorRuntime, RuntimeConfig
from broker.forwarding import Forwarder
from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from common.broker_settings import NODE_SETTINGS
from common.ports import Ports
from kraft.controller.topic_names import GROUP_TOPIC
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage

MINUTE_MS = 60_000


class Coordinators:
    """Leads shards as this broker's leaderships come and go."""

    def __init__(self, config: BrokerConfig, ports: Ports, partitions: HostedPartitions, forwarder: Forwarder) -> None:
        def value(name: str) -> Any:
            return config.node_settings.get(name, NODE_SETTINGS[name].default)

        def create_topics(request: Any, version: int) -> Any:
            return forwarder.forward(None, request, version)

        limits = HostLimits(commit_timeout_s=value("offsets.commit.timeout.ms") / 1000)
        self.runtime = CoordinatorRuntime(ports.clock, RuntimeConfig(limits))
        self.groups = GroupCoordinator(
            self.runtime,
            GroupConfig(
                group_min_session_timeout_ms=value("group.min.session.timeout.ms"),
                group_max_session_timeout_ms=value("group.max.session.timeout.ms"),
                group_initial_rebalance_delay_ms=value("group.initial.rebalance.delay.ms"),
                group_max_size=value("group.max.size"),
                offsets_retention_ms=value("offsets.retention.minutes") * MINUTE_MS,
                offsets_retention_check_interval_ms=value("offsets.retention.check.interval.ms"),
                offset_metadata_max_bytes=value("offset.metadata.max.bytes"),
            ),
            lambda: partitions.image,
            ports.random,
        )
        topic = group_topic(
            value("offsets.topic.num.partitions"),
            value("offsets.topic.replication.factor"),
            value("offsets.topic.segment.bytes"),
            exact="offsets.topic.replication.factor" in config.node_settings,
        )
        self.internal_topics = InternalTopics([topic], lambda: partitions.image, create_topics, ports.clock)
        partitions.on_leadership(GROUP_TOPIC, self._leadership)

    def _leadership(self, partition: Partition, leader_epoch: int | None) -> None:
        if leader_epoch is None:
            self.runtime.resigned(partition.topic, partition.index)
        else:
            self.runtime.elected(partition)

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Offsets of deleted topics go."""
        deleted = {topic.name: topic.topic_id for topic in delta.topics_deleted.values()}
        if deleted:
            self.groups.topics_deleted(deleted)

    async def stop(self) -> None:
        await self.runtime.stop()
