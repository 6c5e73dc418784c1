"""A node's connection to another node: calls with timeouts, several in flight, and raw frames for hot loops."""

from __future__ import annotations

from typing import Any

from common.ports import Address, Ports
from wire.buffers import BufferPool
from wire.connection import ClosedHandler, FrameHandler
from wire.outgoing import Part
from wire.tick import Tick
from wire.watch import Watch


class ConnectionLost(ConnectionError):
    """The connection was refused, closed or broken; whether a call that was sent took effect is not known."""


class CallTimeout(TimeoutError):
    """No answer in time; the call may have taken effect, and its late answer is dropped."""


class ClientConnection:
    """Make one with `connect`. Calls are answered in order by the peer; each has its own timeout."""

    @classmethod
    async def connect(
        cls,
        ports: Ports,
        address: Address,
        tick: Tick,
        pool: BufferPool,
        watch: Watch,
        *,
        client_id: str,
        secret: bytes | None = None,
        cluster: str = "",
        timeout_s: float = 5.0,
        response_bytes_max: int = 128 << 20,
        in_flight_max: int = 1000,
        frames: FrameHandler | None = None,
        closed: ClosedHandler | None = None,
    ) -> ClientConnection:
        """Connect and, with a `secret`, prove both sides. Raises ConnectionLost (also when the peer fails the proof).

        `frames` gets the answers of `send_frame` where they lie, from the correlation id on; MalformedFrame out of
        it closes the connection. `closed` is called once when the connection ends.
        """
        raise NotImplementedError

    @property
    def is_closed(self) -> bool:
        raise NotImplementedError

    def next_correlation(self) -> int:
        """A fresh correlation id, for `send_frame`."""
        raise NotImplementedError

    async def call(self, request: Any, version: int, timeout_s: float) -> Any:
        """Send a schema request (from `wire.messages`) and return its response.

        Raises CallTimeout, ConnectionLost, MalformedFrame (the answer is garbled; the connection closes).
        """
        raise NotImplementedError

    def send_frame(self, correlation: int, parts: list[Part]) -> None:
        """Send a whole request frame; its answer goes to `frames`. Raises ConnectionLost when closed."""
        raise NotImplementedError

    def close(self) -> None:
        """Close; pending calls fail with ConnectionLost. Idempotent."""
        raise NotImplementedError
