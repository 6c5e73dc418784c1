"""The nodes of an embedded cluster: ids, ports and directories, in `DIR/cluster.json`.

Every later start reads the file, so that a cluster keeps its addresses; it changes when brokers are added or removed.
Clients' ports are the user's (`--port P`, broker *i* at P+i). Proxies share one port, also the user's: P+1000, or the
setting `tidelog.proxy.port`. Metrics have predictable ports: broker *i*'s at P+2000+i, controller *i*'s at P+3000+i,
proxy *i*'s at P+3100+i, unless another process has that port when the node is added. The nodes' other ports are chosen
then, from below the range that the system uses for outgoing connections, so that they are still free when the node
returns.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import string
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from common.settings import SettingError, listener_of
from tidelog.cluster.embedded_place import HOST
from tidelog.configuration.settings_check import check_own_of_listeners

LAYOUT_FILE = "cluster.json"
SECRET_FILE = "cluster.secret"
TIER_DIRECTORY = "tier"
OWN_PORTS = range(10_000, 32_000)
CONTROLLER_ID_BASE, PROXY_ID_BASE = 1_000, 2_000
BROKERS_MAX = CONTROLLER_ID_BASE
PROXIES_MAX = 64
PORT_MAX = 65_535
PROXY_PORT_OFFSET = 1_000  # from the brokers' first port
METRICS_PORT_OFFSETS = {"broker": 2_000, "controller": 3_000, "proxy": 3_100}
METRICS_PORTS = range(2_000, 3_200)  # from the brokers' first port
CELLS_MAX = 26
RACKS = 3
CONTROLLERS_ALLOWED = (1, 3, 5, 7)
CLIENT_LISTENER, INTERNAL_LISTENER, SECURE_LISTENER = "PLAINTEXT", "INTERNAL", "SSL"
TENANT_LISTENER, PROXY_LISTENER = "TENANT", "SASL_SSL"
TLS_DIRECTORY = "tls"
DOMAIN = "tidelog.localhost"
PROXY_DEFAULTS = {"tidelog.proxy.workers": "1", "tidelog.proxy.drain.ms": "2000"}  # for proxies on one machine
LOCAL_HOSTS = ("localhost", HOST)

Role = Literal["broker", "controller", "proxy"]


class PortTaken(Exception):
    """A broker's port for clients is in use by another process."""


@dataclass(slots=True)
class NodeLayout:
    """One node. `quorum_port` is 0 for a broker, `port` (clients') 0 for a controller. `tls_port` (clients' over TLS)
    is set even if the cluster has no certificates, `tenant_port` (proxies') even if it has no proxies. `cell` and
    `rack` are a broker's, empty if the cluster is not divided. A proxy has only a `port`, which all proxies share."""

    name: str
    role: Role
    node_id: int
    port: int
    internal_port: int
    metrics_port: int
    quorum_port: int = 0
    tls_port: int = 0
    tenant_port: int = 0
    cell: str = ""
    rack: str = ""

    def directory(self, root: Path) -> Path:
        return root / self.name

    def listeners(self) -> dict[str, str]:
        if self.role == "proxy":
            return {PROXY_LISTENER: f"{HOST}:{self.port}"}
        shown = {CLIENT_LISTENER: f"{HOST}:{self.port}"} if self.port else {}
        if self.tls_port:
            shown[SECURE_LISTENER] = f"{HOST}:{self.tls_port}"
        if self.tenant_port:
            shown[TENANT_LISTENER] = f"{HOST}:{self.tenant_port}"
        return shown | {INTERNAL_LISTENER: f"{HOST}:{self.internal_port}"}


