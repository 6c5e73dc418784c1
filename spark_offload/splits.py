"""What one Spark task reads."""

from __future__ import annotations

from dataclasses import dataclass

from spark_offload.aborted import AbortedTransaction
from tiering.segment import Section


@dataclass(frozen=True, slots=True)
class Split:
    """Records with `start` <= offset < `end` of the batches in log bytes [low, high) of one segment.

    The segment holds offsets [base_offset, end_offset) in `log_bytes` at the front of the object `key`.

    `index` is the section that both ends are still to be aligned with; None when they are batch boundaries.
    """

    topic: str
    partition: int
    key: str
    base_offset: int
    end_offset: int
    log_bytes: int
    low: int
    high: int
    start: int
    end: int
    index: Section | None = None
    aborted: tuple[AbortedTransaction, ...] = ()
