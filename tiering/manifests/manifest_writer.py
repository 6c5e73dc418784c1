"""Writes the versions of one partition's manifest, create-only, so that of two leaders one always detects the other.

A leader looks for the newest version at first, when the next number exists, after a failed put, and after a long time.
It stops for good when that version has a higher leader epoch, a newer incarnation of the cluster, or a deleted topic. A
page from its predecessor, or one that a swap may have changed, is reused only if it names exactly the segments in the
leader's own state.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from common.identifiers import random_uuid
from common.pacing import Pacer, at_once
from common.ports import Clock
from object_store.errors import ObjectExists, ObjectMissing
from object_store.store import ObjectStore
from tiering.bucket.cluster_file import ClusterGuard
from tiering.bucket.keys import TierRoot
from tiering.manifests.manifest import (
    PAGING,
    DamagedManifest,
    ManifestHead,
    PageRef,
    Paging,
    build,
    encode_head,
    holds,
    newest_version,
    read_head,
)
from tiering.shard.partition_tier import PartitionTier

ATTEMPTS_MAX = 8
READS_MAX, READ_AGAIN_S = 3, 0.2  # of a manifest that seems damaged: a leader that takes it for that sees no newer one

_log = logging.getLogger(__name__)


class Deposed(Exception):
    """The bucket shows a newer leader of this partition, or its deletion: nothing more is published."""


class ManifestContested(Exception):
    """Not now: another leader writes versions as fast, or an adoption comes first."""


@dataclass(frozen=True, slots=True)
class ManifestServices:
    """The writers' common services. `guard` is checked before each version; without `pacer` manifests are built at
    once.

    `sight_s`: how long a writer relies on its last look. It is well below the age at which the sweeper removes the last
    manifest of a deleted topic, so that a leader that was suspended for long detects the deletion.
    """

    store: ObjectStore
    root: TierRoot
    guard: ClusterGuard
    clock: Clock
    random: random.Random
    pacer: Pacer | None = None
    sight_s: float = 12 * 3_600.0
    paging: Paging = PAGING


class ManifestWriter:
    """One per partition and claim. `tier` is the leader's live view. One `publish` at a time."""

    def __init__(self, services: ManifestServices, tier: PartitionTier) -> None:
        self.tier = tier
        self.published: ManifestHead | None = None
        """The newest head that this writer knows to be in the bucket, and to be its own."""
        self._services = services
        self._version = -1  # newest known; -1: look first
        self._seen_s = 0.0  # when it was, by the monotonic clock
        self._pages: list[PageRef] = []
        self._pages_of = (-1, -1)  # generation and newest swap when they were known to hold

    async def publish(self, *, empty: bool = False) -> ManifestHead:
        """Write the current tier as the next version, unless the last one shows the same.

        Raises Deposed and StaleCluster for good; ManifestContested, StoreError and what the guard raises for now.
        """
        services, tier = self._services, self.tier
        for _ in range(ATTEMPTS_MAX):
            incarnation = await services.guard.check()
            if self._version < 0 or services.clock.monotonic() - self._seen_s > services.sight_s:
                await self._look()
            if self.published is not None and shows(self.published, tier, empty=empty):
                return self.published
            if self._pages_of != _shape(tier):
                await self._keep_pages(self._pages)
            work = build(
                tier,
                self._pages,
                cluster_id=services.root.cluster_id,
                incarnation=incarnation,
                version=self._version + 1,
                published_ms=services.clock.wall_ms(),
                new_uuid=lambda: random_uuid(services.random).hex(),
                paging=services.paging,
                empty=empty,
            )
            pacer = services.pacer
            built = at_once(work) if pacer is None else await pacer.run(work, "manifests", own=True)
            path, head = tier.path, built.head
            for page in built.new_pages:
                await services.store.put(services.root.page_key(path, page.ref.uuid), page.body, create_only=True)
            sent_s = services.clock.monotonic()
            self._version = -1  # if the put fails, the version may or may not exist
            try:
                key = services.root.manifest_key(path, head.version)
                await services.store.put(key, encode_head(head), create_only=True)
            except ObjectExists:
                continue  # a newer leader's, an older one's, or this one's with its answer lost
            self.published, self._version, self._pages = head, head.version, head.pages
            self._seen_s = sent_s
            return head
        raise ManifestContested(f"{ATTEMPTS_MAX} versions of {tier.path.topic}-{tier.partition} were taken")

    async def _look(self) -> None:
        """Find the newest version and its reusable pages."""
        services, path = self._services, self.tier.path
        seen_s = services.clock.monotonic()
        version = await newest_version(services.store, services.root, path)
        pages: list[PageRef] = []
        head: ManifestHead | None = None
        if version:
            try:
                head = await self._read(version)
            except ObjectMissing:
                raise ManifestContested(f"version {version} of {path.topic}-{path.partition} is gone") from None
            except DamagedManifest as error:  # the tier's own state is whole: write the next one without it
                _log.error("a manifest cannot be read", extra={"reason": str(error)})
        if head is not None:
            self._check(head)
            pages = head.pages
        await self._keep_pages(pages)
        self.published = head if head is not None and self._is_own(head) else None
        self._version, self._seen_s = version, seen_s

    async def _read(self, version: int) -> ManifestHead:
        """Raises DamagedManifest only if several reads find it so: a store, or the way to it, may garble one answer."""
        services = self._services
        for _ in range(READS_MAX - 1):
            try:
                return await read_head(services.store, services.root, self.tier.path, version)
            except DamagedManifest:
                await asyncio.sleep(READ_AGAIN_S)
        return await read_head(services.store, services.root, self.tier.path, version)

    async def _keep_pages(self, pages: list[PageRef]) -> None:
        """The valid ones of `pages`. Apart from its end and log start, the tier does not change after the last
        check."""
        while True:
            shape, kept = _shape(self.tier), list[PageRef]()
            for page in pages:
                if page.end_offset <= self.tier.log_start_offset:
                    continue
                if not holds(page, self.tier):
                    break  # pages are contiguous: segments after a missing page go into new ones
                kept.append(page)
                await asyncio.sleep(0)
            if shape == _shape(self.tier):
                self._pages, self._pages_of = kept, shape
                return
            pages = kept

    def _check(self, head: ManifestHead) -> None:
        services, record = self._services, self.tier.record
        services.guard.saw(head.incarnation)
        what = f"version {head.version} of {head.topic}-{head.partition}"
        if head.incarnation < services.guard.incarnation:
            was_emptied = head.generation > 0 and not (head.pages or head.segments)
            if head.end_offset and not was_emptied and (not record.adopted_version or record.adopting):
                raise ManifestContested(f"{what} is of an earlier incarnation and has to be adopted first")
            return
        if head.leader_epoch > record.leader_epoch:
            raise Deposed(f"{what} is of leader epoch {head.leader_epoch}; this leader has {record.leader_epoch}")
        if head.dropped_ms and not self.tier.is_dropped:
            raise Deposed(f"{what} says that the topic was deleted")
        shows_more = head.end_offset > self.tier.tier_end_offset and head.generation == record.generation
        shows_more |= head.generation > record.generation and not record.adopted_version
        if shows_more or head.log_start_offset > self.tier.log_start_offset:
            span = f"[{self.tier.log_start_offset}, {self.tier.tier_end_offset})"
            raise Deposed(
                f"{what} shows [{head.log_start_offset}, {head.end_offset}), but __tier_state only {span}: it has lost "
                "what was committed, and a manifest of it would lose it in the bucket too"
            )

    def _is_own(self, head: ManifestHead) -> bool:
        record, incarnation = self.tier.record, self._services.guard.incarnation
        mine = (incarnation, record.leader_epoch, record.broker_id, record.broker_epoch)
        return mine == (head.incarnation, head.leader_epoch, head.broker_id, head.broker_epoch)


def _shape(tier: PartitionTier) -> tuple[int, int]:
    """A value that changes when segments above the log start are removed or replaced."""
    return tier.generation, tier.record.swapped_offset


def shows(head: ManifestHead, tier: PartitionTier, *, empty: bool = False) -> bool:
    """Whether `head`, of this leader, is the manifest of the current `tier`."""
    if empty and (head.segments or head.pages):
        return False
    return head.tier_state_offset == tier.state_offset and head.dropped_ms == tier.record.dropped_ms
