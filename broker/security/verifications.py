"""Checks of passwords and tokens in threads: few at a time, bounded in all and per address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.security.exchange import Authenticated
from common.queue_time import QueueTime


class TooManyVerifications(Exception):
    """The queue is full, or this address has used its share of it."""


class Verifications:
    """At most `at_once` checks run; at most `queue_max` wait or run, `per_address_max` of them from one address."""

    def __init__(self, at_once: int, queue_max: int, per_address_max: int, now: Callable[[], float]) -> None:
        """`now` is in seconds."""
        self._at_once = at_once
        self._waiting = QueueTime(now)
        self._turns = asyncio.Semaphore(at_once)
        self._queue_max = queue_max
        self._per_address_max = per_address_max
        self._of_address: dict[str, int] = {}
        self.queued = 0

    @property
    def waited_s(self) -> float:
        """Seconds that all checks have waited for their turn, added up."""
        return self._waiting.seconds

    async def run(self, address: str, work: Callable[[], Authenticated]) -> Authenticated:
        """Run `work` in a thread. Raises TooManyVerifications at once, or what `work` raises."""
        mine = self._of_address.get(address, 0)
        if self.queued >= self._queue_max or mine >= self._per_address_max:
            raise TooManyVerifications
        self._of_address[address] = mine + 1
        self._count(1)
        try:
            async with self._turns:
                return await asyncio.to_thread(work)
        finally:
            self._count(-1)
            left = self._of_address[address] - 1
            if left:
                self._of_address[address] = left
            else:
                del self._of_address[address]

    def _count(self, more: int) -> None:
        self.queued += more
        self._waiting.is_now(max(self.queued - self._at_once, 0))