@dataclass(slots=True)
class ClusterLayout:
    """All nodes of a cluster and their common settings, as text.

    `next_broker` is the id of the next broker that is added: ids of removed brokers are not reused, because their
    directories may still exist.
    """

    port: int
    nodes: list[NodeLayout] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    next_broker: int = 0
    tls: bool = False  # certificates in DIR/tls: TLS between nodes, and a listener SSL on each broker

    @property
    def brokers(self) -> list[NodeLayout]:
        return [node for node in self.nodes if node.role == "broker"]

    @property
    def controllers(self) -> list[NodeLayout]:
        return [node for node in self.nodes if node.role == "controller"]

    @property
    def proxies(self) -> list[NodeLayout]:
        return [node for node in self.nodes if node.role == "proxy"]

    @property
    def cells(self) -> list[str]:
        """Empty if brokers are not divided into cells."""
        return sorted({node.cell for node in self.brokers if node.cell})

    @property
    def proxy_port(self) -> int:
        given = self.settings.get("tidelog.proxy.port")
        return self.port + PROXY_PORT_OFFSET if given is None else int(given)

    @property
    def domain(self) -> str:
        """The domain of tenants' host names."""
        return self.settings.get("tidelog.proxy.domain", DOMAIN).lower()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.brokers)

    def node(self, name: str) -> NodeLayout | None:
        return next((node for node in self.nodes if node.name == name), None)

    def shared_settings(self) -> dict[str, str]:
        """The settings of all nodes: the defaults of an embedded cluster of this size, and the user's.

        Nodes that run together must have the same: a controller and a broker with different `min.insync.replicas` would
        disagree about which replicas hold committed records.
        """
        smallest = min((sum(node.cell == cell for node in self.brokers) for cell in self.cells or [""]), default=1)
        replicas = min(3, smallest)  # a tenant's replicas are in one cell
        return {
            "default.replication.factor": str(replicas),
            "offsets.topic.replication.factor": str(replicas),
            "min.insync.replicas": "2" if replicas >= 3 else "1",
        } | self.settings

    def node_settings(self, node: NodeLayout, root: Path, shared: dict[str, str] | None = None) -> dict[str, str]:
        """The settings of `node`: shared ones, current or as given, and its own addresses and directory."""
        text = dict(self.shared_settings() if shared is None else shared)
        text.setdefault("tidelog.tier.uri", (root / TIER_DIRECTORY).resolve().as_uri())
        text |= {
            "node.id": str(node.node_id),
            "process.roles": node.role,
            "log.dirs": str(node.directory(root)),
            "controller.quorum.voters": ",".join(f"{c.node_id}@{HOST}:{c.internal_port}" for c in self.controllers),
            "tidelog.quorum.voters": ",".join(f"{c.node_id}@{HOST}:{c.quorum_port}" for c in self.controllers),
            "tidelog.cluster.secret.file": str(root / SECRET_FILE),
            "tidelog.metrics.listener": f"{HOST}:{node.metrics_port}",
        }
        if self.tls:
            text = self._with_tls(text, root)
        if self.proxies:
            text |= {"tidelog.proxy.port": str(self.proxy_port), "tidelog.proxy.domain": self.domain}
        if node.role == "proxy":
            return PROXY_DEFAULTS | text | _own_of_a_proxy(root / TLS_DIRECTORY)
        listeners = node.listeners()
        text["listeners"] = ",".join(f"{name}://{address}" for name, address in listeners.items())
        shown = {
            None,
            *map(str.lower, listeners),
        }  # settings of a removed listener are kept until it returns
        text = {name: value for name, value in text.items() if listener_of(name) in shown}
        if node.tenant_port:
            text["tidelog.tenant.listeners"] = TENANT_LISTENER
            if text.get("tidelog.proxy.mode") == "passthrough":
                text = _with_tenants_tls(root / TLS_DIRECTORY) | text
        if node.cell:
            text |= {"tidelog.cell": node.cell, "broker.rack": node.rack}
        return text

    def _with_tls(self, given: dict[str, str], root: Path) -> dict[str, str]:
        """Settings for mutual TLS between nodes and optional client certificates. The user's settings override these,
        except the internal listener's protocol."""
        directory, protocols = root / TLS_DIRECTORY, "listener.security.protocol.map"
        own = f"{INTERNAL_LISTENER}:SSL" + (f",{TENANT_LISTENER}:SASL_SSL" if self.proxies else "")
        return {
            "ssl.keystore.location": str(directory / "node.pem"),
            "ssl.truststore.location": str(directory / "ca.pem"),
            "ssl.client.auth": "requested",
            **given,
            protocols: ",".join(filter(None, (given.get(protocols), own))),
        }

    def save(self, root: Path) -> None:
        path = root / LAYOUT_FILE
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self), indent=1))
        os.replace(temporary, path)


