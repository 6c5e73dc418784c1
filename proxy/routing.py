"""Where a server name leads: tenants, brokers and their cells as one immutable table, and the question put to it.

The table is made again from each state of the metadata; a connection asks the one that is current. Pure, but for the
rotation that spreads bootstrap connections over a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.host_names import parse_host
from common.ports import Address
from proxy.failures import Cause
from proxy.networks import EVERYBODY, NetworkRules

ATTEMPTS_MAX = 3  # brokers of a cell that one bootstrap connection is tried at


@dataclass(frozen=True, slots=True)
class TenantRoute:
    """A tenant as proxies see it. None for `connections_max` or `connection_rate` (new ones a second): the default.
    `visited` are the brokers of other cells that its clients may ask for by name."""

    tenant: str
    cell: str
    connections_max: int | None = None
    connection_rate: float | None = None
    rules: NetworkRules = EVERYBODY
    visited: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """`address` is that of the listener for proxies; a broker that is not live is still asked for by its name."""

    broker: int
    address: Address
    cell: str
    live: bool


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """`generation` grows with each table, so that somebody can tell which one is in force."""

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
    """`addresses` are tried in turn until one of them takes the connection."""

    tenant: TenantRoute
    addresses: tuple[Address, ...]


def find_route(
    table: RoutingTable, domain: str, name: str, rotation: int, avoided: Mapping[Address, float]
) -> Route | Cause:
    """The route of a server name, or why there is none.

    A bootstrap name leads to a few brokers of the tenant's cell, beginning at `rotation`, those that were found out of
    reach a moment ago last. A broker's name leads to that broker, in another cell only if the tenant has something
    there; else the answer is that for a broker that never was.
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
    """Who knows the routing table that is in force."""

    @property
    def current(self) -> RoutingTable: ...

    def on_change(self, callback: Callable[[RoutingTable], None]) -> None:
        """Call back on the event loop after `current` was replaced."""
        ...
