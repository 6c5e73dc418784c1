"""The input of one Spark task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_offload.segments.aborted import AbortedTransaction
from tiering.bucket.segment import Section

TASK_BYTES_MIN = 64 << 20
TASK_BYTES_MAX = 128 << 20
TASKS_WANTED = 16


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


def bytes_per_task(log_bytes: int) -> int:
    """How much of `log_bytes` one task reads by default.

    A task costs Spark four hundredths of a second of CPU whatever it reads, so few large ones are best, but a query
    that is not large still has work for several cores.
    """
    return min(max(log_bytes // TASKS_WANTED, TASK_BYTES_MIN), TASK_BYTES_MAX)


def packed(splits: Iterable[Split], task_bytes: int) -> list[tuple[Split, ...]]:
    """The splits in order, small neighbours together as long as they have no more than `task_bytes` of log."""
    tasks: list[tuple[Split, ...]] = []
    room = 0
    for split in splits:
        size = split.high - split.low
        if tasks and size <= room:
            tasks[-1] += (split,)
        else:
            tasks.append((split,))
            room = task_bytes
        room -= size
    return tasks
