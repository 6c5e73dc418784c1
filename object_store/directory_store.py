"""An object store in a local directory: `file:///path`. The calls block, so they run in threads of the store's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from object_store.directory_files import Cancellation, DirectoryFiles
from object_store.errors import StoreUnavailable
from object_store.limits import StoreLimits
from object_store.outlasting import outlast
from object_store.store import Body, ObjectInfo, check_key, check_listing_prefix, check_range

T = TypeVar("T")


class DirectoryStore:
    """Several processes may share the directory.

    Reads end within `limits.file_timeout_s`. Writes are waited for, also when cancelled: their thread reads the
    caller's files. The pool is not the event loop's, so a slow store's disk delays no fsync of a log.
    """

    def __init__(self, root: str, limits: StoreLimits) -> None:
        self.name = f"file://{root}"
        self._limits = limits
        self._files = DirectoryFiles(root, self.name, limits.lock_timeout_s)
        self._pool = ThreadPoolExecutor(limits.file_threads, thread_name_prefix="object-store")
        self._closed = False

    async def open(self, *, create: bool = True) -> None:
        """Raises StoreDenied when there is no such directory and it is not to be made, or cannot be."""
        await self._read("open", "", lambda: self._files.prepare(create))

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        check_key(self.name, "put", key)
        cancelled = Cancellation()
        return await self._write("put", key, lambda: self._files.put(key, body, create_only, cancelled), cancelled)

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        check_key(self.name, "replace", key)
        return await self._write(
            "replace", key, lambda: self._files.replace(key, body, expected_version), Cancellation()
        )

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_key(self.name, "get", key)
        check_range(start, length)
        return (await self._read("get", key, lambda: self._files.get(key, start, length)))[0]

    async def get_with_version(self, key: str) -> tuple[bytes, str]:
        check_key(self.name, "get", key)
        data, info = await self._read("get", key, lambda: self._files.get(key, 0, None))
        return data, info.version

    async def head(self, key: str) -> ObjectInfo:
        check_key(self.name, "head", key)
        return await self._read("head", key, lambda: self._files.head(key))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(self.name, "delete", key)
        await self._write("delete", "", lambda: self._files.delete(keys), Cancellation())

    async def copy(self, source: str, target: str) -> None:
        check_key(self.name, "copy", source)
        check_key(self.name, "copy", target)
        cancelled = Cancellation()
        await self._write("copy", source, lambda: self._files.copy(source, target, cancelled), cancelled)

    async def sweep_unfinished(self, before_ms: int) -> int:
        return await self._write("sweep", "", lambda: self._files.sweep(before_ms), Cancellation())

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    async def list_names(self, prefix: str) -> list[str]:
        check_listing_prefix(prefix)
        return await self._read("list", prefix, lambda: self._files.list_names(prefix))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        objects = self._files.walk(prefix, start_after)
        while True:
            page = await self._read("list", prefix, lambda: [*islice(objects, self._limits.page_keys)])
            for info in page:
                yield info
            if len(page) < self._limits.page_keys:
                return

    def _submit(self, operation: str, key: str, call: Callable[[], T]) -> asyncio.Future[T]:
        if self._closed:
            raise StoreUnavailable(self.name, operation, key, "the store is closed")
        return asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def _read(self, operation: str, key: str, call: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._limits.file_timeout_s):
                return await self._submit(operation, key, call)
        except TimeoutError:
            reason = f"no answer within {self._limits.file_timeout_s:g} s"
            raise StoreUnavailable(self.name, operation, key, reason) from None

    async def _write(self, operation: str, key: str, call: Callable[[], T], cancelled: Cancellation) -> T:
        def cancel() -> None:
            cancelled.asked = True

        return await outlast(self._submit(operation, key, call), cancel)
