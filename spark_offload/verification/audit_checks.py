"""A partition held against the audit: the state of its tier, and why its log start moved. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from records.audit_event import AuditEvent, AuditKind
from spark_offload.verification.bucket import PartitionFound
from spark_offload.verification.checks import Check, Findings, Place
from spark_offload.verification.partition_checks import STALE_AFTER_MS
from spark_offload.verification.tier_history import FORGOTTEN, LogStartMove, TierHistory, history_of
from tiering.bucket.segment import SegmentId, SegmentState, TieredSegment
from tiering.exports.audit_reading import ExportedAudit
from tiering.manifests.manifest import Manifest

RETENTION_TIME = "retention.ms"
CAUSES = frozenset({RETENTION_TIME, "retention.bytes", "log start offset", "DeleteRecords", "adopted"})
"""Why a log start may move: retention by time or size, what a client deleted, and what a rebuilt topic began with."""
_CHANGED_AT_ONCE_MS = 60_000
_NOT_READABLE = (SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED, FORGOTTEN)


def check_trail(trail: ExportedAudit, findings: Findings) -> None:
    """The audit itself: whether it can be read, and whether anything between its files is missing."""
    place = Place("", -1)
    findings.checks(Check.AUDIT, len(trail.events))
    for problem in trail.problems:
        findings.fail(Check.AUDIT, Place("", -1, problem.key), problem.reason)
    for event in trail.events:
        if event.event == AuditKind.EVENTS_LOST:
            text = f"node {event.node} says that events were lost: {event.cause or event.after}"
            findings.notice(Check.AUDIT, place, text)


def explained_by(trail: ExportedAudit, partition: PartitionFound) -> set[SegmentId]:
    """Objects that may be there although no manifest names them: they are being copied, or wait to be deleted."""
    history = history_of(trail.of_partition(partition.path.topic_id, partition.path.partition))
    return {identity for identity, known in history.segments.items() if known.state != FORGOTTEN}


def check_against_audit(
    trail: ExportedAudit,
    partition: PartitionFound,
    settings: Mapping[str, str],
    began_ms: int,
    now_ms: int,
    findings: Findings,
) -> None:
    """`settings` are those of the topic; events from before `began_ms` are another cluster's."""
    manifest = partition.found.manifest
    if manifest is None:
        return
    place = Place(partition.path.topic, partition.path.partition)
    events = [
        event
        for event in trail.of_partition(partition.path.topic_id, partition.path.partition)
        if event.wall_ms >= began_ms
    ]
    shown = history_of(events, until=manifest.head.tier_state_offset)
    if shown.is_known:
        findings.checks(Check.TIER_STATE)
        _check_state(shown, history_of(events), manifest, place, findings)
        _check_stale(history_of(events, before_ms=now_ms - STALE_AFTER_MS), manifest, place, findings)
    _check_log_start(shown, manifest, trail, place, findings)
    retention = None if _changed(events, trail, partition.path.topic) else _retention_ms(settings)
    for move in shown.moves:
        _check_move(move, partition, retention, place, findings)


def _check_state(shown: TierHistory, newest: TierHistory, manifest: Manifest, place: Place, findings: Findings) -> None:
    """The manifest names what the state had when it was published, and nothing else."""
    head = manifest.head
    named = {segment.id: segment for segment in manifest.segments}
    is_known = newest.known_to >= head.tier_state_offset  # else what the manifest shows is not exported yet
    for identity, known in sorted(shown.segments.items()) if is_known else ():
        is_due = known.state == SegmentState.COPY_FINISHED and known.end_offset > head.log_start_offset
        if is_due and identity not in named and identity in newest.segments and not head.dropped_ms:
            text = f"the manifest does not name segment [{identity.base_offset}, {known.end_offset}) {identity.uuid}"
            findings.fail(Check.TIER_STATE, place, f"{text}, which the tier's state has", offset=identity.base_offset)
    first = min((identity.base_offset for identity in shown.seen), default=-1)
    is_whole = is_known and first >= 0
    for identity, segment in named.items():
        reason = _segment_complaint(shown, identity, segment, is_whole=is_whole and identity.base_offset > first)
        if reason:
            text = f"segment [{segment.base_offset}, {segment.end_offset}) {segment.uuid}: {reason}"
            findings.fail(Check.TIER_STATE, place, text, offset=segment.base_offset)


