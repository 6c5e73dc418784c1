"""The routing table as derived from the committed metadata."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping

from kraft.image.cells import cell_of
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import CONNECTION_RATE, CONNECTIONS_MAX, TenantImage
from kraft.observers.observer import MetadataObserver
from proxy.broker_reach import BrokerReach, Visited, visited_brokers
from proxy.networks import NetworkRules, Networks
from proxy.routing import BrokerRoute, RoutingTable, TenantRoute

logger = logging.getLogger(__name__)


def routing_table(
    image: MetadataImage, listener: str, generation: int = 0, visited: Visited | None = None
) -> RoutingTable:
    """The table of tenants that may log in, and of brokers that have `listener`. `visited` is computed when absent."""
    visited = visited_brokers(image) if visited is None else visited
    brokers: dict[int, BrokerRoute] = {}
    for number, broker in sorted(image.brokers.items()):
        address = broker.address(listener)
        if address is not None:
            brokers[number] = BrokerRoute(number, address, cell_of(broker), broker.is_active)
    tenants = {
        tenant_id: tenant_route(image.tenants[tenant_id], visited.get(tenant_id, ()))
        for tenant_id in sorted(image.tenants)
        if image.tenants[tenant_id].may_log_in
    }
    return RoutingTable(tenants, brokers, generation)


def tenant_route(tenant: TenantImage, visited: tuple[int, ...]) -> TenantRoute:
    limits: Mapping[str, int] = tenant.limits
    rate = limits.get(CONNECTION_RATE)
    return TenantRoute(
        tenant.id,
        tenant.home,
        limits.get(CONNECTIONS_MAX),
        None if rate is None else float(rate),
        NetworkRules(_networks(tenant.allow_networks, tenant.id), _networks(tenant.deny_networks, tenant.id)),
        visited,
    )


def _networks(texts: tuple[str, ...], tenant: str) -> Networks:
    try:
        return Networks(texts)
    except ValueError as error:  # the controller checks them; an unreadable rule admits no client
        logger.error("a tenant's networks cannot be read: %s", error, extra={"tenant": tenant})
        return Networks(("0.0.0.0/32",))


class ObservedRoutes:
    """A `RouteSource` over an observer's image; `current` is empty until the observer knows the cluster."""

    def __init__(self, observer: MetadataObserver, listener: str) -> None:
        self.current = RoutingTable()
        self._listener = listener
        self._callbacks: list[Callable[[RoutingTable], None]] = []
        self._reach = BrokerReach()
        self._made_of: tuple[object, object, object] = (None, None, None)
        observer.subscribe(self._moved)

    def on_change(self, callback: Callable[[RoutingTable], None]) -> None:
        self._callbacks.append(callback)

    def _moved(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Unchanged parts are the same objects in the next image, so most changes cost nothing here."""
        visited = self._reach.follow(delta, image)
        made_of = (image.tenants, image.brokers, visited)
        if all(map(operator.is_, made_of, self._made_of)):
            return
        self._made_of = made_of
        self.current = routing_table(image, self._listener, self.current.generation + 1, visited)
        for callback in self._callbacks:
            callback(self.current)
