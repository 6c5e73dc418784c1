"""One partition of `__tier_state` as the audit in the bucket tells it: its history, and its state at any place. Pure.

The audit may begin after the partition did, and may end before its newest change: whatever lies outside is not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from records.audit_event import AuditEvent, AuditKind, AuditSource
from tiering.bucket.segment import SegmentId, SegmentState, is_uuid

FORGOTTEN = "FORGOTTEN"


class SegmentTold(NamedTuple):
    """A segment as its last event has it; sizes are -1 where that event does not say them."""

    state: str
    end_offset: int
    object_bytes: int
    log_crc32c: int
    sequence: int
    wall_ms: int


class LogStartMove(NamedTuple):
    """`before` is -1 for the first known one."""

    before: int
    after: int
    cause: str
    actor: str
    sequence: int
    wall_ms: int


@dataclass(slots=True)
class TierHistory:
    """`seen`: every segment that was ever named. `known_to` is the last known offset of `__tier_state`."""

    segments: dict[SegmentId, SegmentTold] = field(default_factory=dict)
    moves: list[LogStartMove] = field(default_factory=list)
    seen: set[SegmentId] = field(default_factory=set)
    log_start: int = -1
    known_to: int = -1

    @property
    def is_known(self) -> bool:
        return self.known_to >= 0


def history_of(events: Iterable[AuditEvent], *, until: int | None = None, before_ms: int | None = None) -> TierHistory:
    """Of a partition's events; those behind offset `until` of `__tier_state`, or younger than `before_ms`, left out.
    Events whose fields are not what they should be are passed over."""
    history = TierHistory()
    own = sorted((one for one in events if one.source == AuditSource.TIER), key=lambda one: one.sequence)
    for event in own:
        if (until is not None and event.sequence > until) or (before_ms is not None and event.wall_ms >= before_ms):
            continue
        try:
            _replay(history, event)
        except (KeyError, TypeError, ValueError):
            continue
        history.known_to = max(history.known_to, event.sequence)
    return history


def _replay(history: TierHistory, event: AuditEvent) -> None:
    after = event.after
    if event.event == AuditKind.TIER_SEGMENTS_SWAPPED:
        for identity in _identities(event.before):
            known = history.segments.get(identity)
            history.seen.add(identity)
            end = known.end_offset if known is not None else -1
            history.segments[identity] = SegmentTold(
                SegmentState.DELETE_STARTED, end, -1, -1, event.sequence, event.wall_ms
            )
        for identity in _identities(after):
            history.seen.add(identity)
            history.segments[identity] = SegmentTold(
                SegmentState.COPY_FINISHED, -1, -1, -1, event.sequence, event.wall_ms
            )
    elif event.event == AuditKind.TIER_SEGMENT_CHANGED:
        identity = _identity((after["base_offset"], after["uuid"]))
        history.seen.add(identity)
        history.segments[identity] = SegmentTold(
            str(after["state"]),
            int(after.get("end_offset", -1)),
            int(after.get("object_bytes", -1)),
            int(after.get("log_crc32c", -1)),
            event.sequence,
            event.wall_ms,
        )
    elif "log_start_offset" in after:
        start = int(after["log_start_offset"])
        if start > history.log_start:
            move = LogStartMove(history.log_start, start, event.cause, event.actor, event.sequence, event.wall_ms)
            history.moves.append(move)
            history.log_start = start


def _identities(fields: dict[str, Any]) -> list[SegmentId]:
    return [_identity(one) for one in fields["segments"]]


def _identity(pair: Any) -> SegmentId:
    base, uuid = pair
    if not isinstance(base, int) or not isinstance(uuid, str) or not is_uuid(uuid):
        raise ValueError(f"{pair} is no segment")
    return SegmentId(base, uuid)
