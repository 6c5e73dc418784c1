"""One tiered segment: an object with the log's bytes first, then sections.

All offsets are Kafka offsets; ends are exclusive. The object never changes once it is written.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import msgspec

OFFSET_INDEX = "offset_index"
TIME_INDEX = "time_index"
TRANSACTION_INDEX = "transaction_index"
PRODUCER_SNAPSHOT = "producer_snapshot"
LEADER_EPOCHS = "leader_epochs"
"""In their order after the log's bytes. The transaction index is absent without aborted transactions."""
OPEN_TRANSACTIONS = "open_transactions"
"""In place of the producer snapshot at the end of a restored topic: the source's, of which only producers with an open
transaction count, and of them only that transaction."""
TAKEN_OVER = (PRODUCER_SNAPSHOT, OPEN_TRANSACTIONS, LEADER_EPOCHS)
"""Sections that cover all offsets below the segment's end. What replaces the segment has them unchanged."""

UUID_HEX_DIGITS = 32


class SegmentState(StrEnum):
    """The states of KIP-405. Readers see only COPY_FINISHED; a deleted segment has no state."""

    COPY_STARTED = "COPY_STARTED"
    COPY_FINISHED = "COPY_FINISHED"
    DELETE_STARTED = "DELETE_STARTED"
    DELETE_FINISHED = "DELETE_FINISHED"


class Section(msgspec.Struct, frozen=True):
    """Bytes [position, position + length) of the object, and their CRC-32C."""

    position: int
    length: int
    crc32c: int


class SegmentId(NamedTuple):
    """A segment's identity within its partition; two copies of one range differ in `uuid` (32 hex digits)."""

    base_offset: int
    uuid: str


class TieredSegment(msgspec.Struct, frozen=True, kw_only=True):
    """`log_bytes` at the front of an object of `object_bytes`; `log_crc32c` covers them.

    `epochs` are (leader epoch, start offset) of the epochs with records in [base, end): the first one's start may lie
    below `base_offset`. `broker_id` and `leader_epoch` are of the leader that copied it, `changed_ms` is when it came
    into its state (wall clock, Unix milliseconds). `max_timestamp` is -1 when no batch has one; `records` counts
    what the batches claim, None when it is not known. `rewritten`: a job made it out of other segments (compaction,
    erasure), so offsets may be missing anywhere in its range, at its beginning and end too. While COPY_STARTED, sizes
    and sections may still be unknown (0 and empty).
    """

    uuid: str
    base_offset: int
    end_offset: int
    max_timestamp: int
    log_bytes: int
    object_bytes: int = 0
    log_crc32c: int = 0
    sections: dict[str, Section] = {}
    epochs: list[tuple[int, int]]
    state: SegmentState
    broker_id: int
    leader_epoch: int
    changed_ms: int
    has_transactions: bool = False
    records: int | None = None
    rewritten: bool = False

    @property
    def id(self) -> SegmentId:
        return SegmentId(self.base_offset, self.uuid)


def producers_section(segment: TieredSegment) -> Section | None:
    """The snapshot that names the transactions which are open at the segment's end."""
    return segment.sections.get(PRODUCER_SNAPSHOT, segment.sections.get(OPEN_TRANSACTIONS))


def complaint(segment: TieredSegment) -> str | None:
    """Why these values are invalid for a segment in its state; None when they are valid."""
    if not is_uuid(segment.uuid):
        return f"uuid {segment.uuid!r} is not {UUID_HEX_DIGITS} lower-case hex digits"
    if not 0 <= segment.base_offset < segment.end_offset:
        return f"range [{segment.base_offset}, {segment.end_offset}) is empty or negative"
    epochs = segment.epochs
    if not epochs or epochs[0][1] > segment.base_offset or epochs[-1][1] >= segment.end_offset:
        return f"leader epochs {epochs} do not cover [{segment.base_offset}, {segment.end_offset})"
    if any(a[0] >= b[0] or a[1] >= b[1] or b[1] <= segment.base_offset for a, b in pairwise(epochs)):
        return f"leader epochs {epochs} do not ascend"
    if segment.state is not SegmentState.COPY_FINISHED:
        return None
    if segment.log_bytes <= 0 or segment.object_bytes < segment.log_bytes:
        return f"{segment.object_bytes} bytes cannot hold a log of {segment.log_bytes}"
    for name in sorted(segment.sections):
        section = segment.sections[name]
        end = section.position + section.length
        if section.position < segment.log_bytes or section.length < 0 or end > segment.object_bytes:
            return f"section {name} [{section.position}, {end}) lies outside the object"
    return None


def is_uuid(text: str) -> bool:
    return len(text) == UUID_HEX_DIGITS and all(c in "0123456789abcdef" for c in text)
