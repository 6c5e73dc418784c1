"""An erasure's communication with the partitions' leaders, by objects in the store alone."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from common.machine import MachineClock
from object_store.blocking import BlockingStore
from object_store.errors import ObjectMissing
from spark_offload.erasure.report import HeldObject
from tiering.bucket.keys import PartitionPath, SegmentKey, TierRoot, parse_topic_directory
from tiering.bucket.segment import TieredSegment
from tiering.jobs.proposal import (
    SEGMENTS_MAX,
    EraseRequest,
    Proposal,
    Verdict,
    request_erasure,
    submit,
    wait_for_verdict,
    wait_until_erasable,
)
from tiering.manifests.manifest import DamagedManifest, Manifest, read_manifest

POLL_S = 0.5
ASKED_AGAIN_S = 0.05
JOB = "tidelog spark erase"


class Replacement(NamedTuple):
    """`output` replaces `input`: the same offsets."""

    input: TieredSegment
    output: TieredSegment


@dataclass(slots=True)
class Waits:
    """Seconds, each for all partitions together."""

    ready_s: float = 600.0
    verdict_s: float = 300.0
    manifest_s: float = 120.0
    gone_s: float = 180.0


@dataclass(slots=True)
class Leaders:
    """`seed` is random, of this run: uuids are derived from it."""

    store: BlockingStore
    root: TierRoot
    seed: bytes
    waits: Waits = field(default_factory=Waits)
    _made: int = 0
    _clock: MachineClock = field(default_factory=MachineClock)

    def new_uuid(self) -> str:
        self._made += 1
        return hashlib.blake2b(b"%d" % self._made, digest_size=16, key=self.seed).hexdigest()

    # asking --------------------------------------------------------------------------------------------------

    def request(self, paths: Sequence[PartitionPath]) -> EraseRequest:
        """Make the leaders tier all their current records. Raises StoreError."""
        first = paths[0]
        request = EraseRequest(
            uuid=self.new_uuid(),
            topic=first.topic,
            topic_id=first.topic_id.hex(),
            partitions=[path.partition for path in paths],
            created_ms=self._clock.wall_ms(),
            tenant=first.tenant,
            job=JOB,
        )
        self.store.wait(lambda: request_erasure(self.store.store, self.root, request))
        return request

    def deadline(self, within_s: float) -> float:
        return self._clock.monotonic() + within_s

    def ready_end(self, request: EraseRequest, partition: int, deadline: float) -> int | None:
        """The end of the tier in one leader's answer; None without an answer in time."""
        alone = msgspec.structs.replace(request, partitions=[partition])
        left = max(deadline - self._clock.monotonic(), ASKED_AGAIN_S)
        try:
            found = self.store.wait(lambda: wait_until_erasable(self.store.store, self.root, alone, left, POLL_S))
        except TimeoutError:
            return None
        return found[partition].tier_end_offset

    # proposing -----------------------------------------------------------------------------------------------

    def propose(
        self, path: PartitionPath, manifest: Manifest, replacements: Sequence[Replacement], erase_end: int
    ) -> list[tuple[str, list[Replacement]]]:
        """(uuid, what it replaces) of each proposal made: one for each run of segments that touch."""
        made = []
        for run in touching_runs(replacements):
            proposal = Proposal(
                uuid=self.new_uuid(),
                kind="erasure",
                topic=path.topic,
                topic_id=path.topic_id.hex(),
                tenant=path.tenant,
                partition=path.partition,
                created_ms=self._clock.wall_ms(),
                job=JOB,
                incarnation=manifest.head.incarnation,
                log_start_offset=manifest.head.log_start_offset,
                inputs=[one.input.id for one in run],
                outputs=[one.output for one in run],
                erase_end=erase_end or None,
            )
            self.store.wait(partial(submit, self.store.store, self.root, proposal))
            made.append((proposal.uuid, run))
        return made

    def verdict(self, uuid: str, deadline: float) -> Verdict | None:
        """Returns None if no leader decides in time."""
        left = max(deadline - self._clock.monotonic(), ASKED_AGAIN_S)
        try:
            return self.store.wait(lambda: wait_for_verdict(self.store.store, self.root, uuid, left, POLL_S))
        except TimeoutError:
            return None

    # looking -------------------------------------------------------------------------------------------------

    def manifest(self, path: PartitionPath) -> Manifest | None:
        """The newest; None for a partition without any. Raises DamagedManifest, StoreError."""
        return self.store.wait(lambda: read_manifest(self.store.store, self.root, path))

    def manifest_with(
        self, path: PartitionPath, end_offset: int, without: Iterable[str], deadline: float
    ) -> Manifest | None:
        """The first one that reaches `end_offset` and names none of the segments `without`; None when none does in
        time. Leaders publish a manifest a moment after a change."""
        gone = frozenset(without)
        while True:
            found = self.manifest(path)
            reaches = found is not None and found.head.end_offset >= end_offset
            if found is not None and reaches and not any(segment.uuid in gone for segment in found.segments):
                return found
            if self._clock.monotonic() > deadline:
                return None
            self.store.wait(_moment)

    def wait_gone(self, keys: Sequence[str], deadline: float) -> list[str]:
        """Wait until none of the objects exists; returns those that still do at the deadline."""
        left = list(keys)
        while left:
            left = [key for key in left if self._is_there(key)]
            if not left or self._clock.monotonic() > deadline:
                break
            self.store.wait(_moment)
        return left

    def _is_there(self, key: str) -> bool:
        try:
            self.store.head(key)
        except ObjectMissing:
            return False
        return True

    def held(self, paths: Sequence[PartitionPath], end_offsets: Sequence[int]) -> list[HeldObject]:
        """Segment objects below the ends that no manifest names, and all of deleted topics of that name. Of a partition
        whose manifest cannot be read they are unknown."""
        found = []
        for path, end_offset in zip(paths, end_offsets, strict=True):
            try:
                manifest = self.manifest(path)
            except DamagedManifest:
                continue
            live = {segment.uuid for segment in manifest.segments} if manifest is not None else set()
            for info in self.store.list(self.root.partition_prefix(path)):
                parsed = self.root.parse_key(info.key)
                if not isinstance(parsed, SegmentKey) or parsed.segment.uuid in live:
                    continue
                if parsed.segment.base_offset < end_offset:
                    reason = "no manifest names it: it was replaced, or waits to be deleted, or was never finished"
                    found.append(HeldObject(info.key, info.size, reason))
        return found + self._held_by_deleted_topics(paths[0])

    def _held_by_deleted_topics(self, path: PartitionPath) -> list[HeldObject]:
        found = []
        prefix = self.root.tenant_prefix(path.tenant)
        for name in self.store.list_names(prefix):
            topic = parse_topic_directory(name)
            if topic is None or topic[0] != path.topic or topic[1] == path.topic_id:
                continue
            for info in self.store.list(prefix + name):
                if isinstance(self.root.parse_key(info.key), SegmentKey):
                    reason = f"of another topic of that name, {topic[0]}@{topic[1].hex()}; deleted ones can be restored"
                    found.append(HeldObject(info.key, info.size, reason))
        return found


def touching_runs(replacements: Sequence[Replacement]) -> list[list[Replacement]]:
    """Runs without a hole between their segments, none longer than a proposal takes."""
    runs: list[list[Replacement]] = []
    for one in sorted(replacements, key=lambda replacement: replacement.input.base_offset):
        last = runs[-1] if runs else None
        if last and last[-1].input.end_offset == one.input.base_offset and len(last) < SEGMENTS_MAX:
            last.append(one)
        else:
            runs.append([one])
    return runs


async def _moment() -> None:
    await asyncio.sleep(POLL_S)
