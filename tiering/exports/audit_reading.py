"""The audit in the object store: names, and reading it without a broker.

    <cluster id>/audit/<source>/<10-digit incarnation>/<10-digit scope>/<20-digit first>-<20-digit end>.events

A file holds the events of the positions [first, end) of one source: offsets of the metadata log (scope 0), of a
partition of `__audit` or of one of `__tier_state` (scope is the partition). Files of one scope follow each other
without overlap; where one begins above the end of the one before, the positions between are missing. The format of a
file is that of all exports, `records.events`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from msgspec import Struct, field

from object_store.errors import ObjectMissing
from object_store.store import ObjectStore
from records.audit_event import AuditEvent, AuditSource, from_fields
from records.events import DamagedEvents, decode_events
from tiering.bucket.keys import TierRoot

SUFFIX = ".events"
KIND = "audit"
SCOPE_DIGITS = 10
POSITION_DIGITS = 20
READS_AT_ONCE = 16


class AuditKey(NamedTuple):
    """Ordered as the names are: by source, incarnation of the cluster, scope, position."""

    source: str
    incarnation: int
    scope: int
    first: int
    end: int


class AuditProblem(Struct, frozen=True):
    """An unreadable part of the audit: a file (`key`), or positions [first, end) that no file holds."""

    key: str
    reason: str
    source: str
    incarnation: int
    scope: int
    first: int
    end: int


class ExportedAudit(Struct):
    """All events of a cluster in the object store, by source, incarnation, scope and position, without copies."""

    events: list[AuditEvent] = field(default_factory=list)
    problems: list[AuditProblem] = field(default_factory=list)
    _by_partition: dict[tuple[str, int], list[AuditEvent]] = field(default_factory=dict)

    def of_partition(self, topic_id: bytes, partition: int) -> list[AuditEvent]:
        """The events of this partition, or of its whole topic, ascending by wall time."""
        topic = topic_id.hex()
        found = [*self._by_partition.get((topic, partition), ()), *self._by_partition.get((topic, -1), ())]
        return sorted(found, key=lambda event: event.wall_ms)

    def add(self, event: AuditEvent) -> None:
        self.events.append(event)
        if event.topic_id:
            self._by_partition.setdefault((event.topic_id, event.partition), []).append(event)


def audit_prefix(root: TierRoot, source: str = "") -> str:
    """Of everything, or of one source."""
    return f"{root.audit_prefix}{source}/" if source else root.audit_prefix


def scope_prefix(root: TierRoot, source: str, incarnation: int, scope: int) -> str:
    return f"{audit_prefix(root, source)}{incarnation:0{SCOPE_DIGITS}d}/{scope:0{SCOPE_DIGITS}d}/"


def audit_key(root: TierRoot, key: AuditKey) -> str:
    prefix = scope_prefix(root, key.source, key.incarnation, key.scope)
    return f"{prefix}{key.first:0{POSITION_DIGITS}d}-{key.end:0{POSITION_DIGITS}d}{SUFFIX}"


def parse_audit_key(root: TierRoot, name: str) -> AuditKey | None:
    """None for any other name."""
    if not name.startswith(root.audit_prefix) or not name.endswith(SUFFIX):
        return None
    parts = name[len(root.audit_prefix) : -len(SUFFIX)].split("/")
    if len(parts) != 4:
        return None
    first, dash, end = parts[3].partition("-")
    numbers = (parts[1], parts[2], first, end)
    if not dash or any(not (number.isascii() and number.isdigit()) for number in numbers):
        return None
    return AuditKey(parts[0], *map(int, numbers))


def decode_audit_file(root: TierRoot, key: AuditKey, body: bytes) -> list[AuditEvent]:
    """The events of one file, in order. Raises DamagedEvents (a ValueError), which names the file."""
    name = audit_key(root, key)
    file = decode_events(body, name)
    header = file.header
    if header.cluster_id != root.cluster_id or header.scope != key.scope or header.position != key.end:
        raise DamagedEvents(f"{name}: its header is another file's")
    try:
        return [from_fields(fields) for fields in file.events]
    except ValueError as error:
        raise DamagedEvents(f"{name}: {error}") from error


async def list_audit(
    store: ObjectStore, root: TierRoot, sources: Iterable[str] = AuditSource, written_since_ms: int = 0
) -> list[AuditKey]:
    """All files of these sources, ascending, that were written at that time, by the store's clock, or later. Raises
    StoreError."""
    found = []
    for source in sources:
        async for info in store.list(audit_prefix(root, source)):
            key = parse_audit_key(root, info.key)
            if key is not None and info.modified_ms >= written_since_ms:
                found.append(key)
    return sorted(found)


def missed_positions(root: TierRoot, keys: Iterable[AuditKey]) -> list[AuditProblem]:
    """Missing positions between consecutive files of one scope. Files before the first one were removed by age."""
    problems = []
    scope: tuple[str, int, int] | None = None
    end = 0
    for key in sorted(keys):
        if scope == key[:3] and end < key.first:
            reason = f"positions {end} to {key.first} are missed"
            name = audit_key(root, key)
            problems.append(AuditProblem(name, reason, key.source, key.incarnation, key.scope, end, key.first))
        end = key.end if scope != key[:3] else max(end, key.end)
        scope = key[:3]
    return problems


async def read_audit_file(store: ObjectStore, root: TierRoot, key: AuditKey) -> list[AuditEvent]:
    """Raises DamagedEvents, StoreError."""
    return decode_audit_file(root, key, await store.get(audit_key(root, key)))


async def iterate_audit(
    store: ObjectStore, root: TierRoot, sources: Iterable[str] = AuditSource, written_since_ms: int = 0
) -> AsyncIterator[AuditEvent | AuditProblem]:
    """Every event once, file by file, and each file or range of positions that cannot be read; of files as `list_audit`
    finds them. Raises StoreError."""
    keys = await list_audit(store, root, sources, written_since_ms)
    missed = {(problem.key, problem.end): problem for problem in missed_positions(root, keys)}
    seen: dict[tuple[str, int, str, int], None] = {}
    scope = ("", 0, 0)
    for at in range(0, len(keys), READS_AT_ONCE):
        some = keys[at : at + READS_AT_ONCE]
        files = await asyncio.gather(*(_read_if_there(store, root, key) for key in some))
        for key, events in zip(some, files, strict=True):
            problem = missed.get((audit_key(root, key), key.first))
            if problem is not None:
                yield problem
            if isinstance(events, AuditProblem):
                yield events
                continue
            if scope != key[:3]:
                scope, seen = key[:3], {}
            for event in events:
                if event.identity not in seen:
                    seen[event.identity] = None
                    yield event


async def _read_if_there(store: ObjectStore, root: TierRoot, key: AuditKey) -> list[AuditEvent] | AuditProblem:
    """The file's events; none if it was removed by age since it was listed."""
    try:
        return await read_audit_file(store, root, key)
    except ObjectMissing:
        return []
    except DamagedEvents as error:
        name = audit_key(root, key)
        return AuditProblem(name, str(error), key.source, key.incarnation, key.scope, key.first, key.end)


async def read_audit(store: ObjectStore, root: TierRoot, sources: Iterable[str] = AuditSource) -> ExportedAudit:
    """The whole audit, in memory. Raises StoreError; damaged and missing parts are in `problems`."""
    audit = ExportedAudit()
    async for item in iterate_audit(store, root, sources):
        if isinstance(item, AuditProblem):
            audit.problems.append(item)
        else:
            audit.add(item)
    return audit
