"""A deleted topic's objects, copied inside the store under another topic's name, with manifests that describe them.

Nothing of the old topic is changed. A copy that stops half way has no manifest, and the sweeper removes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced

from msgspec.structs import replace

from object_store.errors import ObjectMissing
from object_store.store import ObjectStore
from tiering.bucket.keys import PartitionPath, SegmentKey, TierRoot
from tiering.bucket.segment import OPEN_TRANSACTIONS, PRODUCER_SNAPSHOT, SegmentId, TieredSegment
from tiering.exports.exports import METADATA, POSITIONS, kept_exports
from tiering.manifests.manifest import (
    HEAD_SEGMENTS_MAX,
    PAGE_SEGMENTS,
    Manifest,
    ManifestHead,
    PageRef,
    encode_head,
    page_of,
)
from tiering.upkeep.checking import lost_objects
from tiering.upkeep.inventory import FoundPartition, FoundTopic

COPIES_AT_ONCE = 8
NAMED_MAX = 10


class CannotRestore(Exception):
    """The text says why, for the operator."""


class PartitionsLost(CannotRestore):
    """These `partitions` have no manifest, so their records are unknown."""

    def __init__(self, text: str, partitions: Sequence[int]) -> None:
        super().__init__(text)
        self.partitions = partitions


class ObjectsLost(CannotRestore):
    """Objects that manifests name are missing or changed."""


@dataclass(slots=True, frozen=True)
class LeftOut:
    """Offsets [start, end) of a partition that cannot be restored, because of problems with `objects`."""

    partition: int
    start: int
    end: int
    objects: tuple[str, ...]

    def __str__(self) -> str:
        return f"partition {self.partition}: offsets {self.start} to {self.end - 1} ({_bounded(self.objects)})"


@dataclass(slots=True, frozen=True)
class NewTopic:
    """The owner of the copies. `incarnation`: the cluster's."""

    name: str
    topic_id: bytes
    tenant: str
    incarnation: int


def check_restorable(found: FoundTopic, without: Collection[int] = ()) -> None:
    """Raises CannotRestore if a part was already deleted or cannot be read, except for the partitions `without` which
    it is restored."""
    if not found.partitions:
        raise CannotRestore("nothing of it is in the object store")
    for index, partition in found.partitions.items():
        if partition.trouble and index not in without:
            raise CannotRestore(f"partition {index}: {partition.trouble}")
        if partition.is_emptied:
            raise CannotRestore("its delay has passed, and its records are removed")


async def known_partitions(store: ObjectStore, root: TierRoot, topic_id: bytes) -> set[int]:
    """The partitions in the exports that still exist. Raises StoreError."""
    known: set[int] = set()
    for kind, name in ((METADATA, "partition"), (POSITIONS, "position")):
        async for export in kept_exports(store, root, kind):
            known.update(
                int(event["partition"])
                for event in export.events
                if event.get("event") == name and event.get("topic_id") == topic_id.hex()
            )
    return known


