"""`tidelog init DIR`: the files of a cluster on machines of its own, one directory for each machine."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from common.settings import SettingError, read_properties
from tidelog.machines.host_plan import (
    BROKERS_MAX,
    PORT,
    PORT_MAX,
    PROXY_PORT,
    RESERVED_NAMES,
    BadPlan,
    Place,
    Plan,
    plan,
)
from tidelog.machines.node_files import (
    CLIENTS_AUTHORITY,
    NODE,
    NODES_AUTHORITY,
    OPERATOR_NAME,
    PROXY,
    SERVER,
    bootstrap,
    node_properties,
    operator_properties,
    scrape_targets,
)
from tidelog.machines.standing_nodes import Standing, check_standing, standing
from tidelog.machines.unit_files import TARGET, unit_files
from tidelog.output import EXIT_USAGE, fail

PRIVATE, SHARED, SECRET_BYTES = 0o600, 0o644, 32
AUTHORITY = "authority"
USUAL = Place()
NODE_FILES = ("controller.properties", "proxy.properties", "broker-*.properties")


def init(
    into: Annotated[Path, typer.Argument(help="Gets a directory for each machine.", metavar="DIR")],
    machine: Annotated[
        list[str] | None,
        typer.Option("--machine", help="A machine of the cluster; without any, this one alone.", metavar="HOST[=RACK]"),
    ] = None,
    brokers: Annotated[int, typer.Option(help="Of each machine: one for each core.", min=1, max=BROKERS_MAX)] = 1,
    controllers: Annotated[
        int,
        typer.Option(
            help="One on each of the first machines; 0: three if there are as many machines, else one.", min=0, max=7
        ),
    ] = 0,
    domain: Annotated[
        str, typer.Option(help="For tenants below this domain: a proxy on each machine.", metavar="DOMAIN")
    ] = "",
    port: Annotated[
        int, typer.Option(help="Of clients, on the first broker of each machine.", min=1, max=PORT_MAX)
    ] = PORT,
    proxy_port: Annotated[int, typer.Option(help="Of the proxies.", min=1, max=65_535)] = PROXY_PORT,
    tier: Annotated[str, typer.Option(help="The object store of tiered topics.", metavar="URI")] = "",
    configuration: Annotated[
        str, typer.Option(help="Where each machine has properties files, secret and certificates.", metavar="DIR")
    ] = USUAL.configuration,
    data: Annotated[str, typer.Option(help="Where each machine keeps its nodes' data.", metavar="DIR")] = USUAL.data,
    executable: Annotated[
        str, typer.Option(help="Where each machine has this command.", metavar="PATH")
    ] = USUAL.executable,
    user: Annotated[str, typer.Option(help="Who runs the nodes; made by systemd.")] = USUAL.user,
    replace: Annotated[bool, typer.Option("--replace", help="Write files again that were changed.")] = False,
) -> None:
    """Write configuration, certificates and hardened systemd units for machines of your own.

    What is there stays as it is: the secret, valid certificates, and files that were changed, unless --replace. Each
    node stays on its machine: options that would move one are refused.
    """
    place = Place(configuration.rstrip("/"), data.rstrip("/"), executable, user)
    try:
        machines = [_named(text) for text in machine or []]
        place.check()
        wanted = plan(
            machines,
            brokers=brokers,
            controllers=controllers,
            domain=domain,
            port=port,
            proxy_port=proxy_port,
            tier=tier,
        )
        check_standing(wanted, _standing(into, place))
    except BadPlan as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    tree = _Tree(into, replace)
    try:
        _write(tree, wanted, place)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    tree.report()
    _say_what_is_next(into, wanted)


def _named(text: str) -> tuple[str, str]:
    """A machine and its rack. Raises BadPlan for an empty rack, such as that of a variable that is not set."""
    host, separator, rack = text.partition("=")
    if separator and not rack:
        raise BadPlan(f"the rack of {host!r} is empty")
    return host, rack


def _standing(into: Path, place: Place) -> list[Standing]:
    """The nodes of which there are files. Raises OSError, and BadPlan for a file that is none of a node's."""
    hosts = [one for one in into.iterdir() if one.name not in RESERVED_NAMES] if into.is_dir() else []
    files = [
        (host.name, file)
        for host in hosts
        for pattern in NODE_FILES
        for file in (into / f"{host.name}{place.configuration}").glob(pattern)
    ]
    found = []
    for host_name, file in files:
        try:
            found.append(standing(host_name, read_properties(file.read_text())))
        except (SettingError, UnicodeDecodeError) as error:
            raise BadPlan(f"{file}: {error}") from None
    return [one for one in found if one is not None]


