"""A wrapper that lets an object store fail in every way that real ones do, for tests and for the simulator.

Faults are switched by assigning to the fields of `faults`; chances are drawn from the given source, so a seed replays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from common.ports import File
from object_store.errors import (
    ObjectTruncated,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from object_store.store import Body, ObjectInfo, ObjectStore

T = TypeVar("T")
WRITES = {"put", "replace", "copy"}
Hook = Callable[[str, str], Awaitable[None]]  # operation, key


@dataclass(slots=True)
class Faults:
    """What goes wrong now. Chances are from 0 to 1 per call, times are seconds."""

    down: bool = False
    """Every call is StoreUnavailable after `delay_s`."""
    denied: bool = False
    full: bool = False
    """Writes are StoreFull; reads and deletes go on."""
    delay_s: float = 0.0
    delay_chance: float = 1.0
    unavailable: float = 0.0
    """A 503: nothing was done."""
    lost_answer: float = 0.0
    """It was done, and StoreUnavailable is raised: also of deletes."""
    cut: float = 0.0
    """A read's connection breaks in the middle of the body: StoreUnavailable."""
    truncated: float = 0.0
    """A read ends early: ObjectTruncated."""
    altered: float = 0.0
    """A read returns bytes of which one is another."""
    stale_listing: bool = False
    """Listings show what was there when this was switched on."""


class FaultyStore:
    """`before` and `after` are called around each call to the wrapped store: a test may stop, kill or look there."""

    def __init__(self, inner: ObjectStore, chance: Random) -> None:
        self.inner = inner
        self.faults = Faults()
        self.calls: dict[str, int] = {}
        self.before: Hook | None = None
        self.after: Hook | None = None
        self._chance = chance
        self._stale: list[ObjectInfo] | None = None

    @property
    def name(self) -> str:
        return self.inner.name

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        await self._enter("put", key)
        return await self._leave("put", key, await self.inner.put(key, body, create_only=create_only))

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        await self._enter("replace", key)
        return await self._leave("replace", key, await self.inner.replace(key, body, expected_version))

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        await self._enter("get", key)
        return await self._leave("get", key, self._spoiled(key, await self.inner.get(key, start, length)))

    async def get_with_version(self, key: str) -> tuple[bytes, str]:
        await self._enter("get", key)
        data, version = await self.inner.get_with_version(key)
        return await self._leave("get", key, (self._spoiled(key, data), version))

    async def lend(self, key: str, start: int = 0, length: int = 0) -> File | None:
        """Never: reads are to go through `get`, where the faults are."""
        return None

    async def head(self, key: str) -> ObjectInfo:
        await self._enter("head", key)
        return await self._leave("head", key, await self.inner.head(key))

    async def delete(self, keys: Sequence[str]) -> None:
        key = keys[0] if keys else ""
        await self._enter("delete", key)
        await self.inner.delete(keys)
        await self._leave("delete", key, None)

    async def copy(self, source: str, target: str) -> None:
        await self._enter("copy", source)
        await self.inner.copy(source, target)
        await self._leave("copy", source, None)

    async def sweep_unfinished(self, before_ms: int) -> int:
        await self._enter("sweep", "")
        return await self.inner.sweep_unfinished(before_ms)

    async def close(self) -> None:
        await self.inner.close()

    async def remember_listing(self) -> None:
        """What stale listings show from now on."""
        self._stale = [info async for info in self.inner.list("")]

    async def list_names(self, prefix: str) -> list[str]:
        await self._enter("list", prefix)
        if not self._is_stale():
            return await self.inner.list_names(prefix)
        found: dict[str, None] = {}
        for info in self._stale or []:
            if info.key.startswith(prefix):
                name, slash, _ = info.key[len(prefix) :].partition("/")
                found[name + slash] = None
        return sorted(found)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._enter("list", prefix)
        if self._is_stale():
            for info in self._stale or []:
                if info.key.startswith(prefix) and info.key > start_after:
                    yield info
            return
        async for info in self.inner.list(prefix, start_after=start_after):
            yield info

    def _is_stale(self) -> bool:
        assert not self.faults.stale_listing or self._stale is not None, "remember_listing comes first"
        return self.faults.stale_listing

    async def _enter(self, operation: str, key: str) -> None:
        self.calls[operation] = self.calls.get(operation, 0) + 1
        if self.before is not None:
            await self.before(operation, key)
        faults = self.faults
        if faults.delay_s and self._drawn(faults.delay_chance):
            await asyncio.sleep(faults.delay_s)
        if faults.down or self._drawn(faults.unavailable):
            raise self._error(StoreUnavailable, operation, key)
        if faults.denied:
            raise self._error(StoreDenied, operation, key)
        if faults.full and operation in WRITES:
            raise self._error(StoreFull, operation, key)

    async def _leave(self, operation: str, key: str, result: T) -> T:
        if self.after is not None:
            await self.after(operation, key)
        if operation in WRITES | {"delete"} and self._drawn(self.faults.lost_answer):
            raise self._error(StoreUnavailable, operation, key)
        return result

    def _spoiled(self, key: str, data: bytes) -> bytes:
        if self._drawn(self.faults.cut):
            raise self._error(StoreUnavailable, "get", key)
        if self._drawn(self.faults.truncated):
            raise self._error(ObjectTruncated, "get", key)
        if data and self._drawn(self.faults.altered):
            at = self._chance.randrange(len(data))
            return data[:at] + bytes([data[at] ^ (1 << self._chance.randrange(8))]) + data[at + 1 :]
        return data

    def _drawn(self, chance: float) -> bool:
        return chance > 0 and self._chance.random() < chance

    def _error(self, kind: type[StoreError], operation: str, key: str) -> StoreError:
        return kind(self.name, operation, key, "a fault of the test")
