"""Settings of listeners' security and of what comes before a connection's first request; a part of the catalogue of
`common.broker_settings`. `listener.name.<name>.<setting>`, the name in lower case, gives one listener its own value."""

from common.settings import INT_MAX, Setting

_DYNAMIC = "cluster-wide"
_PEM = "PEM"
_PEM_TEXT = "PEM; `keytool` and `openssl pkcs12` turn a JKS or PKCS12 store into PEM (docs/security.md)"


def _s(name: str, type_name: str, default: object, doc: str, low: float | None = None, high: float | None = None,
       choices: tuple[str, ...] = (), *, sensitive: bool = False, update: str = "read-only") -> Setting:  # fmt: skip
    return Setting(name, type_name, default, doc, low, high, choices, update, sensitive, per_listener=True)


def _for_all(name: str, type_name: str, default: object, doc: str, low: float | None = None,
             high: float | None = None, update: str = "read-only", pattern: str = "",
             pattern_text: str = "") -> Setting:  # fmt: skip
    return Setting(name, type_name, default, doc, low, high, (), update, pattern=pattern, pattern_text=pattern_text)


TLS_SETTINGS = [
    _for_all("listener.security.protocol.map", "list", (), "NAME:PROTOCOL for listeners: PLAINTEXT, SSL, "
             "SASL_PLAINTEXT or SASL_SSL. A listener that is not in it has the protocol that it is named after, else "
             "PLAINTEXT."),
    _for_all("tidelog.proxy.networks", "list", (), "Networks (address/bits) of the proxies that pass TLS through: from "
             "there, and from nowhere else, connections to a passthrough listener begin with a PROXY header."),
    _s("tidelog.tenant.tls", "string", "proxy", "How a tenants' listener stands behind proxies: `proxy` ends the "
       "clients' TLS and shows its own certificate, `passthrough` leaves them theirs, which ends at the broker.",
       choices=("proxy", "passthrough")),
    Setting("ssl.keystore.type", "string", _PEM, "The form of the key store.", pattern=_PEM, pattern_text=_PEM_TEXT,
            per_listener=True),
    Setting("ssl.truststore.type", "string", _PEM, "The form of the trust store.", pattern=_PEM,
            pattern_text=_PEM_TEXT, per_listener=True),
    _s("ssl.keystore.location", "string", "", "A PEM file with this node's private key and its certificate chain. It "
       "is read again when it changes."),
    _s("ssl.keystore.certificate.chain", "string", "", "The chain as PEM text, in place of a file."),
    _s("ssl.keystore.key", "string", "", "The private key as PEM text (PKCS#8), with "
       "ssl.keystore.certificate.chain.", sensitive=True),
    _s("ssl.key.password", "string", "", "The password of an encrypted private key.", sensitive=True),
    _s("ssl.truststore.location", "string", "", "A PEM file with the authorities whose certificates are believed. It "
       "is read again when it changes."),
    _s("ssl.truststore.certificates", "string", "", "The authorities as PEM text, in place of a file."),
    _s("ssl.client.auth", "string", "none", "Whether clients are asked for a certificate. Between nodes, and from a "
       "proxy, it is required always.", choices=("none", "requested", "required")),
    _s("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "The versions of TLS that are spoken.",
       choices=("TLSv1.2", "TLSv1.3")),
    _s("ssl.cipher.suites", "list", (), "The suites that are spoken, by the protocol's names or OpenSSL's; all good "
       "ones when empty. Of TLS 1.3 name all three or none."),
    _s("ssl.principal.mapping.rules", "string", "DEFAULT", "How the name in a client's certificate becomes that of its "
       "principal: DEFAULT and RULE:pattern/replacement/[LU], the first that matches."),
    _s("ssl.endpoint.identification.algorithm", "string", "https", "Whether nodes check that the other's certificate "
       "is for the host that they connect to; empty: they do not.", choices=("https", "")),
]  # fmt: skip

ACCEPT_SETTINGS = [
    _s("max.connections", "int", INT_MAX, "Connections of one broker; of one listener with its prefix.", 0,
       update=_DYNAMIC),
    _s("max.connection.creation.rate", "int", INT_MAX, "Connections that are accepted in a second, of one broker's "
       "listeners but the internal one together; of one listener with its prefix. More wait.", 1, update=_DYNAMIC),
    _for_all("max.connections.per.ip", "int", INT_MAX, "Connections from one address.", 0, update=_DYNAMIC),
    _for_all("max.connections.per.ip.overrides", "list", (), "ADDRESS:COUNT for addresses that may have another number "
             "of connections.", update=_DYNAMIC, pattern=r"\[?[0-9A-Fa-f.:]+\]?:[0-9]{1,9}",
             pattern_text="ADDRESS:COUNT"),
    _for_all("tidelog.connection.openings.max", "int", 512, "Connections of one listener whose TLS handshake or PROXY "
             "header is under way; over it whoever keeps the broker waiting is closed.", 8, 100_000),
    _for_all("tidelog.connection.opening.ms", "int", 10_000, "How long TLS handshake and PROXY header may take.", 100,
             600_000),
    _for_all("tidelog.certificates.interval.ms", "int", 5_000, "How often certificates' files are looked at for "
             "changes.", 100),
]  # fmt: skip
