"""An object store that is opened when it is first asked: a broker starts whether or not its store can be reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from object_store.errors import StoreError
from object_store.store import Body, ObjectInfo, ObjectStore

OpenStore = Callable[[str], Awaitable[ObjectStore]]


class LateStore:
    """An `ObjectStore`. While it cannot be opened each call fails as the opening does, and tries again."""

    def __init__(self, uri: str, name: str, open_store: OpenStore) -> None:
        self._uri = uri
        self._name = name
        self._open = open_store
        self._store: ObjectStore | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    @property
    def name(self) -> str:
        return self._name

    async def opened(self) -> ObjectStore:
        """Raises StoreError."""
        if self._store is None:
            async with self._opening:
                if self._is_closed:
                    raise StoreError(self._name, "open", "", "it was closed")
                if self._store is None:
                    self._store = await self._open(self._uri)
        return self._store

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        return await (await self.opened()).put(key, body, create_only=create_only)

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        return await (await self.opened()).replace(key, body, expected_version)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return await (await self.opened()).get(key, start, length)

    async def get_with_version(self, key: str) -> tuple[bytes, str]:
        return await (await self.opened()).get_with_version(key)

    async def head(self, key: str) -> ObjectInfo:
        return await (await self.opened()).head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await (await self.opened()).delete(keys)

    async def copy(self, source: str, target: str) -> None:
        await (await self.opened()).copy(source, target)

    async def sweep_unfinished(self, before_ms: int) -> int:
        return await (await self.opened()).sweep_unfinished(before_ms)

    async def list_names(self, prefix: str) -> list[str]:
        return await (await self.opened()).list_names(prefix)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in (await self.opened()).list(prefix, start_after=start_after):
            yield info

    async def close(self) -> None:
        async with self._opening:
            self._is_closed = True
            store, self._store = self._store, None
        if store is not None:
            await store.close()
