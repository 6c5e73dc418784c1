"""Converts the settings of authentication and authorization."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from broker.security.authorizer import AuthorizerConfig
from broker.security.config import SecurityConfig
from broker.security.exchange import OAUTHBEARER
from common.node_settings.security import SecuritySettings
from common.settings import SettingError, SettingValues
from common.web_document import SCHEMES, fault_of


def security_config(values: SettingValues, listeners: Iterable[str], domain: str) -> SecurityConfig:
    """SettingError for contradicting settings. `domain`: of tenants' host names."""
    config = values.group(SecurityConfig)
    own = {name: values.group(SecuritySettings, name) for name in listeners}
    url = config.jwks_endpoint_url
    if url and (fault := fault_of(url, SCHEMES)):
        raise SettingError(f"sasl.oauthbearer.jwks.endpoint.url: {fault}")
    if not url and any(OAUTHBEARER in of_one.mechanisms for of_one in own.values()):
        raise SettingError(
            f"sasl.oauthbearer.jwks.endpoint.url: sasl.enabled.mechanisms has {OAUTHBEARER}, so it must be set"
        )
    return replace(
        config,
        authorizer=_authorizer(config),
        mechanisms_of={name: of_one.mechanisms for name, of_one in own.items()},
        max_reauth_ms_of={name: of_one.max_reauth_ms for name, of_one in own.items()},
        tenant_domain=domain,
    )


def _authorizer(settings: SecuritySettings) -> AuthorizerConfig | None:
    users = [name.strip() for name in settings.super_users.split(";") if name.strip()]
    for name in users:
        kind, _, rest = name.partition(":")
        if not kind or not rest:
            raise SettingError(f"super.users: {name!r} is not valid, it must be a principal like User:admin")
    if not settings.authorizer_class_name:
        return None
    return AuthorizerConfig(frozenset(users), settings.allow_everyone_if_no_acl_found)
