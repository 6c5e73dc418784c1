"""The listeners of a broker from its settings, with their certificates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network

from common.node_settings.listeners import AcceptSettings
from common.ports import Address, Ports
from common.settings import same
from wire.listeners import ListenerConfig, ListenerKind, ProxyForm, SecurityProtocol
from wire.tls import LoadedTls, SecuredNetwork, TlsConfig, TlsContexts, load_tls


@dataclass(slots=True, frozen=True)
class Listen:
    """One listener. `kind`: "operator", "tenant" or "internal"; `advertised`: the address for clients; `tls`: for
    protocols with TLS. The other fields are those of `wire.listeners.ListenerConfig`."""

    name: str
    address: Address
    advertised: Address
    kind: str = "operator"
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsConfig | None = None
    proxies: ProxyForm = ProxyForm.NONE
    proxy_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    connections_max: int = same(AcceptSettings, "connections_max")
    creation_rate: int = same(AcceptSettings, "creation_rate")


def load_certificates(asked: Iterable[Listen]) -> dict[str, LoadedTls]:
    """By the listener's name. Blocks. Raises SettingError if certificates do not load."""
    return {listen.name: load_tls(listen.tls) for listen in asked if listen.tls is not None}


def secured(
    asked: Iterable[Listen], ports: Ports, loaded: Mapping[str, LoadedTls]
) -> tuple[list[ListenerConfig], Ports]:
    """The listeners, and the ports with a network whose links use the internal listener's security.

    Certificates that are not `loaded` are read here. Raises SettingError if they do not load.
    """
    listeners = [
        ListenerConfig(
            listen.name,
            listen.address,
            listen.advertised,
            ListenerKind(listen.kind),
            listen.protocol,
            None if listen.tls is None else TlsContexts(listen.tls, ports.clock, loaded.get(listen.name)),
            listen.proxies,
            listen.proxy_networks,
            listen.connections_max,
            listen.creation_rate,
        )
        for listen in asked
    ]
    internal = next((one for one in listeners if one.kind is ListenerKind.INTERNAL), None)
    if internal is not None and internal.tls is not None:
        ports = replace(ports, network=SecuredNetwork(ports.network, internal.tls))
    return listeners, ports
