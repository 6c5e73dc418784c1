"""Parses the settings of listeners: addresses, protocols, TLS, and proxies in front of them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace

from broker.listeners import Listen
from common.node_settings.identity import NodeSettings
from common.node_settings.listeners import AcceptSettings, TlsSettings
from common.ports import Address
from common.settings import SettingError, SettingValues
from wire.listeners import ProxyForm, SecurityProtocol
from wire.tls import TlsConfig

PORT_MAX = 65_535


def parse_listeners(values: SettingValues) -> tuple[Listen, ...]:
    """Every listener with its advertised address. SettingError names what is missing, wrong or unsafe."""
    node, common = values.group(NodeSettings), values.group(TlsSettings)
    bound = _named_addresses(node.listeners, "listeners")
    advertised = _named_addresses(node.advertised_listeners, "advertised.listeners")
    for name in advertised:
        if name not in bound:
            raise SettingError(f"advertised.listeners: {name} is none of listeners")
    internal = node.inter_broker_listener_name
    if internal not in bound:
        raise SettingError(f"listeners: the internal listener {internal} (inter.broker.listener.name) is missing")
    for name in node.tenant_listeners:
        if name not in bound or name == internal:
            raise SettingError(f"tidelog.tenant.listeners: {name} must be one of listeners, and not the internal one")
    protocols = _protocols(common, bound)
    found = []
    for name, address in bound.items():
        kind = "internal" if name == internal else "tenant" if name in node.tenant_listeners else "operator"
        _check_protocol(node, name, kind, protocols[name], address[0])
        shown = advertised.get(name, address)
        if shown[0] in ("0.0.0.0", "::"):
            raise SettingError(f"advertised.listeners: {name} needs an address that others can reach, not {shown[0]}")
        form = ProxyForm(values.group(TlsSettings, name).tenant_tls) if kind == "tenant" else ProxyForm.NONE
        accept = values.own_group(AcceptSettings, name)
        found.append(
            Listen(
                name,
                address,
                shown,
                kind,
                protocols[name],
                tls_config(values, name, kind, form) if protocols[name].uses_tls else None,
                form,
                _networks(common.proxy_networks) if form is ProxyForm.PASSED else (),
                accept.connections_max,
                accept.creation_rate,
            )
        )
    return tuple(found)


def tls_config(values: SettingValues, name: str, kind: str, form: ProxyForm) -> TlsConfig:
    """Certificates and trusted authorities of listener `name`. SettingError for missing settings."""
    given = values.group(TlsConfig, name)
    config = replace(
        given,
        name=name,
        keystore_certificate_chain=_pem(given.keystore_certificate_chain),
        keystore_key=_pem(given.keystore_key),
        truststore_certificates=_pem(given.truststore_certificates),
        client_auth="required" if kind == "internal" or form is ProxyForm.TERMINATED else given.client_auth,
        # Of nodes and proxies the authority counts, and not the name: rules for clients must not shut them out.
        principal_mapping_rules=given.principal_mapping_rules if kind == "operator" else "DEFAULT",
    )
    if config.keystore_type != config.truststore_type:
        raise SettingError("ssl.truststore.type: it must be ssl.keystore.type's")
    if not config.enabled_protocols:
        raise SettingError("ssl.enabled.protocols: it must name TLSv1.2, TLSv1.3 or both")
    if not config.keystore_location and not config.keystore_certificate_chain:
        raise SettingError(f"ssl.keystore.location: listener {name} has TLS and needs a key and its certificate")
    if config.client_auth == "required" and not (config.truststore_location or config.truststore_certificates):
        who = {"internal": "nodes", "tenant": "proxies"}.get(kind, "clients")
        raise SettingError(f"ssl.truststore.location: listener {name} needs the authority of its {who}' certificates")
    return config


def _pem(text: str) -> str:
    return text.replace("\\n", "\n")  # as in a line of a properties file


def links_tls(values: SettingValues) -> TlsConfig | None:
    """The TLS settings that a node without listeners of its own uses for its connections to controllers; None for
    plaintext."""
    name = values.group(NodeSettings).inter_broker_listener_name
    protocol = _protocols(values.group(TlsSettings), {name: ("", 0)})[name]
    return tls_config(values, name, "internal", ProxyForm.NONE) if protocol.uses_tls else None


def _protocols(settings: TlsSettings, bound: Mapping[str, Address]) -> dict[str, SecurityProtocol]:
    setting = "listener.security.protocol.map"
    found = {name: SecurityProtocol.__members__.get(name, SecurityProtocol.PLAINTEXT) for name in bound}
    for text in settings.security_protocol_map:
        name, separator, protocol = text.partition(":")
        if not separator or protocol not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise SettingError(f"{setting}: {text!r} is not valid, it must be NAME:PROTOCOL with one of {known}")
        if name in bound:
            found[name] = SecurityProtocol[protocol]
    return found


def _check_protocol(node: NodeSettings, name: str, kind: str, protocol: SecurityProtocol, host: str) -> None:
    """Check the protocol for a listener of this kind; nodes' traffic leaves loopback only with TLS, or with explicit
    permission."""
    setting = "listener.security.protocol.map"
    if kind == "tenant" and protocol is not SecurityProtocol.SASL_SSL:
        raise SettingError(f"{setting}: {name} is for tenants (tidelog.tenant.listeners), so it must be SASL_SSL")
    if kind == "internal" and protocol.uses_sasl:
        raise SettingError(f"{setting}: {name} is for nodes, which have a secret of their own: SSL or PLAINTEXT")
    is_open = kind == "internal" and not protocol.uses_tls and not _is_loopback(host)
    if is_open and not node.internal_allow_plaintext:
        raise SettingError(
            f"listeners: {name} on {host} leaves loopback without TLS ({setting}={name}:SSL gives it TLS); "
            "tidelog.internal.allow.plaintext=true says that this network is private"
        )


def _networks(texts: tuple[str, ...]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    try:
        return tuple(ipaddress.ip_network(text) for text in texts)
    except ValueError as error:
        raise SettingError(f"tidelog.proxy.networks: {error}") from error


def host_and_port(text: str, setting: str) -> Address:
    """`host:port`, `[v6]:port` or `:port`, which means every address."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > PORT_MAX:
        raise SettingError(f"{setting}: {text!r} is not valid, it must be host:port with a port up to {PORT_MAX}")
    return host.strip("[]") or "0.0.0.0", int(port)


def _named_addresses(texts: tuple[str, ...], setting: str) -> dict[str, Address]:
    found: dict[str, Address] = {}
    for text in texts:
        name, separator, address = text.partition("://")
        if not separator or not name:
            raise SettingError(f"{setting}: {text!r} is not valid, it must be NAME://host:port")
        if name in found:
            raise SettingError(f"{setting}: {name} is named twice")
        found[name] = host_and_port(address, setting)
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
