"""What manifests, objects and the cluster's own word must say of a partition as a whole. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import pairwise

from spark_offload.verification.bucket import PartitionFound
from spark_offload.verification.checks import Check, Findings, Place
from tiering.bucket.keys import TierRoot
from tiering.bucket.segment import SegmentId, SegmentState, TieredSegment, complaint
from tiering.manifests.manifest import Manifest
from tiering.shard.lineage import fits_from, follows

STALE_AFTER_MS = 60_000
"""A manifest is published within seconds of a change, so an export older than this cannot show it."""
ORPHAN_AGE_MS = 26 * 3_600_000
"""The sweeper removes unreferenced objects after a day, and looks once an hour."""


def check_partition(root: TierRoot, partition: PartitionFound, now_ms: int, findings: Findings) -> None:
    """All that can be said without reading a segment. `partition` has a manifest, or should have one."""
    place = Place(partition.path.topic, partition.path.partition)
    findings.checks(Check.MANIFEST)
    manifest = partition.found.manifest
    if partition.found.trouble:
        findings.fail(Check.MANIFEST, place, partition.found.trouble)
        return
    if manifest is None:
        old = [info for info in partition.objects.values() if info.modified_ms < now_ms - ORPHAN_AGE_MS]
        if old:
            findings.fail(Check.MANIFEST, place, f"there is no manifest, and {len(old)} segments are there")
        return
    _check_head(root, partition, manifest, place, findings)
    _check_coverage(manifest, place, findings)
    _check_lineage(root, partition, manifest, findings)
    _check_stale(partition, manifest, now_ms, place, findings)
    _check_objects(root, partition, manifest, findings)


def _check_head(
    root: TierRoot, partition: PartitionFound, manifest: Manifest, place: Place, findings: Findings
) -> None:
    head, path = manifest.head, partition.path
    own = (root.cluster_id, path.topic, path.topic_id.hex(), path.tenant, path.partition)
    said = (head.cluster_id, head.topic, head.topic_id, head.tenant, head.partition)
    if said != own:
        findings.fail(Check.MANIFEST, place, f"the manifest is that of {'/'.join(map(str, said))}")
    uuids: dict[str, None] = {}
    for segment in manifest.segments:
        reason = complaint(segment)
        if segment.state is not SegmentState.COPY_FINISHED:
            reason = f"its state is {segment.state}"
        if segment.uuid in uuids:
            reason = f"uuid {segment.uuid} is named twice"
        uuids[segment.uuid] = None
        if reason:
            text = f"segment [{segment.base_offset}, {segment.end_offset}): {reason}"
            findings.fail(Check.MANIFEST, place, text, offset=segment.base_offset)
    for older in partition.older:
        for name, before, now in (
            ("log start", older.log_start_offset, head.log_start_offset),
            ("tier end", older.end_offset, head.end_offset),
            ("incarnation", older.incarnation, head.incarnation),
        ):
            if now < before:
                text = f"version {head.version} has the {name} {now}, and version {older.version} had {before}"
                findings.fail(Check.MANIFEST, place, text)


def _check_coverage(manifest: Manifest, place: Place, findings: Findings) -> None:
    """Every offset in [log start, end) in exactly one segment."""
    head, segments = manifest.head, manifest.segments
    findings.checks(Check.COVERAGE)
    if head.dropped_ms and not segments:
        return
    at = head.log_start_offset
    for segment in segments:
        if segment.base_offset > at:
            text = f"no segment holds the offsets {at} to {segment.base_offset - 1}"
            findings.fail(Check.COVERAGE, place, text, offset=at)
        at = max(at, segment.end_offset)
    for before, after in pairwise(segments):
        if after.base_offset < before.end_offset:
            end = min(before.end_offset, after.end_offset)
            text = f"two segments hold the offsets {after.base_offset} to {end - 1}"
            findings.fail(Check.COVERAGE, place, text, offset=after.base_offset)
    if at < head.end_offset:
        findings.fail(Check.COVERAGE, place, f"no segment holds the offsets {at} to {head.end_offset - 1}", offset=at)
    elif segments and at > head.end_offset:
        text = f"segments end at {at}, and the manifest says that the tier ends at {head.end_offset}"
        findings.fail(Check.COVERAGE, place, text, offset=head.end_offset)


def _check_lineage(root: TierRoot, partition: PartitionFound, manifest: Manifest, findings: Findings) -> None:
    findings.checks(Check.LINEAGE, len(manifest.segments))
    for before, after in pairwise(manifest.segments):
        if not follows(after.epochs, before.epochs, before.end_offset):
            text = f"leader epochs {after.epochs[:3]} cannot follow {before.epochs[-3:]}"
            place = _place(root, partition, after)
            findings.fail(Check.LINEAGE, place, text, offset=after.base_offset)


def check_chain(segment: TieredSegment, chain: Sequence[tuple[int, int]], place: Place, findings: Findings) -> None:
    """`chain` is what a later segment, or this one, carries of the partition's whole history of leader epochs."""
    if not chain or segment.end_offset <= chain[0][1]:
        return
    if not fits_from(segment.epochs, segment.end_offset, chain, max(segment.base_offset, chain[0][1])):
        text = f"its leader epochs {segment.epochs[:3]} are not those of the partition's history"
        findings.fail(Check.LINEAGE, place, text, offset=segment.base_offset)


