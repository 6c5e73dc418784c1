"""An HTTP proxy before an S3 server that spoils the requests it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit


class Request(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Spoil = Callable[[Request], str | None]
"""What happens to a request: None lets it pass; see `FaultyProxy._answer` for the words."""


@dataclass
class FaultyProxy:
    """`spoil` is asked once for each request. `requests` are all that came, with their fates."""

    server_url: str
    spoil: Spoil = lambda _: None
    requests: list[tuple[Request, str | None]] = field(default_factory=list)
    stalled: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """From here on `url` is to be used instead of the server's."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=2**20)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def seen(self, method: str) -> list[str | None]:
        """The fates of the requests of one method."""
        return [fate for request, fate in self.requests if request.method == method]

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            del self._tasks[task]
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        start, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
        if headers.get("expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, target, _ = start.split(" ")
        request = Request(method, target, headers, body)
        fate = self.spoil(request)
        self.requests.append((request, fate))
        return await self._answer(request, fate, writer)

    async def _answer(self, request: Request, fate: str | None, writer: asyncio.StreamWriter) -> bool:
        if fate == "drop":
            return False
        if fate == "stall":
            self.stalled.set()
            await asyncio.Event().wait()
        if fate is not None and fate[0].isdigit():  # "503 SlowDown": an answer in the server's stead
            status, _, code = fate.partition(" ")
            text = f"<Error><Code>{code}</Code><Message>hunter2</Message></Error>".encode()
            if request.method == "HEAD":
                text = b""
            writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
            await writer.drain()
            return True
        head, body = await self._forward(request)
        if fate == "lose answer":
            return False
        if fate == "cut":
            writer.write(head + body[: len(body) // 2])
            await writer.drain()
            return False
        if fate == "shorten":  # a server whose object is shorter than it says in Content-Range
            body = body[:-3]
            head = _with_length(head, len(body))
        if fate == "alter":
            body = body[:-1] + bytes([body[-1] ^ 1])
        writer.write(head + body)
        await writer.drain()
        return True

    async def _forward(self, request: Request) -> tuple[bytes, bytes]:
        """(head, body) of the server's answer."""
        place = urlsplit(self.server_url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=2**20)
        try:
            kept = {name: text for name, text in request.headers.items() if name != "expect"}
            lines = [f"{request.method} {request.target} HTTP/1.1", *[f"{name}: {text}" for name, text in kept.items()]]
            writer.write("\r\n".join([*lines, "", ""]).encode() + request.body)
            head = await reader.readuntil(b"\r\n\r\n")
            headers = _parse_head(head)[1]
            length = 0 if request.method == "HEAD" else int(headers.get("content-length", 0))
            return head, await reader.readexactly(length)
        finally:
            writer.close()


def _parse_head(head: bytes) -> tuple[str, dict[str, str]]:
    start, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    return start, {name.lower(): text.strip() for name, _, text in pairs}


def _with_length(head: bytes, length: int) -> bytes:
    lines = head.rstrip(b"\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(b"content-length:")]
    return b"\r\n".join([*kept, f"Content-Length: {length}".encode(), b"", b""])
