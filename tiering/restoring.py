"""A deleted topic's objects, copied inside the store under another topic's name, with manifests that describe them.

Nothing of the old topic is changed. A copy that stops half way has no manifest, and the sweeper removes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from object_store.errors import ObjectMissing
from object_store.store import ObjectStore
from tiering.inventory import FoundPartition, FoundTopic
from tiering.keys import PartitionPath, TierRoot
from tiering.manifest import HEAD_SEGMENTS_MAX, PAGE_SEGMENTS, ManifestHead, PageRef, encode_head, page_of
from tiering.segment import PRODUCER_SNAPSHOT, TieredSegment

COPIES_AT_ONCE = 8


class CannotRestore(Exception):
    """The text says why, for the operator."""


@dataclass(slots=True, frozen=True)
class NewTopic:
    """Whose the copies are to be. `incarnation` is the cluster's."""

    name: str
    topic_id: bytes
    tenant: str
    incarnation: int


def check_restorable(found: FoundTopic) -> None:
    """Raises CannotRestore when something of it is gone already, or cannot be read."""
    if not found.partitions:
        raise CannotRestore("nothing of it is in the object store")
    for index, partition in found.partitions.items():
        if partition.trouble:
            raise CannotRestore(f"partition {index}: {partition.trouble}")
        if partition.is_emptied:
            raise CannotRestore("its delay has passed, and its records are removed")


async def copy_topic(
    store: ObjectStore, root: TierRoot, found: FoundTopic, new: NewTopic, progress: Callable[[int, int], None]
) -> None:
    """Copy every segment. `progress` is told how many of all are done. Raises CannotRestore, StoreError."""
    work = [
        (partition.path, PartitionPath(new.name, new.topic_id, index, new.tenant), segment)
        for index, partition in found.partitions.items()
        if partition.manifest is not None
        for segment in partition.manifest.segments
    ]
    places, done = asyncio.Semaphore(COPIES_AT_ONCE), 0

    async def copy(source: PartitionPath, target: PartitionPath, segment: TieredSegment) -> None:
        nonlocal done
        async with places:
            key = root.segment_key(source, segment.id)
            try:
                await store.copy(key, root.segment_key(target, segment.id))
            except ObjectMissing as error:
                raise CannotRestore(f"{key} is gone") from error
        done += 1
        progress(done, len(work))

    for begin in range(0, len(work), 1_000):
        await asyncio.gather(*(copy(*item) for item in work[begin : begin + 1_000]))


async def write_manifests(
    store: ObjectStore,
    root: TierRoot,
    found: FoundTopic,
    new: NewTopic,
    now_ms: int,
    new_uuid: Callable[[], str],
) -> None:
    """The first version of each partition of the new topic. Raises StoreError."""
    for index, partition in found.partitions.items():
        if partition.manifest is None:
            continue
        path = PartitionPath(new.name, new.topic_id, index, new.tenant)
        rest, refs = [_without_producers(segment) for segment in partition.manifest.segments], list[PageRef]()
        while len(rest) > HEAD_SEGMENTS_MAX:
            page = page_of(rest[:PAGE_SEGMENTS], new_uuid())
            del rest[:PAGE_SEGMENTS]
            await store.put(root.page_key(path, page.ref.uuid), page.body, create_only=True)
            refs.append(page.ref)
        head = ManifestHead(
            cluster_id=root.cluster_id,
            incarnation=new.incarnation,
            topic=new.name,
            topic_id=new.topic_id.hex(),
            partition=index,
            tenant=new.tenant,
            version=1,
            leader_epoch=partition.leader_epoch,
            broker_id=-1,
            broker_epoch=-1,
            tier_state_offset=-1,
            published_ms=now_ms,
            log_start_offset=partition.log_start_offset,
            end_offset=partition.end_offset,
            pages=refs,
            segments=rest,
        )
        await store.put(root.manifest_key(path, 1), encode_head(head), create_only=True)


def _without_producers(segment: TieredSegment) -> TieredSegment:
    """Sequence numbers count per partition of a name: a producer begins with 0 in one that it takes for a new one."""
    sections = {name: section for name, section in segment.sections.items() if name != PRODUCER_SNAPSHOT}
    return replace(segment, sections=sections)


async def remove_copies(store: ObjectStore, root: TierRoot, new: NewTopic) -> None:
    """After a restore that failed: the topic was not made, so nobody names these. Raises StoreError."""
    keys = [info.key async for info in store.list(root.topic_prefix(new.name, new.topic_id, new.tenant))]
    if keys:
        await store.delete(keys)


def first_epochs(found: FoundTopic) -> list[int]:
    """For each partition a leader epoch above all that its records have."""
    count = 1 + max(found.partitions, default=-1)
    nothing = FoundPartition(PartitionPath(found.name, found.topic_id, 0))
    return [found.partitions.get(index, nothing).leader_epoch + 1 for index in range(count)]
