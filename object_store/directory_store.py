"""An object store in a local directory: `file:///path`. The blocking calls run in the store's own threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from common.machine_disk import MachineFile
from common.ports import File
from object_store.directory_files import Cancellation, DirectoryFiles
from object_store.errors import StoreUnavailable
from object_store.file_copying import SystemCalls
from object_store.limits import StoreLimits
from object_store.store import Body, ObjectInfo, check_key, check_listing_prefix, check_range

T = TypeVar("T")


class DirectoryStore:
    """Several processes may share the directory.

    Reads end within `limits.file_timeout_s`. A write is waited for while it makes progress, even when cancelled,
    because its thread reads the caller's files. After `limits.file_silence_s` without progress (a network file system
    may hang for ever) it is given up; if its thread wakes up later, it makes no object. The pool is not the event
    loop's, so a slow store delays no fsync of a log.
    """

    def __init__(self, root: str, limits: StoreLimits, calls: SystemCalls | None = None) -> None:
        self.name = f"file://{root}"
        self._limits = limits
        self._files = DirectoryFiles(root, self.name, limits.lock_timeout_s, calls or SystemCalls())
        self._pool = ThreadPoolExecutor(limits.file_threads, thread_name_prefix="object-store")
        self._closed = False
        self._running: dict[asyncio.Future[Any], None] = {}

    async def open(self, *, create: bool = True) -> None:
        """Raises StoreDenied when the directory is missing and `create` is false, or it cannot be made."""
        await self._read("open", "", lambda: self._files.prepare(create))

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        check_key(self.name, "put", key)
        cancelled = Cancellation()
        return await self._write("put", key, lambda: self._files.put(key, body, create_only, cancelled), cancelled)

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        check_key(self.name, "replace", key)
        cancelled = Cancellation()
        return await self._write(
            "replace", key, lambda: self._files.replace(key, body, expected_version, cancelled), cancelled
        )

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_key(self.name, "get", key)
        check_range(start, length)
        return (await self._read("get", key, lambda: self._files.get(key, start, length)))[0]

    def begin_get(self, key: str, start: int = 0, length: int | None = None) -> ComingBytes:
        """`get` for plain threads, without an event loop between the caller and the reading thread."""
        check_key(self.name, "get", key)
        check_range(start, length)
        try:
            reading = self._pool.submit(self._files.get, key, start, length)
        except RuntimeError:
            raise StoreUnavailable(self.name, "get", key, "the store is closed") from None
        return ComingBytes(self.name, key, reading, self._limits.file_timeout_s)

    async def get_with_version(self, key: str) -> tuple[bytes, str]:
        check_key(self.name, "get", key)
        data, info = await self._read("get", key, lambda: self._files.get(key, 0, None))
        return data, info.version

    async def head(self, key: str) -> ObjectInfo:
        check_key(self.name, "head", key)
        return await self._read("head", key, lambda: self._files.head(key))

    async def lend(self, key: str, start: int = 0, length: int = 0) -> File | None:
        check_key(self.name, "lend", key)
        own = self._limits.own_directory
        if not own:
            return None
        lent = self._submit("lend", key, lambda: self._files.lend(key, own, start, length))
        try:
            return await self._in_time("lend", key, asyncio.shield(lent))
        except BaseException:
            lent.add_done_callback(_give_back)  # the caller was cancelled
            raise

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(self.name, "delete", key)
        progress = Cancellation()
        await self._write("delete", "", lambda: self._files.delete(keys, progress), progress)

    async def copy(self, source: str, target: str) -> None:
        check_key(self.name, "copy", source)
        check_key(self.name, "copy", target)
        cancelled = Cancellation()
        await self._write("copy", source, lambda: self._files.copy(source, target, cancelled), cancelled)

    async def sweep_unfinished(self, before_ms: int) -> int:
        progress = Cancellation()
        return await self._write("sweep", "", lambda: self._files.sweep(before_ms, progress), progress)

    async def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._running:
            await asyncio.wait(list(self._running), timeout=self._limits.file_close_s)

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
        work = asyncio.get_running_loop().run_in_executor(self._pool, call)
        self._running[work] = None
        work.add_done_callback(lambda done: self._running.pop(done, None))
        return work

    async def _read(self, operation: str, key: str, call: Callable[[], T]) -> T:
        return await self._in_time(operation, key, self._submit(operation, key, call))

    async def _in_time(self, operation: str, key: str, read: asyncio.Future[T]) -> T:
        try:
            async with asyncio.timeout(self._limits.file_timeout_s):
                return await read
        except TimeoutError:
            raise _no_answer(self.name, operation, key, self._limits.file_timeout_s) from None

    async def _write(self, operation: str, key: str, call: Callable[[], T], cancelled: Cancellation) -> T:
        work = self._submit(operation, key, call)
        try:
            if await self._gets_on(work, cancelled):
                return work.result()
        except asyncio.CancelledError:
            cancelled.asked = True
            while not work.done():
                try:
                    if not await self._gets_on(work, cancelled):
                        break
                except asyncio.CancelledError:  # cancelled again; the write still ends first
                    continue
            _give_up(work)
            raise
        cancelled.asked = True
        _give_up(work)
        reason = f"no progress within {self._limits.file_silence_s:g} s: the file system hangs"
        raise StoreUnavailable(self.name, operation, key, reason)

    async def _gets_on(self, work: asyncio.Future[T], progress: Cancellation) -> bool:
        """Wait for the end of `work`; False when it makes no progress."""
        while True:
            steps = progress.steps
            done, _ = await asyncio.wait([work], timeout=self._limits.file_silence_s)
            if done or progress.steps == steps:
                return bool(done)


class ComingBytes:
    """A read that `DirectoryStore.begin_get` started."""

    def __init__(self, store: str, key: str, reading: Future[tuple[bytes, ObjectInfo]], timeout_s: float) -> None:
        self._store, self._key, self._reading, self._timeout_s = store, key, reading, timeout_s

    def result(self) -> bytes:
        """Block at most `timeout_s`. Raises StoreError."""
        try:
            return self._reading.result(self._timeout_s)[0]
        except TimeoutError:
            self._reading.cancel()
            raise _no_answer(self._store, "get", self._key, self._timeout_s) from None
        except CancelledError:
            raise StoreUnavailable(self._store, "get", self._key, "the store is closed") from None

    def cancel(self) -> None:
        self._reading.cancel()


def _no_answer(store: str, operation: str, key: str, timeout_s: float) -> StoreUnavailable:
    return StoreUnavailable(store, operation, key, f"no answer within {timeout_s:g} s")


def _give_up(work: asyncio.Future[Any]) -> None:
    """Discard the outcome of `work`."""
    if not work.cancel() and not work.cancelled():
        work.exception()


def _give_back(lent: asyncio.Future[MachineFile | None]) -> None:
    if not lent.cancelled() and lent.exception() is None and (file := lent.result()) is not None:
        file.close()
