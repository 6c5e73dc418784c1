"""The content of a bucket by names and manifests: clusters, their topics, and each partition's offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct, field

from object_store.errors import ObjectMissing
from object_store.store import ObjectStore
from tiering.bucket.cluster_file import read_cluster_file
from tiering.bucket.keys import NO_TENANT, NOT_TENANTS, PartitionPath, TierRoot, parse_topic_directory
from tiering.manifests.manifest import DamagedManifest, Manifest, read_manifest

READS_AT_ONCE = 16


class TopicPlace(NamedTuple):
    """One incarnation of a topic, which has a directory of its own."""

    name: str
    topic_id: bytes
    tenant: str


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
        """Whether it was deleted, and its objects are being deleted."""
        return self.manifest is not None and self.manifest.is_emptied

    @property
    def holds_nothing(self) -> bool:
        """Whether it is certain that no records of it are in the bucket."""
        return not self.trouble and self.end_offset <= self.log_start_offset

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


class FoundTopic(Struct):
    """One incarnation of a topic."""

    name: str
    topic_id: bytes
    tenant: str = ""
    partitions: dict[int, FoundPartition] = field(default_factory=dict)

    @property
    def is_dropped(self) -> bool:
        """Whether the topic was deleted; one manifest that says so is enough."""
        return any(partition.is_dropped for partition in self.partitions.values())

    def replace_partitions(self, partitions: Mapping[int, FoundPartition]) -> None:
        """By number, whatever their order."""
        self.partitions = dict(sorted(partitions.items()))


async def find_clusters(store: ObjectStore) -> list[str]:
    """Ids of the clusters that have written to the store, even if `cluster.json` is damaged. Raises StoreError."""
    found = []
    for name in await store.list_names(""):
        cluster_id = name.rstrip("/")
        if name.endswith("/"):
            with suppress(ValueError):
                if await read_cluster_file(store, TierRoot(cluster_id)) is None:
                    continue
            found.append(cluster_id)
    return found


async def list_partitions(
    store: ObjectStore, root: TierRoot, name: str | None = None
) -> dict[TopicPlace, list[PartitionPath]]:
    """Every partition with a directory, by topic, or those of topics of one name. Raises StoreError."""
    found: dict[TopicPlace, list[PartitionPath]] = {}
    for below in await store.list_names(root.prefix):
        tenant = below.rstrip("/")
        if not below.endswith("/") or tenant in NOT_TENANTS:
            continue
        for directory in await store.list_names(root.prefix + below):
            parsed = parse_topic_directory(directory)
            if parsed is None or (name is not None and parsed[0] != name):
                continue
            topic = TopicPlace(*parsed, "" if tenant == NO_TENANT else tenant)
            numbers = [number.rstrip("/") for number in await store.list_names(root.prefix + below + directory)]
            found[topic] = [
                PartitionPath(topic.name, topic.topic_id, int(number), topic.tenant)
                for number in numbers
                if number.isascii() and number.isdigit()
            ]
    return found


async def find_topics(store: ObjectStore, root: TierRoot, name: str | None = None) -> list[FoundTopic]:
    """All topics with a directory, or those of one name, with the newest manifests. Raises StoreError."""
    listed = await list_partitions(store, root, name)
    found: dict[TopicPlace, dict[int, FoundPartition]] = {topic: {} for topic in listed}
    places = asyncio.Semaphore(READS_AT_ONCE)

    async def read(topic: TopicPlace, path: PartitionPath) -> None:
        async with places:
            found[topic][path.partition] = await read_partition(store, root, path)

    await asyncio.gather(*(read(topic, path) for topic, paths in listed.items() for path in paths))
    return [FoundTopic(*topic, dict(sorted(partitions.items()))) for topic, partitions in found.items()]


async def read_partition(store: ObjectStore, root: TierRoot, path: PartitionPath) -> FoundPartition:
    """Raises StoreError if the store fails."""
    try:
        return FoundPartition(path, await read_manifest(store, root, path))
    except (DamagedManifest, ObjectMissing) as error:
        return FoundPartition(path, trouble=str(error))
