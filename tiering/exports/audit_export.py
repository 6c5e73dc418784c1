"""Writes the audit to the object store: each source's events since the last file, once per interval.

Unlike exports of state, files are not superseded, because they hold changes; they are removed by age. While a source
passes to another node, events may be written twice; readers skip copies.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from common.ports import Clock
from object_store.errors import ObjectExists
from object_store.store import ObjectStore
from records.audit_event import AuditEvent, to_fields
from records.events import EventsHeader, EventsWriter
from tiering.bucket.keys import TierRoot
from tiering.exports.audit_reading import KIND, AuditKey, audit_key, audit_prefix, parse_audit_key, scope_prefix
from tiering.exports.export_rounds import OF_ONE, ExportRounds
from tiering.exports.exports import EVENTS_AT_ONCE, Guard, batched

FOR_EVER = -1
PRUNE_INTERVAL_S = 3600.0
PIECES_PER_ROUND_MAX = 64


class AuditPiece(NamedTuple):
    """Events of the positions [first, end), in order."""

    first: int
    end: int
    events: Sequence[AuditEvent]


class AuditFeed(Protocol):
    """One source and scope that this node exports. `term` changes with the exporting node."""

    @property
    def source(self) -> str: ...

    @property
    def scope(self) -> int: ...

    @property
    def term(self) -> int: ...

    @property
    def begin(self) -> int:
        """The position where this term began. Earlier terms exported what is below; above it their exports may differ
        from this term's events."""
        ...

    async def take(self, position: int) -> AuditPiece | None:
        """A bounded piece of the events from `position` on; None if there are none. It begins above `position` if
        earlier events no longer exist. Raises ProtocolError."""
        ...


class AuditWriter:
    """Writes files, finds where they end, and removes those that are older than `keep_ms`."""

    def __init__(self, store: ObjectStore, root: TierRoot, guard: Guard, clock: Clock, keep_ms: int) -> None:
        self._store = store
        self._root = root
        self._guard = guard
        self._clock = clock
        self._keep_ms = keep_ms

    async def end(self, source: str, scope: int) -> int:
        """The end of this scope's events in the store, of this incarnation of the cluster; 0 without any. Raises
        StoreError, and the guard's errors."""
        incarnation = await self._guard.check()
        end = 0
        async for info in self._store.list(scope_prefix(self._root, source, incarnation, scope)):
            key = parse_audit_key(self._root, info.key)
            if key is not None:
                end = max(end, key.end)
        return end

    async def write(self, source: str, scope: int, piece: AuditPiece) -> None:
        """Raises as `end`."""
        incarnation = await self._guard.check()
        writer = EventsWriter(
            EventsHeader(
                kind=KIND,
                cluster_id=self._root.cluster_id,
                incarnation=incarnation,
                scope=scope,
                position=piece.end,
                created_ms=self._clock.wall_ms(),
            )
        )
        for some in batched(piece.events, EVENTS_AT_ONCE):
            writer.add(to_fields(event) for event in some)
            await asyncio.sleep(0)
        key = audit_key(self._root, AuditKey(source, incarnation, scope, piece.first, piece.end))
        try:
            await self._store.put(key, writer.finish(), create_only=True)
        except ObjectExists:  # the same events, from another node or an earlier run
            return

    async def prune(self, source: str) -> int:
        """Remove this source's files that are older than `keep_ms`; returns how many. Raises StoreError."""
        if self._keep_ms == FOR_EVER:
            return 0
        before_ms = self._clock.wall_ms() - self._keep_ms
        old = [
            info.key
            async for info in self._store.list(audit_prefix(self._root, source))
            if info.modified_ms < before_ms and parse_audit_key(self._root, info.key) is not None
        ]
        if old:
            await self._store.delete(old)
        return len(old)


class AuditExporterServices(Struct):
    """`writer` is asked for each round: it may not be known from the start, and is None until then."""

    writer: Callable[[], AuditWriter | None]
    feeds: Callable[[], Iterable[AuditFeed]]
    clock: Clock
    random: random.Random
    interval_s: float


class AuditExporter(ExportRounds):
    """One per node that exports. `exported` counts events."""

    def __init__(self, services: AuditExporterServices) -> None:
        super().__init__("audit", services.clock, services.random, services.interval_s)
        self.exported = 0
        self._services = services
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}  # (source, scope) → (term, end)
        self._pruned_s = float("-inf")

    async def round(self) -> int:
        """Write new events; returns how many. Raises as `AuditWriter.write`, and the feeds' errors."""
        writer = self._services.writer()
        if writer is None:
            return 0
        feeds = list(self._services.feeds())
        before, failures = self.exported, list[Exception]()
        for feed in feeds:
            try:
                await self._export(writer, feed)
            except OF_ONE as error:
                failures.append(error)
        now_s = self._services.clock.monotonic()
        if feeds and now_s - self._pruned_s >= PRUNE_INTERVAL_S:
            self._pruned_s = now_s
            for source in dict.fromkeys(feed.source for feed in feeds):
                await writer.prune(source)
        if failures:
            raise failures[0]
        return self.exported - before

    async def _export(self, writer: AuditWriter, feed: AuditFeed) -> None:
        name = (feed.source, feed.scope)
        known = self._ends.get(name)
        end = known[1] if known is not None and known[0] == feed.term else None
        for _ in range(PIECES_PER_ROUND_MAX):
            piece = await feed.take(end or 0)
            if piece is None:
                return
            if end is None:  # asked of the store only where there is something to write
                end = min(await writer.end(*name), feed.begin)
                if end > piece.first:
                    self._ends[name] = (feed.term, end)
                    continue
            await writer.write(*name, piece)
            end = piece.end
            self._ends[name] = (feed.term, end)
            self.exported += len(piece.events)
