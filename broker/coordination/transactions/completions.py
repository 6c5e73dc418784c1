"""Callers that wait until a transaction is complete, which is soon: its markers are being written.

A client that is answered CONCURRENT_TRANSACTIONS comes again after a pause of its own, 20 ms in librdkafka and Apache
Kafka's Java client, however soon the transaction is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Completions:
    """As many callers as there are requests: connections, and the replies that each may wait for, bound both."""

    def __init__(self) -> None:
        self._awaited: dict[str, dict[asyncio.Future[None], None]] = {}

    def __len__(self) -> int:
        """How many callers wait."""
        return sum(map(len, self._awaited.values()))

    def next_of(self, transactional_id: str) -> asyncio.Future[None]:
        """Done when the id's transaction is complete. Call `drop` in any case."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(transactional_id, {})[future] = None
        return future

    def drop(self, transactional_id: str, future: asyncio.Future[None]) -> None:
        """The caller does not wait any more."""
        waiting = self._awaited.get(transactional_id, {})
        waiting.pop(future, None)
        if not waiting:
            self._awaited.pop(transactional_id, None)

    def completed(self, transactional_ids: Iterable[str]) -> None:
        """The transactions of these ids are recorded as complete."""
        for transactional_id in transactional_ids:
            for future in self._awaited.pop(transactional_id, ()):
                if not future.done():
                    future.set_result(None)
