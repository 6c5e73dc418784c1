"""`python -m bench.proxy.backend PORT`: a neutral stand-in for a broker.

It passes over a PROXY header and a ClientHello at the start, then answers each frame `length, reply length, filler`
with a reply of the length that was asked for. Both proxies of a row have the same one behind them.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import cast

import uvloop

_FRAME = struct.Struct(">II")
_PROXY_START, _HELLO_START = b"\r\n\r\n", b"\x16\x03"


class Backend(asyncio.BufferedProtocol):
    """One connection; replies of one size are one shared object."""

    def __init__(self, room: memoryview, replies: dict[int, bytes]) -> None:
        self._room, self._replies = room, replies
        self._head = b""
        self._passing = self._answer = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        at = 0
        while at < nbytes:
            if self._passing:
                step = min(self._passing, nbytes - at)
                self._passing -= step
                at += step
                if not self._passing:
                    self._reply()
                continue
            wanted = 16 if self._head[:4] == _PROXY_START else 8
            take = min(wanted - len(self._head), nbytes - at)
            self._head += self._room[at : at + take]
            at += take
            if len(self._head) >= 8 and (len(self._head) == 16 or self._head[:4] != _PROXY_START):
                self._begin(self._head)
                self._head = b""

    def _begin(self, head: bytes) -> None:
        if head[:4] == _PROXY_START:
            self._passing, self._answer = int.from_bytes(head[14:16], "big"), 0
        elif head[:2] == _HELLO_START:
            self._passing, self._answer = 5 + int.from_bytes(head[3:5], "big") - len(head), 0
        else:
            length, self._answer = _FRAME.unpack(head)
            self._passing = length - len(head)
        if not self._passing:
            self._reply()

    def _reply(self) -> None:
        size, self._answer = self._answer, 0
        if size and self._transport is not None:
            if size not in self._replies:
                self._replies[size] = bytes(size)
            self._transport.write(self._replies[size])


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    room, replies = memoryview(bytearray(256 * 1024)), dict[int, bytes]()
    server = await loop.create_server(lambda: Backend(room, replies), "127.0.0.1", port, backlog=4096)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
