"""Rebuilding a cluster from its object store: what is read, what is made of it, and what was not there."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.identifiers import uuid_text
from kraft.image.cells import DEFAULT_CELL
from kraft.image.snapshot import encode_snapshot
from kraft.rebuild import CannotRebuild, NamedBroker, Rebuild, Rebuilder, RebuiltTopic, TieredPartition, TieredTopic
from object_store.errors import VersionConflict
from object_store.store import ObjectStore
from records.events import Event, Events, EventsHeader, decode_events, encode_events
from tiering.cluster_file import CHECK_INTERVAL_S, ClusterFile, begin_incarnation, read_cluster_file
from tiering.exports import GROUPS, METADATA, POSITIONS, newest_exports
from tiering.inventory import FoundTopic, find_clusters, find_topics
from tiering.keys import TierRoot

OLD_CLUSTER_WAIT_S = CHECK_INTERVAL_S + 5.0
"""How long after the take-over an old cluster that still lives may not know of it."""
OFFSETS_SUFFIX = ".offsets"
NAMED_MAX = 1_000


@dataclass(slots=True)
class Prepared:
    """All that a rebuilt cluster begins with. `offsets` are events of the kind "groups", clamped to the tier's end."""

    cluster_id: str
    incarnation: int
    rebuild: Rebuild
    offsets: list[Event]
    report: dict[str, Any] = field(default_factory=dict)


async def choose_cluster(store: ObjectStore, wanted: str | None) -> str:
    """The id of the cluster whose bucket this is. Raises CannotRebuild, StoreError."""
    found = await find_clusters(store)
    if wanted is not None and wanted not in found:
        raise CannotRebuild(f"{store.name} holds nothing of cluster {wanted}, but of: {', '.join(found) or 'none'}")
    if wanted is None and len(found) != 1:
        there = f"of clusters {', '.join(found)}; name one with --cluster" if found else "of no cluster"
        raise CannotRebuild(f"{store.name} holds something {there}")
    return wanted or found[0]


async def look(
    store: ObjectStore, cluster_id: str, brokers: Sequence[NamedBroker], rng: random.Random
) -> tuple[ClusterFile, str]:
    """Make of the bucket, which stays as it is, all that a rebuild would: what refuses then refuses here. What
    `take_over` is to find. Raises CannotRebuild, StoreError."""
    try:
        seen = await read_cluster_file(store, TierRoot(cluster_id))
    except ValueError as error:
        raise CannotRebuild(str(error)) from error
    if seen is None:
        raise CannotRebuild(f"{store.name} holds nothing of cluster {cluster_id}")
    prepared = await prepare(store, cluster_id, seen[0].incarnation + 1, brokers, rng)
    encode_snapshot(prepared.rebuild.image)
    return seen


async def take_over(
    store: ObjectStore, seen: tuple[ClusterFile, str], wait_s: float, now_ms: int, taken: Callable[[int], None]
) -> int:
    """The new incarnation, once an old cluster can no longer write; `taken` is told of it as soon as the bucket shows
    it. The old cluster loses the bucket by this: nothing that may be refused is to follow. Raises CannotRebuild,
    StoreError."""
    try:
        file = await begin_incarnation(store, TierRoot(seen[0].cluster_id), now_ms, seen)
    except (VersionConflict, ValueError) as error:
        raise CannotRebuild(f"{store.name} cannot be taken over: {error}") from error
    taken(file.incarnation)
    await asyncio.sleep(wait_s)
    return file.incarnation


async def prepare(
    store: ObjectStore, cluster_id: str, incarnation: int, brokers: Sequence[NamedBroker], rng: random.Random
) -> Prepared:
    """Read the bucket. Without `brokers` the old cluster's are taken; one without a cell has that of the old broker of
    this id. Raises CannotRebuild, StoreError."""
    root = TierRoot(cluster_id)
    metadata, groups, positions = [
        await newest_exports(store, root, kind, before=incarnation) for kind in (METADATA, GROUPS, POSITIONS)
    ]
    found = await find_topics(store, root)
    rebuilder = Rebuilder(cluster_id, incarnation)
    for export in metadata:
        rebuilder.take_events(export.events)
    there = [_tiered(topic) for topic in found if not topic.is_dropped and not topic.tenant]
    rebuilder.take_tier(there, [topic.topic_id for topic in found if topic.is_dropped])
    old_cells = {broker.broker_id: broker.cell for broker in rebuilder.brokers}
    used = [one if one.cell else replace(one, cell=old_cells.get(one.broker_id, DEFAULT_CELL)) for one in brokers]
    used = used or rebuilder.brokers
    rebuild = rebuilder.build(used, min(3, len(used)), rng)
    report = _Report(rebuild, found, positions)
    offsets = report.clamped([event for export in groups for event in export.events])
    return Prepared(
        cluster_id,
        incarnation,
        rebuild,
        offsets,
        {
            "cluster_id": cluster_id,
            "incarnation": incarnation,
            "metadata_of": _when(metadata),
            "groups_of": _when(groups),
            "topics": report.topics(),
            "groups": len({event["group"] for event in offsets}),
            "offsets": len(offsets),
            "clamped": report.moved[:NAMED_MAX],
            "not_there": [*rebuild.notes, *report.sentences(bool(groups))],
        },
    )


