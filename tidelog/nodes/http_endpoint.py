"""The small HTTP server of every node: /metrics, /healthz and /readyz.

Health means that the process works, readiness that it serves. The server answers one GET per connection, with bounds on
size and time. It is for operators and orchestrators, on loopback by default.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from common.metrics import Metrics

REQUEST_BYTES_MAX = 8_192
REQUEST_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 32


class HttpEndpoint:
    """`ready` returns None when the node serves, else why it does not; `healthy` likewise for the process."""

    def __init__(self, metrics: Metrics, ready: Callable[[], str | None], healthy: Callable[[], str | None]) -> None:
        self._metrics = metrics
        self._ready = ready
        self._healthy = healthy
        self._server: asyncio.Server | None = None
        self._open = 0
        self.address = ("", 0)

    async def start(self, host: str, port: int) -> None:
        """Raises OSError when the address cannot be bound."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        name = self._server.sockets[0].getsockname()
        self.address = (name[0], name[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    await asyncio.to_thread(self._metrics.prepare)
                    writer.write(await self._answer(head))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"only GET is served here\n")
        path = words[1].split(b"?")[0]
        if path == b"/metrics":
            return _response("200 OK", await self._page(), "text/plain; version=0.0.4; charset=utf-8")
        if path in (b"/healthz", b"/readyz"):
            problem = self._healthy() if path == b"/healthz" else self._ready()
            if problem is None:
                return _response("200 OK", b"ok\n")
            return _response("503 Service Unavailable", problem.encode() + b"\n")
        return _response("404 Not Found", b"/metrics, /healthz and /readyz are served here\n")

    async def _page(self) -> bytes:
        pieces: list[bytes] = []
        for piece in self._metrics.pieces():
            pieces.append(piece)
            await asyncio.sleep(0)
        return b"".join(pieces)


def _response(status: str, body: bytes, content_type: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
