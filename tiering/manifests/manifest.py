"""The manifest of a partition's tiered segments, published in the bucket for readers without a broker.

One version is one immutable JSON object, the head; the highest version is valid. The head names the newest segments,
and immutable pages with the older ones. docs/tier-format.md is the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from common.checksum import crc32c
from common.pacing import Work
from object_store.errors import ObjectMissing
from object_store.store import ObjectStore
from tiering.bucket.keys import ManifestKey, PartitionPath, TierRoot
from tiering.bucket.sealed import check_seal, sealed
from tiering.bucket.segment import TieredSegment
from tiering.shard.partition_tier import HeldSegments, PartitionTier

FORMAT = 1
HEAD_SEGMENTS_MAX = 250  # bounds the cost of writing a version: at most 3 ms and 110 kB
PAGE_SEGMENTS = 200
SEGMENT_COST = 11  # of decoding and encoding one
READS_MAX = 5


class Paging(NamedTuple):
    """A head of more than `head_segments_max` moves its oldest ones into pages of `page_segments`."""

    head_segments_max: int
    page_segments: int


PAGING = Paging(HEAD_SEGMENTS_MAX, PAGE_SEGMENTS)


class PageRef(msgspec.Struct, frozen=True, kw_only=True):
    """A page of `count` consecutive segments that cover [base_offset, end_offset); `size` and `crc32c` of its bytes."""

    uuid: str
    base_offset: int
    end_offset: int
    count: int
    size: int
    crc32c: int


class Page(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    segments: list[TieredSegment]


class ManifestHead(msgspec.Struct, frozen=True, kw_only=True):
    """Segments of the pages, then `segments`: consecutive, ascending. A segment that ends at or below
    `log_start_offset` is no longer part of the partition, although an old page may still name it.

    `end_offset` is the tier's end, `topic_id` 32 hex digits, `tenant` "" without tenants. `leader_epoch`, `broker_id`
    and `broker_epoch` are the publisher's claim; `tier_state_offset` is the offset of `__tier_state` that this shows.
    `generation` counts how often the tier was emptied because tiering was disabled; within one the tier's end never
    falls. `dropped_ms` is when the topic was deleted, else 0. After such a manifest follows a last one without
    segments.
    """

    format: int = FORMAT
    cluster_id: str
    incarnation: int
    topic: str
    topic_id: str
    partition: int
    tenant: str
    version: int
    leader_epoch: int
    broker_id: int
    broker_epoch: int
    tier_state_offset: int
    published_ms: int
    log_start_offset: int
    end_offset: int
    dropped_ms: int = 0
    generation: int = 0
    pages: list[PageRef] = []
    segments: list[TieredSegment] = []


class Manifest(NamedTuple):
    """A head with the segments of its pages: all that reach above the log start, ascending."""

    head: ManifestHead
    segments: tuple[TieredSegment, ...]

    @property
    def is_emptied(self) -> bool:
        """Whether its topic was deleted, and its objects are being deleted."""
        return bool(self.head.dropped_ms) and not self.segments and bool(self.head.end_offset)


class NewPage(NamedTuple):
    ref: PageRef
    body: bytes


class Built(NamedTuple):
    """Pages to be written before the head is."""

    head: ManifestHead
    new_pages: list[NewPage]


class DamagedManifest(ValueError):
    """A damaged head or page; the text names it."""


_encoder = msgspec.json.Encoder()
_head_decoder = msgspec.json.Decoder(ManifestHead)
_page_decoder = msgspec.json.Decoder(Page)


# encoding --------------------------------------------------------------------------------------------------


def encode_head(head: ManifestHead) -> bytes:
    return sealed(_encoder.encode(head))


def decode_head(body: bytes, key: str) -> ManifestHead:
    """Ignores unknown fields. Raises DamagedManifest, also for a higher format."""
    try:
        head = _head_decoder.decode(body)
        if head.format != FORMAT:
            raise ValueError(f"format {head.format} is not known here")
        check_seal(body)
    except ValueError as error:
        raise DamagedManifest(f"{key}: {error}") from error
    return head


def encode_page(segments: Sequence[TieredSegment]) -> bytes:
    """Equal bytes for equal segments, because a leader checks its predecessor's pages by their CRC."""
    return _encoder.encode(Page(segments=list(segments)))


def decode_page(body: bytes, ref: PageRef, key: str) -> list[TieredSegment]:
    """Raises DamagedManifest unless the bytes fit `ref`."""
    if len(body) != ref.size or crc32c(body) != ref.crc32c:
        raise DamagedManifest(f"{key}: {len(body)} bytes that are not the page of {ref.size} bytes")
    try:
        page = _page_decoder.decode(body)
    except ValueError as error:
        raise DamagedManifest(f"{key}: {error}") from error
    if page.format != FORMAT or len(page.segments) != ref.count:
        raise DamagedManifest(f"{key}: format {page.format}, {len(page.segments)} segments for {ref.count}")
    return page.segments


# building --------------------------------------------------------------------------------------------------


def page_of(segments: Sequence[TieredSegment], uuid: str) -> NewPage:
    body = encode_page(segments)
    ref = PageRef(
        uuid=uuid,
        base_offset=segments[0].base_offset,
        end_offset=segments[-1].end_offset,
        count=len(segments),
        size=len(body),
        crc32c=crc32c(body),
    )
    return NewPage(ref, body)


