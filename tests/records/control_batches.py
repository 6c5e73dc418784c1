"""Markers of transactions, as a transaction coordinator would have them written."""

from __future__ import annotations

from struct import pack

from records.builder import NO_EPOCH, build_batch
from records.control import MarkerKind
from records.record import Record

MARKER_VERSION = 0


def build_control_batch(
    kind: MarkerKind,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytearray:
    """The marker that ends a transaction of `producer_id`."""
    key, value = pack(">hh", MARKER_VERSION, kind), pack(">hi", MARKER_VERSION, coordinator_epoch)
    return build_batch(
        [Record(base_offset, timestamp, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
