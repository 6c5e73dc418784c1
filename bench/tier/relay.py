"""A TCP relay before an object store that can make the store silent, or refuse it, and let it back.

It runs on a thread of the benchmark's own process: no node of the cluster knows of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any

READ_BYTES = 1 << 18


class StoreState(StrEnum):
    UP = "up"
    SILENT = "silent"  # connections are taken, and nothing is ever read or answered
    REFUSING = "refusing"  # nobody listens, open connections are reset


class Relay:
    """`with Relay(port) as relay`: `relay.port` leads to `port` while the state is UP."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.port = 0

    def __enter__(self) -> Relay:
        self._thread.start()
        self._call(self._listen())
        self._loop.call_soon_threadsafe(self._open.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def become(self, state: StoreState) -> None:
        self._call(self._become(state))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port, limit=READ_BYTES)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _become(self, state: StoreState) -> None:
        if state is StoreState.REFUSING:
            self._refuse()
            return
        if state is StoreState.UP:
            self._reset()  # what hung has lost bytes
            self._open.set()
        else:
            self._open.clear()
        await self._listen()

    def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._reset()

    def _reset(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _end(self) -> None:
        self._refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        self._writers[writer] = None
        with contextlib.suppress(OSError):
            try:
                await self._open.wait()
                onwards, back = await asyncio.open_connection("127.0.0.1", self._target, limit=READ_BYTES)
                self._writers[back] = None
                try:
                    await asyncio.gather(self._pump(reader, back), self._pump(onwards, writer))
                finally:
                    back.transport.abort()
                    self._writers.pop(back, None)
            finally:
                self._writers.pop(writer, None)
                writer.transport.abort()
                del self._tasks[task]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
