"""Whether a segment belongs to a partition's history: its chain of leader epochs has to fit (KIP-405).

A chain is a list of (leader epoch, start offset), both ascending; an epoch ends where the next one starts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Chain = Sequence[tuple[int, int]]


def fits(segment_epochs: Chain, end_offset: int, partition_epochs: Chain) -> bool:
    """Whether a segment that ends before `end_offset` belongs to the partition's lineage.

    All epochs of the segment are the partition's, without a gap. The first may begin earlier in the partition or at the
    same offset, each later one begins at the same offset, and the last does not end inside the segment.
    """
    if not segment_epochs:
        return False
    at = bisect_left(partition_epochs, (segment_epochs[0][0], -1))
    if at + len(segment_epochs) > len(partition_epochs):
        return False
    for number, (epoch, start) in enumerate(segment_epochs):
        known_epoch, known_start = partition_epochs[at + number]
        if epoch != known_epoch:
            return False
        if known_start > start if number == 0 else known_start != start:
            return False
    after = at + len(segment_epochs)
    return after == len(partition_epochs) or partition_epochs[after][1] >= end_offset


def fits_from(segment_epochs: Chain, end_offset: int, partition_epochs: Chain, low: int) -> bool:
    """As `fits`, only for offsets from `low` on, because either side may have forgotten those below."""
    return fits(_from(segment_epochs, low), end_offset, _from(partition_epochs, low))


def _from(chain: Chain, low: int) -> list[tuple[int, int]]:
    """The epochs of `low` and above; the first begins at `low`."""
    at = max(sum(start <= low for _, start in chain) - 1, 0)
    return [(epoch, max(start, low)) for epoch, start in chain[at:]]


def follows(newer: Chain, older: Chain, older_end: int) -> bool:
    """Whether a segment with `newer` epochs can come after one with `older` epochs that ends at `older_end`.

    Leadership never returns to a lower epoch, and an epoch that only the newer segment has cannot begin within the
    older one.
    """
    if not older or not newer:
        return True
    (last_epoch, last_start), (first_epoch, first_start) = older[-1], newer[0]
    if first_epoch == last_epoch:
        return first_start >= last_start
    return first_epoch > last_epoch and first_start >= older_end
