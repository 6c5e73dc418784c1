"""The transactions of one broker: its coordinators, their markers, and what its partitions' leaders ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from broker.config import BrokerConfig
from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.internal_topics import InternalTopics
from broker.coordination.runtime import CoordinatorRuntime
from broker.coordination.transactions.config import TransactionLimits
from broker.coordination.transactions.coordinator import TransactionCoordinator
from broker.coordination.transactions.markers import MarkerLimits, TransactionMarkers
from broker.coordination.transactions.verification_client import VerificationClient, VerificationLimits
from broker.data_plane import DataPlane, Machinery
from broker.handlers.transaction_markers import WriteTxnMarkers
from broker.handlers.transaction_offsets import TransactionOffsets
from broker.handlers.transactions import TransactionHandlers
from kraft.features import TRANSACTION_VERSION
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TRANSACTION_PARTITIONS_MAX, TRANSACTIONAL_IDS_MAX, TRANSACTIONS_MAX, limit_of
from kraft.links import Links
from kraft.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC

CREATION_S = 5.0
"""How long a transaction waits for the first group's topic. Some clients take an error for final there."""


class TransactionPlane:
    """Hosts the shards of `__transaction_state` in `runtime`."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        machinery: Machinery,
        data_plane: DataPlane,
        runtime: CoordinatorRuntime,
        links: Links,
        image: Callable[[], MetadataImage],
    ) -> None:
        self._tenants = config.tenants
        self._data_plane = data_plane
        self._image = image
        listener_name = config.internal_listener.name
        self.coordinator = TransactionCoordinator(
            runtime=runtime,
            producer_ids=data_plane.producer_ids,
            config=config.transactions,
            image=image,
            version=self._version,
            limits_of=self._limits_of,
            held_s=config.verification.add_retry_max_ms / 1000,
        )
        self._write_markers = WriteTxnMarkers(data_plane.partitions, runtime, machinery.ports.clock, machinery.pacer)
        self.markers = TransactionMarkers(
            node_id=config.node_id,
            image=image,
            leader_epoch_of=lambda index: runtime.leader_epoch(TRANSACTION_TOPIC, index),
            written=self.coordinator.markers_written,
            local=self._write_markers,
            links=links,
            listener_name=listener_name,
            rng=machinery.ports.random,
            limits=MarkerLimits(),
        )
        runtime.host(TRANSACTION_TOPIC, self.coordinator.make_shard, self.markers.begin)
        self._verification = VerificationClient(
            node_id=config.node_id,
            image=image,
            local=self.coordinator,
            links=links,
            listener_name=listener_name,
            limits=VerificationLimits(),
        )
        data_plane.transactions.reach(self._verification)

    def handlers(self, groups: GroupCoordinator, internal_topics: InternalTopics) -> list[object]:
        data_plane = self._data_plane

        def ensure_groups() -> Awaitable[None]:
            return internal_topics.ensure_within(GROUP_TOPIC, CREATION_S)

        return [
            TransactionHandlers(
                coordinator=self.coordinator,
                producer_ids=data_plane.producer_ids,
                image=self._image,
                group_partition_of=groups.partition_of,
                ensure_groups=ensure_groups,
                unwritten=self.markers.unwritten,
            ),
            self._write_markers,
            TransactionOffsets(groups, data_plane.transactions, data_plane.partitions, self._image),
        ]

    def broker_left(self, broker_id: int) -> None:
        """See `brokers_left`."""
        self.markers.broker_left(broker_id)
        self._verification.broker_left(broker_id)

    async def stop(self) -> None:
        await self.coordinator.stop()
        await self.markers.stop()
        await self._verification.stop()

    def _version(self) -> int:
        """The level of `transaction.version`."""
        return self._image().features.get(TRANSACTION_VERSION, 0)

    def _limits_of(self, tenant_id: str | None) -> TransactionLimits:
        """What a tenant may have; the operators have the most that a partition can bear."""
        tenant = self._image().tenants.get(tenant_id) if tenant_id is not None else None
        if tenant is None:
            return TransactionLimits()
        limits, defaults = tenant.limits, self._tenants
        return TransactionLimits(
            ids=limit_of(limits, TRANSACTIONAL_IDS_MAX, defaults),
            open=limit_of(limits, TRANSACTIONS_MAX, defaults),
            partitions=limit_of(limits, TRANSACTION_PARTITIONS_MAX, defaults),
        )
