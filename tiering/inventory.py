"""What lies in a bucket, found by names and manifests alone: clusters, their topics, how far each partition goes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from object_store.errors import ObjectMissing
from object_store.store import ObjectStore
from tiering.cluster_file import read_cluster_file
from tiering.keys import METADATA, NO_TENANT, PROPOSALS, PartitionPath, TierRoot, parse_topic_directory
from tiering.manifest import DamagedManifest, Manifest, read_manifest

READS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class FoundPartition:
    """`manifest` is None when none was ever published; `trouble` says why it cannot be read."""

    path: PartitionPath
    manifest: Manifest | None = None
    trouble: str = ""

    @property
    def is_dropped(self) -> bool:
        return self.manifest is not None and self.manifest.head.dropped_ms > 0

    @property
    def is_emptied(self) -> bool:
        """Whether it was deleted, and its objects are gone or about to go."""
        return self.is_dropped and self.manifest is not None and not self.manifest.segments and bool(self.end_offset)

    @property
    def log_start_offset(self) -> int:
        return 0 if self.manifest is None else self.manifest.head.log_start_offset

    @property
    def end_offset(self) -> int:
        return 0 if self.manifest is None else self.manifest.head.end_offset

    @property
    def leader_epoch(self) -> int:
        """The highest one that the bucket shows."""
        if self.manifest is None:
            return 0
        epochs = [epoch for segment in self.manifest.segments for epoch, _ in segment.epochs]
        return max([self.manifest.head.leader_epoch, 0, *epochs])


@dataclass(slots=True)
class FoundTopic:
    """One incarnation of a topic."""

    name: str
    topic_id: bytes
    tenant: str = ""
    partitions: dict[int, FoundPartition] = field(default_factory=dict)

    @property
    def is_dropped(self) -> bool:
        """Whether the topic was deleted, as far as its manifests say: the first one that says so counts."""
        return any(partition.is_dropped for partition in self.partitions.values())


async def find_clusters(store: ObjectStore) -> list[str]:
    """Ids of the clusters that have written there. Raises StoreError."""
    found = []
    for name in await store.list_names(""):
        cluster_id = name.rstrip("/")
        if name.endswith("/"):
            try:
                if await read_cluster_file(store, TierRoot(cluster_id)) is not None:
                    found.append(cluster_id)
            except ValueError:
                continue
    return found


async def find_topics(store: ObjectStore, root: TierRoot, name: str | None = None) -> list[FoundTopic]:
    """All topics that have a directory, or those of one name, with the newest manifests. Raises StoreError."""
    topics: list[FoundTopic] = []
    paths: list[tuple[FoundTopic, PartitionPath]] = []
    for tenant in await store.list_names(root.prefix):
        if not tenant.endswith("/") or tenant.rstrip("/") in (METADATA, PROPOSALS):
            continue
        for directory in await store.list_names(root.prefix + tenant):
            parsed = parse_topic_directory(directory)
            if parsed is None or (name is not None and parsed[0] != name):
                continue
            topic = FoundTopic(*parsed, "" if tenant.rstrip("/") == NO_TENANT else tenant.rstrip("/"))
            topics.append(topic)
            for number in await store.list_names(f"{root.prefix}{tenant}{directory}"):
                digits = number.rstrip("/")
                if digits.isascii() and digits.isdigit():
                    paths.append((topic, PartitionPath(*parsed, int(digits), topic.tenant)))
    places = asyncio.Semaphore(READS_AT_ONCE)

    async def read(topic: FoundTopic, path: PartitionPath) -> None:
        async with places:
            topic.partitions[path.partition] = await read_partition(store, root, path)

    await asyncio.gather(*(read(topic, path) for topic, path in paths))
    for topic in topics:
        topic.partitions = dict(sorted(topic.partitions.items()))
    return topics


async def read_partition(store: ObjectStore, root: TierRoot, path: PartitionPath) -> FoundPartition:
    """Raises StoreError when the store does not answer."""
    try:
        return FoundPartition(path, await read_manifest(store, root, path))
    except (DamagedManifest, ObjectMissing) as error:
        return FoundPartition(path, trouble=str(error))
