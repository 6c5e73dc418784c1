"""The listeners of a broker as its settings ask for, with the certificates that they show."""

from __future__ import annotations

from dataclasses import replace

from broker.config import BrokerConfig
from common.ports import Ports
from wire.listeners import ListenerConfig, ListenerKind
from wire.tls import SecuredNetwork, TlsContexts


def secured(config: BrokerConfig, ports: Ports) -> tuple[list[ListenerConfig], Ports]:
    """The listeners, and the ports with a network whose links are as the internal one asks for.

    Raises SettingError when certificates do not load.
    """
    listeners = [
        ListenerConfig(
            listen.name,
            listen.address,
            listen.advertised,
            ListenerKind(listen.kind),
            listen.protocol,
            None if listen.tls is None else TlsContexts(listen.tls, ports.clock),
            listen.proxies,
            listen.proxy_networks,
            listen.connections_max,
            listen.creation_rate,
        )
        for listen in config.listeners
    ]
    internal = next((one for one in listeners if one.kind is ListenerKind.INTERNAL), None)
    if internal is not None and internal.tls is not None:
        ports = replace(ports, network=SecuredNetwork(ports.network, internal.tls))
    return listeners, ports
