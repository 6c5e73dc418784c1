"""What a broker's access control runs with: its settings, and what the command makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.security.authorizer import AuthorizerConfig
from common.node_settings.security import SecuritySettings
from common.node_settings.tenants import TenantSettings
from common.settings import same


@dataclass(frozen=True, slots=True)
class SecurityConfig(SecuritySettings):
    """`authorizer` None: on operators' listeners everybody may do everything. `mechanisms` and `max_reauth_ms` are
    those of all listeners, `…_of` those of listeners that have their own. `reauthentication_s` is the least time
    between two authentications on one connection, as with Apache Kafka. `tenant_domain` is tidelog.proxy.domain."""

    authorizer: AuthorizerConfig | None = None
    mechanisms_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_reauth_ms_of: Mapping[str, int] = field(default_factory=dict)
    reauthentication_s: float = 1.0
    tenant_domain: str = ""
    tenant_connections_max: int = same(TenantSettings, "tenant_connections_max")
    tenant_connection_rate: int = same(TenantSettings, "tenant_connection_rate")
