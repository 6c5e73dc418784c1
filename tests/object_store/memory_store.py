"""An object store in memory: the plainest reading of the protocol, for tests and for the simulator."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence

from common.ports import File
from object_store.errors import ObjectExists, ObjectMissing, ObjectTruncated, VersionConflict
from object_store.store import (
    Body,
    FileRange,
    ObjectInfo,
    body_parts,
    check_key,
    check_listing_prefix,
    check_range,
)


class MemoryStore:
    """Every call yields to the event loop once, so that others can come between, and then acts at once.

    `wall_ms` dates the objects; several nodes may share one store. `objects` is open to tests: key → (bytes, info).
    """

    def __init__(self, wall_ms: Callable[[], int] = lambda: 0, name: str = "memory:") -> None:
        self.name = name
        self.objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self.closed = False
        self._wall_ms = wall_ms
        self._writes = 0

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        check_key(self.name, "put", key)
        parts = [part.file.pread(part.length, part.position) if isinstance(part, FileRange) else part
                 for part in body_parts(body)]  # fmt: skip
        await asyncio.sleep(0)
        if create_only and key in self.objects:
            raise ObjectExists(self.name, "put", key, "the object exists")
        return self._store(key, b"".join(parts))

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        check_key(self.name, "replace", key)
        await asyncio.sleep(0)
        current = self.objects[key][1].version if key in self.objects else None
        if current != expected_version:
            raise VersionConflict(self.name, "replace", key, "the object has another version")
        return self._store(key, body)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_key(self.name, "get", key)
        check_range(start, length)
        await asyncio.sleep(0)
        data = self._find("get", key)[0]
        end = len(data) if length is None else start + length
        if max(start, end) > len(data):
            raise ObjectTruncated(self.name, "get", key, f"it ends at {len(data)}, not {max(start, end)}")
        return data[start:end]

    async def get_with_version(self, key: str) -> tuple[bytes, str]:
        check_key(self.name, "get", key)
        await asyncio.sleep(0)
        data, info = self._find("get", key)
        return data, info.version

    async def lend(self, key: str, start: int = 0, length: int = 0) -> File | None:
        return None

    async def head(self, key: str) -> ObjectInfo:
        check_key(self.name, "head", key)
        await asyncio.sleep(0)
        return self._find("head", key)[1]

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(self.name, "delete", key)
        await asyncio.sleep(0)
        for key in keys:
            self.objects.pop(key, None)

    async def copy(self, source: str, target: str) -> None:
        check_key(self.name, "copy", source)
        check_key(self.name, "copy", target)
        await asyncio.sleep(0)
        self._store(target, self._find("copy", source)[0])

    async def sweep_unfinished(self, before_ms: int) -> int:
        await asyncio.sleep(0)
        return 0

    async def close(self) -> None:
        self.closed = True

    async def list_names(self, prefix: str) -> list[str]:
        check_listing_prefix(prefix)
        await asyncio.sleep(0)
        found: dict[str, None] = {}
        for key in self.objects:
            if key.startswith(prefix):
                name, slash, _ = key[len(prefix) :].partition("/")
                found[name + slash] = None
        return sorted(found)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await asyncio.sleep(0)
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        for key in keys[bisect_right(keys, start_after) :]:
            if key in self.objects:
                yield self.objects[key][1]

    def _find(self, operation: str, key: str) -> tuple[bytes, ObjectInfo]:
        if key not in self.objects:
            raise ObjectMissing(self.name, operation, key, "there is no such object")
        return self.objects[key]

    def _store(self, key: str, data: bytes) -> ObjectInfo:
        self._writes += 1
        info = ObjectInfo(key, len(data), self._wall_ms(), f"v{self._writes}")
        self.objects[key] = (data, info)
        return info
