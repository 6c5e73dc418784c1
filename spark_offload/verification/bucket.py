"""What the bucket says of the partitions that are to be verified: manifests, objects, exports, proposals, audit.

What brokers tell of themselves is read first, then manifests, then the names of objects: of a cluster that goes on
writing, what is read later is newer, and whatever a manifest names was there before it was.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from object_store.errors import ObjectMissing, StoreError
from object_store.store import ObjectInfo, ObjectStore
from records.events import Event
from spark_offload.options import OptionError, ReadOptions
from spark_offload.reading.catalog import chosen_root
from spark_offload.reading.named_partitions import check_named
from tiering.bucket.cluster_file import FIRST_INCARNATION, read_cluster_file
from tiering.bucket.keys import NO_TENANT, ManifestKey, PageKey, PartitionPath, SegmentKey, TierRoot
from tiering.bucket.segment import SegmentId
from tiering.exports.audit_reading import ExportedAudit, read_audit
from tiering.exports.exports import METADATA, POSITIONS, newest_exports
from tiering.jobs.proposal import Proposal, Verdict, decode_proposal, decode_verdict
from tiering.manifests.manifest import DamagedManifest, ManifestHead, read_head
from tiering.upkeep.inventory import FoundPartition, find_topics

READS_AT_ONCE = 16
OLDER_MANIFESTS_MAX = 16
PROPOSALS_MAX = 10_000


class Position(NamedTuple):
    """A partition as its leader reported it at `seen_ms`; the end is None where it was not known, and is that of
    `tier_generation`, as in the manifest."""

    seen_ms: int
    log_start_offset: int
    tier_end_offset: int | None
    tier_generation: int = 0


@dataclass(slots=True)
class PartitionFound:
    """`older` are manifests before the newest one, newest first. `unknown` are objects whose names follow no scheme."""

    found: FoundPartition
    objects: dict[SegmentId, ObjectInfo] = field(default_factory=dict)
    older: list[ManifestHead] = field(default_factory=list)
    unknown: list[ObjectInfo] = field(default_factory=list)
    position: Position | None = None

    @property
    def path(self) -> PartitionPath:
        return self.found.path


class Decided(NamedTuple):
    """A proposal with its verdict, None while there is none."""

    proposal: Proposal
    verdict: Verdict | None

    @property
    def is_accepted(self) -> bool:
        return self.verdict is not None and self.verdict.accepted

    @property
    def is_erasure(self) -> bool:
        """Whether it took records away that nothing else explains."""
        return self.proposal.kind == "erasure" and self.is_accepted


@dataclass(slots=True)
class BucketFound:
    """As of `looked_ms`. `settings` are those of topics by name, `cluster_settings` the defaults of the cluster as far
    as it has any. `began_ms` is when a rebuilt cluster took the bucket over, 0 for one that was never rebuilt:
    positions in the audit from before then are those of another cluster."""

    root: TierRoot
    looked_ms: int
    partitions: list[PartitionFound] = field(default_factory=list)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    cluster_settings: dict[str, str] = field(default_factory=dict)
    proposals: list[Decided] = field(default_factory=list)
    audit: ExportedAudit = field(default_factory=ExportedAudit)
    began_ms: int = 0
    trouble: list[str] = field(default_factory=list)

    def is_compacted(self, topic: str) -> bool:
        """Whether brokers compact the topic: then offsets may be missing in segments that no job rewrote."""
        default = self.cluster_settings.get("log.cleanup.policy", "delete")
        return "compact" in self.settings.get(topic, {}).get("cleanup.policy", default)


async def look(store: ObjectStore, reading: ReadOptions, now_ms: int) -> BucketFound:
    """Raises OptionError when the bucket does not hold what was chosen, StoreError."""
    found = BucketFound(await chosen_root(store, reading.cluster_id), now_ms)
    with suppress(ValueError):  # a damaged one concerns who writes
        file = await read_cluster_file(store, found.root)
        found.began_ms = file[0].changed_ms if file is not None and file[0].incarnation > FIRST_INCARNATION else 0
    positions = await _reported_positions(store, found)
    for path, partition in sorted(await _partitions(store, found.root, reading)):
        found.partitions.append(PartitionFound(partition, position=positions.get((path.topic_id, path.partition))))
    if not found.partitions:
        names = " and ".join(map(repr, reading.topics))
        what = f"topic {names} in these partitions" if names else "what was chosen"
        raise OptionError(f"{store.name}, cluster {found.root.cluster_id}, holds nothing of {what}")
    places = asyncio.Semaphore(READS_AT_ONCE)

    async def one(partition: PartitionFound) -> None:
        async with places:
            await _objects(store, found.root, partition)

    await asyncio.gather(*(one(partition) for partition in found.partitions))
    return found


async def _partitions(
    store: ObjectStore, root: TierRoot, reading: ReadOptions
) -> list[tuple[PartitionPath, FoundPartition]]:
    """Raises OptionError when a topic that was named is not there, or does not have a partition that was named."""
    names: list[str | None] = list(reading.topics) or [None]
    tenant = "" if reading.tenant == NO_TENANT else reading.tenant
    topics = [
        topic
        for name in names
        for topic in await find_topics(store, root, name)
        if (not reading.tenant or topic.tenant == tenant)
        and (not reading.topic_id or topic.topic_id.hex() == reading.topic_id)
        and (not reading.topic_pattern or re.fullmatch(reading.topic_pattern, topic.name))
    ]
    for name in reading.topics:
        if not any(topic.name == name and topic.partitions for topic in topics):
            of_id = f" with the id {reading.topic_id}" if reading.topic_id else ""
            raise OptionError(f"{store.name}, cluster {root.cluster_id}, holds nothing of topic {name!r}{of_id}")
    for topic in topics if reading.topics else ():
        if reading.topic_id or not topic.is_dropped:
            await check_named(store, root, (topic.name, topic.topic_id), list(topic.partitions), reading.partitions)
    return [
        (partition.path, partition)
        for topic in topics
        for partition in topic.partitions.values()
        if reading.wants_partition(partition.path.partition)
    ]


async def _objects(store: ObjectStore, root: TierRoot, partition: PartitionFound) -> None:
    versions: list[int] = []
    async for info in store.list(root.partition_prefix(partition.path)):
        key = root.parse_key(info.key)
        if isinstance(key, SegmentKey):
            partition.objects[key.segment] = info
        elif isinstance(key, ManifestKey):
            versions.append(key.version)
        elif not isinstance(key, PageKey):
            partition.unknown.append(info)
    newest = partition.found.manifest.head.version if partition.found.manifest is not None else 0
    for version in sorted((one for one in versions if one < newest), reverse=True)[:OLDER_MANIFESTS_MAX]:
        try:
            partition.older.append(await read_head(store, root, partition.path, version))
        except (DamagedManifest, ObjectMissing):  # superseded: it is never read
            continue


# what the cluster tells beside its manifests ---------------------------------------------------------------


async def _reported_positions(store: ObjectStore, found: BucketFound) -> dict[tuple[bytes, int], Position]:
    root = found.root
    for export in await newest_exports(store, root, METADATA):
        for event in export.events:
            _setting(found, event)
    positions: dict[tuple[bytes, int], Position] = {}
    for export in await newest_exports(store, root, POSITIONS):
        for event in export.events:
            position = _position(event, export.header.created_ms)
            if position is not None:
                place, seen = position
                if place not in positions or positions[place].seen_ms < seen.seen_ms:
                    positions[place] = seen
    found.proposals = await _proposals(store, found)
    found.audit = await read_audit(store, root)
    return positions


def _setting(found: BucketFound, event: Event) -> None:
    name, value, resource = event.get("name"), event.get("value"), event.get("resource_name")
    if event.get("event") != "config" or not isinstance(value, str) or not isinstance(name, str):
        return
    if event.get("resource_type") == "topic" and isinstance(resource, str):
        found.settings.setdefault(resource, {})[name] = value
    elif event.get("resource_type") == "broker" and resource == "":
        found.cluster_settings[name] = value


def _position(event: Event, seen_ms: int) -> tuple[tuple[bytes, int], Position] | None:
    """None for another event, or one that cannot be read."""
    try:
        if event["event"] != "position":
            return None
        place = (bytes.fromhex(event["topic_id"]), int(event["partition"]))
        end = event.get("tier_end_offset")
        generation = int(event.get("tier_generation") or 0)
        return place, Position(seen_ms, int(event["log_start_offset"]), None if end is None else int(end), generation)
    except (KeyError, TypeError, ValueError):
        return None


async def _proposals(store: ObjectStore, found: BucketFound) -> list[Decided]:
    """In order of their making."""
    verdicts: dict[str, Verdict] = {}
    proposals: list[Proposal] = []
    prefix = found.root.proposals_prefix
    names = [info.key.removeprefix(prefix) async for info in store.list(prefix)][:PROPOSALS_MAX]
    for name in names:
        uuid, dot, suffix = name.partition(".")
        if suffix not in ("", "verdict"):
            continue
        try:
            body = await store.get(prefix + name)
            if dot:
                verdicts[uuid] = decode_verdict(body)
            else:
                proposals.append(decode_proposal(body))
        except ObjectMissing:
            continue
        except (ValueError, StoreError) as error:
            found.trouble.append(f"{prefix}{name}: {error}")
    proposals.sort(key=lambda one: one.created_ms)
    return [Decided(proposal, verdicts.get(proposal.uuid)) for proposal in proposals]
