"""Dependencies of a broker's tier: the shards, the store and its guard, the manifests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from broker.partitions.hosted import HostedPartitions
from common.pacing import Pacer
from common.ports import Ports
from object_store.store import ObjectStore
from storage.audit.audit_trail import AuditTrail
from tiering.bucket.keys import TierRoot
from tiering.manifests.manifest import ManifestHead
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import Claim, Done, Mutation, Refused


class TierCalls(Protocol):
    """Calls to the tier's shards, wherever they are hosted; `broker.coordination.tier.client.TierClient`.

    Each raises OutcomeUnknown or ProtocolError if the shard cannot be reached in time.
    """

    async def claim(
        self, topic_id: bytes, partition: int, claim: Claim, timeout_s: float | None = None
    ) -> PartitionTier | Refused: ...

    async def change(self, view: PartitionTier, request: Mutation, timeout_s: float | None = None) -> Done | Refused:
        """Request a change and update `view` with it. One at a time per view; may be repeated."""
        ...

    async def refresh(self, view: PartitionTier, timeout_s: float | None = None) -> None:
        """Bring `view` up to date."""
        ...

    async def describe(self, topic_id: bytes, partition: int, timeout_s: float | None = None) -> PartitionTier: ...


class Guard(Protocol):
    """Checks that the bucket still belongs to this cluster; `tiering.bucket.cluster_file.ClusterGuard`."""

    async def check(self) -> int:
        """Raises StaleCluster, StoreError, ValueError, OutcomeUnknown, ProtocolError."""
        ...


class Manifests(Protocol):
    """Publishes manifests; `tiering.manifests.manifest_publisher.ManifestPublisher`."""

    def lead(self, tier: PartitionTier) -> None:
        """The claim was answered; `tier` is the live view. Publishes it if the bucket's manifest is older."""
        ...

    def resign(self, topic_id: bytes, partition: int) -> None: ...

    def changed(self, topic_id: bytes, partition: int) -> None:
        """Publish a new manifest soon; calls for one partition are combined."""
        ...

    def published(self, topic_id: bytes, partition: int) -> ManifestHead | None:
        """The newest version that this leader knows to be its own."""
        ...


class TierServices(Struct, frozen=True):
    """Dependencies of the service. `broker_epoch` returns the epoch of this broker's current registration."""

    ports: Ports
    hosted: HostedPartitions
    store: ObjectStore
    root: TierRoot
    calls: TierCalls
    guard: Guard
    manifests: Manifests
    broker_epoch: Callable[[], int]
    audit: AuditTrail
    pacer: Pacer
