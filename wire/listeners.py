"""Named listeners: their addresses, kinds and security."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING

from common.node_settings.listeners import AcceptSettings
from common.ports import Address
from common.settings import same

if TYPE_CHECKING:
    from wire.tls import TlsContexts


class ListenerKind(StrEnum):
    """OPERATOR is plain Kafka with physical names; TENANT is one tenant's view; INTERNAL is for nodes."""

    OPERATOR = "operator"
    TENANT = "tenant"
    INTERNAL = "internal"


class SecurityProtocol(IntEnum):
    """Apache Kafka's security protocols, with its numbers."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def uses_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class ProxyForm(StrEnum):
    """What a proxy in front of a listener does with TLS.

    NONE: there is no proxy. TERMINATED: the proxy ends the client's TLS and opens its own with a client certificate
    and a PROXY header inside. PASSED: the client's TLS ends here; only connections from the proxies' networks begin
    with a PROXY header in the clear, which carries only the client's address.
    """

    NONE = "none"
    TERMINATED = "proxy"
    PASSED = "passthrough"


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """`address` is bound (port 0: any free one); `advertised` is the one in Metadata, None for the bound address.

    `tls` is set exactly for protocols with TLS; on an internal listener it is always mutual.
    """

    name: str
    address: Address
    advertised: Address | None
    kind: ListenerKind
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsContexts | None = None
    proxies: ProxyForm = ProxyForm.NONE
    proxy_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    connections_max: int = same(AcceptSettings, "connections_max")  # of this listener alone
    creation_rate: int = same(AcceptSettings, "creation_rate")  # per second, of this listener alone
