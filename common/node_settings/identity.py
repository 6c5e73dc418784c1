"""A node's identity, its directory, and its addresses."""

from dataclasses import dataclass

from common.settings import setting


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of nodes of every role."""

    # fmt: off
    node_id: int = setting("node.id", "int", -1, "The id of this node.", -1)
    process_roles: tuple[str, ...] = setting("process.roles", "list", (),
        "The role of this node: broker, controller or proxy.", choices=("broker", "controller", "proxy"))
    log_dirs: str = setting("log.dirs", "string", "tidelog-data", "The directory of this node's data; one directory.")
    rack: str = setting("broker.rack", "string", "", "The rack (availability zone) of this broker.")
    listeners: tuple[str, ...] = setting("listeners", "list", (), "NAME://host:port for each listener.")
    advertised_listeners: tuple[str, ...] = setting("advertised.listeners", "list", (),
        "The addresses that clients get to connect to; the listeners when empty.")
    inter_broker_listener_name: str = setting("inter.broker.listener.name", "string", "INTERNAL",
        "The listener that nodes use among themselves.")
    tenant_listeners: tuple[str, ...] = setting("tidelog.tenant.listeners", "list", (),
        "The listeners whose clients are tenants; the others except the internal one are for operators. They are "
        "SASL_SSL and behind proxies.")
    controller_quorum_voters: tuple[str, ...] = setting("controller.quorum.voters", "list", (),
        "id@host:port of every voter of the metadata quorum, the same on each node; the port of its internal listener.")
    quorum_voters: tuple[str, ...] = setting("tidelog.quorum.voters", "list", (),
        "id@host:port of every voter's consensus port, the same on each.")
    cluster_secret_file: str = setting("tidelog.cluster.secret.file", "string", "",
        "The file with the secret by which nodes authenticate each other.")
    internal_allow_plaintext: bool = setting("tidelog.internal.allow.plaintext", "boolean", False,
        "Whether the network between the nodes is private, so that their listeners may bind beyond loopback without "
        "TLS.")
    metrics_listener: str = setting("tidelog.metrics.listener", "string", "127.0.0.1:0",
        "host:port of /metrics, /healthz and /readyz.")
    log_level: str = setting("tidelog.log.level", "string", "info",
        "The lowest level that is logged.", choices=("debug", "info", "warning", "error"))
    controllers_replace_voter: bool = setting("tidelog.controllers.replace.voter", "boolean", False,
        "Lets a controller with an empty directory join although the other voters hold state; they must all be "
        "healthy.")
    # fmt: on
