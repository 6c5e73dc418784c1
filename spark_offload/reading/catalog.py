"""The content of a bucket: clusters, topics, and each partition's offsets. Needs no broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from object_store.store import ObjectStore
from spark_offload.options import OptionError, ReadOptions
from spark_offload.reading.named_partitions import check_named
from spark_offload.segments.aborted import first_open_offset
from spark_offload.segments.sections import read_section
from tiering.bucket.keys import CLUSTER_FILE, NO_TENANT, PartitionPath, TierRoot, parse_topic_directory
from tiering.bucket.segment import TieredSegment, producers_section
from tiering.manifests.manifest import DamagedManifest, read_manifest, read_newest_head

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


@dataclass(slots=True)
class _Incarnation:
    """A topic's directory: `numbers` are all partitions with a place in it, `contents` those that are chosen and have
    something."""

    topic: str
    topic_id: bytes
    numbers: list[int]
    contents: list[PartitionContents] = field(default_factory=list)


class Catalog:
    """Looks into one store, as one reader was asked to.

    A manifest that cannot be read is an error, or with `passes_over_damage` leaves its partition out: `damaged` has it
    then, with the reason. Without `checks_partitions` it is not checked again whether named partitions are the topic's,
    for a caller that looks every second.
    """

    def __init__(
        self,
        store: ObjectStore,
        options: ReadOptions,
        *,
        passes_over_damage: bool = False,
        checks_partitions: bool = True,
    ) -> None:
        self.damaged: list[tuple[PartitionPath, str]] = []
        self._passes_over_damage = passes_over_damage
        self._checks_partitions = checks_partitions
        self._store = store
        self._options = options
        self._reads = asyncio.Semaphore(PARALLEL_READS)

    async def contents(self) -> list[PartitionContents]:
        """Every partition that the options choose and that has anything in the tier, in order of topic and number.

        Raises OptionError when the bucket does not hold a topic that they name, or the topic does not have a partition
        that they name, StoreError, ValueError for a manifest that cannot be read.
        """
        root = await chosen_root(self._store, self._options.cluster_id)
        topics = await self._topics(root)
        found = await asyncio.gather(*(self._topic(root, topic, topic_id) for topic, topic_id in topics))
        await self._check(root, found)
        return [contents for one in found for contents in one.contents]

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

    async def _check(self, root: TierRoot, found: Sequence[_Incarnation]) -> None:
        """Each topic that was named is there once: a name may have been given again after a topic was deleted. So are
        the partitions that were named of it."""
        damaged = {path.topic_id for path, _ in self.damaged}
        there = [one for one in found if one.contents or one.topic_id in damaged]
        names = {one.topic for one in there}
        if self._options.partitions:
            there += [one for one in found if one.topic not in names and await self._lives(root, one)]
        where = f"{self._store.name}, cluster {root.cluster_id}"
        for topic in self._options.topics:
            if not any(one.topic == topic for one in there):
                raise OptionError(f"{where}, holds nothing of topic {topic!r}")
        for topic in dict.fromkeys(one.topic for one in there):
            topic_ids = [one.topic_id.hex() for one in there if one.topic == topic]
            if len(topic_ids) > 1:
                raise OptionError(
                    f"{where}, holds topics {topic!r} with the ids {', '.join(topic_ids)}: choose a topicId"
                )
        if self._options.topics and self._checks_partitions:  # a pattern's topics have the partitions that they have
            for one in there:
                named = self._options.partitions
                await check_named(self._store, root, (one.topic, one.topic_id), one.numbers, named)

    async def _lives(self, root: TierRoot, found: _Incarnation) -> bool:
        """Whether a topic of which nothing that was chosen is in the tier has other partitions there."""
        tenant = "" if self._options.tenant == NO_TENANT else self._options.tenant
        for number in found.numbers:
            if self._options.wants_partition(number):
                continue
            try:
                head = await read_newest_head(
                    self._store, root, PartitionPath(found.topic, found.topic_id, number, tenant)
                )
            except DamagedManifest:
                return True
            if head is not None:  # topics are deleted whole
                return not head.dropped_ms or bool(self._options.topic_id)
        return False

    async def _topic(self, root: TierRoot, topic: str, topic_id: bytes) -> _Incarnation:
        tenant = "" if self._options.tenant == NO_TENANT else self._options.tenant
        names = await self._store.list_names(root.topic_prefix(topic, topic_id, tenant))
        numbers = sorted(int(name.rstrip("/")) for name in names if name.rstrip("/").isdecimal())
        chosen = [number for number in numbers if self._options.wants_partition(number)]
        paths = [PartitionPath(topic, topic_id, number, tenant) for number in chosen]
        found = await asyncio.gather(*(self._partition(root, path) for path in paths))
        return _Incarnation(topic, topic_id, numbers, [contents for contents in found if contents is not None])

    async def _partition(self, root: TierRoot, path: PartitionPath) -> PartitionContents | None:
        """None for a partition without a manifest, for one of a deleted topic that is not asked for by its id, and for
        one whose records were removed after its deletion."""
        try:
            async with self._reads:
                manifest = await read_manifest(self._store, root, path)
        except DamagedManifest as error:
            if not self._passes_over_damage:
                raise
            self.damaged.append((path, str(error)))
            return None
        if manifest is None or (manifest.head.dropped_ms and not self._options.topic_id) or manifest.is_emptied:
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
    snapshot = await read_section(store, contents.key_of(last), producers_section(last))
    if not snapshot:
        return contents.end
    open_from = first_open_offset(snapshot)
    return contents.end if open_from is None else min(contents.end, open_from)
