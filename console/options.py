"""How a console was started."""

from __future__ import annotations

from dataclasses import dataclass

from console.login.credentials import Reachable


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """`hosts`: names that browsers may call it by, besides addresses. `certificate` and `key`: PEM files for
    HTTPS, empty for HTTP. `login_s`: how long brokers may take to answer a login."""

    where: Reachable
    host: str = "127.0.0.1"
    port: int = 8080
    hosts: frozenset[str] = frozenset()
    certificate: str = ""
    key: str = ""
    read_only: bool = False
    login_s: float = 20.0

    @property
    def has_tls(self) -> bool:
        return bool(self.certificate)
