"""The routing table of tenants, brokers and cells, and the lookup of a server name in it.

The table is immutable. Each change of the metadata that matters makes a new one, which shares the routes that did not
change with the one before: there may be 100,000 tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.host_names import parse_host
from common.ports import Address
from proxy.failures import Cause
from proxy.networks import EVERYBODY, NetworkRules

ATTEMPTS_MAX = 3  # brokers of a cell that one bootstrap connection tries


@dataclass(frozen=True, slots=True)
class TenantRoute:
    """A tenant as proxies see it. `connections_max` and `connection_rate` (new ones per second): None is the default.
    `visited`: the brokers of other cells that its clients may ask for by name."""

    tenant: str
    cell: str
    connections_max: int | None = None
    connection_rate: float | None = None
    rules: NetworkRules = EVERYBODY
    visited: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """`address` is that of the listener for proxies. A broker that is not live still has a route by its own name."""

    broker: int
    address: Address
    cell: str
    live: bool


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """`generation` grows with each table. `cells`: the live brokers of each cell, or all if none is live."""

    tenants: Mapping[str, TenantRoute] = field(default_factory=dict)
    brokers: Mapping[int, BrokerRoute] = field(default_factory=dict)
    generation: int = 0
    cells: Mapping[str, tuple[BrokerRoute, ...]] = field(init=False)

    def __post_init__(self) -> None:
        cells: dict[str, list[BrokerRoute]] = {}
        for _, broker in sorted(self.brokers.items()):
            cells.setdefault(broker.cell, []).append(broker)
        usable = {cell: [one for one in all_ if one.live] or all_ for cell, all_ in cells.items()}
        object.__setattr__(self, "cells", {cell: tuple(brokers) for cell, brokers in usable.items()})


@dataclass(frozen=True, slots=True)
class Route:
    """`addresses` are tried in turn until one accepts the connection."""

    tenant: TenantRoute
    addresses: tuple[Address, ...]


def find_route(
    table: RoutingTable, domain: str, name: str, rotation: int, avoided: Mapping[Address, float]
) -> Route | Cause:
    """The route of a server name, or the reason why it has none.

    A bootstrap name leads to a few brokers of the tenant's cell, beginning at `rotation`; `avoided` ones come last. A
    broker's name leads to that broker. One in another cell is unknown unless the tenant's partitions or groups are
    there.
    """
    host = parse_host(name, domain)
    if host is None:
        return Cause.UNKNOWN_NAME
    tenant = table.tenants.get(host.tenant)
    if tenant is None:
        return Cause.UNKNOWN_NAME
    if host.broker is not None:
        broker = table.brokers.get(host.broker)
        if broker is None or (broker.cell != tenant.cell and broker.broker not in tenant.visited):
            return Cause.UNKNOWN_BROKER
        return Route(tenant, (broker.address,))
    cell = table.cells.get(tenant.cell, ())
    if not cell:
        return Cause.NO_BROKER
    first = rotation % len(cell)
    addresses = [broker.address for broker in cell[first:] + cell[:first]]
    if avoided:
        addresses.sort(key=lambda address: address in avoided)
    return Route(tenant, tuple(addresses[:ATTEMPTS_MAX]))


class RouteSource(Protocol):
    """The source of the routing table in force."""

    @property
    def current(self) -> RoutingTable: ...

    def on_change(self, callback: Callable[[RoutingTable, Mapping[str, None]], None]) -> None:
        """Call back on the event loop after each replacement of `current`, with the new table and the ids of tenants
        that are gone from it or have other network rules in it."""
        ...