def holds(ref: PageRef, tier: PartitionTier) -> bool:
    """Whether the page has exactly the segments of `tier` in its range. For pages above the log start; for a page that
    contains the log start, `tier` may lack segments, and the result is False."""
    segments: list[TieredSegment] = []
    for segment in tier.segments(ref.base_offset):
        if segment.base_offset >= ref.end_offset or len(segments) > ref.count:
            break
        segments.append(segment)
    if len(segments) != ref.count:
        return False
    body = encode_page(segments)
    return len(body) == ref.size and crc32c(body) == ref.crc32c


def build(
    tier: PartitionTier,
    pages: Iterable[PageRef],
    *,
    cluster_id: str,
    incarnation: int,
    version: int,
    published_ms: int,
    new_uuid: Callable[[], str],
    paging: Paging,
    empty: bool = False,
) -> Work[Built]:
    """The manifest of `tier` at this moment. `pages`: the previous version's pages that are still valid, see `holds`.

    `empty` creates the last manifest of a deleted topic, without segments.
    """
    record = tier.record
    kept = [page for page in pages if page.end_offset > record.log_start_offset and not empty]
    paged_end = max([record.log_start_offset, *(page.end_offset for page in kept)])
    head = ManifestHead(
        cluster_id=cluster_id,
        incarnation=incarnation,
        topic=record.topic,
        topic_id=tier.topic_id.hex(),
        partition=tier.partition,
        tenant=record.tenant,
        version=version,
        leader_epoch=record.leader_epoch,
        broker_id=record.broker_id,
        broker_epoch=record.broker_epoch,
        tier_state_offset=tier.state_offset,
        published_ms=published_ms,
        log_start_offset=record.log_start_offset,
        end_offset=tier.tier_end_offset,
        dropped_ms=record.dropped_ms,
        generation=record.generation,
        pages=kept,
    )
    return _paged(head, None if empty else tier.held(paged_end), new_uuid, paging)


def _paged(head: ManifestHead, held: HeldSegments | None, new_uuid: Callable[[], str], paging: Paging) -> Work[Built]:
    """`head` with what is held, the oldest of it in new pages."""
    if held is None:
        return Built(head, [])
    new_pages: list[NewPage] = []
    at = 0
    while len(held) - at > paging.head_segments_max:
        new_pages.append(page_of(held.some(at, at + paging.page_segments), new_uuid()))
        at += paging.page_segments
        yield paging.page_segments * SEGMENT_COST
    pages = [*head.pages, *(page.ref for page in new_pages)]
    return Built(replace(head, pages=pages, segments=held.some(at, len(held))), new_pages)


# reading ---------------------------------------------------------------------------------------------------


async def newest_version(store: ObjectStore, root: TierRoot, path: PartitionPath, known: int = 0) -> int:
    """The highest version in the bucket, 0 without any. A `known` one shortens the listing. Raises StoreError."""
    newest = 0
    start_after = root.manifest_key(path, known - 1) if known > 0 else ""
    async for info in store.list(root.manifest_prefix(path), start_after=start_after):
        parsed = root.parse_key(info.key)
        if isinstance(parsed, ManifestKey):
            newest = max(newest, parsed.version)
    return newest


async def read_head(store: ObjectStore, root: TierRoot, path: PartitionPath, version: int) -> ManifestHead:
    """Raises ObjectMissing and other StoreErrors, DamagedManifest."""
    key = root.manifest_key(path, version)
    head = decode_head(await store.get(key), key)
    if head.version != version or head.partition != path.partition or head.topic_id != path.topic_id.hex():
        raise DamagedManifest(f"{key}: it says that it is version {head.version} of {head.topic}-{head.partition}")
    return head


async def read_newest_head(store: ObjectStore, root: TierRoot, path: PartitionPath) -> ManifestHead | None:
    """None when nothing was published. Raises StoreError, DamagedManifest."""
    for _ in range(READS_MAX):
        version = await newest_version(store, root, path)
        if not version:
            return None
        try:
            return await read_head(store, root, path, version)
        except ObjectMissing:  # swept meanwhile: there is a newer one, or the partition was deleted
            continue
    raise DamagedManifest(f"{root.manifest_prefix(path)}: its newest version is always gone")


async def read_manifest(store: ObjectStore, root: TierRoot, path: PartitionPath) -> Manifest | None:
    """The newest manifest with its pages; None when nothing was published.

    Its `head.dropped_ms` is not 0 when the topic was deleted. Raises StoreError, DamagedManifest.
    """
    missing: ObjectMissing | None = None
    for _ in range(READS_MAX):
        head = await read_newest_head(store, root, path)
        if head is None:
            return None
        try:
            return Manifest(head, await read_segments(store, root, path, head))
        except ObjectMissing as error:  # as above: pages go after the heads that name them
            missing = error
    raise missing or DamagedManifest(root.manifest_prefix(path))


async def read_segments(
    store: ObjectStore, root: TierRoot, path: PartitionPath, head: ManifestHead
) -> tuple[TieredSegment, ...]:
    """All segments above the log start that `head` and its pages name. Raises StoreError, DamagedManifest."""
    segments: list[TieredSegment] = []
    for ref in head.pages:
        key = root.page_key(path, ref.uuid)
        segments.extend(decode_page(await store.get(key), ref, key))
    segments.extend(head.segments)
    return tuple(segment for segment in segments if segment.end_offset > head.log_start_offset)
