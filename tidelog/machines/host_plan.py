"""Which nodes run on which machines, and on which ports. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from common.host_names import is_domain

CONTROLLER_ID_BASE, PROXY_ID_BASE = 1_000, 2_000
BROKERS_MAX = 64  # of one machine: one for each core
PORT, PROXY_PORT = 9_092, 10_092
INTERNAL, TENANT, OPERATOR = 200, 300, 400  # from the brokers' first port
CONTROLLER, QUORUM = 98, 99
METRICS = {"broker": 2_000, "controller": 3_000, "proxy": 3_100}
"""As those of an embedded cluster: docs/operations.md."""
PORT_MAX = 65_535 - METRICS["proxy"] - BROKERS_MAX
CONTROLLERS_ALLOWED = (1, 3, 5, 7)
LOOPBACK = "127.0.0.1"
HOST_CHARACTERS_MAX = 253
RESERVED_NAMES = frozenset({"authority", "operator", "operator.properties", "cluster.secret", "prometheus.yml"})
"""Beside the directories of the machines. `authority` has keys that must not be copied to a machine."""
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*")
_RACK, _USER = re.compile(r"[\w.-]*", re.ASCII), re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PATH = re.compile(r"(?:/[\w.+-]+)+", re.ASCII)
_URI = re.compile(r"[\x21-\x7e]*")
HIDDEN = ("home", "root", "run/user", "tmp", "var/tmp")
"""Directories that systemd hides from a unit (ProtectHome, PrivateTmp)."""

Role = Literal["controller", "broker", "proxy"]


class BadPlan(Exception):
    """These machines make no cluster; the text says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where files lie on each machine, and who runs the nodes."""

    configuration: str = "/etc/tidelog"
    data: str = "/var/lib/tidelog"
    executable: str = "/opt/tidelog/bin/tidelog"
    user: str = "tidelog"

    def check(self) -> None:
        """Raises BadPlan."""
        for path in (self.configuration, self.data, self.executable):
            if not _PATH.fullmatch(path):
                raise BadPlan(f"{path!r} is no absolute path of letters, digits, '.', '+', '-' and '_'")
            if any(f"{path}/".startswith(f"/{hidden}/") for hidden in HIDDEN):
                raise BadPlan(f"{path} is hidden from the units: they see no home directories and a /tmp of their own")
        if not _USER.fullmatch(self.user):
            raise BadPlan(f"{self.user!r} is no name of a system user")


@dataclass(frozen=True, slots=True)
class Node:
    """`index` counts the brokers of a machine."""

    role: Role
    node_id: int
    host: str
    rack: str = ""
    index: int = 0

    @property
    def unit(self) -> str:
        return f"tidelog-broker@{self.node_id}.service" if self.role == "broker" else f"tidelog-{self.role}.service"

    @property
    def name(self) -> str:
        return f"broker-{self.node_id}" if self.role == "broker" else self.role


@dataclass(frozen=True, slots=True)
class Plan:
    """All nodes of a cluster. `is_single`: one machine, on loopback, without TLS."""

    hosts: tuple[str, ...]
    nodes: tuple[Node, ...]
    is_single: bool
    domain: str = ""
    port: int = PORT
    proxy_port: int = PROXY_PORT
    tier: str = ""

    def of(self, host: str) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.host == host)

    def metrics_port(self, node: Node) -> int:
        return self.port + METRICS[node.role] + node.index

    @property
    def controllers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.role == "controller")

    @property
    def brokers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.role == "broker")


def plan(
    machines: Sequence[tuple[str, str]],
    *,
    brokers: int = 1,
    controllers: int = 0,
    domain: str = "",
    port: int = PORT,
    proxy_port: int = PROXY_PORT,
    tier: str = "",
) -> Plan:
    """`machines` are names with racks; none is this machine alone. `brokers` run on each, controllers on the first
    ones (0: three if there are as many), a proxy on each if there is a domain for tenants. Raises BadPlan."""
    names = [name for name, _ in machines] or [LOOPBACK]
    racks = dict(machines)
    if len({name.lower() for name in names}) < len(names):
        raise BadPlan("a machine is named twice")
    if wrong := [name for name in names if machines and not is_host(name)]:
        raise BadPlan(f"{wrong[0]!r} is no host name or address")
    if reserved := [name for name in names if name.lower() in RESERVED_NAMES]:
        raise BadPlan(f"no machine can be named {reserved[0]!r}: what the whole cluster has is written there")
    if any(racks.values()) and not all(racks.values()):
        raise BadPlan("some machines have a rack and others have none")
    if wrong := [rack for rack in racks.values() if not _RACK.fullmatch(rack)]:
        raise BadPlan(f"{wrong[0]!r} is no name of a rack")
    if not _URI.fullmatch(tier):
        raise BadPlan(f"{tier!r} is no URI")
    voters = controllers or (3 if len(names) >= 3 else 1)
    if voters not in CONTROLLERS_ALLOWED or voters > len(names):
        raise BadPlan(f"{voters} controllers on {len(names)} machines: it must be 1, 3, 5 or 7, one on a machine")
    if len(names) * brokers > CONTROLLER_ID_BASE:
        raise BadPlan(f"{len(names) * brokers} brokers: there are ids for {CONTROLLER_ID_BASE}")
    if domain and not machines:
        raise BadPlan("proxies need the machines' names")
    if domain and not is_domain(domain):
        raise BadPlan(f"{domain!r} is not a domain that tenants' names can be made below")
    if domain and proxy_port in (taken := _taken(port, brokers)):
        raise BadPlan(f"port {proxy_port} of the proxies is one of the nodes' {min(taken)} to {max(taken)}")
    nodes = [Node("controller", CONTROLLER_ID_BASE + at, name) for at, name in enumerate(names[:voters])]
    for at, name in enumerate(names):
        rack = racks.get(name, "")
        nodes += [Node("broker", at * brokers + index, name, rack, index) for index in range(brokers)]
        if domain:
            nodes.append(Node("proxy", PROXY_ID_BASE + at, name))
    return Plan(tuple(names), tuple(nodes), not machines, domain.lower(), port, proxy_port, tier)


def is_host(name: str) -> bool:
    """A name of letters, digits and dashes, with or without dots, or an IPv4 address."""
    return len(name) <= HOST_CHARACTERS_MAX and _HOST.fullmatch(name) is not None


def _taken(port: int, brokers: int) -> set[int]:
    offsets = [0, INTERNAL, TENANT, OPERATOR, METRICS["broker"]]
    ports = {port + offset + index for offset in offsets for index in range(brokers)}
    return ports | {port + CONTROLLER, port + QUORUM, port + METRICS["controller"], port + METRICS["proxy"]}
