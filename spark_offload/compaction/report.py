"""The report of a compaction run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_offload.running.job import Report

BAR_WIDTH, BARS_MAX = 40, 50  # characters, partitions
SWAPPED, UNCHANGED, REFUSED, UNDECIDED, FAILED = "swapped", "unchanged", "refused", "undecided", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition's part. Offsets [start, end) were looked at; bytes and segments are those that were replaced, and
    what they were replaced by. `state` is one of the words above; `failed` is explained by a problem."""

    topic: str
    partition: int
    state: str
    start: int
    end: int
    records: int
    keys: int
    readings: int
    superseded: int
    without_key: int
    tombstones_dropped: int
    aborted_dropped: int
    bytes_read: int
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    milliseconds: int


@dataclass(slots=True, kw_only=True)
class CompactionReport(Report):
    partitions: list[PartitionRow] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "failed": self.failed,
            "seconds": self.seconds,
            "partitions": [asdict(row) for row in self.partitions],
            "problems": [asdict(problem) for problem in self.problems],
        }

    def lines(self) -> list[str]:
        if not self.problems and all(row.state == UNCHANGED for row in self.partitions):
            return [self._nothing()]
        rows = [_line(row) for row in self.partitions]
        swapped = [row for row in self.partitions if row.state == SWAPPED]
        return [*rows, *bars(swapped), *(problem.line() for problem in self.problems), self._total(swapped)]

    def _nothing(self) -> str:
        count = len(self.partitions)
        if not count:
            return "nothing to compact: no compacted topic among what was chosen has anything in the tier"
        return f"nothing to compact in {count:,} partition{'s' * (count > 1)}"

    def _total(self, swapped: Sequence[PartitionRow]) -> str:
        if not self.partitions:
            return "nothing was compacted"
        done = f"{len(swapped)} of {len(self.partitions)} partitions compacted"
        if not swapped:
            return done
        before, after = sum(row.bytes_before for row in swapped), sum(row.bytes_after for row in swapped)
        records = sum(row.records for row in self.partitions)
        speed = f", {records / self.seconds:,.0f} records/s" if self.seconds else ""
        return f"{done}, {before:,} to {after:,} bytes{speed}"


def bars(rows: Sequence[PartitionRow]) -> list[str]:
    """Two bars for each partition, the largest first: the size of its segments before and after."""
    shown = sorted(rows, key=lambda row: -row.bytes_before)[:BARS_MAX]
    largest = max((max(row.bytes_before, row.bytes_after) for row in shown), default=1)
    width = max((len(f"{row.topic}-{row.partition}") for row in shown), default=0)
    lines = []
    for row in shown:
        name = f"{row.topic}-{row.partition}"
        for label, when, size in ((name, "before", row.bytes_before), ("", "after ", row.bytes_after)):
            bar = "█" * max(round(size / largest * BAR_WIDTH), 1)
            lines.append(f"{label:{width}} {when} {bar} {size:,}")
    return lines


def _line(row: PartitionRow) -> str:
    place = f"{row.topic}-{row.partition} offsets {row.start} to {row.end}: {row.state}"
    if row.state == UNCHANGED:
        return f"{place}, {row.records:,} records, {row.keys:,} keys"
    gone = row.superseded + row.without_key + row.tombstones_dropped + row.aborted_dropped
    return (
        f"{place}, {gone:,} of {row.records + row.aborted_dropped:,} records go, {row.keys:,} keys, "
        f"{row.segments_before} segments of {row.bytes_before:,} bytes to {row.segments_after} of {row.bytes_after:,}"
    )