def load_layout(root: Path) -> ClusterLayout | None:
    """The layout of the cluster in `root`, None when there is none."""
    try:
        text = (root / LAYOUT_FILE).read_text()
    except FileNotFoundError:
        return None
    try:
        raw = json.loads(text)
        nodes = [NodeLayout(**node) for node in raw["nodes"]]
        after_last = 1 + max((node.node_id for node in nodes if node.role == "broker"), default=-1)
        next_broker = raw.get("next_broker", after_last)
        return ClusterLayout(raw["port"], nodes, raw["settings"], next_broker, raw.get("tls", False))
    except (ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{root / LAYOUT_FILE} is damaged: {error}") from error


def chosen_store(root: Path) -> str | None:
    """The object store given at an earlier start of the cluster in `root`; None for its own directory."""
    layout = load_layout(root)
    return layout.settings.get("tidelog.tier.uri") if layout is not None else None


def is_free(port: int) -> bool:
    """Whether nothing listens on `port` of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def prepare_layout(
    root: Path,
    brokers: int | None,
    controllers: int | None,
    port: int | None,
    settings: dict[str, str],
    port_is_free: Callable[[int], bool] = lambda port: True,
    *,
    tls: bool = False,
    proxies: int | None = None,
    cells: int | None = None,
) -> ClusterLayout:
    """The layout for the start: the one in `root`, changed as requested, or a new one. Saves it. With `tls`, or with
    proxies, it has certificates from now on; `cells`: of a new one.

    Raises PortTaken, before anything is saved, for a new client port that is in use. Ports that the cluster already had
    are not checked, because a node of its last run may still be stopping.
    """
    root.mkdir(parents=True, exist_ok=True)
    known = load_layout(root)
    had = {node.port for node in (*known.brokers, *known.proxies)} if known is not None else set()
    if known is None:
        layout = ClusterLayout(port if port is not None else 9092)
        _add_controllers(layout, controllers if controllers is not None else 3)
        add_brokers(layout, brokers if brokers is not None else 3 * (cells or 1), cells)
    else:
        layout = known
        if controllers is not None and controllers != len(layout.controllers):
            raise SettingError(
                f"--controllers: the cluster in {root} has {len(layout.controllers)} controllers, which cannot change"
            )
        if port is not None and port != layout.port:
            _move_brokers(layout, port)
        if brokers is not None and brokers < len(layout.brokers):
            raise SettingError(
                f"--brokers: the cluster in {root} has {len(layout.brokers)} brokers, none is removed here"
            )
        if cells is not None and cells != max(1, len(layout.cells)):
            raise SettingError(
                f"--cells: the cluster in {root} has {max(1, len(layout.cells))}, which is not changed here"
            )
        if brokers is not None:
            add_brokers(layout, brokers - len(layout.brokers))
    layout.settings |= settings
    _set_proxies(layout, len(layout.proxies) if proxies is None else proxies)
    layout.tls = layout.tls or tls or bool(layout.proxies)
    _add_secure_listeners(layout)
    check_own_of_listeners(settings, layout.brokers[0].listeners())
    for node in (*layout.brokers, *layout.proxies[:1]):
        if node.port not in had and not port_is_free(node.port):
            raise PortTaken(f"port {node.port} of {node.name} is taken by another process; --port names another")
    if known is None:
        make_secret(root)
    if layout.tls:
        make_certificates(root, layout.domain if layout.proxies else None)
    layout.save(root)
    return layout


def make_secret(root: Path) -> None:
    """The secret with which the cluster's nodes authenticate each other, readable only by its owner. An existing one is
    complete, from a start that was interrupted before the layout was written, and is kept."""
    path = root / SECRET_FILE
    if path.exists():
        return
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    os.replace(temporary, path)


def make_certificates(root: Path, domain: str | None = None) -> None:
    """Create `ca.pem`, `node.pem` for every node of this machine, and `client.pem` for clients. With proxies also
    `proxy.pem` for their connections to brokers, and `tenants.pem` for every name below `domain`."""
    from tidelog.cluster import certificates  # noqa: PLC0415  not for those without TLS
    from tidelog.cluster.certificates import CLIENT, NODE, PROXY, authority, certificate  # noqa: PLC0415

    directory = root / TLS_DIRECTORY
    own = authority(directory)
    certificate(directory, "node.pem", own, NODE, "node", LOCAL_HOSTS)
    certificate(directory, "client.pem", own, CLIENT, "client", ())
    if domain is not None:
        certificate(directory, "proxy.pem", own, PROXY, "proxy", LOCAL_HOSTS)
        certificates.tenants_certificate(directory, own, domain)


def _own_of_a_proxy(tls: Path) -> dict[str, str]:
    """Its certificates for clients, for brokers, and for the controllers."""
    return {
        "tidelog.proxy.host": HOST,
        "tidelog.proxy.broker.listener": TENANT_LISTENER,
        "tidelog.proxy.certificate.file": str(tls / "tenants.pem"),
        "tidelog.proxy.broker.certificate.file": str(tls / "proxy.pem"),
        "tidelog.proxy.broker.ca.file": str(tls / "ca.pem"),
        "ssl.keystore.location": str(tls / "proxy.pem"),
        "ssl.truststore.location": str(tls / "ca.pem"),
    }


def _with_tenants_tls(tls: Path) -> dict[str, str]:
    """For a broker behind proxies in passthrough mode: the certificate that the proxies would otherwise use."""
    own = f"listener.name.{TENANT_LISTENER.lower()}."
    return {
        "tidelog.tenant.tls": "passthrough",
        "tidelog.proxy.networks": f"{HOST}/32",
        f"{own}ssl.keystore.location": str(tls / "tenants.pem"),
        f"{own}ssl.client.auth": "none",
    }


def _set_proxies(layout: ClusterLayout, count: int) -> None:
    """Set the number of proxies, which share a port. Remaining ones keep their other ports."""
    if not 0 <= count <= PROXIES_MAX:
        raise SettingError(f"--proxies: {count} is not valid, it must be 0 to {PROXIES_MAX}")
    kept = layout.proxies[:count]
    layout.nodes = [node for node in layout.nodes if node.role != "proxy"] + kept
    port = layout.proxy_port
    if count and not 1 <= port <= PORT_MAX:
        raise SettingError(f"tidelog.proxy.port: {port} is not valid, it must be 1 to {PORT_MAX}; it is --port + 1000")
    if count and port in {node.port for node in layout.brokers}:
        raise SettingError(f"tidelog.proxy.port: {port} is a broker's (--port)")
    for index in range(len(kept), count):
        metrics = _metrics_port(layout, "proxy", index)
        layout.nodes.append(NodeLayout(f"proxy-{index}", "proxy", PROXY_ID_BASE + index, port, 0, metrics))
    for node in layout.proxies:
        node.port = port


def _add_secure_listeners(layout: ClusterLayout) -> None:
    without = [node for node in layout.brokers if layout.tls and not node.tls_port]
    for node, (port,) in zip(without, _free_ports(layout, len(without), 1), strict=True):
        node.tls_port = port
    for node in layout.brokers:
        if not layout.proxies:
            node.tenant_port = 0
        elif not node.tenant_port:
            ((node.tenant_port,),) = _free_ports(layout, 1, 1)


def _add_controllers(layout: ClusterLayout, count: int) -> None:
    if count not in CONTROLLERS_ALLOWED:
        raise SettingError(f"--controllers: {count} is not valid, it must be one of 1, 3, 5, 7")
    for index, (internal, quorum) in enumerate(_free_ports(layout, count, 2)):
        name, metrics = f"controller-{index}", _metrics_port(layout, "controller", index)
        layout.nodes.append(NodeLayout(name, "controller", CONTROLLER_ID_BASE + index, 0, internal, metrics, quorum))


def add_brokers(layout: ClusterLayout, count: int, cells: int | None = None) -> list[NodeLayout]:
    """Give `count` more brokers the next ids and ports, and return them. Raises SettingError.

    With `cells`, the first brokers are in cell a, the next in b, and so on; if there are cells already, each broker
    joins the smallest. Within a cell racks take turns.
    """
    first, end = layout.next_broker, layout.next_broker + count
    if end > BROKERS_MAX or not end:
        raise SettingError(f"--brokers: {count} is not valid, it must be 1 to {BROKERS_MAX} in all")
    _check_port(layout.port, end)
    added = [
        NodeLayout(
            f"broker-{index}", "broker", index, layout.port + index, internal, _metrics_port(layout, "broker", index)
        )
        for index, (internal,) in zip(range(first, end), _free_ports(layout, count, 1), strict=True)
    ]
    names = _cell_names(cells, count) if cells is not None else []
    for position, node in enumerate(added):
        node.cell = names[position * len(names) // count] if names else _smallest_cell(layout)
        node.rack = f"rack-{sum(other.cell == node.cell for other in layout.brokers) % RACKS}" if node.cell else ""
        layout.nodes.append(node)
    layout.next_broker = end
    _add_secure_listeners(layout)
    return added


def _cell_names(cells: int, brokers: int) -> list[str]:
    if not 1 <= cells <= min(CELLS_MAX, brokers):
        raise SettingError(f"--cells: {cells} is not valid, it must be 1 to {min(CELLS_MAX, brokers)}, one broker each")
    return list(string.ascii_lowercase[:cells]) if cells > 1 else []


def _smallest_cell(layout: ClusterLayout) -> str:
    return min(layout.cells, key=lambda cell: sum(node.cell == cell for node in layout.brokers), default="")


def grow_layout(
    layout: ClusterLayout, root: Path, count: int, port_is_free: Callable[[int], bool] = is_free
) -> list[NodeLayout]:
    """Add brokers to a running cluster, and save it. Raises SettingError or PortTaken without a change."""
    grown = replace(layout, nodes=list(layout.nodes))
    added = add_brokers(grown, count)
    for node in added:
        if not port_is_free(node.port):
            raise PortTaken(f"port {node.port} of {node.name} is taken by another process")
    grown.save(root)
    layout.nodes, layout.next_broker = grown.nodes, grown.next_broker
    return added


def forget_broker(layout: ClusterLayout, root: Path, name: str) -> None:
    """Remove a broker from the layout for good, and save it. Its directory stays."""
    smaller = replace(layout, nodes=[node for node in layout.nodes if node.name != name])
    smaller.save(root)
    layout.nodes = smaller.nodes


def _move_brokers(layout: ClusterLayout, port: int) -> None:
    _check_port(port, layout.next_broker)
    layout.port = port
    for node in layout.brokers:
        node.port = port + node.node_id


def _check_port(port: int, count: int) -> None:
    if not 1 <= port <= PORT_MAX - count:
        raise SettingError(f"--port: {port} is not valid, it must be 1 to {PORT_MAX - count}")


def _metrics_port(layout: ClusterLayout, role: Role, index: int) -> int:
    """The predictable port, or any other if that is taken."""
    expected = layout.port + METRICS_PORT_OFFSETS[role] + index
    if expected <= PORT_MAX and expected not in _taken(layout) and is_free(expected):
        return expected
    ((drawn,),) = _free_ports(layout, 1, 1)
    return drawn


def _taken(layout: ClusterLayout) -> set[int]:
    """Ports that nodes of this cluster have already, besides those for clients."""
    return {
        port
        for n in layout.nodes
        for port in (n.internal_port, n.metrics_port, n.quorum_port, n.tls_port, n.tenant_port)
    } | {layout.proxy_port}


def _free_ports(layout: ClusterLayout, groups: int, per_group: int) -> list[tuple[int, ...]]:
    """Ports that are free now and that no node of this cluster has or would predictably get."""
    clients = range(layout.port, layout.port + BROKERS_MAX)
    metrics = range(layout.port + METRICS_PORTS.start, layout.port + METRICS_PORTS.stop)
    taken = _taken(layout)
    chosen: list[int] = []
    for port in random.SystemRandom().sample(OWN_PORTS, len(OWN_PORTS)):
        if len(chosen) == groups * per_group:
            break
        if port not in clients and port not in metrics and port not in taken and is_free(port):
            chosen.append(port)
    if len(chosen) < groups * per_group:
        raise SettingError(f"no {groups * per_group} free ports in {OWN_PORTS.start} to {OWN_PORTS.stop - 1}")
    return [tuple(chosen[at : at + per_group]) for at in range(0, len(chosen), per_group)]
