"""Proxies. A tenant's own limits are the brokers' as well: `common.node_settings.tenants`."""

from dataclasses import dataclass

from common.settings import INT_MAX, seconds, setting


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Addresses, certificates and network rules of a proxy, and its connections to brokers."""

    # fmt: off
    host: str = setting("tidelog.proxy.host", "string", "0.0.0.0",
        "The address that a proxy listens on; :: is IPv6 and IPv4.")
    port: int = setting("tidelog.proxy.port", "int", 9092, "The one port of a proxy; 0 is any free one.", 0, 65_535)
    domain: str = setting("tidelog.proxy.domain", "string", "",
        "The domain of tenants' host names: <tenant>.<domain> and b<id>-<tenant>.<domain>.")
    advertised_port: int = setting("tidelog.proxy.advertised.port", "int", 0,
        "The port that brokers advertise to tenants with these host names; 0 is tidelog.proxy.port. A broker without "
        "tidelog.proxy.domain advertises its own address.", 0, 65_535)
    mode: str = setting("tidelog.proxy.mode", "string", "terminate",
        "Whether TLS ends at the proxy or is passed through to a broker's listener that has the certificate.",
        choices=("terminate", "passthrough"))
    passthrough_header: bool = setting("tidelog.proxy.passthrough.header", "boolean", True,
        "Whether a broker to which TLS is passed through gets the client's address in a PROXY header.")
    workers: int = setting("tidelog.proxy.workers", "int", 0,
        "Processes that share the port; 0 is one for each core.", 0, 256)
    certificate_file: str = setting("tidelog.proxy.certificate.file", "string", "",
        "PEM: the certificate chain for *.<domain> and its key. It is read again when it changes, and on SIGHUP.")
    certificate_key_file: str = setting("tidelog.proxy.certificate.key.file", "string", "",
        "PEM: the key, where it is not in the certificate's file.")
    certificate_warn_days: int = setting("tidelog.proxy.certificate.warn.days", "int", 14,
        "Days before a certificate's expiry from which it is logged.", 0, 3_650)
    certificate_check_s: float = setting("tidelog.proxy.certificate.check.ms", "int", 5_000,
        "How often certificate files are checked for changes.", 100, read_as=seconds)
    broker_listener: str = setting("tidelog.proxy.broker.listener", "string", "TENANT",
        "The brokers' listener for this proxy.")
    broker_certificate_file: str = setting("tidelog.proxy.broker.certificate.file", "string", "",
        "PEM: the certificate and key by which brokers authenticate a proxy; empty connects to brokers in the clear, "
        "for a private network.")
    broker_ca_file: str = setting("tidelog.proxy.broker.ca.file", "string", "",
        "PEM: the authority of brokers' certificates.")
    check_hostname: bool = setting("tidelog.proxy.broker.check.hostname", "boolean", True,
        "Whether a broker's certificate must name the host that the broker advertises.")
    allow_networks: tuple[str, ...] = setting("tidelog.proxy.allow.networks", "list", (),
        "Networks that clients may connect from; empty is all.")
    deny_networks: tuple[str, ...] = setting("tidelog.proxy.deny.networks", "list", (),
        "Networks that no client may connect from; they take precedence over the allowed ones.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class ProxyLimitSettings:
    """Limits on the clients of a proxy, of one worker unless it says otherwise."""

    # fmt: off
    connections: int = setting("tidelog.proxy.connections.max", "int", 20_000,
        "Open connections of one worker.", 1, INT_MAX)
    address_connections: int = setting("tidelog.proxy.connections.per.address.max", "int", INT_MAX,
        "Open connections from one address, over all workers; an IPv6 network of 64 bits is one address.", 0, INT_MAX)
    address_new_per_second: float = setting("tidelog.proxy.connection.rate.per.address", "double", 0.0,
        "New connections per second from one address; 0 is unlimited.", 0)
    new_per_second: float = setting("tidelog.proxy.connection.rate", "double", 2_000.0,
        "New connections per second of one worker; more wait.", 1)
    new_burst: float = setting("tidelog.proxy.connection.burst", "double", 500.0,
        "New connections at once of one worker.", 1)
    opening: int = setting("tidelog.proxy.opening.max", "int", 512,
        "Connections of one worker that have not reached a broker yet; above it the oldest is evicted.", 1, 100_000)
    quick: int = setting("tidelog.proxy.quick.connections.max", "int", 1_000,
        "Connections of one worker with the faster TLS library, which takes 24 kB of memory for each instead of 17.", 0,
        INT_MAX)
    opening_timeout_s: float = setting("tidelog.proxy.opening.timeout.ms", "int", 10_000,
        "How long a connection may take to reach a broker.", 100, read_as=seconds)
    connect_timeout_s: float = setting("tidelog.proxy.connect.timeout.ms", "int", 3_000,
        "How long one broker may take to accept a connection.", 10, read_as=seconds)
    hello_bytes: int = setting("tidelog.proxy.hello.bytes.max", "int", 16_384, "The longest ClientHello.", 512, 65_536)
    idle_s: float = setting("tidelog.proxy.idle.ms", "long", 660_000,
        "How long a silent connection is kept; longer than the brokers' connections.max.idle.ms, so that these decide.",
        1_000, read_as=seconds)
    half_closed_s: float = setting("tidelog.proxy.half.closed.ms", "long", 60_000,
        "How long an idle connection is kept after one side has closed it.", 1_000, read_as=seconds)
    drain_s: float = setting("tidelog.proxy.drain.ms", "int", 30_000,
        "Over how long a worker that stops closes its connections.", 0, read_as=seconds)
    # fmt: on
