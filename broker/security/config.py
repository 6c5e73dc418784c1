"""What a broker's access control runs with: plain values, named like the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.security.authorizer import AuthorizerConfig
from broker.security.exchange import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from broker.security.oauth import OauthConfig

DEFAULT_MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """`authorizer` None: on operators' listeners everybody may do everything. `mechanisms` and `max_reauth_ms` are
    those of all listeners, `…_of` those of listeners that have their own. `tenant_domain` is tidelog.proxy.domain."""

    authorizer: AuthorizerConfig | None = None
    mechanisms: tuple[str, ...] = DEFAULT_MECHANISMS  # sasl.enabled.mechanisms
    mechanisms_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_reauth_ms: int = 0  # connections.max.reauth.ms
    max_reauth_ms_of: Mapping[str, int] = field(default_factory=dict)
    max_receive_size: int = 524_288  # sasl.server.max.receive.size
    failed_delay_ms: int = 100  # connection.failed.authentication.delay.ms
    authentication_ms: int = 30_000  # tidelog.authentication.ms
    at_once_max: int = 2  # tidelog.authentication.at.once.max
    queue_max: int = 256  # tidelog.authentication.queue.max
    per_address_max: int = 32  # tidelog.authentication.queue.per.address.max
    oauth: OauthConfig = field(default_factory=OauthConfig)
    tenant_domain: str = ""
    tenant_connections_max: int = 1_000  # tidelog.tenant.connections.max
    tenant_connection_rate: int = 100  # tidelog.tenant.connection.rate
    address_connection_rate: int = 0  # tidelog.connection.rate.per.address
