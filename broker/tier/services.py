"""What the parts of a broker's tier are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.partitions.hosted import HostedPartitions
from broker.tier.deletion import Manifests
from broker.tier.led import Guard, TierCalls
from common.pacing import Pacer
from common.ports import Ports
from object_store.store import ObjectStore
from storage.audit_trail import AuditTrail
from tiering.keys import TierRoot


@dataclass(slots=True, frozen=True)
class TierServices:
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
