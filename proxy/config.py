"""The configuration of a proxy: plain values that `tidelog.configuration.proxy_config` builds from settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.node_settings.proxy import ProxySettings
from common.ports import Address
from common.settings import same
from proxy.certificates import ChainFiles
from proxy.limits import ProxyLimits
from proxy.networks import EVERYBODY, NetworkRules
from wire.tls import TlsConfig


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """`certificate` None passes TLS through; `broker_certificate` None connects to brokers in the clear.

    `controllers`: addresses of their internal listeners, by id. `links_tls`: TLS for connections to them, None for
    none. `header`: whether brokers get the client's address in a PROXY header.
    """

    node_id: int
    listen: Address
    workers: int
    domain: str
    certificate: ChainFiles | None
    broker_listener: str
    broker_certificate: ChainFiles | None
    broker_authority: str
    controllers: dict[int, Address]
    secret: bytes
    links_tls: TlsConfig | None = None
    header: bool = same(ProxySettings, "passthrough_header")
    check_hostname: bool = same(ProxySettings, "check_hostname")
    certificate_check_s: float = same(ProxySettings, "certificate_check_s")
    certificate_warn_days: float = same(ProxySettings, "certificate_warn_days", float)
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    rules: NetworkRules = EVERYBODY
    metrics: Address = ("127.0.0.1", 0)

    @property
    def terminates(self) -> bool:
        return self.certificate is not None
