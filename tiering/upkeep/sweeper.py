"""Removes unreferenced objects from the bucket: copies that never ended, what a deposed leader left, old manifests.

The order makes races harmless: first the objects are listed, then the state is read. An object older than the safe age
that is not in a later state is unreferenced and stays so: a copy is in the state before its first byte is written, its
uuid is used once, and a job's output is accepted only while it is younger than half that age.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from object_store.errors import ObjectMissing
from object_store.probe import sweep_probes
from object_store.store import ObjectInfo, ObjectStore
from tiering.bucket.keys import ERASE_SUFFIX, ManifestKey, PageKey, PartitionPath, SegmentKey, TierRoot
from tiering.bucket.segment import SegmentId, is_uuid
from tiering.manifests.manifest import DamagedManifest, newest_version, read_head, read_manifest, read_newest_head
from tiering.shard.partition_tier import PartitionTier

KEYS_PER_DELETE = 1_000
KEYS_REPORTED_MAX = 1_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """Milliseconds. `age_ms` has to exceed the duration of any copy and the difference of clocks."""

    age_ms: int = 24 * 3_600_000
    manifest_keep_ms: int = 3_600_000
    manifests_kept: int = 2


@dataclass(slots=True)
class SweepReport:
    """What was removed, by kind, and what was deliberately left. `keys`: names of removed objects, up to a bound."""

    segments: int = 0
    bytes: int = 0
    manifests: int = 0
    pages: int = 0
    unfinished: int = 0
    partitions: int = 0
    proposals: int = 0
    probes: int = 0
    keys: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def removed(self, infos: Sequence[ObjectInfo]) -> None:
        self.bytes += sum(info.size for info in infos)
        self.keys.extend(info.key for info in infos[: max(KEYS_REPORTED_MAX - len(self.keys), 0)])

    def add(
        self,
        *,
        segments: int = 0,
        manifests: int = 0,
        pages: int = 0,
        unfinished: int = 0,
        partitions: int = 0,
        proposals: int = 0,
        probes: int = 0,
    ) -> None:
        """Count removed objects."""
        self.segments += segments
        self.manifests += manifests
        self.pages += pages
        self.unfinished += unfinished
        self.partitions += partitions
        self.proposals += proposals
        self.probes += probes

    def leave(self, what: str) -> None:
        if len(self.left) < KEYS_REPORTED_MAX:
            self.left.append(what)

    @property
    def count(self) -> int:
        """The number of removed objects."""
        return self.segments + self.manifests + self.pages + self.proposals + self.probes


@dataclass(slots=True)
class _Found:
    segments: dict[SegmentId, ObjectInfo] = field(default_factory=dict)
    manifests: dict[int, ObjectInfo] = field(default_factory=dict)
    pages: dict[str, ObjectInfo] = field(default_factory=dict)
    other: list[ObjectInfo] = field(default_factory=list)

    @property
    def newest_ms(self) -> int:
        every = [*self.segments.values(), *self.manifests.values(), *self.pages.values(), *self.other]
        return max((info.modified_ms for info in every), default=0)


ReadState = Callable[[], Awaitable[PartitionTier | None]]
"""The committed state of a partition; None if it is not reliable now, and nothing may be swept."""


class Sweeper:
    """Each method raises StoreError. Only objects older than the limits are removed, by the store's clock against
    `now_ms`."""

    def __init__(self, store: ObjectStore, root: TierRoot, limits: SweepLimits) -> None:
        self._store = store
        self._root = root
        self._limits = limits

    async def sweep_unfinished(self, now_ms: int, report: SweepReport) -> None:
        """Remove unfinished uploads that the store lists."""
        report.add(unfinished=await self._store.sweep_unfinished(now_ms - self._limits.age_ms))

    async def sweep_probes(self, now_ms: int, report: SweepReport) -> None:
        """Remove objects of trial writes that seemed to fail but reached the store."""
        found = await sweep_probes(self._store, self._root.probe_key(""), now_ms - self._limits.age_ms)
        report.removed(found)
        report.add(probes=len(found))

    async def sweep_proposals(self, now_ms: int, report: SweepReport) -> None:
        """Remove old proposals and requests with their answers. Proposals are removed before their verdicts, because
        without one they would be decided again."""
        prefix, old = self._root.proposals_prefix, now_ms - self._limits.age_ms
        asked: list[ObjectInfo] = []
        answers: list[ObjectInfo] = []
        kept: set[str] = set()
        async for info in self._store.list(prefix):
            name = info.key.removeprefix(prefix)
            uuid, _, suffix = name.partition(".")
            is_answer = bool(suffix) and f".{suffix}" != ERASE_SUFFIX
            if info.modified_ms >= old:
                kept.add(uuid)
            elif is_uuid(uuid):
                (answers if is_answer else asked).append(info)
        for infos in (asked, [info for info in answers if info.key.removeprefix(prefix).split(".")[0] not in kept]):
            await self._delete(infos, report)
            report.add(proposals=len(infos))

    # a partition that is known -----------------------------------------------------------------------------

    async def sweep_partition(
        self, path: PartitionPath, read_state: ReadState, now_ms: int, report: SweepReport
    ) -> None:  # fmt: skip
        """For an existing partition: remove orphans, superseded manifests, and pages that no manifest names."""
        found = await self._list(path)
        tier = await read_state()
        if tier is None or tier.is_dropped or tier.record.adopting:
            return
        try:
            manifest = await read_manifest(self._store, self._root, path)
        except (DamagedManifest, ObjectMissing) as error:
            report.leave(f"{self._root.partition_prefix(path)}: {error}")
            return
        named = {segment.id for segment in manifest.segments} if manifest is not None else set()
        old = now_ms - self._limits.age_ms
        orphans = [
            info
            for segment, info in found.segments.items()
            if info.modified_ms < old and segment not in named and tier.value_of(segment) is None
        ]
        await self._delete(orphans, report)
        report.add(segments=len(orphans))
        await self._sweep_manifests(path, found, now_ms, report)

    async def _sweep_manifests(self, path: PartitionPath, found: _Found, now_ms: int, report: SweepReport) -> None:
        """Delete pages after the heads that name them, so that a reader of an old head gets an error rather than wrong
        data."""
        versions = sorted(found.manifests)
        keep_after = now_ms - self._limits.manifest_keep_ms
        superseded = versions[: -self._limits.manifests_kept]
        removable = [found.manifests[v] for v in superseded if found.manifests[v].modified_ms < keep_after]
        await self._delete(removable, report)
        report.add(manifests=len(removable))
        gone = {info.key for info in removable}
        named: set[str] = set()
        for version in versions:
            if found.manifests[version].key in gone:
                continue
            try:
                head = await read_head(self._store, self._root, path, version)
            except ObjectMissing:
                continue
            except DamagedManifest as error:
                report.leave(f"{self._root.pages_prefix(path)}: {error}")
                return
            named.update(page.uuid for page in head.pages)
        newest = await newest_version(self._store, self._root, path, versions[-1] if versions else 0)
        if newest > (versions[-1] if versions else 0):
            return  # a newer version appeared: its pages are checked next time
        old = now_ms - self._limits.age_ms
        pages = [info for uuid, info in found.pages.items() if uuid not in named and info.modified_ms < old]
        await self._delete(pages, report)
        report.add(pages=len(pages))

    # partitions that are gone ------------------------------------------------------------------------------

    async def sweep_unknown(
        self,
        path: PartitionPath,
        is_unknown: Callable[[], Awaitable[bool]],
        delay_ms: int,
        now_ms: int,
        report: SweepReport,
    ) -> None:
        """For a partition that neither metadata nor state names: remove its last manifest and late uploads.

        Objects that a current manifest names stay and are reported, because they may be needed for a rebuild.
        """
        found = await self._list(path)
        if found.newest_ms >= now_ms - self._limits.age_ms or not await is_unknown():
            return
        prefix = self._root.partition_prefix(path)
        try:
            head = await read_newest_head(self._store, self._root, path)
        except DamagedManifest as error:
            report.leave(f"{prefix}: {error}")
            return
        if head is not None and (not head.dropped_ms or head.dropped_ms + delay_ms > now_ms):
            report.leave(f"{prefix}: a manifest describes it, and no topic has it")
            return
        await self._remove(found, report)

    async def remove_partition(self, path: PartitionPath, last_version: int, report: SweepReport) -> None:
        """Remove all objects of a deleted partition except its last manifest, `last_version`, which names no segment.
        Manifests are removed last.

        The last one stays until `sweep_unknown` may remove it by age. A late put by the former leader then meets an
        existing number, or a lower one than the last, and does not bring the topic back.
        """
        found = await self._list(path)
        earlier = {version: info for version, info in found.manifests.items() if version < last_version}
        await self._remove(replace(found, manifests=earlier), report)

    async def _remove(self, found: _Found, report: SweepReport) -> None:
        await self._delete([*found.segments.values(), *found.other], report)
        await self._delete(list(found.pages.values()), report)
        await self._delete([found.manifests[version] for version in sorted(found.manifests)], report)
        report.add(
            segments=len(found.segments) + len(found.other),
            pages=len(found.pages),
            manifests=len(found.manifests),
            partitions=1,
        )

    # the store ---------------------------------------------------------------------------------------------

    async def _list(self, path: PartitionPath) -> _Found:
        found = _Found()
        async for info in self._store.list(self._root.partition_prefix(path)):
            match self._root.parse_key(info.key):
                case SegmentKey(_, segment):
                    found.segments[segment] = info
                case ManifestKey(_, version):
                    found.manifests[version] = info
                case PageKey(_, uuid):
                    found.pages[uuid] = info
                case _:
                    found.other.append(info)
        return found

    async def _delete(self, infos: Sequence[ObjectInfo], report: SweepReport) -> None:
        for begin in range(0, len(infos), KEYS_PER_DELETE):
            some = infos[begin : begin + KEYS_PER_DELETE]
            await self._store.delete([info.key for info in some])
            report.removed(some)
            for info in some:
                _log.info("object swept", extra={"key": info.key, "bytes": info.size, "modified_ms": info.modified_ms})
