"""Settings of a broker's access control, and values that the command derives from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.security.authorizer import AuthorizerConfig
from common.node_settings.security import SecuritySettings
from common.node_settings.tenants import TenantSettings
from common.settings import same


@dataclass(frozen=True, slots=True)
class SecurityConfig(SecuritySettings):
    """`authorizer` None: everything is allowed on operators' listeners. `mechanisms` and `max_reauth_ms` apply to all
    listeners, `…_of` to listeners with their own. `reauthentication_s`: minimal time between two authentications on one
    connection, as in Apache Kafka. `tenant_domain` is tidelog.proxy.domain."""

    authorizer: AuthorizerConfig | None = None
    mechanisms_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_reauth_ms_of: Mapping[str, int] = field(default_factory=dict)
    reauthentication_s: float = 1.0
    tenant_domain: str = ""
    tenant_connections_max: int = same(TenantSettings, "tenant_connections_max")
    tenant_connection_rate: int = same(TenantSettings, "tenant_connection_rate")
