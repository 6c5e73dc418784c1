"""The coordinators of one broker: the runtime, its group, transaction and tier shards, and their internal topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from broker.broker_link import BrokerLink, brokers_left
from broker.config import BrokerConfig
from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.lag_watch import GroupLagWatch
from broker.coordination.groups.moving_groups import MovingGroups
from broker.coordination.hosted_shard import HostLimits
from broker.coordination.internal_topics import (
    InternalTopic,
    InternalTopics,
    audit_topic,
    group_topic,
    tier_topic,
    transaction_topic,
)
from broker.coordination.key_moves import KeyHandover, TenantKeyMoves
from broker.coordination.key_store import KeyStore
from broker.coordination.moving_keys import MovingKeys
from broker.coordination.partition_access import CoordinatedPartition
from broker.coordination.runtime import CoordinatorRuntime, RuntimeConfig
from broker.coordination.standby import StandbyLimits
from broker.coordination.tenant_cleanup import TenantCleanup
from broker.coordination.tier.client import TierClient, TierClientLimits
from broker.coordination.tier.coordinator import TierCoordinator
from broker.coordination.transactions.moving_ids import MovingIds
from broker.data_plane import DataPlane, Machinery
from broker.partitions.partition import Partition, Role
from broker.requests.forwarding import Forwarder
from broker.transaction_plane import TransactionPlane
from common.metrics import Metrics
from common.node_settings.audit import AuditSettings
from common.node_settings.groups import GroupSettings
from common.node_settings.tier import TierStateSettings
from common.node_settings.transactions import TransactionSettings
from common.settings import declared
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.links import Links
from kraft.observers.broker_lifecycle import BrokerLifecycle
from kraft.topic_names import CLIENT_KEY_TOPICS, GROUP_TOPIC, TIER_TOPIC, TRANSACTION_TOPIC
from wire.messages import CreateTopicsRequest, CreateTopicsResponse

LINK_TIMEOUT_S = 1.0


class Coordinators:
    """Loads and drops shards as this broker's leaderships change."""

    def __init__(
        self,
        config: BrokerConfig,
        machinery: Machinery,
        data_plane: DataPlane,
        forwarder: Forwarder,
        links: Links,
        lifecycle: Callable[[], BrokerLifecycle | None],
    ) -> None:
        """`lifecycle` returns this broker's registration, or None."""
        ports, partitions = machinery.ports, data_plane.partitions
        self._config = config
        self._partitions = partitions
        self._lifecycle = lifecycle

        def create_topics(request: CreateTopicsRequest) -> Awaitable[CreateTopicsResponse]:
            return forwarder.forward(None, request)

        self.runtime = CoordinatorRuntime(
            ports.clock, RuntimeConfig(host_limits(config)), machinery.pacer, self._holds_lease
        )
        self.groups = GroupCoordinator(self.runtime, config.groups, self._image, ports.random)
        kinds: tuple[MovingKeys[Any], ...] = (MovingGroups(), MovingIds())
        self.keys = [KeyStore(self.runtime, self._image, kind) for kind in kinds]

        def new_link() -> BrokerLink:
            return BrokerLink(links, self._image, config.internal_listener.name, LINK_TIMEOUT_S)

        self._key_moves = TenantKeyMoves(
            [KeyHandover(store, self._image, forwarder.channel, new_link, self._broker) for store in self.keys]
        )
        self.lag = self._make_lag(machinery, new_link)
        self.internal_topics = InternalTopics(_topics(config), self._image, create_topics, ports.clock)
        self.tiers = TierCoordinator(self.runtime, self._image)
        self.tier_client = TierClient(
            node_id=config.node_id,
            image=self._image,
            local=self.tiers,
            topics=self.internal_topics,
            links=links,
            listener_name=config.internal_listener.name,
            rng=ports.random,
            limits=TierClientLimits(),
        )

        self.transactions = TransactionPlane(
            config=config,
            machinery=machinery,
            data_plane=data_plane,
            runtime=self.runtime,
            links=links,
            image=self._image,
        )
        self._cleanup = TenantCleanup(
            (self.groups, self.transactions.coordinator), self._image, forwarder.channel, self._broker
        )

        def followed() -> list[CoordinatedPartition]:
            return [
                partition
                for topic in CLIENT_KEY_TOPICS
                for partition in partitions.by_name.get(topic.encode(), {}).values()
                if partition.role is Role.FOLLOWER
            ]

        self.runtime.keep_snapshots(ports.disk)
        standby = StandbyLimits(config.groups.coordinator_standby_bytes_max)
        self.runtime.keep_standbys(followed, standby)
        for topic in (GROUP_TOPIC, TRANSACTION_TOPIC, TIER_TOPIC):
            partitions.on_leadership(topic, self._leadership)

    def _make_lag(self, machinery: Machinery, new_link: Callable[[], BrokerLink]) -> GroupLagWatch:
        return GroupLagWatch(
            groups=self.groups,
            hosted=self._partitions,
            new_link=new_link,
            pacer=machinery.pacer,
            now=machinery.ports.clock.monotonic,
            settings=self._config.monitoring,
        )

    def _image(self) -> MetadataImage:
        return self._partitions.image

    def _broker(self) -> tuple[int, int]:
        """This broker's id and epoch."""
        lifecycle = self._lifecycle()
        return self._config.node_id, lifecycle.broker_epoch if lifecycle is not None else -1

    def _holds_lease(self) -> bool:
        """Whether the controllers consider this broker alive, so that they have not elected another leader."""
        sessions = self._config.sessions
        session_ms, interval_ms = sessions.broker_session_timeout_ms, sessions.broker_heartbeat_interval_ms
        lifecycle = self._lifecycle()
        lease_ms = min(session_ms, max(session_ms / 2, 2 * interval_ms))
        return lifecycle is not None and lifecycle.unfenced_within(lease_ms / 1000)

    def _leadership(self, partition: Partition, leader_epoch: int | None) -> None:
        if leader_epoch is None:
            self.runtime.resigned(partition.topic, partition.index)
        else:
            self.runtime.elected(partition)

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Remove the offsets and tiers of deleted topics, and the keys of deleted tenants. Wait for no broker that
        was lost."""
        for broker_id in brokers_left(delta, image):
            self.transactions.broker_left(broker_id)
            self.tier_client.broker_left(broker_id)
        self._cleanup.metadata_changed(delta, image)
        self._key_moves.metadata_changed(delta, image)
        if delta.topics_deleted:
            self.groups.topics_deleted()
            self.tiers.metadata_changed(delta, image)

    def start(self) -> None:
        """Call it when this broker serves."""
        self.lag.start()

    def register(self, metrics: Metrics) -> None:
        metrics.gauge("tidelog_coordinator_standby_bytes", lambda: self.runtime.standby_bytes)
        self.lag.register(metrics)

    async def stop(self) -> None:
        await self.lag.stop()
        await self._cleanup.stop()
        await self._key_moves.stop()
        await self.tier_client.stop()
        await self.transactions.stop()
        await self.runtime.stop()


def host_limits(config: BrokerConfig) -> HostLimits:
    return HostLimits(
        commit_timeout_s=config.groups.offsets_commit_timeout_ms / 1000,
        freshness_s=max(HostLimits().freshness_s, 2 * config.replication.replica_fetch_wait_max_ms / 1000),
    )


def _topics(config: BrokerConfig) -> list[InternalTopic]:
    """The internal topics by this broker's settings. An explicitly set replication factor is exact."""
    groups, tier, audit, transactions = config.groups, config.tier_state, config.audit, config.transactions

    def is_given(group: type, field: str) -> bool:
        return declared(group, field).name in config.node_settings

    return [
        group_topic(
            groups.offsets_topic_num_partitions,
            groups.offsets_topic_replication_factor,
            groups.offsets_topic_segment_bytes,
            exact=is_given(GroupSettings, "offsets_topic_replication_factor"),
        ),
        transaction_topic(
            transactions.state_partitions,
            transactions.state_replication_factor,
            transactions.state_segment_bytes,
            transactions.state_min_isr,
            exact=is_given(TransactionSettings, "state_replication_factor"),
        ),
        tier_topic(
            tier.partitions,
            tier.replication_factor,
            tier.segment_bytes,
            exact=is_given(TierStateSettings, "replication_factor"),
        ),
        audit_topic(
            audit.topic_num_partitions,
            audit.topic_replication_factor,
            audit.topic_segment_bytes,
            audit.topic_retention_ms,
            exact=is_given(AuditSettings, "topic_replication_factor"),
        ),
    ]
