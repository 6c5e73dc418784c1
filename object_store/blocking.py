"""An object store for code without an event loop: Spark's executors and plain scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Protocol, TypeVar

from object_store.directory_store import DirectoryStore
from object_store.errors import StoreError, StoreUnavailable
from object_store.limits import StoreLimits
from object_store.off_loop import OffLoop, OffLoopStopped
from object_store.opening import open_store
from object_store.store import Body, ObjectInfo, ObjectStore
from object_store.uri import StoreUri, parse_uri

T = TypeVar("T")
PAGE_KEYS = 1000


class Coming(Protocol):
    """A read under way."""

    def result(self) -> bytes:
        """Block until the bytes are there. Raises StoreError."""
        ...

    def cancel(self) -> None:
        """Give up the read; `result` is not called afterwards."""
        ...


class _OnLoop:
    def __init__(self, store: str, key: str, call: Future[bytes]) -> None:
        self._store, self._key, self._call = store, key, call

    def result(self) -> bytes:
        try:
            return self._call.result()
        except CancelledError:
            raise StoreUnavailable(self._store, "get", self._key, "the store is closed") from None
        except BaseException:
            self._call.cancel()  # the thread was interrupted
            raise

    def cancel(self) -> None:
        self._call.cancel()


class BlockingStore:
    """The calls of `object_store.store.ObjectStore`, for any thread, each blocking until its end.

    Make it in the process that uses it: its event loop's thread does not survive a fork, and it cannot be pickled.
    `store` is the wrapped store, for coroutines that `wait` runs.
    """

    def __init__(self, uri: str | StoreUri, limits: StoreLimits | None = None, *, create: bool = False) -> None:
        """Raises InvalidStoreUri, StoreDenied. `create` makes the directory of a file:// URI."""
        place = parse_uri(uri) if isinstance(uri, str) else uri
        self.name = place.name
        self._off_loop = OffLoop("object-store-calls")
        try:
            self.store: ObjectStore = self.wait(
                lambda: open_store(place, limits, create=create, off_loop=self._off_loop)
            )
        except BaseException:
            self._off_loop.stop()
            raise

    def __enter__(self) -> BlockingStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop of the store, such as a reader of manifests with `store`."""
        try:
            return self._off_loop.wait(make)
        except OffLoopStopped:
            raise StoreUnavailable(self.name, "call", "", "the store is closed") from None

    def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        return self.wait(lambda: self.store.put(key, body, create_only=create_only))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self.begin_get(key, start, length).result()

    def begin_get(self, key: str, start: int = 0, length: int | None = None) -> Coming:
        """`get`, while the caller does something else."""
        if isinstance(self.store, DirectoryStore):
            return self.store.begin_get(key, start, length)
        try:
            return _OnLoop(self.name, key, self._off_loop.begin(lambda: self.store.get(key, start, length)))
        except OffLoopStopped:
            raise StoreUnavailable(self.name, "get", key, "the store is closed") from None

    def get_with_version(self, key: str) -> tuple[bytes, str]:
        return self.wait(lambda: self.store.get_with_version(key))

    def head(self, key: str) -> ObjectInfo:
        return self.wait(lambda: self.store.head(key))

    def delete(self, keys: Sequence[str]) -> None:
        self.wait(lambda: self.store.delete(keys))

    def list_names(self, prefix: str) -> list[str]:
        return self.wait(lambda: self.store.list_names(prefix))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects ascending by key. Holds one page at a time."""
        objects = self.store.list(prefix, start_after=start_after)

        async def page() -> list[ObjectInfo]:
            infos: list[ObjectInfo] = []
            async for info in objects:
                infos.append(info)
                if len(infos) == PAGE_KEYS:
                    break
            return infos

        while infos := self.wait(page):
            yield from infos
            if len(infos) < PAGE_KEYS:
                return

    def close_within(self, limit_s: float) -> None:
        """Close the connections before the process ends, within `limit_s`. The daemon thread ends with the process.

        Does nothing in a forked process, which has the store without its thread.
        """
        if self._off_loop.runs:
            with contextlib.suppress(OffLoopStopped, CancelledError, TimeoutError, StoreError):
                self._off_loop.begin(self.store.close).result(limit_s)

    def close(self) -> None:
        try:
            self._off_loop.wait(self.store.close)
        except OffLoopStopped:
            return
        self._off_loop.stop()