def write_files(prepared: Prepared, path: Path, now_ms: int) -> None:
    """What controllers begin with, and beside it the offsets to commit later. Readable by their owner alone."""
    header = EventsHeader(
        kind=GROUPS,
        cluster_id=prepared.cluster_id,
        incarnation=prepared.incarnation,
        scope=0,
        position=0,
        created_ms=now_ms,
    )
    offsets = encode_events(header, prepared.offsets)
    for name, body in ((path, encode_snapshot(prepared.rebuild.image)), (offsets_path(path), offsets)):
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())


def offsets_path(path: Path) -> Path:
    return path.with_name(path.name + OFFSETS_SUFFIX)


def read_offsets(path: Path) -> list[Event]:
    """Of `write_files`. Raises OSError, DamagedEvents."""
    return decode_events(path.read_bytes(), str(path)).events


def _tiered(topic: FoundTopic) -> TieredTopic:
    partitions = {
        index: TieredPartition(found.log_start_offset, found.end_offset, found.leader_epoch)
        for index, found in topic.partitions.items()
    }
    return TieredTopic(topic.name, topic.topic_id, partitions)


def _when(exports: Sequence[Events]) -> str | None:
    """The oldest of them: what came later may be missing."""
    return _time(min(export.header.created_ms for export in exports)) if exports else None


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Report:
    """What of each partition is there and what is not, by the word of the old cluster's own exports."""

    def __init__(self, rebuild: Rebuild, found: Sequence[FoundTopic], positions: Sequence[Events]) -> None:
        self.moved: list[dict[str, Any]] = []
        self._rebuild = rebuild
        self._found = {topic.topic_id: topic for topic in found}
        self._seen: dict[tuple[bytes, int], tuple[int, int, int]] = {}  # leader epoch, when, high watermark
        self._dropped = 0
        for export in positions:
            for event in export.events:
                if event.get("event") != "position":
                    continue
                key = (bytes.fromhex(event["topic_id"]), int(event["partition"]))
                seen = (int(event["leader_epoch"]), export.header.created_ms, int(event["high_watermark"]))
                self._seen[key] = max(self._seen.get(key, seen), seen)

    def topics(self) -> list[dict[str, Any]]:
        return [
            {
                "topic": topic.name,
                "id": uuid_text(topic.topic_id),
                "tiered": topic.is_tiered,
                "partitions": [self._partition(topic, index) for index in range(topic.count)],
            }
            for topic in self._rebuild.topics
        ]

    def _partition(self, topic: RebuiltTopic, index: int) -> dict[str, Any]:
        there = topic.partitions.get(index)
        start, end = (0, 0) if there is None else (there.log_start_offset, there.end_offset)
        seen = self._seen.get((topic.topic_id, index))
        missing = None if seen is None or seen[2] <= end else {"from": end, "to": seen[2], "seen": _time(seen[1])}
        return {"partition": index, "log_start_offset": start, "end_offset": end, "missing": missing}

    def sentences(self, has_groups: bool) -> list[str]:
        """In the order of the topics."""
        told: list[str] = []
        for topic in self._rebuild.topics:
            if not topic.is_tiered:
                told.append(f"{topic.name}: it was not tiered, so it begins empty at offset 0")
            for index in range(topic.count):
                missing = self._partition(topic, index)["missing"]
                if missing is not None:
                    told.append(
                        f"{topic.name}-{index}: records {missing['from']} to {missing['to'] - 1} were on the brokers "
                        f"alone (as of {missing['seen']})"
                    )
                found = self._found.get(topic.topic_id)
                trouble = found.partitions[index].trouble if found is not None and index in found.partitions else ""
                if trouble:
                    told.append(f"{topic.name}-{index}: it stays without a leader until this is mended: {trouble}")
        if not has_groups:
            told.append("no committed offsets were there")
        if self.moved:
            told.append(f"{len(self.moved)} committed offsets lay above what is there, and were moved to its end")
        if self._dropped:
            told.append(f"{self._dropped} committed offsets are left out: what they were committed for begins anew")
        return told

    def clamped(self, events: Sequence[Event]) -> list[Event]:
        """Offsets of what is tiered, none of them above the tier's end."""
        by_id = {topic.topic_id.hex(): topic for topic in self._rebuild.topics}
        by_name = {topic.name: topic for topic in self._rebuild.topics}
        kept: list[Event] = []
        for event in events:
            if event.get("event") != "offset":
                continue
            known_id = event["topic_id"].strip("0")
            topic = by_id.get(event["topic_id"]) if known_id else by_name.get(event["topic"])
            there = None if topic is None else topic.partitions.get(int(event["partition"]))
            if topic is None or there is None:
                self._dropped += 1
                continue
            offset = min(int(event["offset"]), there.end_offset)
            if offset != event["offset"]:
                names = {name: event[name] for name in ("group", "topic", "partition", "offset")}
                self.moved.append(names | {"to": offset})
            kept.append(event | {"topic": topic.name, "offset": offset, "leader_epoch": -1})
        return kept