@dataclass(slots=True)
class _Tree:
    """Files below a directory, and what became of each."""

    root: Path
    replaces: bool
    written: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)

    def put(self, name: str, text: str, mode: int = SHARED) -> None:
        from tidelog.cluster.certificates import write_whole  # noqa: PLC0415

        path = self.root / name
        if path.exists() and (path.read_text() == text or not self.replaces):
            if path.read_text() != text:
                self.kept.append(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode(), mode)
        self.written.append(path)

    def report(self) -> None:
        for path in self.written:
            print(path)
        for path in self.kept:
            print(f"{path}: kept as it is, because it was changed (--replace writes it again)")


def _write(tree: _Tree, wanted: Plan, place: Place) -> None:
    secret = tree.root / "cluster.secret"
    if not secret.exists():
        tree.put("cluster.secret", secrets.token_hex(SECRET_BYTES) + "\n", PRIVATE)
    for host in wanted.hosts:
        own = f"{host}{place.configuration}"
        tree.put(f"{own}/cluster.secret", secret.read_text(), PRIVATE)
        for node in wanted.of(host):
            tree.put(f"{own}/{node.name}.properties", node_properties(wanted, node, place))
        for name, text in unit_files(wanted, host, place).items():
            tree.put(f"{host}/{name}", text)
    tree.put("prometheus.yml", scrape_targets(wanted))
    if not wanted.is_single:
        _certify(tree.root, wanted, place)
        tree.put("operator.properties", operator_properties(wanted, str((tree.root / "operator").absolute())), PRIVATE)


def _certify(root: Path, wanted: Plan, place: Place) -> None:
    """Of two authorities: one for nodes and proxies alone, one for what clients meet and for operators."""
    from tidelog.cluster import certificates as made  # noqa: PLC0415  megabytes that no other command needs

    try:
        nodes = made.authority(root / AUTHORITY / "nodes", "Tidelog nodes")
        clients = made.authority(root / AUTHORITY / "clients", "Tidelog clients")
    except made.DamagedAuthority as error:
        fail(str(error))
    for host in wanted.hosts:
        tls = root / f"{host}{place.configuration}" / "tls"
        made.certificate(tls, NODE, nodes, made.NODE, host, [host])
        made.certificate(tls, SERVER, clients, made.SERVER, host, [host])
        if wanted.domain:
            made.certificate(tls, PROXY, nodes, made.PROXY, host, [host])
            made.tenants_certificate(tls, clients, wanted.domain)
        made.write_whole(tls / NODES_AUTHORITY, nodes.pem, PRIVATE)
        made.write_whole(tls / CLIENTS_AUTHORITY, clients.pem, PRIVATE)
    own = root / "operator"
    made.certificate(own, f"{OPERATOR_NAME}.pem", clients, made.CLIENT, OPERATOR_NAME, [])
    made.write_whole(own / CLIENTS_AUTHORITY, clients.pem, PRIVATE)


def _say_what_is_next(into: Path, wanted: Plan) -> None:
    login = "" if wanted.is_single else f" --command-config {into / 'operator.properties'}"
    print(
        "\non each machine HOST, as root:\n"
        f"  cp -R {into}/HOST/. /\n"
        "  systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload\n"
        f"  systemctl enable --now {TARGET}\n"
        f"then: tidelog brokers list --bootstrap {bootstrap(wanted)}{login}"
    )
