"""Writing the audit to the object store: what each source has told since the last file, once per interval.

Unlike the exports of the present state, files are kept: the changes themselves are the audit. They go by their age. A
source that changes hands may be written twice for a moment; readers pass over what they have seen.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from common.errors import OutcomeUnknown, ProtocolError
from common.lifecycle import duty
from common.ports import Clock
from object_store.errors import ObjectExists, StoreError
from object_store.store import ObjectStore
from records.audit_event import AuditEvent, to_fields
from records.events import EventsHeader, EventsWriter
from tiering.audit_reading import KIND, AuditKey, audit_key, audit_prefix, parse_audit_key, scope_prefix
from tiering.cluster_file import StaleCluster
from tiering.exports import BACKOFF_MAX_S, EVENTS_AT_ONCE, ExportTrouble, Guard, batched
from tiering.keys import TierRoot

FOR_EVER = -1
PRUNE_INTERVAL_S = 3600.0
PIECES_PER_ROUND_MAX = 64

_log = logging.getLogger(__name__)


class AuditPiece(NamedTuple):
    """Events of the positions [first, end), in order."""

    first: int
    end: int
    events: Sequence[AuditEvent]


class AuditFeed(Protocol):
    """One source and scope that this node is to export now. `term` changes with whoever exports it."""

    @property
    def source(self) -> str: ...

    @property
    def scope(self) -> int: ...

    @property
    def term(self) -> int: ...

    @property
    def begin(self) -> int:
        """Where this term began: what lies below was told by those before, what lies above may be another thing than
        what they told."""
        ...

    async def take(self, position: int) -> AuditPiece | None:
        """What there is from `position` on, a bounded piece of it; None when there is nothing. It begins above
        `position` where what was there is gone. Raises ProtocolError."""
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
        """Up to where the store holds this scope, in this incarnation of the cluster; 0 when it holds nothing. Raises
        StoreError, and what the guard raises."""
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
        except ObjectExists:  # the same, by another node or by a run before
            return

    async def prune(self, source: str) -> int:
        """Remove this source's files that are older than is to be kept; how many there were. Raises StoreError."""
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


@dataclass(slots=True)
class AuditExporterServices:
    """`writer` is asked for each round: it may not be known from the start, and is None until then."""

    writer: Callable[[], AuditWriter | None]
    feeds: Callable[[], Iterable[AuditFeed]]
    clock: Clock
    random: random.Random
    interval_s: float


class AuditExporter:
    """One per node that exports. `exported` counts events."""

    def __init__(self, services: AuditExporterServices) -> None:
        self.trouble = ExportTrouble()
        self.exported = 0
        self._services = services
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}  # (source, scope) → (term, end)
        self._failures = 0
        self._pruned_s = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=duty("audit-export"))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        services = self._services
        while True:
            pause_s = min(services.interval_s * 2.0 ** min(self._failures, 10), max(BACKOFF_MAX_S, services.interval_s))
            await asyncio.sleep(pause_s * (0.9 + 0.2 * services.random.random()))
            try:
                await self.round()
            except StaleCluster as error:
                self._failed(str(error))
                _log.error("the audit is not exported any more", extra={"reason": str(error)})
                return
            except (StoreError, OutcomeUnknown, ProtocolError, ValueError) as error:
                self._failed(str(error))
                if self._failures & (self._failures - 1) == 0:  # not each time
                    fields = {"failures": self._failures, "error": str(error)}
                    _log.warning("the audit is not exported", extra=fields)
            else:
                self._failures, self.trouble = 0, ExportTrouble()

    def _failed(self, reason: str) -> None:
        self._failures += 1
        self.trouble = ExportTrouble(self.trouble.since_ms or self._services.clock.wall_ms(), reason)

    async def round(self) -> int:
        """Write what is new; how many events that were. Raises as `AuditWriter.write`, and what feeds raise."""
        writer = self._services.writer()
        if writer is None:
            return 0
        feeds = list(self._services.feeds())
        count = 0
        for feed in feeds:
            count += await self._export(writer, feed)
        self.exported += count
        now_s = self._services.clock.monotonic()
        if feeds and now_s - self._pruned_s >= PRUNE_INTERVAL_S:
            self._pruned_s = now_s
            for source in dict.fromkeys(feed.source for feed in feeds):
                await writer.prune(source)
        return count

    async def _export(self, writer: AuditWriter, feed: AuditFeed) -> int:
        name = (feed.source, feed.scope)
        known = self._ends.get(name)
        end = known[1] if known is not None and known[0] == feed.term else None
        count = 0
        for _ in range(PIECES_PER_ROUND_MAX):
            piece = await feed.take(end or 0)
            if piece is None:
                break
            if end is None:  # asked of the store only where there is something to write
                end = min(await writer.end(*name), feed.begin)
                if end > piece.first:
                    self._ends[name] = (feed.term, end)
                    continue
            await writer.write(*name, piece)
            end = piece.end
            self._ends[name] = (feed.term, end)
            count += len(piece.events)
        return count
