"""The records of `__tier_state` as audit events: each has the new state of a partition or a segment. No I/O.

The old state is in an earlier event of the same partition or segment; the topic's records are read when they are
exported, and a shard does not keep earlier states for that.
"""

from __future__ import annotations

from typing import Any

from records.audit_event import AuditEvent, AuditKind, AuditSource
from records.batch import BatchHeader
from records.record import Record
from tiering.shard.tier_records import (
    STATES,
    KeyKind,
    PartitionRecord,
    cause_and_actor,
    decode_key,
    decode_partition,
    decode_segment_record,
    decode_swap,
)


def tier_event(shard: int, header: BatchHeader, record: Record) -> AuditEvent | None:
    """None for a record that this version does not know or cannot read: the readers of the state handle that."""
    try:
        key = decode_key(record.key or b"")
        if key is None:
            return None
        found: dict[str, Any] = {"topic_id": key.topic_id.hex(), "partition": key.partition}
        if key.kind is KeyKind.PARTITION:
            found |= _partition(record.value)
        elif key.kind is KeyKind.SEGMENT and key.segment is not None:
            found |= _segment(key.segment.base_offset, key.segment.uuid, record.value)
        elif key.kind is KeyKind.SWAP and record.value is not None:
            found |= _swap(record.value)
        else:
            return None
    except ValueError:
        return None
    return AuditEvent(
        wall_ms=record.timestamp,
        source=AuditSource.TIER,
        node=-1,
        incarnation=f"{shard}/{header.leader_epoch}",
        sequence=record.offset,
        **found,
    )


def _partition(value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {"event": AuditKind.TIER_PARTITION_DELETED}
    state = decode_partition(value)
    cause, actor = cause_and_actor(state.log_start_cause)
    return {
        "event": AuditKind.TIER_PARTITION_CHANGED,
        "topic": state.topic,
        "leader_epoch": state.leader_epoch,
        "cause": cause,
        "actor": actor or f"broker-{state.broker_id}",
        "after": _fields(state),
    }


def _fields(state: PartitionRecord) -> dict[str, Any]:
    return {
        "broker_id": state.broker_id,
        "broker_epoch": state.broker_epoch,
        "log_start_offset": state.log_start_offset,
        "tier_end_offset": state.tier_end_offset,
        "adopting": state.adopting,
        "generation": state.generation,
        "dropped_ms": state.dropped_ms,
    }


def _swap(value: bytes) -> dict[str, Any]:
    swap = decode_swap(value)
    return {
        "event": AuditKind.TIER_SEGMENTS_SWAPPED,
        "cause": "erasure" if swap.erase_end else "compaction",
        "actor": f"proposal-{swap.proposal}",
        "before": {"segments": [[base, uuid.hex()] for base, uuid in swap.inputs]},
        "after": {"segments": [[base, uuid.hex()] for base, uuid, _ in swap.outputs], "erase_end": swap.erase_end},
    }


def _segment(base_offset: int, uuid: str, value: bytes | None) -> dict[str, Any]:
    after: dict[str, Any] = {"base_offset": base_offset, "uuid": uuid}
    if value is None:
        return {"event": AuditKind.TIER_SEGMENT_CHANGED, "after": after | {"state": "FORGOTTEN"}}
    state = decode_segment_record(value)
    return {
        "event": AuditKind.TIER_SEGMENT_CHANGED,
        "leader_epoch": state.leader_epoch,
        "actor": f"broker-{state.broker_id}",
        "after": after
        | {
            "state": STATES[state.state].name,
            "end_offset": state.end_offset,
            "object_bytes": state.object_bytes,
            "log_crc32c": state.log_crc32c,
        },
    }
