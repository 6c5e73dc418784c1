"""Rules for tenants' topics: owner of a name, allowed brokers, limits of partitions. No I/O.

Messages here may reach a tenant: they name no other tenant, and no number that depends on others.
"""

from __future__ import annotations

import random
import re

from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.controller.cells import Cells
from kraft.controller.placement import ReplicaPlacer, UsableBroker
from kraft.controller.policy import ControllerPolicy, is_cordoned, tenant_limit
from kraft.image.brokers import BrokerImage
from kraft.image.cells import brokers_of
from kraft.image.metadata import MetadataImage
from kraft.image.tenant_usage import counting_partitions, home_ids
from kraft.image.tenants import PARTITIONS_MAX, TenantImage, tenant_of
from kraft.records import TenantState

_LIKE_A_TENANTS = re.compile(r"lkc-[a-z0-9]{6}\.")  # with the dot it would collide with a tenant's metrics


def check_owner(image: MetadataImage, topic_name: str) -> TenantImage | None:
    """The tenant that a new topic of that name belongs to, None for an operator's.

    Raises INVALID_TOPIC_EXCEPTION for a name with a tenant's prefix if there is no such tenant.
    """
    tenant = image.tenants.owner(topic_name)
    if tenant is not None and tenant.state is not TenantState.DELETING:
        return tenant
    if tenant is not None:
        message = f"Tenant {tenant.id} is being deleted and takes no new topics."
    elif (tenant_id := tenant_of(topic_name)) is not None:
        message = f"There is no tenant {tenant_id}, and names that begin with a tenant's id are for that tenant alone."
    elif _LIKE_A_TENANTS.match(topic_name):
        message = "Names that begin with a tenant's id and a dot are reserved: a tenant's metrics begin so."
    else:
        return None
    raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


class Home:
    """The brokers that may have replicas of one topic."""

    def __init__(self, image: MetadataImage, topic_name: str) -> None:
        self._image = image
        self._tenant = image.tenants.owner(topic_name)
        self._brokers = frozenset() if self._tenant is None else home_ids(image, self._tenant)

    def check(self, replicas: tuple[int, ...]) -> None:
        """Raises INVALID_REPLICATION_ASSIGNMENT if a tenant's replicas would leave its cell."""
        if self._tenant is None:
            return
        outside = [r for r in replicas if r not in self._brokers and r in self._image.brokers]
        if outside:
            raise ProtocolError(
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
                f"Broker {outside[0]} is not in cell {self._tenant.home}, where this tenant lives; "
                "`tidelog tenants move` moves the tenant.",
            )


def check_range(image: MetadataImage, topic_name: str, partition: int, replicas: tuple[int, ...]) -> None:
    """Raises INVALID_REPLICATION_ASSIGNMENT if the replicas would leave the cell of the partition's range."""
    topic = image.topics.get(topic_name)
    held = topic.range_with(partition) if topic is not None else None
    if held is None:
        return
    home = [broker.broker_id for broker in brokers_of(held.cell, image.brokers)]
    outside = [replica for replica in replicas if replica not in home and replica in image.brokers]
    if home and outside:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            f"Broker {outside[0]} is not in cell {held.cell}, which keeps its groups in {topic_name}-{partition}.",
        )


class TenantTopics:
    """Limits of the new partitions of one request, per tenant and for operators."""

    def __init__(self, image: MetadataImage, policy: ControllerPolicy, rng: random.Random) -> None:
        self._image = image
        self._policy = policy
        self._random = rng
        self._placers: dict[str | None, ReplicaPlacer] = {}
        self._partitions: dict[str, int] = {}
        self._replicas: dict[str, int] = {}
        self._cells: Cells | None = None

    def placer(self, tenant: TenantImage | None) -> ReplicaPlacer:
        """Places on the brokers of the tenant's cell, or on all."""
        return self.cell_placer(None if tenant is None else tenant.home)

    def cell_placer(self, key: str | None) -> ReplicaPlacer:
        """Places on the brokers of that cell; None means all brokers."""
        if key not in self._placers:
            all_brokers = list(self._image.brokers.values())
            brokers = all_brokers if key is None else brokers_of(key, self._image.brokers)
            self._placers[key] = ReplicaPlacer(usable_brokers(self._image, brokers), self._random)
        return self._placers[key]

    def check_partitions(self, tenant: TenantImage | None, added: int) -> Work[None]:
        """Raises POLICY_VIOLATION if the tenant may not have `added` more partitions."""
        if tenant is None:
            return
        present = self._partitions.get(tenant.id)
        if present is None:
            present = yield from counting_partitions(self._image, tenant)
        most = tenant_limit(tenant, PARTITIONS_MAX, self._policy)
        if present + added > most:
            raise ProtocolError(
                ErrorCode.POLICY_VIOLATION,
                f"{added} more partitions are too many: {present} are there, and at most {most} are allowed.",
            )
        self._partitions[tenant.id] = present

    def take(self, tenant: TenantImage | None, assignments: list[tuple[int, ...]]) -> None:
        """Count placed replicas. Raises POLICY_VIOLATION if the cell has no room for them."""
        if tenant is None:
            return
        self._cells = self._cells or Cells(self._image, self._policy, living={})
        cell = self._cells.by_name.get(tenant.home)
        added = self._replicas.get(tenant.home, 0) + sum(map(len, assignments))
        if cell is None or cell.replicas + added > cell.replicas_max:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, "There is no room for so many replicas at present.")
        self._replicas[tenant.home] = added
        self._partitions[tenant.id] = self._partitions.get(tenant.id, 0) + len(assignments)


def usable(image: MetadataImage, broker: BrokerImage) -> UsableBroker:
    fenced = not broker.is_active or not broker.is_healthy or is_cordoned(image, broker.broker_id)
    return UsableBroker(broker.broker_id, broker.rack, fenced=fenced)


def usable_brokers(image: MetadataImage, brokers: list[BrokerImage]) -> list[UsableBroker]:
    """Where no other broker is live, one that is not healthy serves."""
    found = [usable(image, broker) for broker in brokers]
    if all(broker.fenced for broker in found):
        found = [
            UsableBroker(
                broker.broker_id, broker.rack, fenced=not broker.is_active or is_cordoned(image, broker.broker_id)
            )
            for broker in brokers
        ]
    return found
