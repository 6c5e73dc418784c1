"""Settings of authentication and authorization; a part of the catalogue of `common.broker_settings`.

`listener.name.<name>.<setting>`, the name in lower case, gives one listener its own value where that makes sense.
"""

from common.settings import INT_MAX, LONG_MAX, Setting

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def _s(name: str, type_name: str, default: object, doc: str, low: float | None = None, high: float | None = None,
       choices: tuple[str, ...] = (), *, per_listener: bool = False) -> Setting:  # fmt: skip
    return Setting(name, type_name, default, doc, low, high, choices, per_listener=per_listener)


SECURITY_SETTINGS = [
    _s("authorizer.class.name", "string", "", "Whether ACLs hold on operators' listeners: Apache Kafka's name of its "
       "authorizer, or nothing. On tenants' listeners they always hold.", choices=("", AUTHORIZER)),
    _s("super.users", "string", "", "Principals that may do everything on operators' listeners, like "
       "User:admin;User:CN=ops, between semicolons."),
    _s("allow.everyone.if.no.acl.found", "boolean", False, "Whether a resource that no ACL speaks of is open to "
       "everybody on operators' listeners."),
    _s("sasl.enabled.mechanisms", "list", MECHANISMS[:3], "The mechanisms that listeners with SASL offer. Tenants' "
       "listeners never offer OAUTHBEARER.", choices=MECHANISMS, per_listener=True),
    _s("sasl.server.max.receive.size", "int", 524_288, "The longest request before authentication.", 1_024),
    _s("connections.max.reauth.ms", "long", 0, "How long a session lasts at most before its client has to "
       "authenticate anew over the same connection; 0 is for ever.", 0, LONG_MAX, per_listener=True),
    _s("connection.failed.authentication.delay.ms", "int", 100, "How late a failed authentication is answered.", 0,
       60_000),
    _s("sasl.oauthbearer.jwks.endpoint.url", "string", "", "https://, http:// or file://: the keys of whoever issues "
       "tokens (JWKS). Without it no token is believed."),
    _s("sasl.oauthbearer.jwks.endpoint.refresh.ms", "long", 3_600_000, "How often these keys are read again.", 1_000),
    _s("sasl.oauthbearer.expected.audience", "list", (), "A token must be for one of these; empty: for anybody."),
    _s("sasl.oauthbearer.expected.issuer", "string", "", "Who must have issued a token; empty: whoever has the key."),
    _s("sasl.oauthbearer.sub.claim.name", "string", "sub", "The claim that names the principal."),
    _s("sasl.oauthbearer.clock.skew.seconds", "int", 30, "By how much clocks may differ.", 0, 3_600),
    _s("tidelog.authentication.ms", "int", 30_000, "How long a connection may take to authenticate.", 100, 600_000),
    _s("tidelog.authentication.at.once.max", "int", 2, "Passwords and tokens that are checked at the same time.", 1,
       64),
    _s("tidelog.authentication.queue.max", "int", 256, "Passwords and tokens whose check waits or is under way; over "
       "it connections are closed.", 1, 100_000),
    _s("tidelog.authentication.queue.per.address.max", "int", 32, "The same, of one address.", 1, INT_MAX),
    _s("tidelog.connection.rate.per.address", "int", 0, "New connections a second of one address, behind a proxy of "
       "the client's; faster ones wait. 0 is without bound.", 0, INT_MAX),
]  # fmt: skip
