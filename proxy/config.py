"""What a proxy is built with: plain values, made of settings by `tidelog.proxy_config`."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.ports import Address
from proxy.certificates import ChainFiles
from proxy.limits import ProxyLimits
from proxy.networks import EVERYBODY, NetworkRules
from wire.tls import TlsConfig


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """`certificate` None passes TLS through; `broker_certificate` None connects to brokers in the clear.

    `header` says whether brokers get the client's address in a PROXY header; `controllers` by id, at their internal
    listeners, and `links_tls` is for what connects to them, None for none.
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
    header: bool = True
    check_hostname: bool = True
    certificate_check_s: float = 5.0
    certificate_warn_days: float = 14.0
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    rules: NetworkRules = EVERYBODY
    metrics: Address = ("127.0.0.1", 0)

    @property
    def terminates(self) -> bool:
        return self.certificate is not None
