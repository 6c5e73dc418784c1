"""All of a broker that has to do with the tier, wired: the store, the bucket's guard, manifests and the service."""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.coordination.tier.client import TierClient
from broker.partitions.hosted import HostedPartitions
from broker.tier.config import TierConfig
from broker.tier.metrics import register_tier_metrics
from broker.tier.opening import LateStore, OpenStore
from broker.tier.service import TierService, TierServices
from common.errors import ErrorCode, ProtocolError
from common.metrics import Metrics
from common.ports import Ports
from object_store.errors import StoreError
from object_store.uri import parse_uri
from storage.log_context import Audit
from tiering.cluster_file import ClusterGuard
from tiering.keys import TierRoot
from tiering.manifest_publisher import ManifestPublisher, PublisherLimits
from tiering.manifest_writer import ManifestServices
from tiering.shard_protocol import EnterCluster, Entered

logger = logging.getLogger(__name__)

CLUSTER_SHARD = (bytes(16), 0)  # the partition under which the cluster's own record is kept


class TierPlane:
    """One per broker whose `tidelog.tier.uri` is set. Made once the cluster's id is known, before roles are taken."""

    def __init__(
        self,
        ports: Ports,
        config: TierConfig,
        hosted: HostedPartitions,
        client: TierClient,
        cluster_id: str,
        broker_epoch: Callable[[], int],
        audit: Audit,
        open_store: OpenStore,
    ) -> None:
        self._client = client
        self.store = LateStore(config.uri, parse_uri(config.uri).name, open_store)
        self.root = TierRoot(cluster_id)
        self.guard = ClusterGuard(self.store, self.root, self._enter, ports.clock)
        self.manifest_services = ManifestServices(self.store, self.root, self.guard, ports.clock, ports.random)
        self.publisher = ManifestPublisher(self.manifest_services, PublisherLimits())
        self.service = TierService(
            TierServices(ports, hosted, self.store, self.root, client, self.guard, self.publisher, broker_epoch, audit),
            config,
        )
        hosted.tier = self.service

    async def _enter(self, incarnation: int) -> int:
        """Which incarnation this cluster is; the bucket's, for the first who asks."""
        reply = await self._client.call(*CLUSTER_SHARD, EnterCluster(incarnation))
        if not isinstance(reply, Entered):
            raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, "the tier shard answered something else")
        return reply.incarnation

    def register(self, metrics: Metrics) -> None:
        register_tier_metrics(metrics, self.service)

    async def start(self) -> None:
        """A store that cannot be opened is told, and tried again when it is needed."""
        try:
            await self.store.opened()
        except StoreError as error:
            logger.warning("the object store cannot be opened", extra={"cause": str(error)})
        self.publisher.start()
        self.service.start()

    async def stop(self) -> None:
        """Before the log directory closes."""
        await self.service.stop()
        await self.publisher.stop()
        await self.store.close()
