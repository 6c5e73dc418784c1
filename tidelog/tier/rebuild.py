"""Rebuilds a cluster from its object store: reads the bucket, creates the metadata, reports what is missing."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kraft.image.cells import DEFAULT_CELL
from kraft.image.snapshot import encode_snapshot
from kraft.rebuilding.rebuild import CannotRebuild, NamedBroker, Rebuild, Rebuilder, TieredPartition, TieredTopic
from object_store.errors import VersionConflict
from object_store.store import ObjectStore
from records.events import Event, Events, EventsHeader, decode_events, encode_events
from tidelog.moments import utc
from tidelog.tier.rebuild_report import RebuildReport, count_objects
from tiering.bucket.cluster_file import CHECK_INTERVAL_S, ClusterFile, begin_incarnation, read_cluster_file
from tiering.bucket.keys import TierRoot
from tiering.exports.exports import GROUPS, METADATA, POSITIONS, newest_exports
from tiering.upkeep.inventory import FoundTopic, find_clusters, find_topics
from tiering.upkeep.undecided import undecided_transactions

OLD_CLUSTER_WAIT_S = CHECK_INTERVAL_S + 5.0
"""How long after the take-over a running old cluster may be unaware of it."""
OFFSETS_SUFFIX = ".offsets"
NAMED_MAX = 1_000


@dataclass(slots=True)
class Prepared:
    """The initial state of a rebuilt cluster. `offsets` are events of the kind "groups", clamped to the tier's end."""

    cluster_id: str
    incarnation: int
    rebuild: Rebuild
    offsets: list[Event]
    report: dict[str, Any] = field(default_factory=dict)


async def choose_cluster(store: ObjectStore, wanted: str | None) -> str:
    """The id of the cluster that owns the bucket. Raises CannotRebuild, StoreError."""
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
    """Prepare a rebuild without changing the bucket, so that any error occurs here. Returns the input of `take_over`.
    Raises CannotRebuild, StoreError."""
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
    """Returns the new incarnation when an old cluster can no longer write; `taken` is called with it as soon as the
    bucket shows it. The old cluster loses the bucket, so all checks come before. Raises CannotRebuild, StoreError."""
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
    """Read the bucket. Without `brokers` the old cluster's are used; one without a cell gets the old cell of the broker
    with its id. Raises CannotRebuild, StoreError."""
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
    undecided = {
        topic.topic_id: await undecided_transactions(store, root, topic.partitions.values())
        for topic in found
        if not topic.is_dropped
    }
    report = RebuildReport(rebuild, found, positions, await count_objects(store, root, found), undecided)
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
            "undecided": report.undecided_rows()[:NAMED_MAX],
            "not_there": [*rebuild.notes, *report.sentences(bool(groups))],
        },
    )


def write_files(prepared: Prepared, path: Path, now_ms: int) -> None:
    """Write the controllers' initial metadata, and the offsets to commit later. Readable only by their owner."""
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
    """Read the file of `write_files`. Raises OSError, DamagedEvents."""
    return decode_events(path.read_bytes(), str(path)).events


def _tiered(topic: FoundTopic) -> TieredTopic:
    partitions = {
        index: TieredPartition(found.log_start_offset, found.end_offset, found.leader_epoch, found.holds_nothing)
        for index, found in topic.partitions.items()
    }
    return TieredTopic(topic.name, topic.topic_id, partitions)


def _when(exports: Sequence[Events]) -> str | None:
    """The time of the oldest export; later changes may be missing."""
    return utc(min(export.header.created_ms for export in exports)) if exports else None
