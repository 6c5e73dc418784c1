"""Listeners: their protocols, certificates, and limits on new connections."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from common.settings import CLUSTER_WIDE, INT_MAX, seconds, setting

_PEM = "PEM"
_PEM_TEXT = "PEM; `keytool` and `openssl pkcs12` turn a JKS or PKCS12 store into PEM (docs/security.md)"


def counts_by_address(texts: Iterable[str]) -> dict[str, int]:
    """The counts of `max.connections.per.ip.overrides`, ADDRESS:COUNT each. ValueError holds the invalid one."""
    found = {}
    for text in texts:
        address, _, count = text.rpartition(":")
        try:
            found[str(ip_address(address.strip("[]")))] = int(count)
        except ValueError:
            raise ValueError(text) from None
    return found


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Protocols and TLS of listeners. A listener may have its own values of most of these."""

    # fmt: off
    security_protocol_map: tuple[str, ...] = setting("listener.security.protocol.map", "list", (),
        "NAME:PROTOCOL for listeners: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. A listener without an entry has "
        "the protocol of its name, else PLAINTEXT.")
    proxy_networks: tuple[str, ...] = setting("tidelog.proxy.networks", "list", (),
        "Networks (address/bits) of the proxies that pass TLS through: only connections from there to a passthrough "
        "listener begin with a PROXY header.")
    tenant_tls: str = setting("tidelog.tenant.tls", "string", "proxy",
        "What proxies do with TLS for a tenants' listener: `proxy` ends it and connects with the proxy's own "
        "certificate, `passthrough` leaves it to the broker.", choices=("proxy", "passthrough"),
        per_listener=True)
    keystore_type: str = setting("ssl.keystore.type", "string", _PEM,
        "The form of the key store.", pattern=_PEM, pattern_text=_PEM_TEXT, per_listener=True)
    truststore_type: str = setting("ssl.truststore.type", "string", _PEM,
        "The form of the trust store.", pattern=_PEM, pattern_text=_PEM_TEXT, per_listener=True)
    keystore_location: str = setting("ssl.keystore.location", "string", "",
        "A PEM file with this node's private key and its certificate chain. It is read again when it changes.",
        per_listener=True)
    keystore_certificate_chain: str = setting("ssl.keystore.certificate.chain", "string", "",
        "The chain as PEM text, in place of a file.", per_listener=True)
    keystore_key: str = setting("ssl.keystore.key", "string", "",
        "The private key as PEM text (PKCS#8), with ssl.keystore.certificate.chain.", sensitive=True, per_listener=True)
    key_password: str = setting("ssl.key.password", "string", "",
        "The password of an encrypted private key.", sensitive=True, per_listener=True)
    truststore_location: str = setting("ssl.truststore.location", "string", "",
        "A PEM file with the trusted certificate authorities. It is read again when it changes.",
        per_listener=True)
    truststore_certificates: str = setting("ssl.truststore.certificates", "string", "",
        "The authorities as PEM text, in place of a file.", per_listener=True)
    client_auth: str = setting("ssl.client.auth", "string", "none",
        "Whether clients are asked for a certificate. Between nodes and from a proxy it is always required.",
        choices=("none", "requested", "required"), per_listener=True)
    enabled_protocols: tuple[str, ...] = setting("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"),
        "The enabled versions of TLS.", choices=("TLSv1.2", "TLSv1.3"), per_listener=True)
    cipher_suites: tuple[str, ...] = setting("ssl.cipher.suites", "list", (),
        "The enabled cipher suites, by the protocol's names or OpenSSL's; all secure ones when empty. Of TLS 1.3 name "
        "all three or none.", per_listener=True)
    principal_mapping_rules: str = setting("ssl.principal.mapping.rules", "string", "DEFAULT",
        "How the name in a client's certificate maps to its principal: DEFAULT and RULE:pattern/replacement/[LU], the "
        "first that matches.", per_listener=True)
    endpoint_identification_algorithm: str = setting("ssl.endpoint.identification.algorithm", "string", "https",
        "Whether nodes check that the other's certificate is for the host that they connect to; empty is no check.",
        choices=("https", ""), per_listener=True)
    # fmt: on


@dataclass(frozen=True, slots=True)
class AcceptSettings:
    """Limits on accepting connections, over all listeners of a node unless a listener has its own value."""

    # fmt: off
    connections_max: int = setting("max.connections", "int", INT_MAX,
        "Connections of one broker; of one listener with its prefix.", 0, update=CLUSTER_WIDE, per_listener=True)
    creation_rate: int = setting("max.connection.creation.rate", "int", INT_MAX,
        "Connections accepted per second, over all listeners of one broker except the internal one; of one listener "
        "with its prefix. More wait.", 1, update=CLUSTER_WIDE, per_listener=True)
    connections_per_ip_max: int = setting("max.connections.per.ip", "int", INT_MAX,
        "Connections from one address.", 0, update=CLUSTER_WIDE)
    connections_per_ip: Mapping[str, int] = setting("max.connections.per.ip.overrides", "list", (),
        "ADDRESS:COUNT for addresses that may have another number of connections.", update=CLUSTER_WIDE,
        pattern=r"\[?[0-9A-Fa-f.:]+\]?:[0-9]{1,9}", pattern_text="ADDRESS:COUNT", read_as=counts_by_address)
    openings_max: int = setting("tidelog.connection.openings.max", "int", 512,
        "Connections of one listener whose TLS handshake or PROXY header is under way; above it a connection that "
        "keeps the broker waiting is evicted.", 8, 100_000)
    opening_s: float = setting("tidelog.connection.opening.ms", "int", 10_000,
        "How long TLS handshake and PROXY header may take.", 100, 600_000, read_as=seconds)
    certificates_interval_s: float = setting("tidelog.certificates.interval.ms", "int", 5_000,
        "How often certificate files are checked for changes.", 100, read_as=seconds)
    # fmt: on
