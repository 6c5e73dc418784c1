"""Settings of proxies; a part of the catalogue of `common.broker_settings`.

A tenant's own limits and their defaults (`tidelog.tenant.connections.max`, `tidelog.tenant.connection.rate`) are the
brokers' as well, so they stand in `common.tenant_settings`.
"""

from common.settings import INT_MAX, Setting


def _s(name: str, type_name: str, default: object, doc: str, low: float | None = None, high: float | None = None,
       choices: tuple[str, ...] = ()) -> Setting:  # fmt: skip
    return Setting(name, type_name, default, doc, low, high, choices)


PROXY_SETTINGS = [
    _s("tidelog.proxy.host", "string", "0.0.0.0", "The address that a proxy listens on; :: is IPv6 and IPv4."),
    _s("tidelog.proxy.port", "int", 9092, "The one port of a proxy; 0 is any free one.", 0, 65_535),
    _s("tidelog.proxy.domain", "string", "", "The domain of tenants' host names: <tenant>.<domain> and "
       "b<id>-<tenant>.<domain>."),
    _s("tidelog.proxy.advertised.port", "int", 0, "The port that brokers tell tenants beside these host names; 0 is "
       "tidelog.proxy.port. A broker without tidelog.proxy.domain tells tenants its own address.", 0, 65_535),
    _s("tidelog.proxy.mode", "string", "terminate", "Whether TLS ends at the proxy or is passed through to a broker's "
       "listener that has the certificate.", choices=("terminate", "passthrough")),
    _s("tidelog.proxy.passthrough.header", "boolean", True, "Whether a broker to which TLS is passed through is told "
       "the client's address in the PROXY protocol."),
    _s("tidelog.proxy.workers", "int", 0, "Processes that share the port; 0 is one for each core.", 0, 256),
    _s("tidelog.proxy.certificate.file", "string", "", "PEM: the certificate chain for *.<domain> and its key. It is "
       "read again when it changes, and on SIGHUP."),
    _s("tidelog.proxy.certificate.key.file", "string", "", "PEM: the key, where it is not in the certificate's file."),
    _s("tidelog.proxy.certificate.warn.days", "int", 14, "Days before a certificate's end from which on it is logged.",
       0, 3_650),
    _s("tidelog.proxy.certificate.check.ms", "int", 5_000, "How often certificate files are looked at.", 100),
    _s("tidelog.proxy.broker.listener", "string", "TENANT", "The listener of brokers that is for this proxy."),
    _s("tidelog.proxy.broker.certificate.file", "string", "", "PEM: the certificate and key by which brokers know a "
       "proxy; empty connects to brokers in the clear, for a network that nobody else is in."),
    _s("tidelog.proxy.broker.ca.file", "string", "", "PEM: the authority of brokers' certificates."),
    _s("tidelog.proxy.broker.check.hostname", "boolean", True, "Whether a broker's certificate must name the host "
       "that the broker tells."),
    _s("tidelog.proxy.allow.networks", "list", (), "Networks that clients may come from; empty is every one."),
    _s("tidelog.proxy.deny.networks", "list", (), "Networks that no client may come from; they win over those that "
       "are allowed."),
    _s("tidelog.proxy.connections.max", "int", 20_000, "Open connections of one worker.", 1, INT_MAX),
    _s("tidelog.proxy.connections.per.address.max", "int", INT_MAX, "Open connections from one address, over all "
       "workers; an IPv6 network of 64 bits is one address.", 0, INT_MAX),
    _s("tidelog.proxy.connection.rate.per.address", "double", 0.0, "New connections a second from one address; 0 is "
       "without limit.", 0),
    _s("tidelog.proxy.connection.rate", "double", 2_000.0, "New connections a second of one worker; more of them wait.",
       1),
    _s("tidelog.proxy.connection.burst", "double", 500.0, "New connections at once of one worker.", 1),
    _s("tidelog.proxy.opening.max", "int", 512, "Connections of one worker that are not through to a broker yet; among "
       "too many the slowest goes.", 1, 100_000),
    _s("tidelog.proxy.quick.connections.max", "int", 1_000, "Connections of one worker whose TLS is the faster "
       "library's, which takes 24 kB of memory for each in place of 17.", 0, INT_MAX),
    _s("tidelog.proxy.opening.timeout.ms", "int", 10_000, "How long a connection may take until it is through to a "
       "broker.", 100),
    _s("tidelog.proxy.connect.timeout.ms", "int", 3_000, "How long one broker may take to take a connection.", 10),
    _s("tidelog.proxy.hello.bytes.max", "int", 16_384, "The longest ClientHello.", 512, 65_536),
    _s("tidelog.proxy.idle.ms", "long", 660_000, "How long a silent connection is kept; longer than the brokers' "
       "connections.max.idle.ms, so that these decide.", 1_000),
    _s("tidelog.proxy.half.closed.ms", "long", 60_000, "How long a connection is kept that one side has ended and on "
       "which nothing moves.", 1_000),
    _s("tidelog.proxy.drain.ms", "int", 30_000, "Over how long a worker that stops closes its connections.", 0),
]  # fmt: skip
