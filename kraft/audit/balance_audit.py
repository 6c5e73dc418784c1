"""Audit events of the balancer's operations and moves; part of `kraft.audit.metadata_audit`. No I/O.

An event has the whole record, so that it says alone what moved and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kraft.audit.metadata_export import fields_of
from kraft.batches import MetadataRecord
from kraft.fleet_records import BalanceMoveRecord, BalanceOperationRecord
from records.audit_event import AuditKind

Fields = dict[str, Any]


def operation_event(record: BalanceOperationRecord) -> Fields:
    after = fields_of(record, "reason")
    return {"event": AuditKind.BALANCE_OPERATION_CHANGED, "cause": record.reason, "after": after}


def move_event(record: BalanceMoveRecord) -> Fields:
    return {
        "event": AuditKind.BALANCE_MOVE_CHANGED,
        "cause": f"{record.goal}: {record.reason}" if record.reason else record.goal,
        "topic": record.topic,
        "topic_id": record.topic_id.hex(),
        "partition": record.partition,
        "before": {"replicas": list(record.before)},
        "after": {"replicas": list(record.after)}
        | fields_of(record, "topic", "topic_id", "partition", "before", "after", "goal", "reason"),
    }


BALANCE_RULES: Mapping[type[MetadataRecord], Callable[[Any], Fields]] = {
    BalanceOperationRecord: operation_event,
    BalanceMoveRecord: move_event,
}
