"""Authentication and authorization."""

from dataclasses import dataclass

from common.settings import INT_MAX, LONG_MAX, setting

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """Authorization, authentication, and limits on its cost."""

    # fmt: off
    authorizer_class_name: str = setting("authorizer.class.name", "string", "",
        "Whether ACLs apply on operators' listeners: Apache Kafka's name of its authorizer, or empty. On tenants' "
        "listeners they always apply.", choices=("", AUTHORIZER))
    super_users: str = setting("super.users", "string", "",
        "Principals that may do everything on operators' listeners, separated by semicolons, like "
        "User:admin;User:CN=ops.")
    allow_everyone_if_no_acl_found: bool = setting("allow.everyone.if.no.acl.found", "boolean", False,
        "Whether a resource without ACLs is open to all principals on operators' listeners.")
    mechanisms: tuple[str, ...] = setting("sasl.enabled.mechanisms", "list", MECHANISMS[:3],
        "The mechanisms that listeners with SASL offer. Tenants' listeners never offer OAUTHBEARER.",
        choices=MECHANISMS, per_listener=True)
    max_receive_size: int = setting("sasl.server.max.receive.size", "int", 524_288,
        "The longest request before authentication.", 1_024)
    max_reauth_ms: int = setting("connections.max.reauth.ms", "long", 0,
        "The longest session before its client has to re-authenticate over the same connection; 0 is unlimited.", 0,
        LONG_MAX, per_listener=True)
    failed_delay_ms: int = setting("connection.failed.authentication.delay.ms", "int", 100,
        "The delay of the response to a failed authentication.", 0, 60_000)
    jwks_endpoint_url: str = setting("sasl.oauthbearer.jwks.endpoint.url", "string", "",
        "https://, http:// or file://: the token issuer's keys (JWKS). Without it no token is accepted.")
    jwks_endpoint_refresh_ms: int = setting("sasl.oauthbearer.jwks.endpoint.refresh.ms", "long", 3_600_000,
        "How often these keys are read again.", 1_000)
    expected_audience: tuple[str, ...] = setting("sasl.oauthbearer.expected.audience", "list", (),
        "A token must be for one of these; empty accepts any audience.")
    expected_issuer: str = setting("sasl.oauthbearer.expected.issuer", "string", "",
        "The issuer that a token must have; empty accepts any issuer with the key.")
    sub_claim_name: str = setting("sasl.oauthbearer.sub.claim.name", "string", "sub",
        "The claim that names the principal.")
    clock_skew_seconds: int = setting("sasl.oauthbearer.clock.skew.seconds", "int", 30,
        "The accepted difference of clocks.", 0, 3_600)
    authentication_ms: int = setting("tidelog.authentication.ms", "int", 30_000,
        "How long a connection may take to authenticate.", 100, 600_000)
    at_once_max: int = setting("tidelog.authentication.at.once.max", "int", 2,
        "Passwords and tokens that are checked concurrently.", 1, 64)
    queue_max: int = setting("tidelog.authentication.queue.max", "int", 256,
        "Passwords and tokens whose check waits or is under way; above it connections are closed.", 1, 100_000)
    per_address_max: int = setting("tidelog.authentication.queue.per.address.max", "int", 32,
        "The same, of one address.", 1, INT_MAX)
    address_connection_rate: int = setting("tidelog.connection.rate.per.address", "int", 0,
        "New connections per second from one address, behind a proxy the client's; faster ones wait. 0 is unlimited.",
        0, INT_MAX)
    # fmt: on