def _segment_complaint(shown: TierHistory, identity: SegmentId, segment: TieredSegment, *, is_whole: bool) -> str:
    known = shown.segments.get(identity)
    if known is None:
        return "the tier's state never had it" if is_whole else ""
    if known.state in _NOT_READABLE:
        return f"the tier's state has it as {known.state}"
    for name, said, kept in (
        ("end", segment.end_offset, known.end_offset),
        ("size", segment.object_bytes, known.object_bytes),
        ("CRC-32C", segment.log_crc32c, known.log_crc32c),
    ):
        if kept > 0 and said != kept:
            return f"the manifest gives the {name} {said}, the tier's state {kept}"
    return ""


def _check_stale(settled: TierHistory, manifest: Manifest, place: Place, findings: Findings) -> None:
    """What the state had a minute ago is in the manifest by now."""
    head = manifest.head
    named = {segment.id for segment in manifest.segments}
    findings.checks(Check.MANIFEST_STALE)
    late = [
        identity
        for identity, known in settled.segments.items()
        if known.sequence > head.tier_state_offset
        and known.state == SegmentState.COPY_FINISHED
        and identity not in named
        and not head.dropped_ms
    ]
    if late or settled.log_start > head.log_start_offset:
        text = f"the manifest shows offset {head.tier_state_offset} of the tier's state, and {len(late)} segments came "
        text += f"since; its log start is {head.log_start_offset}, that of the state {settled.log_start}"
        findings.fail(Check.MANIFEST_STALE, place, text)


def _check_log_start(
    shown: TierHistory, manifest: Manifest, trail: ExportedAudit, place: Place, findings: Findings
) -> None:
    start = manifest.head.log_start_offset
    findings.checks(Check.LOG_START)
    if start <= 0:
        return
    if shown.log_start >= 0 and start > shown.log_start:
        text = f"the log start is {start}, and no event of the audit moved it there from {shown.log_start}"
        findings.fail(Check.LOG_START, place, text, offset=start)
    elif shown.log_start < 0:
        why = "the audit does not reach back to it" if trail.events else "there is no audit"
        findings.notice(Check.LOG_START, place, f"whether the log start may be {start} cannot be known: {why}")


def _check_move(
    move: LogStartMove, partition: PartitionFound, retention_ms: int | None, place: Place, findings: Findings
) -> None:
    findings.checks(Check.LOG_START)
    if move.before < 0 and (move.after == 0 or not move.cause):
        return  # where the audit begins
    if move.cause not in CAUSES:
        text = f"{move.actor} moved the log start from {move.before} to {move.after}; "
        text += f"{move.cause or 'nothing'} is no reason for that"
        findings.fail(Check.LOG_START, place, text, offset=move.after)
        return
    if move.cause != RETENTION_TIME or retention_ms is None:
        return
    for older in partition.older:
        for segment in older.segments:
            if move.before <= segment.base_offset and segment.end_offset <= move.after:
                due = segment.max_timestamp + retention_ms
                if segment.max_timestamp >= 0 and (retention_ms < 0 or due > move.wall_ms + _CHANGED_AT_ONCE_MS):
                    text = f"offsets {segment.base_offset} to {segment.end_offset - 1} were deleted by retention.ms, "
                    text += f"which is {retention_ms}, before their time"
                    findings.fail(Check.LOG_START, place, text, offset=segment.base_offset)
                    return


def _retention_ms(settings: Mapping[str, str]) -> int | None:
    text = settings.get(RETENTION_TIME, "")
    try:
        return int(text)
    except ValueError:
        return None


def _changed(events: Sequence[AuditEvent], trail: ExportedAudit, topic: str) -> bool:
    """Whether the topic's settings changed within the audit: what held at some moment is then not gone into."""
    return any(event.event == AuditKind.CONFIG_CHANGED and event.topic in ("", topic) for event in trail.events) or any(
        event.event == AuditKind.CONFIG_CHANGED for event in events
    )
