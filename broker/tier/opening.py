"""An object store that is opened on first use, so that a broker starts even if its store cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from common.ports import Clock, File
from object_store.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable
from object_store.store import Body, ObjectInfo, ObjectStore

OpenStore = Callable[[str], Awaitable[ObjectStore]]
_TROUBLE = (StoreUnavailable, StoreDenied, StoreFull)


class StoreHealth(Struct):
    """Result of the last calls. `since_ms`: wall time since when calls fail, 0 if they succeed. If only writes fail, it
    is reset by a successful write."""

    since_ms: int = 0
    reason: str = ""
    writes_fail: bool = False


class LateStore:
    """An `ObjectStore`. While it cannot be opened, each call retries the opening and fails with its error."""

    def __init__(self, uri: str, name: str, open_store: OpenStore, clock: Clock) -> None:
        self.health = StoreHealth()
        self._uri = uri
        self._name = name
        self._open = open_store
        self._clock = clock
        self._store: ObjectStore | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    @property
    def name(self) -> str:
        return self._name

    async def opened(self) -> ObjectStore:
        """Raises StoreError."""
        if self._store is None:
            with self._watched(writes=False):
                async with self._opening:
                    if self._is_closed:
                        raise StoreError(self._name, "open", "", "it was closed")
                    if self._store is None:
                        self._store = await self._open(self._uri)
        return self._store

    @contextmanager
    def _watched(self, *, writes: bool) -> Iterator[None]:
        """Track store errors; any other exception shows that the store answers. The trouble begins with the start of
        the failing call, which may retry for minutes."""
        began_ms = self._clock.wall_ms()
        try:
            yield
        except _TROUBLE as error:
            since_ms = self.health.since_ms or began_ms
            self.health = StoreHealth(since_ms, error.reason, self.health.writes_fail or writes)
            raise
        except StoreError:
            self._answered(writes)
            raise
        self._answered(writes)

    def _answered(self, writes: bool) -> None:
        if self.health.since_ms and (writes or not self.health.writes_fail):
            self.health = StoreHealth()

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        store = await self.opened()
        with self._watched(writes=True):
            return await store.put(key, body, create_only=create_only)

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        store = await self.opened()
        with self._watched(writes=True):
            return await store.replace(key, body, expected_version)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        store = await self.opened()
        with self._watched(writes=False):
            return await store.get(key, start, length)

    async def get_with_version(self, key: str) -> tuple[bytes, str]:
        store = await self.opened()
        with self._watched(writes=False):
            return await store.get_with_version(key)

    async def head(self, key: str) -> ObjectInfo:
        store = await self.opened()
        with self._watched(writes=False):
            return await store.head(key)

    async def lend(self, key: str, start: int = 0, length: int = 0) -> File | None:
        store = await self.opened()
        with self._watched(writes=False):
            return await store.lend(key, start, length)

    async def delete(self, keys: Sequence[str]) -> None:
        store = await self.opened()
        with self._watched(writes=True):
            await store.delete(keys)

    async def copy(self, source: str, target: str) -> None:
        store = await self.opened()
        with self._watched(writes=True):
            await store.copy(source, target)

    async def sweep_unfinished(self, before_ms: int) -> int:
        return await (await self.opened()).sweep_unfinished(before_ms)

    async def list_names(self, prefix: str) -> list[str]:
        store = await self.opened()
        with self._watched(writes=False):
            return await store.list_names(prefix)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in (await self.opened()).list(prefix, start_after=start_after):
            yield info

    async def close(self) -> None:
        async with self._opening:
            self._is_closed = True
            store, self._store = self._store, None
        if store is not None:
            await store.close()
