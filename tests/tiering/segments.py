"""Segments for tests, with plausible contents."""

from __future__ import annotations

from collections.abc import Sequence

from tiering.bucket.segment import Section, SegmentState, TieredSegment


def uuid_of(number: int) -> str:
    return f"{number:032x}"


def segment(
    base: int,
    end: int,
    number: int | None = None,
    *,
    state: SegmentState = SegmentState.COPY_FINISHED,
    epochs: Sequence[tuple[int, int]] | None = None,
    leader_epoch: int = 1,
    broker_id: int = 1,
    max_timestamp: int | None = None,
) -> TieredSegment:
    log_bytes = 100 * (end - base)
    return TieredSegment(
        uuid=uuid_of(base if number is None else number),
        base_offset=base,
        end_offset=end,
        max_timestamp=1_000 + end if max_timestamp is None else max_timestamp,
        log_bytes=log_bytes,
        object_bytes=log_bytes + 50,
        log_crc32c=base,
        sections={"offset_index": Section(log_bytes, 30, 1), "leader_epochs": Section(log_bytes + 30, 20, 2)},
        epochs=list(epochs) if epochs is not None else [(leader_epoch, base)],
        state=state,
        broker_id=broker_id,
        leader_epoch=leader_epoch,
        changed_ms=5,
        records=end - base,
    )
