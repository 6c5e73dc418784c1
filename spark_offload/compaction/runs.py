"""Chooses the segments to rewrite, and groups them. Pure.

A *run* is a stretch of consecutive segments that one proposal replaces. What would not change is left out of runs, so
a partition may have several. A segment changes when records, tombstones or markers of it go or get a delete horizon,
and neighbours that are thin, or become so, are brought together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_offload.compaction.survey import SegmentNotes
from spark_offload.compaction.transactions import MarkerFate
from tiering.bucket.segment import TieredSegment
from tiering.jobs.proposal import SEGMENTS_MAX
from tiering.jobs.segment_writer import LOG_BYTES_MAX, OFFSETS_MAX

THIN_SHARE = 0.5
"""Of segment.bytes: a segment that is larger is not merged for its own sake, which bounds how often bytes move."""
GROWTH = 1.1
"""Compressed bytes may grow a little when fewer records are compressed together."""


@dataclass(frozen=True, slots=True)
class SegmentForecast:
    """What becomes of one segment. `bytes` is an estimate: record sizes are taken to be alike."""

    notes: SegmentNotes
    bytes: int
    changes: bool
    deletes_go: bool

    @property
    def segment(self) -> TieredSegment:
        return self.notes.segment


class Run(NamedTuple):
    """`deletes_go`: expired tombstones and markers of these segments are dropped, so the run begins at log start."""

    forecasts: list[SegmentForecast]
    deletes_go: bool


def forecast(notes: SegmentNotes, *, deletes_go: bool) -> SegmentForecast:
    """`deletes_go`: whether expired tombstones and markers may be dropped."""
    keep = notes.kept(deletes_go=deletes_go)
    kept = int(keep.sum())
    fates = notes.fates(deletes_go=deletes_go)
    is_dropped = kept < notes.records or notes.records_aborted > 0
    is_marked = bool(fates) or bool(notes.marked(keep).any())
    drops_deletes = deletes_go and (
        MarkerFate.DROPPED in fates.values() or kept < int(notes.kept(deletes_go=False).sum())
    )
    claimed = notes.records + notes.records_aborted
    size = notes.segment.log_bytes * kept // claimed if claimed else notes.segment.log_bytes
    return SegmentForecast(notes, size, is_dropped or is_marked, drops_deletes)


def plan_runs(
    notes: Sequence[SegmentNotes], segment_bytes: int, *, deletes_go: bool, segments_max: int = SEGMENTS_MAX
) -> list[Run]:
    """`notes` of consecutive segments from the log start on; `deletes_go` as above, and only as far as one run from the
    log start can reach. Runs are in order and touch nowhere without need."""
    found = [forecast(one, deletes_go=deletes_go and at < segments_max) for at, one in enumerate(notes)]
    wanted = [one.changes for one in found]
    thin_bytes = int(segment_bytes * THIN_SHARE)
    for at in range(1, len(found)):
        if found[at - 1].bytes <= thin_bytes and found[at].bytes <= thin_bytes:
            wanted[at - 1] = wanted[at] = True
    runs: list[Run] = []
    at = max((at + 1 for at, one in enumerate(found) if one.deletes_go), default=0)
    if at:
        while at < min(len(found), segments_max) and wanted[at]:
            at += 1
        runs.append(Run(found[:at], True))
    while at < len(found):
        if not wanted[at]:
            at += 1
            continue
        end = at
        while end < len(found) and wanted[end] and end - at < segments_max:
            end += 1
        runs.append(Run(found[at:end], False))
        at = end
    return runs


def closes_before(
    next_one: SegmentForecast, base_offset: int, log_bytes: int, is_empty: bool, segment_bytes: int
) -> bool:
    """Whether an output from `base_offset` with `log_bytes` ends before `next_one`. One without batches continues."""
    if is_empty:
        return False
    segment = next_one.segment
    return (
        log_bytes + next_one.bytes > segment_bytes
        or log_bytes + segment.log_bytes * GROWTH > LOG_BYTES_MAX
        or segment.end_offset - base_offset > OFFSETS_MAX
    )
