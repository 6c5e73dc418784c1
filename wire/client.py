"""A node's connection to another node: calls with timeouts, several in flight, and raw frames for hot loops."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

from common.errors import MalformedFrame
from common.node_settings.connections import ConnectionSettings
from common.ports import Address, Ports, Socket
from wire.buffers import BufferPool
from wire.codec import decode_response, encode_request
from wire.connection import ClosedHandler, Connection, FrameHandler
from wire.messages import Request
from wire.node_auth import CHALLENGE_BYTES, AuthenticationFailed, Initiator
from wire.outgoing import Part
from wire.primitives import INT32
from wire.tick import Tick
from wire.watch import Watch

RESPONSE_ELEMENTS_MAX = 4_000_000  # from our own nodes: all partitions of a large cluster
_CORRELATION_MAX = 2**31 - 1

R = TypeVar("R")


class ConnectionLost(ConnectionError):
    """The connection was refused, closed or broken. A call that was sent may have taken effect."""


class CallTimeout(TimeoutError):
    """No response in time. The call may have taken effect, and its late response is dropped."""


class TooManyCalls(Exception):
    """The limit of requests in flight is reached; this request was not sent."""


class _Flight:
    """One request in flight. `future` is None for a raw frame, whose response goes to the frame handler."""

    __slots__ = ("api_key", "correlation", "future", "version")

    def __init__(self, correlation: int, api_key: int, version: int, future: asyncio.Future[Any] | None) -> None:
        self.correlation = correlation
        self.api_key = api_key
        self.version = version
        self.future = future


class ClientConnection:
    """Created by `connect`. The peer responds in order; each call has its own timeout.

    A timed out call keeps its place until its response arrives, so that `in_flight_max` bounds all memory here.
    """

    def __init__(
        self,
        socket: Socket,
        tick: Tick,
        pool: BufferPool,
        watch: Watch,
        client_id: str,
        limits: ConnectionSettings,
        in_flight_max: int,
        frames: FrameHandler | None,
        closed: ClosedHandler | None,
    ) -> None:
        self._client_id = client_id
        self._frames = frames
        self._closed_handler = closed
        self._flights: deque[_Flight] = deque()
        self._in_flight_max = in_flight_max
        self._correlation = 0
        self._reason = "closed by the peer"
        self._ready: asyncio.Future[bytes] | None = None
        self._connection = Connection(
            socket, tick, pool, watch, self._response, self._closed, self._violated, limits
        )  # fmt: skip

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
        """Connect and, with a `secret`, authenticate both sides. Raises ConnectionLost (also if that fails).

        `frames` gets the responses to `send_frame` in the receive buffer, from the correlation id on. If it raises
        MalformedFrame, the connection closes. `closed` is called once when a connection returned here ends.
        """
        limits = ConnectionSettings(frame_bytes_max=response_bytes_max, idle_s=0)
        client: ClientConnection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                socket = await ports.network.connect(address)
                client = cls(socket, tick, pool, watch, client_id, limits, in_flight_max, frames, None)
                if secret is not None:
                    await client._prove(Initiator(secret, cluster, ports.random))
        except BaseException as error:
            if client is not None:
                client.close()
            if isinstance(error, ConnectionLost):
                raise
            if isinstance(error, TimeoutError):
                raise ConnectionLost(f"{_text(address)}: no connection within {timeout_s:g} s") from error
            if isinstance(error, (OSError, AuthenticationFailed)):
                raise ConnectionLost(f"{_text(address)}: {error}") from error
            raise
        if client.is_closed:
            raise ConnectionLost(f"{_text(address)}: {client._reason}")
        client._closed_handler = closed
        return client

    async def _prove(self, initiator: Initiator) -> None:
        """Perform the handshake of `wire.node_auth`; requests may follow the proof at once."""
        connection = self._connection
        limit = connection.frame_bytes_max
        connection.hand_to(self._challenge, CHALLENGE_BYTES)
        self._ready = asyncio.get_running_loop().create_future()
        hello = initiator.hello()
        connection.send([INT32.pack(len(hello)) + hello])
        proof = initiator.prove(await self._ready)
        connection.send([INT32.pack(len(proof)) + proof])
        connection.hand_to(self._response, limit)

    def _challenge(self, connection: Connection, _: bytearray, view: memoryview, at: int, end: int) -> None:
        connection.hand_to(self._response, CHALLENGE_BYTES)
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(bytes(view[at:end]))

    @property
    def is_closed(self) -> bool:
        return self._connection.is_closed

    @property
    def peer(self) -> Address:
        return self._connection.peer

    def next_correlation(self) -> int:
        """A fresh correlation id, for `send_frame`."""
        self._correlation = self._correlation + 1 if self._correlation < _CORRELATION_MAX else 1
        return self._correlation

    async def call(self, request: Request[R], version: int, timeout_s: float) -> R:
        """Send a schema request (from `wire.messages`) and return its response.

        Raises CallTimeout, ConnectionLost, TooManyCalls, MalformedFrame (a garbled answer; the connection closes).
        """
        correlation = self.next_correlation()
        frame = encode_request(request, version, correlation, self._client_id)
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._send(_Flight(correlation, request.API_KEY, version, future), [frame])
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise CallTimeout(
                f"{_text(self.peer)}: no answer to {type(request).__name__} within {timeout_s:g} s"
            ) from error

    def send_frame(self, correlation: int, parts: list[Part]) -> None:
        """Send a whole request frame; its response goes to `frames`. Raises ConnectionLost, TooManyCalls."""
        self._send(_Flight(correlation, -1, 0, None), parts)

    def _send(self, flight: _Flight, parts: list[Part]) -> None:
        if self._connection.is_closed:
            raise ConnectionLost(f"{_text(self.peer)}: {self._reason}")
        if len(self._flights) >= self._in_flight_max:
            raise TooManyCalls(f"{_text(self.peer)}: {self._in_flight_max} requests in flight")
        self._flights.append(flight)
        self._connection.send(parts)

    def _response(self, connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        if end - at < INT32.size:
            raise MalformedFrame("response header")
        (correlation,) = INT32.unpack_from(buffer, at)
        if not self._flights or self._flights[0].correlation != correlation:
            raise MalformedFrame(f"unexpected correlation id {correlation}")
        flight = self._flights.popleft()
        future = flight.future
        if future is None:
            if self._frames is None:
                raise MalformedFrame("answer to a raw frame without a handler")
            self._frames(connection, buffer, view, at, end)
            return
        if future.done():  # timed out or cancelled
            return
        try:
            _, message = decode_response(flight.api_key, flight.version, view[at:end], RESPONSE_ELEMENTS_MAX)
        except MalformedFrame as error:
            future.set_exception(error)
            raise
        future.set_result(message)

    def _violated(self, _: Connection, reason: str) -> None:
        self._reason = reason

    def _closed(self, connection: Connection) -> None:
        lost = f"{_text(connection.peer)}: {self._reason}"
        flights, self._flights = self._flights, deque()
        for flight in flights:
            if flight.future is not None and not flight.future.done():
                flight.future.set_exception(ConnectionLost(lost))
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(ConnectionLost(lost))
        if self._closed_handler is not None:
            self._closed_handler(connection)

    def close(self) -> None:
        """Close; pending calls fail with ConnectionLost. Idempotent."""
        if not self._connection.is_closed:
            self._reason = "closed"
        self._connection.close()


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
