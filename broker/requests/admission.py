"""Limits how many long requests are in memory in decoded form, in all and per client.

A frame is bytes, which the connections' limits bound; its decoded form takes many times that. So long requests wait as
bytes: one of each client is decoded at a time, few in all, and clients take turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

LONG_REQUESTS_MAX = 4  # of all clients, decoded or being decoded


class Admission:
    """The places for decoded long requests."""

    def __init__(self, places: int = LONG_REQUESTS_MAX) -> None:
        self._free = places
        self._inside: dict[Hashable, None] = {}
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def place(self, client: Hashable) -> AsyncIterator[None]:
        """Wait for a place for `client`, and hold it until the block ends."""
        if not self._free or client in self._inside or self._waiting:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(client, deque()).append(turn)
            self._admit()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave(client)
                raise
        else:
            self._enter(client)
        try:
            yield
        finally:
            self._leave(client)

    def _enter(self, client: Hashable) -> None:
        self._free -= 1
        self._inside[client] = None

    def _leave(self, client: Hashable) -> None:
        self._free += 1
        del self._inside[client]
        self._admit()

    def _admit(self) -> None:
        """Admit as many requests as there are free places, clients in the order of arrival."""
        for client in list(self._waiting):
            if not self._free:
                return
            if client in self._inside:
                continue
            line = self._waiting.pop(client)
            while line and line[0].done():  # cancelled
                line.popleft()
            if line:
                self._enter(client)
                line.popleft().set_result(None)
            if line:
                self._waiting[client] = line
