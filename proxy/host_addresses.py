"""Addresses of brokers' host names: looked up off the loop, cached, and still used while the name service is down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from common.lifecycle import end_tasks

HOSTS_MAX = 10_000
FRESH_S = 30.0
LOOKUP_TIMEOUT_S = 5.0
Answer = Callable[[str | None], None]
Lookup = Callable[[str], Awaitable[str]]


async def look_up(host: str) -> str:
    """The first address of a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=1)
    return str(found[0][4][0])


class HostAddresses:
    """`find` answers at once for a numeric address and for a cached name, stale or not."""

    def __init__(self, lookup: Lookup = look_up) -> None:
        self._lookup = lookup
        self._known: dict[str, tuple[str, float]] = {}
        self._asked: dict[str, tuple[asyncio.Task[None], list[Answer]]] = {}

    def find(self, host: str, answer: Answer) -> None:
        """Call `answer` with the address, or with None when the lookup fails."""
        known = self._known.get(host)
        if known is not None:
            answer(known[0])
            if known[1] < asyncio.get_running_loop().time() and host not in self._asked:
                self._ask(host)
            return
        try:
            address = str(ip_address(host))
        except ValueError:
            if host not in self._asked:
                self._ask(host)
            self._asked[host][1].append(answer)
            return
        self._remember(host, address, float("inf"))
        answer(address)

    async def stop(self) -> None:
        await end_tasks(task for task, _ in self._asked.values())

    def _ask(self, host: str) -> None:
        self._asked[host] = (asyncio.create_task(self._look_up(host)), [])

    async def _look_up(self, host: str) -> None:
        address: str | None = None
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                address = await self._lookup(host)
        except (OSError, TimeoutError, UnicodeError):
            pass
        finally:
            waiting = self._asked.pop(host)[1]
        if address is not None:
            self._remember(host, address, asyncio.get_running_loop().time() + FRESH_S)
        for answer in waiting:
            answer(address)

    def _remember(self, host: str, address: str, until: float) -> None:
        self._known.pop(host, None)
        self._known[host] = (address, until)
        if len(self._known) > HOSTS_MAX:
            del self._known[next(iter(self._known))]
