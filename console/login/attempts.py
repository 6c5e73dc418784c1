"""How often logins may be tried, so that no password is found by trying: few for an address, for a user, and in all."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

from common.token_bucket import TokenBucket

KNOWN_MAX = 1_000
OF_AN_ADDRESS, A_MINUTE = 10, 6.0
OF_A_USER, OF_A_USER_A_MINUTE = 20, 12.0
OF_ALL, OF_ALL_A_MINUTE = 60, 60.0
NETWORK_BITS = 64  # a person has that many addresses of IPv6


class Attempts:
    """A login takes a place of its address, one of its user and one of all; places come back with time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._all = TokenBucket(OF_ALL_A_MINUTE / 60, OF_ALL, now())
        self._by_address: OrderedDict[str, TokenBucket] = OrderedDict()
        self._by_user: OrderedDict[str, TokenBucket] = OrderedDict()

    def wait_s(self, address: str, user: str) -> float:
        """0 if a login may be tried now, which this counts as one; else the seconds until it may. `user` may be empty:
        then there is nothing to guess."""
        now = self._now()
        of_address = _of(self._by_address, _network(address), A_MINUTE, OF_AN_ADDRESS, now)
        of_user = _of(self._by_user, user, OF_A_USER_A_MINUTE, OF_A_USER, now)
        return of_address.take(1, now) or (of_user.take(1, now) if user else 0.0) or self._all.take(1, now)


def _of(buckets: OrderedDict[str, TokenBucket], key: str, a_minute: float, most: int, now: float) -> TokenBucket:
    bucket = buckets.setdefault(key, TokenBucket(a_minute / 60, most, now))
    buckets.move_to_end(key)
    while len(buckets) > KNOWN_MAX:
        buckets.popitem(last=False)
    return bucket


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return address
    mapped = ipaddress.IPv6Address(found).ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.ip_network((found, NETWORK_BITS), strict=False))
