"""Whether the sparse indexes of a segment point at the right batches. Pure.

A piece of a segment is checked against the entries that fall into it; all pieces together see every entry.
"""

from __future__ import annotations

import numpy as np

from spark_offload.segments.batch_scan import Flags
from spark_offload.segments.sections import OffsetEntries, TimeEntries
from spark_offload.segments.varints import Integers
from spark_offload.verification.checks import Check, Findings, Place
from spark_offload.verification.headers import Headers


def check_order(
    offsets: OffsetEntries, times: TimeEntries, bounds: tuple[int, int], log_bytes: int, place: Place, found: Findings
) -> None:
    """What an index must be on its own. `bounds` are the segment's first offset and its end."""
    low, high = bounds
    bad = _falls(offsets.offset, strictly=True) | _falls(offsets.position, strictly=True)
    bad |= (offsets.offset < low) | (offsets.offset >= high) | (offsets.position < 0) | (offsets.position >= log_bytes)
    _fail(Check.OFFSET_INDEX, bad, "does not ascend or leaves the segment", offsets.offset, place, found)
    bad = _falls(times.timestamp, strictly=True) | _falls(times.offset, strictly=False)
    bad |= (times.offset < low) | (times.offset >= high)
    _fail(Check.TIME_INDEX, bad, "does not ascend or leaves the segment", times.offset, place, found)


def check_offset_index(headers: Headers, entries: OffsetEntries, place: Place, found: Findings) -> None:
    """`entries` are those of the piece whose batches `headers` are."""
    found.checks(Check.OFFSET_INDEX, len(entries.position))
    row = np.searchsorted(headers.at, entries.position)
    there = row < len(headers)
    row = np.minimum(row, len(headers) - 1)
    right: Flags = there
    if len(headers):
        right = there & (headers.at[row] == entries.position) & (headers.last_offset[row] == entries.offset)
    words = "points at no batch that ends with its offset"
    _fail(Check.OFFSET_INDEX, ~right, words, entries.offset, place, found, entries.position)


def check_time_index(headers: Headers, times: TimeEntries, place: Place, found: Findings) -> None:
    """`headers` are of one piece; every entry of the segment is given."""
    if not len(headers) or not len(times.offset):
        return
    base, last, largest = headers.column("base_offset"), headers.last_offset, headers.column("max_timestamp")
    following = np.searchsorted(times.offset, last, side="left")  # the first entry that speaks of this batch
    spoken = following < len(times.offset)
    limit = times.timestamp[np.minimum(following, len(times.offset) - 1)]
    hidden = np.flatnonzero(spoken & (largest > limit))
    if len(hidden):
        row = int(hidden[0])
        words = f"an entry of offset {int(times.offset[following[row]])} says that nothing up to it is newer than "
        words += f"{int(limit[row])}, and a batch has {int(largest[row])}"
        offset, position = int(base[row]), int(headers.at[row])
        found.fail(Check.TIME_INDEX, place, words, offset=offset, position=position, more=len(hidden) - 1)
    mine = (times.offset >= base[0]) & (times.offset <= last[-1])
    found.checks(Check.TIME_INDEX, int(mine.sum()))
    row_of = np.searchsorted(last, times.offset, side="left")
    row_of = np.minimum(row_of, len(headers) - 1)
    right = (base[row_of] <= times.offset) & (times.offset <= last[row_of]) & (largest[row_of] == times.timestamp)
    words = "names an offset whose batch does not have that timestamp"
    _fail(Check.TIME_INDEX, mine & ~right, words, times.offset, place, found)


def _falls(values: Integers, *, strictly: bool) -> Flags:
    falls = np.zeros(len(values), np.bool_)
    falls[1:] = values[1:] <= values[:-1] if strictly else values[1:] < values[:-1]
    return falls


def _fail(
    check: Check,
    bad: Flags,
    words: str,
    offset: Integers,
    place: Place,
    found: Findings,
    position: Integers | None = None,
) -> None:
    """One problem for the first bad entry, which counts the others."""
    rows = np.flatnonzero(bad)
    if not len(rows):
        return
    row = int(rows[0])
    at = -1 if position is None else int(position[row])
    more = f"; so do {len(rows) - 1} more" if len(rows) > 1 else ""
    found.fail(check, place, f"entry {words}{more}", offset=int(offset[row]), position=at, more=len(rows) - 1)