def _check_stale(partition: PartitionFound, manifest: Manifest, now_ms: int, place: Place, findings: Findings) -> None:
    findings.checks(Check.MANIFEST_STALE)
    position, head = partition.position, manifest.head
    if position is None or head.dropped_ms or position.seen_ms > now_ms - STALE_AFTER_MS:
        return
    if position.tier_generation != head.generation:  # the tier was emptied in between, and its end started over
        return
    if position.tier_end_offset is not None and position.tier_end_offset > head.end_offset:
        text = f"the manifest ends at {head.end_offset}; a broker's export said {position.tier_end_offset} before"
        findings.fail(Check.MANIFEST_STALE, place, text)


def _check_objects(root: TierRoot, partition: PartitionFound, manifest: Manifest, findings: Findings) -> None:
    """Missing objects, and those of another size; what is there beside them is `check_extra`'s."""
    for segment in manifest.segments:
        place = _place(root, partition, segment)
        info = partition.objects.get(segment.id)
        findings.checks(Check.OBJECT_MISSING)
        if info is None:
            findings.fail(Check.OBJECT_MISSING, place, "the object is not there", offset=segment.base_offset)
            continue
        findings.checks(Check.OBJECT_SIZE)
        if info.size != segment.object_bytes:
            text = f"the object has {info.size} bytes, not {segment.object_bytes}"
            position = min(info.size, segment.object_bytes)
            findings.fail(Check.OBJECT_SIZE, place, text, offset=segment.base_offset, position=position)


def check_extra(
    root: TierRoot, partition: PartitionFound, explained: Set[SegmentId], now_ms: int, findings: Findings
) -> None:
    """Objects that the manifest does not name. `explained` ones are about to go, or were proposed.

    A copy that is under way begins at or above the tier's end, and what waits to be deleted lies below the log start;
    both are young. All other objects are unreferenced.
    """
    manifest = partition.found.manifest
    named = {segment.id for segment in manifest.segments} if manifest is not None else set[SegmentId]()
    for older in partition.older:
        named.update(segment.id for segment in older.segments)
    log_start, end = partition.found.log_start_offset, partition.found.end_offset
    findings.checks(Check.OBJECT_EXTRA, len(partition.objects) + len(partition.unknown))
    for identity, info in sorted(partition.objects.items()):
        is_young = info.modified_ms > now_ms - ORPHAN_AGE_MS
        if identity in named or identity in explained or (identity.base_offset < log_start and is_young):
            continue
        place = Place(partition.path.topic, partition.path.partition, info.key)
        if identity.base_offset >= end and is_young:
            text = "no manifest names it: it is being copied, or was left behind by a copy"
            findings.notice(Check.OBJECT_EXTRA, place, text)
        else:
            findings.fail(Check.OBJECT_EXTRA, place, "it belongs to nothing", offset=identity.base_offset)
    for info in partition.unknown:
        place = Place(partition.path.topic, partition.path.partition, info.key)
        findings.fail(Check.OBJECT_EXTRA, place, "no object of a tier has such a name")


def _place(root: TierRoot, partition: PartitionFound, segment: TieredSegment) -> Place:
    return Place(partition.path.topic, partition.path.partition, root.segment_key(partition.path, segment.id))
