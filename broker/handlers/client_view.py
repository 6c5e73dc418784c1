"""The cluster as one listener's clients see it: brokers, their addresses there, partitions and leaders."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from common.errors import ErrorCode
from kraft.image.brokers import BrokerImage
from kraft.image.cells import brokers_of
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage

NO_NODE = -1
LISTENER_NOT_FOUND_FROM = 6  # earlier Metadata versions only have LEADER_NOT_AVAILABLE


class VisibleBroker(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


class VisiblePartition(NamedTuple):
    """`leader`: -1 with an error; `offline`: replicas that cannot be reached on this listener."""

    error: ErrorCode
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]


class ClientView:
    """One image through one listener. Created per request; work is done on demand.

    `is_doubted` returns whether a broker has just become unreachable. Such a broker is not shown as leader, so that
    clients ask again within milliseconds instead of using an image that does not have its death yet.
    """

    def __init__(
        self,
        image: MetadataImage,
        listener: str,
        node_id: int,
        is_doubted: Callable[[int], bool] = lambda _: False,
        tenant: str | None = None,
    ) -> None:
        """`tenant` sees the brokers of its cell, and others that have replicas of the topics that it requested."""
        self.image = image
        self._home = _home(image, tenant)
        self._named: dict[int, None] = {}
        self._listener = listener
        self._node_id = node_id
        self._reachable = {broker.broker_id: broker for broker in self._with_address() if not broker.fenced}
        self._doubted = frozenset(broker_id for broker_id in self._reachable if is_doubted(broker_id))

    def brokers(self, *, shows_fenced: Callable[[int], bool] = lambda _: False) -> list[VisibleBroker]:
        """Brokers with an address on this listener, by id. Call it last, because it includes those that partitions
        named. `shows_fenced` returns whether a fenced one is among them."""
        return [
            broker
            for broker in self._with_address()
            if (not broker.fenced or shows_fenced(broker.broker_id)) and self._shows(broker.broker_id)
        ]

    def _shows(self, broker_id: int) -> bool:
        return self._home is None or broker_id in self._home or broker_id in self._named

    def _with_address(self) -> list[VisibleBroker]:
        found = []
        for broker_id in sorted(self.image.brokers):
            broker = self.image.brokers[broker_id]
            visible = self._visible(broker)
            if visible is not None:
                found.append(visible)
        return found

    def _visible(self, broker: BrokerImage) -> VisibleBroker | None:
        address = broker.address(self._listener)
        if address is None:
            return None
        return VisibleBroker(broker.broker_id, address[0], address[1], broker.rack or None, broker.fenced)

    def broker(self, broker_id: int) -> VisibleBroker | None:
        """The broker, if clients can reach it now."""
        return self._reachable.get(broker_id)

    @property
    def controller_id(self) -> int:
        """A live broker, which forwards requests to the controller; this one, if it is live."""
        if self._node_id in self._reachable and self._shows(self._node_id):
            return self._node_id
        return next((broker_id for broker_id in self._reachable if self._shows(broker_id)), NO_NODE)

    @property
    def state(self) -> tuple[Hashable, ...]:
        """What the rows of partitions depend on; neither the listener's name nor addresses matter."""
        reachable = tuple(self._reachable)
        alive = tuple(broker_id for broker_id, broker in self.image.brokers.items() if not broker.fenced)
        return reachable, alive, self._doubted

    def name(self, nodes: Iterable[int]) -> None:
        """Show the brokers `nodes`, because partitions name them."""
        if self._home is not None:
            self._named.update(dict.fromkeys(nodes))

    def partition(self, partition: PartitionImage, *, listener_not_found: bool = True) -> VisiblePartition:
        reachable = self._reachable
        if self._home is not None:
            self._named.update(dict.fromkeys(partition.replicas))
        error, leader = ErrorCode.NONE, partition.leader
        if leader not in reachable:
            alive = self.image.brokers.get(leader)
            elsewhere = listener_not_found and alive is not None and not alive.fenced
            error = ErrorCode.LISTENER_NOT_FOUND if elsewhere else ErrorCode.LEADER_NOT_AVAILABLE
            leader = NO_NODE
        elif leader in self._doubted:
            error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_NODE
        return VisiblePartition(
            error,
            partition.partition,
            leader,
            partition.leader_epoch,
            list(partition.replicas),
            list(partition.isr),
            [replica for replica in partition.replicas if replica not in reachable],
        )


def _home(image: MetadataImage, tenant_id: str | None) -> frozenset[int] | None:
    """The brokers of the cells where the tenant lives; None for a client that sees every broker."""
    if tenant_id is None:
        return None
    tenant = image.tenants.get(tenant_id)
    cells = () if tenant is None else dict.fromkeys((tenant.cell, tenant.home))
    return frozenset(broker.broker_id for cell in cells for broker in brokers_of(cell, image.brokers))