async def check_whole(
    store: ObjectStore,
    root: TierRoot,
    found: FoundTopic,
    known: Collection[int],
    without: Collection[int] = (),
    *,
    allow_holes: bool = False,
) -> list[LeftOut]:
    """Check, before anything is copied, that every partition has its manifest, and that every object in it exists with
    its size. A tiered partition has a manifest from its first claim on, so a partition without one is lost, even if no
    export or broker knows of it (`known`), if a partition with a higher number exists.

    Afterwards the partitions `without` which the topic is restored are empty in `found`. With `allow_holes` a partition
    with lost objects begins after the last of them, because a log has no holes; what is left out is returned. Raises
    PartitionsLost, ObjectsLost, CannotRestore, StoreError.
    """
    indices = range(1 + max([*found.partitions, *known], default=-1))
    nothing = FoundPartition(PartitionPath(found.name, found.topic_id, 0, found.tenant))
    partitions = {
        index: found.partitions.get(index, replaced(nothing, path=nothing.path._replace(partition=index)))
        for index in indices
    }
    lost = [index for index, partition in partitions.items() if partition.manifest is None]
    if needless := sorted(set(without).difference(lost)):
        raise CannotRestore(f"partition {needless[0]} is not lost, so it is not left out")
    places = asyncio.Semaphore(COPIES_AT_ONCE)

    async def objects(path: PartitionPath) -> dict[SegmentId, int]:
        async with places:
            keys = [(root.parse_key(info.key), info.size) async for info in store.list(root.partition_prefix(path))]
        return {key.segment: size for key, size in keys if isinstance(key, SegmentKey)}

    listed = await asyncio.gather(*(objects(partition.path) for partition in partitions.values()))
    refused = [index for index in lost if index not in without]
    if refused:
        problems = [f"partition {index} ({len(listed[index])} segment objects are there)" for index in refused]
        raise PartitionsLost(f"no manifest is there of {_bounded(problems)}, so its records are lost", refused)
    left_out: list[LeftOut] = []
    for index, partition in partitions.items():
        if partition.manifest is None:
            partitions[index] = FoundPartition(partition.path)
        elif wrong := lost_objects(partition.manifest, listed[index]):
            end = max(segment.end_offset for segment, _ in wrong)
            left_out.append(LeftOut(index, partition.log_start_offset, end, tuple(text for _, text in wrong)))
            partitions[index] = replaced(partition, manifest=_from(partition.manifest, end))
    if left_out and not allow_holes:
        problems = [f"partition {one.partition}: {text}" for one in left_out for text in one.objects]
        raise ObjectsLost(_bounded(problems))
    found.replace_partitions(partitions)
    return left_out


def _from(manifest: Manifest, offset: int) -> Manifest:
    """The manifest of a log that begins at `offset`, where a segment ends."""
    segments = tuple(segment for segment in manifest.segments if segment.base_offset >= offset)
    return Manifest(replace(manifest.head, log_start_offset=offset), segments)


def _bounded(problems: Sequence[str]) -> str:
    more = f"; and {len(problems) - NAMED_MAX} more" if len(problems) > NAMED_MAX else ""
    return "; ".join(problems[:NAMED_MAX]) + more


async def copy_topic(
    store: ObjectStore, root: TierRoot, found: FoundTopic, new: NewTopic, progress: Callable[[int, int], None]
) -> None:
    """Copy every segment; calls `progress` with the numbers of copied and of all segments. Raises CannotRestore,
    StoreError."""
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
        if rest:
            rest[-1] = _with_open_transactions(partition.manifest.segments[-1])
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
    """Without producer state, because a producer's sequence numbers begin with 0 in a partition that is new to it."""
    sections = {name: section for name, section in segment.sections.items() if name != PRODUCER_SNAPSHOT}
    return replace(segment, sections=sections)


def _with_open_transactions(last: TieredSegment) -> TieredSegment:
    """A transaction whose end was on the brokers alone must not look committed: the topic's first leader aborts it."""
    sections = {
        OPEN_TRANSACTIONS if name == PRODUCER_SNAPSHOT else name: section for name, section in last.sections.items()
    }
    return replace(last, sections=sections)


async def remove_copies(store: ObjectStore, root: TierRoot, new: NewTopic) -> None:
    """After a failed restore: the topic was not created, so its objects are unreferenced. Raises StoreError."""
    keys = [info.key async for info in store.list(root.topic_prefix(new.name, new.topic_id, new.tenant))]
    if keys:
        await store.delete(keys)


def first_epochs(found: FoundTopic) -> list[int]:
    """For each partition, a leader epoch above those of its records."""
    count = 1 + max(found.partitions, default=-1)
    nothing = FoundPartition(PartitionPath(found.name, found.topic_id, 0))
    return [found.partitions.get(index, nothing).leader_epoch + 1 for index in range(count)]
