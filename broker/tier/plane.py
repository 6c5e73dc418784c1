"""A broker's tier: the store, the bucket's guard, manifests and the service."""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.tier.client import TierClient
from broker.coordination.tier.coordinator import TierCoordinator
from broker.coordination.tier.upkeep import TierUpkeep, UpkeepConfig
from broker.partitions.hosted import HostedPartitions
from broker.tier.config import TierConfig
from broker.tier.exports import BrokerExports
from broker.tier.metrics import register_tier_metrics
from broker.tier.opening import LateStore, OpenStore
from broker.tier.proposals import Proposals
from broker.tier.service import TierService
from broker.tier.services import TierServices
from broker.tier.verified import LastVerifications
from common.identifiers import random_uuid
from common.metrics import Metrics
from common.pacing import Pacer
from common.ports import Ports
from object_store.errors import StoreError
from object_store.uri import parse_uri
from storage.audit.audit_trail import AuditTrail
from tiering.bucket.cluster_file import ClusterGuard
from tiering.bucket.keys import TierRoot
from tiering.bucket.store_seen import StoreSeen
from tiering.exports.export_rounds import ExportTrouble
from tiering.exports.exports import Exporter, ExporterServices, ExportWriter
from tiering.manifests.manifest_publisher import ManifestPublisher, PublisherLimits
from tiering.manifests.manifest_writer import ManifestServices
from tiering.upkeep.sweeper import SweepLimits, SweepReport

logger = logging.getLogger(__name__)

UPKEEP_ROUND_MAX_S = 30.0
UPKEEP_ROUND_MIN_S = 0.5


class TierPlane:
    """One per broker with `tidelog.tier.uri`. Created when the cluster's id is known, before roles are taken."""

    def __init__(
        self,
        ports: Ports,
        config: TierConfig,
        hosted: HostedPartitions,
        client: TierClient,
        coordinator: TierCoordinator,
        groups: GroupCoordinator,
        cluster_id: str,
        broker_epoch: Callable[[], int],
        audit: AuditTrail,
        open_store: OpenStore,
        pacer: Pacer,
    ) -> None:
        self.uri = config.uri
        self.delete_delay_ms = config.delete_delay_ms
        self.store = LateStore(config.uri, parse_uri(config.uri).name, open_store, ports.clock)
        self.root = TierRoot(cluster_id)
        self.verified = LastVerifications(self.store, self.root, ports.clock)
        self.guard = ClusterGuard(
            self.store,
            self.root,
            lambda: hosted.image.incarnation,
            ports.clock,
            seen=StoreSeen(ports.disk),
            probe_name=lambda: random_uuid(ports.random).hex(),
        )
        self.manifest_services = ManifestServices(
            store=self.store,
            root=self.root,
            guard=self.guard,
            clock=ports.clock,
            random=ports.random,
            pacer=pacer,
            sight_s=config.sweep_age_ms / 2_000,
            paging=config.paging,
        )
        self.publisher = ManifestPublisher(self.manifest_services, PublisherLimits())
        services = TierServices(
            ports=ports,
            hosted=hosted,
            store=self.store,
            root=self.root,
            calls=client,
            guard=self.guard,
            manifests=self.publisher,
            broker_epoch=broker_epoch,
            audit=audit,
            pacer=pacer,
        )
        self.service = TierService(services, config)
        self.proposals = Proposals(services, self.service, config)
        self.upkeep = TierUpkeep(
            self.manifest_services, coordinator, client, lambda: hosted.image, _upkeep_config(config)
        )
        exports = BrokerExports(hosted, groups, self.service, ports.clock, pacer)
        writer = ExportWriter(self.store, self.root, self.guard, ports.clock)
        self.exporter = Exporter(
            ExporterServices(
                lambda: writer, exports.exports, ports.clock, ports.random, config.export_interval_ms / 1000
            )
        )
        hosted.set_tier(self.service)

    @property
    def export_trouble(self) -> ExportTrouble:
        return self.exporter.trouble

    @property
    def last_sweep(self) -> SweepReport | None:
        return self.upkeep.last_sweep

    def register(self, metrics: Metrics) -> None:
        register_tier_metrics(metrics, self.service)
        proposals = self.proposals
        metrics.counter("tidelog_tier_proposals_accepted_total", lambda: proposals.accepted)
        metrics.counter("tidelog_tier_proposals_refused_total", lambda: proposals.refused)

    async def start(self) -> None:
        """Open the store. A failure is logged, and opening is retried when the store is needed."""
        try:
            await self.store.opened()
        except StoreError as error:
            logger.warning("the object store cannot be opened", extra={"cause": str(error)})
        self.publisher.start()
        self.service.start()
        self.proposals.start()
        self.upkeep.start()
        self.exporter.start()

    async def stop(self) -> None:
        """Call it before the log directory closes."""
        await self.exporter.stop()
        await self.upkeep.stop()
        await self.proposals.stop()
        await self.service.stop()
        await self.publisher.stop()
        await self.store.close()


def _upkeep_config(config: TierConfig) -> UpkeepConfig:
    delay_s = config.delete_delay_ms / 1000
    return UpkeepConfig(
        delete_delay_ms=config.delete_delay_ms,
        round_s=min(max(delay_s / 4, UPKEEP_ROUND_MIN_S), UPKEEP_ROUND_MAX_S),
        sweep_interval_s=config.sweep_interval_ms / 1000,
        sweep=SweepLimits(age_ms=config.sweep_age_ms, manifest_keep_ms=config.manifest_keep_ms),
    )
