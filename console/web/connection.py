"""A browser's connection, bounded: how many there are, and how long each may take to ask and to read.

The server library waits without end for a request that never becomes whole, and for a reader that never reads. So a few
silent clients would keep everybody else out.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX, OF_AN_ADDRESS_MAX = 512, 256
ASK_S = 15.0
READ_S = 30.0


class BoundedConnection(H11Protocol):
    """One too many is closed at once."""

    _asking: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = _address(self)
        if len(self.connections) > CONNECTIONS_MAX or (
            sum(_address(one) == address for one in self.connections) > OF_AN_ADDRESS_MAX
        ):
            transport.abort()
            return
        self._begin_asking()

    def data_received(self, data: bytes) -> None:
        if not self._has_request:
            self._begin_asking()
        super().data_received(data)
        if self._has_request:
            self._end_asking()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reading is None:
            self._reading = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_asking()
        self._end_reading()
        super().connection_lost(exc)

    @property
    def _has_request(self) -> bool:
        """One that is whole but for its body, and not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _begin_asking(self) -> None:
        if self._asking is None:
            self._asking = self.loop.call_later(ASK_S, self.transport.abort)

    def _end_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


def _address(connection: object) -> str:
    client = getattr(connection, "client", None)
    return client[0] if client else ""
