"""Authentication and authorization as an operator writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.security.authorizer import AuthorizerConfig
from broker.security.config import SecurityConfig
from broker.security.exchange import OAUTHBEARER
from broker.security.oauth import OauthConfig
from common.settings import SettingError, of_listener
from common.web_document import SCHEMES


def security_config(values: Mapping[str, Any], listeners: Iterable[str], domain: str) -> SecurityConfig:
    """SettingError for what contradicts itself. `domain` is that of tenants' host names."""
    names = list(listeners)
    mechanisms = {name: tuple(of_listener(values, name, "sasl.enabled.mechanisms")) for name in names}
    url = values["sasl.oauthbearer.jwks.endpoint.url"]
    if url and not url.startswith(SCHEMES):
        raise SettingError(f"sasl.oauthbearer.jwks.endpoint.url: it must begin with one of {', '.join(SCHEMES)}")
    if not url and any(OAUTHBEARER in offered for offered in mechanisms.values()):
        raise SettingError(
            f"sasl.oauthbearer.jwks.endpoint.url: sasl.enabled.mechanisms has {OAUTHBEARER}, so it must be set"
        )
    return SecurityConfig(
        authorizer=_authorizer(values),
        mechanisms=tuple(values["sasl.enabled.mechanisms"]),
        mechanisms_of=mechanisms,
        max_reauth_ms=values["connections.max.reauth.ms"],
        max_reauth_ms_of={name: of_listener(values, name, "connections.max.reauth.ms") for name in names},
        max_receive_size=values["sasl.server.max.receive.size"],
        failed_delay_ms=values["connection.failed.authentication.delay.ms"],
        authentication_ms=values["tidelog.authentication.ms"],
        at_once_max=values["tidelog.authentication.at.once.max"],
        queue_max=values["tidelog.authentication.queue.max"],
        per_address_max=values["tidelog.authentication.queue.per.address.max"],
        oauth=OauthConfig(
            url,
            values["sasl.oauthbearer.jwks.endpoint.refresh.ms"],
            tuple(values["sasl.oauthbearer.expected.audience"]),
            values["sasl.oauthbearer.expected.issuer"],
            values["sasl.oauthbearer.sub.claim.name"],
            values["sasl.oauthbearer.clock.skew.seconds"],
        ),
        tenant_domain=domain,
        tenant_connections_max=values["tidelog.tenant.connections.max"],
        tenant_connection_rate=values["tidelog.tenant.connection.rate"],
        address_connection_rate=values["tidelog.connection.rate.per.address"],
    )


def _authorizer(values: Mapping[str, Any]) -> AuthorizerConfig | None:
    users = [name.strip() for name in values["super.users"].split(";") if name.strip()]
    for name in users:
        kind, _, rest = name.partition(":")
        if not kind or not rest:
            raise SettingError(f"super.users: {name!r} is not valid, it must be a principal like User:admin")
    if not values["authorizer.class.name"]:
        return None
    return AuthorizerConfig(frozenset(users), values["allow.everyone.if.no.acl.found"])
