"""Derives the routing table from the committed metadata."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from common.pacing import Pacer, Work
from kraft.image.cells import cell_of
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.image.sharded_map import ShardedMap
from kraft.image.tenants import CONNECTION_RATE, CONNECTIONS_MAX, TenantImage
from kraft.observers.observer import MetadataObserver
from proxy.broker_reach import BrokerReach
from proxy.networks import EVERYBODY, NetworkRules, Networks
from proxy.routing import BrokerRoute, RoutingTable, TenantRoute

logger = logging.getLogger(__name__)

LANE = "routes"
TENANTS_AT_ONCE = 100
TENANT_COST = 5  # units of `common.pacing`

Changed = Callable[[RoutingTable, Mapping[str, None]], None]
"""Called with a new table, and with the ids of the tenants whose routes it adds, replaces or lacks."""


def tenant_route(tenant: TenantImage, visited: tuple[int, ...]) -> TenantRoute:
    limits: Mapping[str, int] = tenant.limits
    rate = limits.get(CONNECTION_RATE)
    return TenantRoute(
        tenant.id,
        tenant.home,
        limits.get(CONNECTIONS_MAX),
        None if rate is None else float(rate),
        _rules(tenant),
        visited,
    )


def _rules(tenant: TenantImage) -> NetworkRules:
    if not tenant.allow_networks and not tenant.deny_networks:
        return EVERYBODY
    return NetworkRules(_networks(tenant.allow_networks, tenant.id), _networks(tenant.deny_networks, tenant.id))


def _networks(texts: tuple[str, ...], tenant: str) -> Networks:
    try:
        return Networks(texts)
    except ValueError as error:  # the controller checks them; an unreadable rule admits no client
        logger.error("a tenant's networks cannot be read: %s", error, extra={"tenant": tenant})
        return Networks(("0.0.0.0/32",))


def broker_routes(image: MetadataImage, listener: str) -> dict[int, BrokerRoute]:
    """The brokers that have `listener`, by id."""
    brokers: dict[int, BrokerRoute] = {}
    for number, broker in sorted(image.brokers.items()):
        address = broker.address(listener)
        if address is not None:
            brokers[number] = BrokerRoute(number, address, cell_of(broker), broker.is_active)
    return brokers


class ObservedRoutes:
    """The table of tenants that may log in, as an observer's image has it; empty until the observer knows the cluster.

    A table is published when all tenants that the changes before it concern have been looked at.
    """

    def __init__(self, observer: MetadataObserver, listener: str, pacer: Pacer) -> None:
        self.current = RoutingTable()
        self._tenants = ShardedMap[str, TenantRoute]()  # of `current`
        self._listener = listener
        self._pacer = pacer
        self._callbacks: list[Changed] = []
        self._reach = BrokerReach()
        self._steps: list[tuple[MetadataDelta, MetadataImage]] = []  # not looked at yet
        self._is_working = False
        self._later: asyncio.Future[None] | None = None  # the work, while it takes more than a slice
        observer.subscribe(self._moved)

    def on_change(self, callback: Changed) -> None:
        self._callbacks.append(callback)

    def stop(self) -> None:
        """Publish no further table."""
        self._steps.clear()
        if self._later is not None:
            self._later.cancel()

    def _moved(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._steps.append((delta, image))
        if not self._is_working:
            self._is_working = True
            outcome = self._pacer.start(self._work(), LANE, own=True)
            if isinstance(outcome, asyncio.Future):
                self._later = outcome
                outcome.add_done_callback(raise_failure)

    def _work(self) -> Work[None]:
        try:
            while self._steps:
                steps, self._steps = self._steps, []
                yield from self._following(steps)
        finally:
            self._is_working = False

    def _following(self, steps: list[tuple[MetadataDelta, MetadataImage]]) -> Work[None]:
        touched: dict[str, None] = {}
        all_are = False
        for delta, image in steps:
            all_are = (yield from self._reach.following(delta, image, touched)) or all_are
        _, image = steps[-1]
        looked_at: Iterable[str] = touched
        if all_are:
            looked_at = chain((one for one in touched if one not in image.tenants), image.tenants)
        before, tenants = self.current, self._tenants
        changed: dict[str, None] = {}
        some: dict[str, TenantRoute | None] = {}
        for number, one in enumerate(looked_at, 1):
            tenant = image.tenants.get(one)
            route = None
            if tenant is not None and tenant.may_log_in:
                route = tenant_route(tenant, (yield from self._reach.visiting(image, tenant)))
            if route != tenants.get(one):
                some[one] = route
            if number % TENANTS_AT_ONCE == 0:
                changed.update(dict.fromkeys(some))
                tenants, some = tenants.changed(some) if some else tenants, {}
                yield TENANTS_AT_ONCE * TENANT_COST
        changed.update(dict.fromkeys(some))
        tenants = tenants.changed(some) if some else tenants
        brokers = broker_routes(image, self._listener)
        if not before.generation or changed or brokers != before.brokers:
            self._tenants, self.current = tenants, RoutingTable(tenants, brokers, before.generation + 1)
            for callback in self._callbacks:
                callback(self.current, changed)


def raise_failure(work: asyncio.Future[None]) -> None:
    """A bug in it goes to the loop's exception handler at once: a steward without routes must not look alive."""
    if not work.cancelled():
        work.result()
