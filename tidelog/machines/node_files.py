"""The properties file of each node, and that of an operator's command. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.machines.host_plan import (
    CONTROLLER,
    INTERNAL,
    LOOPBACK,
    OPERATOR,
    QUORUM,
    TENANT,
    Node,
    Place,
    Plan,
)

OPERATOR_NAME = "operator"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
NODES_AUTHORITY, CLIENTS_AUTHORITY = "nodes-ca.pem", "clients-ca.pem"
NODE, SERVER, PROXY, TENANTS = "node.pem", "server.pem", "proxy.pem", "tenants.pem"


def node_properties(plan: Plan, node: Node, place: Place) -> str:
    """Of one node; a comment says what each group of lines is for."""
    lines = [f"# {node.role}", f"node.id={node.node_id}", f"log.dirs={place.data}/{node.name}"]
    lines += _cluster(plan, node, place)
    lines.append(f"tidelog.metrics.listener={LOOPBACK if plan.is_single else ''}:{plan.metrics_port(node)}")
    if node.role == "controller":
        lines.append(f"tidelog.quorum.voters={_voters(plan, QUORUM)}")
        lines += _listeners(plan, node, {"INTERNAL": plan.port + CONTROLLER})
    elif node.role == "broker":
        lines += _broker(plan, node, place)
    else:
        lines += _proxy(plan, place)
    if node.role != "proxy":
        lines += _defaults(plan)
    return "\n".join(lines) + "\n"


def _cluster(plan: Plan, node: Node, place: Place) -> list[str]:
    """The same on every node; a proxy has no use for the tier."""
    lines = [
        f"controller.quorum.voters={_voters(plan, CONTROLLER)}",
        f"tidelog.cluster.secret.file={place.configuration}/cluster.secret",
    ]
    if plan.tier and node.role != "proxy":
        lines.append(f"tidelog.tier.uri={plan.tier}")
    if plan.domain:
        lines += [f"tidelog.proxy.domain={plan.domain}", f"tidelog.proxy.port={plan.proxy_port}"]
    if not plan.is_single:
        tls = f"{place.configuration}/tls"
        lines += [
            "# Nodes show each other certificates of an authority that signs for nodes and proxies alone.",
            f"listener.security.protocol.map={_protocols(plan)}",
            f"ssl.keystore.location={tls}/{NODE}",
            f"ssl.truststore.location={tls}/{NODES_AUTHORITY}",
        ]
    return lines


def _broker(plan: Plan, node: Node, place: Place) -> list[str]:
    """Its listeners, and on several machines who may use them."""
    first = plan.port + node.index
    listeners = {"PLAINTEXT" if plan.is_single else "CLIENTS": first, "INTERNAL": first + INTERNAL}
    if not plan.is_single:
        listeners["OPERATORS"] = first + OPERATOR
    if plan.domain:
        listeners["TENANT"] = first + TENANT
    lines = _listeners(plan, node, listeners)
    if node.rack:
        lines.append(f"broker.rack={node.rack}")
    if plan.domain:
        lines.append("tidelog.tenant.listeners=TENANT")
    if plan.is_single:
        return lines
    tls = f"{place.configuration}/tls"
    lines.append(
        "# Clients log in as users on CLIENTS. OPERATORS asks for a certificate: the first user comes from there."
    )
    for name in ("clients", "operators"):
        lines += [
            f"listener.name.{name}.ssl.keystore.location={tls}/{SERVER}",
            f"listener.name.{name}.ssl.truststore.location={tls}/{CLIENTS_AUTHORITY}",
        ]
    return [
        *lines,
        "listener.name.operators.ssl.client.auth=required",
        f"authorizer.class.name={AUTHORIZER}",
        f"super.users=User:CN={OPERATOR_NAME},OU=client,O=Tidelog",
    ]


def _listeners(plan: Plan, node: Node, ports: Mapping[str, int]) -> list[str]:
    """Bound to every address: a machine's own name is often one of loopback to itself."""

    def addresses(host: str) -> str:
        return ",".join(f"{name}://{host}:{port}" for name, port in ports.items())

    if plan.is_single:
        return [f"listeners={addresses(LOOPBACK)}"]
    return [f"listeners={addresses('0.0.0.0')}", f"advertised.listeners={addresses(node.host)}"]


def _proxy(plan: Plan, place: Place) -> list[str]:
    tls = f"{place.configuration}/tls"
    return [
        f"tidelog.proxy.certificate.file={tls}/{TENANTS}",
        "tidelog.proxy.broker.listener=TENANT",
        f"tidelog.proxy.broker.certificate.file={tls}/{PROXY}",
        f"tidelog.proxy.broker.ca.file={tls}/{NODES_AUTHORITY}",
    ]


def _defaults(plan: Plan) -> list[str]:
    """Of topics; controllers and brokers must have the same."""
    replicas = min(3, len(plan.brokers))
    return [
        f"default.replication.factor={replicas}",
        f"offsets.topic.replication.factor={replicas}",
        f"transaction.state.log.replication.factor={replicas}",
        f"min.insync.replicas={2 if replicas >= 3 else 1}",
    ]


def _protocols(plan: Plan) -> str:
    found = ["INTERNAL:SSL", "CLIENTS:SASL_SSL", "OPERATORS:SSL"]
    return ",".join(found + (["TENANT:SASL_SSL"] if plan.domain else []))


def _voters(plan: Plan, offset: int) -> str:
    return ",".join(f"{node.node_id}@{node.host}:{plan.port + offset}" for node in plan.controllers)


def operator_properties(plan: Plan, tls: str) -> str:
    """What `--command-config` and Apache Kafka's tools take to reach the listener for operators."""
    return (
        "security.protocol=SSL\n"
        f"ssl.keystore.location={tls}/{OPERATOR_NAME}.pem\n"
        "ssl.keystore.type=PEM\n"
        f"ssl.truststore.location={tls}/{CLIENTS_AUTHORITY}\n"
        "ssl.truststore.type=PEM\n"
    )


def bootstrap(plan: Plan) -> str:
    """Where an operator's command goes."""
    offset = 0 if plan.is_single else OPERATOR
    return ",".join(f"{node.host}:{plan.port + offset + node.index}" for node in plan.brokers)


def scrape_targets(plan: Plan) -> str:
    """A Prometheus configuration of every node's /metrics, in the one job that boards and alarms want."""
    lines = ["scrape_configs:", "  - job_name: tidelog", "    static_configs:"]
    for role in ("controller", "broker", "proxy"):
        nodes = [node for node in plan.nodes if node.role == role]
        if nodes:
            targets = ", ".join(f'"{node.host}:{plan.metrics_port(node)}"' for node in nodes)
            lines += [f"      - targets: [{targets}]", f"        labels: {{ role: {role} }}"]
    return "\n".join(lines) + "\n"
