"""Rules for client addresses: lists of networks, deny before allow, without I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_COUNTED_PREFIX_BYTES = 8  # an IPv6 user has a /64 network, so all of it counts as one address


class Networks:
    """IPv4 and IPv6 networks in CIDR form, or single addresses. Raises ValueError for other text."""

    __slots__ = ("_masks", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(texts)
        networks = [ip_network(text, strict=False) for text in self.texts]
        self._masks = tuple((one.version, int(one.network_address), int(one.netmask)) for one in networks)

    def __bool__(self) -> bool:
        return bool(self._masks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Networks) and self._masks == other._masks

    def __hash__(self) -> int:
        return hash(self._masks)

    def __repr__(self) -> str:
        return f"Networks({self.texts!r})"

    def __contains__(self, host: object) -> bool:
        address = plain_address(str(host))
        version, number = address.version, int(address)
        return any(one == version and number & mask == network for one, network, mask in self._masks)


NOWHERE = Networks(())


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """An empty `allow` admits every address that is not denied."""

    allow: Networks = NOWHERE
    deny: Networks = NOWHERE

    def permits(self, host: str) -> bool:
        if self is EVERYBODY:
            return True
        if self.deny and host in self.deny:
            return False
        return not self.allow or host in self.allow


EVERYBODY = NetworkRules()


def plain_address(host: str) -> IPv4Address | IPv6Address:
    """The address without its zone; an IPv4 address that an IPv6 socket mapped becomes IPv4 again."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def counted_address(host: str) -> str:
    """The key by which limits count a client: its IPv4 address, or its /64 IPv6 network."""
    if ":" not in host:
        return host
    address = plain_address(host)
    if isinstance(address, IPv4Address):
        return str(address)
    head = address.packed[:_COUNTED_PREFIX_BYTES]
    return f"{IPv6Address(head + bytes(16 - len(head)))}/64"
