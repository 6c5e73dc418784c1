"""Exports of the cluster in its object store: written at intervals, a few of each kept, read when it is rebuilt.

    <cluster id>/metadata/<kind>/<10-digit incarnation>/<10-digit scope>/<20-digit position>.events

Of one kind, incarnation and scope the highest position is the newest. Nothing is overwritten, and a deposed writer
writes a lower position, which is never read.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from msgspec import Struct

from common.ports import Clock
from object_store.errors import ObjectExists, ObjectMissing
from object_store.store import ObjectStore
from records.events import DamagedEvents, Event, Events, EventsHeader, EventsWriter, decode_events
from tiering.bucket.keys import TierRoot
from tiering.exports.export_rounds import OF_ONE, ExportRounds

METADATA = "metadata"
GROUPS = "groups"
POSITIONS = "positions"
KEPT = 3
EVENTS_AT_ONCE = 500  # a millisecond or two
SUFFIX = ".events"

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Guard(Protocol):
    """`tiering.bucket.cluster_file.ClusterGuard`."""

    async def check(self) -> int: ...


class ExportKey(NamedTuple):
    """Ordered as the names are."""

    kind: str
    incarnation: int
    scope: int
    position: int


class NotExported(Exception):
    """This node may no longer write this export; others it may."""


class Export(Protocol):
    """One export. `mark` changes with its content."""

    kind: str
    scope: int
    position: int
    mark: int

    async def fill(self, writer: EventsWriter) -> None:
        """Add the events, many of them in pieces with pauses. Raises NotExported."""
        ...


def export_key(root: TierRoot, key: ExportKey) -> str:
    return f"{_scope_prefix(root, key)}{key.position:020d}{SUFFIX}"


def _scope_prefix(root: TierRoot, key: ExportKey) -> str:
    return f"{root.metadata_prefix}{key.kind}/{key.incarnation:010d}/{key.scope:010d}/"


def parse_export_key(root: TierRoot, name: str) -> ExportKey | None:
    """None for any other name."""
    parts = name.removeprefix(root.metadata_prefix).removesuffix(SUFFIX).split("/")
    if not name.startswith(root.metadata_prefix) or not name.endswith(SUFFIX) or len(parts) != 4:
        return None
    kind, *numbers = parts
    if any(not (number.isascii() and number.isdigit()) for number in numbers):
        return None
    return ExportKey(kind, *map(int, numbers))


def batched(items: Iterable[T], count: int) -> Iterator[list[T]]:
    """`items` in lists of at most `count`."""
    rest = iter(items)
    while some := list(islice(rest, count)):
        yield some


# reading ---------------------------------------------------------------------------------------------------


async def newest_exports(store: ObjectStore, root: TierRoot, kind: str, before: int | None = None) -> list[Events]:
    """The newest readable export of each scope, of the newest incarnation (below `before`) that has any. A
    damaged one is logged, and the one before it is used. Raises StoreError."""
    found: list[Events] = []
    for name in sorted(await store.list_names(f"{root.metadata_prefix}{kind}/"), reverse=True):
        digits = name.rstrip("/")
        if not digits.isascii() or not digits.isdigit() or (before is not None and int(digits) >= before):
            continue
        by_scope: dict[int, list[str]] = {}
        async for info in store.list(f"{root.metadata_prefix}{kind}/{name}"):
            key = parse_export_key(root, info.key)
            if key is not None:
                by_scope.setdefault(key.scope, []).append(info.key)
        newest = [await _newest_of(store, names) for names in by_scope.values()]
        whole = [events for events in newest if events is not None and events.header.cluster_id == root.cluster_id]
        if any(events.events for events in whole):
            return whole
        found = found or whole
    return found


async def kept_exports(store: ObjectStore, root: TierRoot, kind: str) -> AsyncIterator[Events]:
    """All readable exports of a kind, of every incarnation and scope, superseded ones too. Raises StoreError."""
    names = [info.key async for info in store.list(f"{root.metadata_prefix}{kind}/")]
    for name in names:
        try:
            events = decode_events(await store.get(name), name)
        except (DamagedEvents, ObjectMissing):  # superseded ones may be removed at any time
            continue
        if events.header.cluster_id == root.cluster_id:
            yield events


async def _newest_of(store: ObjectStore, names: list[str]) -> Events | None:
    for name in sorted(names, reverse=True):
        try:
            return decode_events(await store.get(name), name)
        except DamagedEvents as error:
            _log.error("an export cannot be read", extra={"reason": str(error)})
    return None


# writing ---------------------------------------------------------------------------------------------------


class ExportWriter:
    """Writes exports and removes superseded ones."""

    def __init__(self, store: ObjectStore, root: TierRoot, guard: Guard, clock: Clock) -> None:
        self._store = store
        self._root = root
        self._guard = guard
        self._clock = clock

    @property
    def guard(self) -> Guard:
        return self._guard

    async def check(self) -> int:
        """This cluster's incarnation, so that a cluster without new exports also learns that it was replaced. Raises as
        `ClusterGuard.check`."""
        return await self._guard.check()

    async def write(self, export: Export) -> int:
        """Write an export; returns its size. Raises StaleCluster, StoreError, and the errors of `fill` and guard."""
        incarnation = await self.check()
        header = EventsHeader(
            kind=export.kind,
            cluster_id=self._root.cluster_id,
            incarnation=incarnation,
            scope=export.scope,
            position=export.position,
            created_ms=self._clock.wall_ms(),
        )
        writer = EventsWriter(header)
        await export.fill(writer)
        body = writer.finish()
        key = ExportKey(export.kind, incarnation, export.scope, export.position)
        try:
            await self._store.put(export_key(self._root, key), body, create_only=True)
        except ObjectExists:  # from an earlier run with the same content
            return 0
        await self._prune(key)
        return len(body)

    async def _prune(self, key: ExportKey) -> None:
        names = [info.key async for info in self._store.list(_scope_prefix(self._root, key))]
        if len(names) > KEPT:
            await self._store.delete(sorted(names)[:-KEPT])

    async def forget_incarnations_before(self, first: int) -> None:
        """Remove all exports of older incarnations. Raises StoreError."""
        for kind in await self._store.list_names(self._root.metadata_prefix):
            for name in await self._store.list_names(f"{self._root.metadata_prefix}{kind}"):
                digits = name.rstrip("/")
                if digits.isascii() and digits.isdigit() and int(digits) < first:
                    prefix = f"{self._root.metadata_prefix}{kind}{name}"
                    await self._store.delete([info.key async for info in self._store.list(prefix)])


class ExporterServices(Struct):
    """`writer` is asked for each round: it may not be known from the start, and is None until then."""

    writer: Callable[[], ExportWriter | None]
    exports: Callable[[], Awaitable[list[Export]]]
    clock: Clock
    random: random.Random
    interval_s: float
    after: Callable[[ExportWriter], Awaitable[None]] | None = None


class Exporter(ExportRounds):
    """One per exporting node: writes changed exports once per interval, less often while the store fails."""

    def __init__(self, services: ExporterServices) -> None:
        super().__init__("metadata", services.clock, services.random, services.interval_s)
        self._services = services
        self._written: dict[tuple[str, int], int] = {}  # (kind, scope) → mark

    async def round(self) -> int:
        """Write changed exports; returns how many. Raises as `ExportWriter.write`."""
        writer = self._services.writer()
        if writer is None:
            return 0
        await writer.check()
        count, failures = 0, list[Exception]()
        for export in await self._services.exports():
            if self._written.get((export.kind, export.scope)) == export.mark:
                continue
            try:
                await writer.write(export)
            except NotExported as error:
                _log.info("not exported here", extra={"kind": export.kind, "scope": export.scope, "error": str(error)})
                continue
            except OF_ONE as error:
                failures.append(error)
                continue
            self._written[export.kind, export.scope] = export.mark
            count += 1
        if count and not failures and self._services.after is not None:
            await self._services.after(writer)
        if failures:
            raise failures[0]
        return count


class ReadyExport:
    """An export whose events are already in memory."""

    def __init__(self, kind: str, scope: int, position: int, mark: int, events: Callable[[], Iterable[Event]]) -> None:
        self.kind = kind
        self.scope = scope
        self.position = position
        self.mark = mark
        self._events = events

    async def fill(self, writer: EventsWriter) -> None:
        for some in batched(self._events(), EVENTS_AT_ONCE):
            writer.add(some)
            await asyncio.sleep(0)
