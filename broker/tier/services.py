"""What the parts of a broker's tier are made from: the shards, the store and its guard, and the manifests."""

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
    """The tier's shards, wherever they are hosted; `broker.coordination.tier.client.TierClient`.

    Each raises OutcomeUnknown or ProtocolError when the shard cannot be reached in time.
    """

    async def claim(
        self, topic_id: bytes, partition: int, claim: Claim, timeout_s: float | None = None
    ) -> PartitionTier | Refused: ...

    async def change(self, view: PartitionTier, request: Mutation, timeout_s: float | None = None) -> Done | Refused:
        """Brings `view` up to date with what was changed. One at a time per view; may be repeated."""
        ...

    async def refresh(self, view: PartitionTier, timeout_s: float | None = None) -> None:
        """Bring `view` up to date."""
        ...

    async def describe(self, topic_id: bytes, partition: int, timeout_s: float | None = None) -> PartitionTier: ...


class Guard(Protocol):
    """Whether the bucket is still this cluster's; `tiering.bucket.cluster_file.ClusterGuard`."""

    async def check(self) -> int:
        """Raises StaleCluster, StoreError, ValueError, OutcomeUnknown, ProtocolError."""
        ...


class Manifests(Protocol):
    """The published image of what the tier holds; `tiering.manifests.manifest_publisher.ManifestPublisher`."""

    def lead(self, tier: PartitionTier) -> None:
        """The claim was answered; `tier` is the live view. Publishes what the bucket does not show yet."""
        ...

    def resign(self, topic_id: bytes, partition: int) -> None: ...

    def changed(self, topic_id: bytes, partition: int) -> None:
        """Publish it, soon; calls for one partition are put together."""
        ...

    def published(self, topic_id: bytes, partition: int) -> ManifestHead | None:
        """The newest version that this leader knows as its own."""
        ...


class TierServices(Struct, frozen=True):
    """What the service is built from. `broker_epoch` tells this broker's present registration."""

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
