"""What the bucket says of itself: clusters, topics, and what each partition holds. Needs no broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

from object_store.store import ObjectStore
from spark_offload.aborted import first_open_offset
from spark_offload.options import OptionError, ReadOptions
from spark_offload.sections import read_section
from tiering.keys import CLUSTER_FILE, NO_TENANT, PartitionPath, TierRoot, parse_topic_directory
from tiering.manifest import DamagedManifest, read_manifest
from tiering.segment import PRODUCER_SNAPSHOT, TieredSegment

PARALLEL_READS = 16


@dataclass(frozen=True, slots=True)
class PartitionContents:
    """One partition as its newest manifest has it: readable offsets are [log_start, end), segments are in order."""

    root: TierRoot
    path: PartitionPath
    log_start: int
    end: int
    segments: tuple[TieredSegment, ...]

    def key_of(self, segment: TieredSegment) -> str:
        return self.root.segment_key(self.path, segment.id)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition, without segments whose records are all before `timestamp_from` (ms)."""

    contents: PartitionContents
    start: int
    end: int
    timestamp_from: int | None = None

    def segments(self) -> list[TieredSegment]:
        return [
            one
            for one in self.contents.segments
            if one.end_offset > self.start
            and one.base_offset < self.end
            and not (self.timestamp_from is not None and 0 <= one.max_timestamp < self.timestamp_from)
        ]


class Catalog:
    """Looks into one store, as one reader was asked to.

    A manifest that cannot be read is an error, or with `passes_over_damage` leaves its partition out: `damaged` has it
    then, with the reason.
    """

    def __init__(self, store: ObjectStore, options: ReadOptions, *, passes_over_damage: bool = False) -> None:
        self.damaged: list[tuple[PartitionPath, str]] = []
        self._passes_over_damage = passes_over_damage
        self._store = store
        self._options = options
        self._reads = asyncio.Semaphore(PARALLEL_READS)

    async def contents(self) -> list[PartitionContents]:
        """Every partition that the options choose, in order of topic and number.

        Raises OptionError when the bucket does not hold what they name, StoreError, ValueError for a manifest that
        cannot be read.
        """
        root = await chosen_root(self._store, self._options.cluster_id)
        topics = await self._topics(root)
        found = await asyncio.gather(*(self._topic(root, topic, topic_id) for topic, topic_id in topics))
        self._check(root, found)
        return [contents for partitions in found for contents in partitions]

    async def _topics(self, root: TierRoot) -> list[tuple[str, bytes]]:
        options = self._options
        prefix = root.tenant_prefix("" if options.tenant == NO_TENANT else options.tenant)
        parsed = [parse_topic_directory(name) for name in await self._store.list_names(prefix)]
        there = [entry for entry in parsed if entry is not None]
        if options.topic_id:
            there = [(topic, topic_id) for topic, topic_id in there if topic_id.hex() == options.topic_id]
        if options.topic_pattern:
            return [entry for entry in there if re.fullmatch(options.topic_pattern, entry[0])]
        return [entry for entry in there if entry[0] in options.topics]

    def _check(self, root: TierRoot, found: Sequence[Sequence[PartitionContents]]) -> None:
        """Each topic that was named is there once: a name may have been given again after a topic was deleted."""
        ids: dict[str, list[str]] = {}
        for partitions in found:
            if partitions:
                ids.setdefault(partitions[0].path.topic, []).append(partitions[0].path.topic_id.hex())
        for path, _ in self.damaged:
            if path.topic_id.hex() not in ids.setdefault(path.topic, []):
                ids[path.topic].append(path.topic_id.hex())
        where = f"{self._store.name}, cluster {root.cluster_id}"
        for topic in self._options.topics:
            if topic not in ids:
                raise OptionError(f"{where}, holds nothing of topic {topic!r}" + self._words_on_partitions())
        for topic, topic_ids in ids.items():
            if len(topic_ids) > 1:
                raise OptionError(
                    f"{where}, holds topics {topic!r} with the ids {', '.join(topic_ids)}: choose a topicId"
                )

    def _words_on_partitions(self) -> str:
        return " in these partitions" if self._options.partitions else ""

    async def _topic(self, root: TierRoot, topic: str, topic_id: bytes) -> list[PartitionContents]:
        tenant = "" if self._options.tenant == NO_TENANT else self._options.tenant
        names = await self._store.list_names(root.topic_prefix(topic, topic_id, tenant))
        numbers = sorted(int(name.rstrip("/")) for name in names if name.rstrip("/").isdecimal())
        chosen = [number for number in numbers if self._options.wants_partition(number)]
        paths = [PartitionPath(topic, topic_id, number, tenant) for number in chosen]
        found = await asyncio.gather(*(self._partition(root, path) for path in paths))
        return [contents for contents in found if contents is not None]

    async def _partition(self, root: TierRoot, path: PartitionPath) -> PartitionContents | None:
        """None for a partition without a manifest, and for one of a deleted topic that is not asked for by its id."""
        try:
            async with self._reads:
                manifest = await read_manifest(self._store, root, path)
        except DamagedManifest as error:
            if not self._passes_over_damage:
                raise
            self.damaged.append((path, str(error)))
            return None
        if manifest is None or (manifest.head.dropped_ms and not self._options.topic_id):
            return None
        head = manifest.head
        start = max(head.log_start_offset, manifest.segments[0].base_offset if manifest.segments else 0)
        return PartitionContents(root, path, start, max(head.end_offset, start), manifest.segments)


async def chosen_root(store: ObjectStore, cluster_id: str) -> TierRoot:
    """That of the cluster with this id, or else of the only one in the store. Raises OptionError, StoreError."""
    if cluster_id:
        return TierRoot(cluster_id)
    names = [name.rstrip("/") for name in await store.list_names("") if name.endswith("/")]
    clusters = [name for name in names if CLUSTER_FILE in await store.list_names(f"{name}/")]
    if len(clusters) != 1:
        found = f"the clusters {', '.join(clusters)}: choose one with clusterId" if clusters else "no cluster"
        raise OptionError(f"{store.name} holds {found}")
    return TierRoot(clusters[0])


async def stable_end(store: ObjectStore, contents: PartitionContents) -> int:
    """The end of what readers of committed records may see.

    Below the tier's end every transaction is decided, but the marker of one that began there may itself not be in
    the tier yet. Whether it aborted cannot be known from the bucket alone, so reading ends where it began.
    """
    if not contents.segments:
        return contents.end
    last = contents.segments[-1]
    snapshot = await read_section(store, contents.key_of(last), last.sections.get(PRODUCER_SNAPSHOT))
    if not snapshot:
        return contents.end
    open_from = first_open_offset(snapshot)
    return contents.end if open_from is None else min(contents.end, open_from)
