"""A client beside the nodes of a laboratory, on their loop."""

from __future__ import annotations

import asyncio
from typing import Any

from common.ports import Address, Ports
from wire.buffers import BufferPool
from wire.client import RESPONSE_ELEMENTS_MAX, ClientConnection, ConnectionLost
from wire.codec import decode_response, encode_request
from wire.connection import Connection
from wire.outgoing import Part
from wire.primitives import INT32
from wire.tick import Tick
from wire.watch import Watch

CLIENT_ID = "lab"


class LabClient:
    """Decodes an answer in the task that called, so that its work is not taken for a node's."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    @classmethod
    async def connect(
        cls, ports: Ports, address: Address, tick: Tick, pool: BufferPool, watch: Watch, secret: bytes | None = None
    ) -> LabClient:
        """Raises ConnectionLost."""
        client = cls()
        await client.open(ports, address, tick, pool, watch, secret)
        return client

    async def open(
        self, ports: Ports, address: Address, tick: Tick, pool: BufferPool, watch: Watch, secret: bytes | None
    ) -> None:
        self._connection = await ClientConnection.connect(
            ports, address, tick, pool, watch, client_id=CLIENT_ID, secret=secret,
            frames=self._arrived, closed=self._closed,
        )  # fmt: skip

    async def call(self, request: Any, version: int, timeout_s: float) -> Any:
        """Send a schema request and return its response. Raises TimeoutError, ConnectionLost."""
        correlation = self.next_correlation()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        frame = encode_request(request, version, correlation, CLIENT_ID)
        self._waiting[correlation] = answer
        try:
            self.send_frame(correlation, [frame])
            async with asyncio.timeout(timeout_s):
                data = await answer
        finally:
            self._waiting.pop(correlation, None)
        return decode_response(request.API_KEY, version, data, RESPONSE_ELEMENTS_MAX)[1]

    def next_correlation(self) -> int:
        return self._connection.next_correlation()

    def send_frame(self, correlation: int, parts: list[Part]) -> None:
        """Send a whole request frame, whose answer nobody reads."""
        self._connection.send_frame(correlation, parts)

    @property
    def is_closed(self) -> bool:
        return self._connection.is_closed

    def close(self) -> None:
        self._connection.close()

    def _arrived(self, _: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        answer = self._waiting.get(INT32.unpack_from(buffer, at)[0])
        if answer is not None and not answer.done():
            answer.set_result(bytes(view[at:end]))

    def _closed(self, connection: Connection) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(f"{connection.peer} closed"))
