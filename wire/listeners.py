"""Named listeners: where a node accepts connections, who may come in there, and how they are secured."""

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
    """OPERATOR sees physical names and is Kafka pure and simple; TENANT is one tenant's view; INTERNAL is for nodes."""

    OPERATOR = "operator"
    TENANT = "tenant"
    INTERNAL = "internal"


class SecurityProtocol(IntEnum):
    """Apache Kafka's, with its numbers."""

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
    """How a listener stands behind a proxy.

    NONE: it does not. TERMINATED: the proxy ends the client's TLS and opens its own, shows its client certificate, and
    sends a PROXY header inside. PASSED: the client's TLS ends here; connections from the proxies' networks, and no
    others, begin with a PROXY header in clear that carries the client's address alone.
    """

    NONE = "none"
    TERMINATED = "proxy"
    PASSED = "passthrough"


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """`address` is bound (port 0: any free one); `advertised` is what Metadata tells, None for the bound address.

    `tls` belongs to protocols with TLS and to no other; on an internal listener it is mutual whatever it says.
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
