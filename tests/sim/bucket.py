"""An object store of the simulated world: one bucket for all brokers, on virtual time, with faults.

A request travels, takes effect at one moment and is answered at a later one. It takes effect even if its sender died
or gave up waiting meanwhile, as with a real store; a body that its sender could not send to the end does not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from common.ports import File
from object_store.errors import StoreError, StoreUnavailable
from object_store.store import Body, FileRange, ObjectInfo, ObjectStore, body_parts
from tests.object_store.faulty_store import Faults, FaultyStore
from tests.object_store.memory_store import MemoryStore
from tests.sim.loop import MS, Scheduler, SimLoop, finish

T = TypeVar("T")
NAME = "bucket:"
TRAVEL_NS = (200_000, 4 * MS)
SLOW_NS = (20 * MS, 1_500 * MS)
TIMEOUT_S = 0.6


class BucketWatch(Protocol):
    """Told of each change at the moment of its effect, before it is made."""

    def putting(self, node: str, key: str, data: bytes, there: bytes | None, sent_ns: int) -> None: ...

    def deleting(self, node: str, keys: Sequence[str], claims: Any) -> None: ...

    def changed(self) -> None:
        """After it was made."""
        ...


@dataclass(slots=True)
class BucketCounts:
    puts: int = 0
    gets: int = 0
    deletes: int = 0
    late: int = 0
    """Took effect after their sender had given up or died."""


class Bucket:
    """What is stored, and what goes wrong now: `faults` are those of every client, `slow` delays some requests."""

    def __init__(self, scheduler: Scheduler, chance: random.Random, wall_start_ms: int) -> None:
        self.scheduler = scheduler
        self.chance = chance
        self.store = MemoryStore(lambda: wall_start_ms + scheduler.now_ns // MS, NAME)
        self.faults = Faults()
        self.slow = False
        self.stale: list[ObjectInfo] | None = None
        """What listings show instead of what is there."""
        self.counts = BucketCounts()
        self.watch: BucketWatch | None = None
        self.intent: Callable[[str], Any] = lambda node: None
        """What the watch wants to know of the sender of a deletion, asked as it is sent."""

    def client(self, node: str, loop: SimLoop, chance: random.Random) -> ObjectStore:
        """For one life of a node."""
        faulty = FaultyStore(BucketClient(self, node, loop), chance)
        faulty.faults = self.faults
        return faulty

    def names(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.store.objects if key.startswith(prefix))

    def data(self, key: str) -> bytes | None:
        found = self.store.objects.get(key)
        return None if found is None else found[0]

    def show_stale_listings(self, stale: bool) -> None:
        self.stale = [self.store.objects[key][1] for key in self.names()] if stale else None

    def travel_ns(self) -> int:
        slow = self.slow and self.chance.random() < 0.5
        return self.chance.randint(*(SLOW_NS if slow else TRAVEL_NS))


class BucketClient:
    """An `ObjectStore`: each call is one request to the bucket."""

    def __init__(self, bucket: Bucket, node: str, loop: SimLoop) -> None:
        self._bucket, self._node, self._loop = bucket, node, loop
        self._store, self._watch = bucket.store, bucket.watch

    @property
    def name(self) -> str:
        return NAME

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        parts = body_parts(body)
        data = await asyncio.to_thread(_read, parts) if any(isinstance(p, FileRange) for p in parts) else _read(parts)
        self._bucket.counts.puts += 1
        sent_ns = self._loop.now_ns()

        def effect() -> ObjectInfo:
            there = self._bucket.data(key)
            if self._watch is not None and not (create_only and there is not None):
                self._watch.putting(self._node, key, data, there, sent_ns)
            info: ObjectInfo = _at_once(self._store.put(key, data, create_only=create_only))
            return self._changed(info)

        return await self._ask("put", key, effect)

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        return await self._ask(
            "replace", key, lambda: self._changed(_at_once(self._store.replace(key, body, expected_version)))
        )

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._bucket.counts.gets += 1
        return await self._ask("get", key, lambda: _at_once(self._store.get(key, start, length)))

    async def get_with_version(self, key: str) -> tuple[bytes, str]:
        return await self._ask("get", key, lambda: _at_once(self._store.get_with_version(key)))

    async def lend(self, key: str, start: int = 0, length: int = 0) -> File | None:
        return None

    async def head(self, key: str) -> ObjectInfo:
        return await self._ask("head", key, lambda: _at_once(self._store.head(key)))

    async def delete(self, keys: Sequence[str]) -> None:
        names, intent = list(keys), self._bucket.intent(self._node)
        self._bucket.counts.deletes += len(names)

        def effect() -> None:
            if self._watch is not None:
                self._watch.deleting(self._node, names, intent)
            self._changed(_at_once(self._store.delete(names)))

        await self._ask("delete", names[0] if names else "", effect)

    async def copy(self, source: str, target: str) -> None:
        await self._ask("copy", source, lambda: self._changed(_at_once(self._store.copy(source, target))))

    async def sweep_unfinished(self, before_ms: int) -> int:
        return 0

    async def close(self) -> None: ...

    async def list_names(self, prefix: str) -> list[str]:
        found: dict[str, None] = {}
        for info in await self._ask("list", prefix, lambda: self._listed(prefix)):
            name, slash, _ = info.key[len(prefix) :].partition("/")
            found[name + slash] = None
        return sorted(found)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        for info in await self._ask("list", prefix, lambda: self._listed(prefix)):
            if info.key > start_after:
                yield info

    def _listed(self, prefix: str) -> Sequence[ObjectInfo]:
        bucket = self._bucket
        if bucket.stale is not None:
            return [info for info in bucket.stale if info.key.startswith(prefix)]
        return [bucket.store.objects[key][1] for key in bucket.names(prefix)]

    def _changed(self, result: T) -> T:
        if self._watch is not None:
            self._watch.changed()
        return result

    async def _ask(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        """Raises what the store answers; StoreUnavailable when the answer takes too long."""
        bucket, loop = self._bucket, self._loop
        answer: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            result, error = None, None
            try:
                result = effect()
            except StoreError as refused:
                error = refused
            if loop.dead or answer.done():
                bucket.counts.late += 1
            bucket.scheduler.after(bucket.travel_ns(), loop.deliver, finish, answer, result, error)

        bucket.scheduler.at(loop.now_ns() + bucket.travel_ns(), arrive)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise StoreUnavailable(NAME, operation, key, f"no answer in {TIMEOUT_S} s") from None


def _read(parts: Sequence[bytes | FileRange]) -> bytes:
    return b"".join(
        part.file.pread(part.length, part.position) if isinstance(part, FileRange) else part for part in parts
    )


def _at_once(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a call of the plain store here and now: it waits for nothing but its turn."""
    while True:
        try:
            call.send(None)
        except StopIteration as ended:
            return ended.value
