"""Where the markers that a leader has appended end, until they are committed."""

from __future__ import annotations

from collections import OrderedDict

MARKERS_MAX = 10_000


class UncommittedMarkers:
    """Of one partition and leadership: the end of each producer's last marker.

    The committed ones are dropped with the next marker; the log itself remembers their producers for longer. Of more
    than `markers_max` uncommitted ones the oldest is forgotten.
    """

    __slots__ = ("_ends", "_markers_max", "_others_end")

    def __init__(self, epoch_start_offset: int, markers_max: int = MARKERS_MAX) -> None:
        """`epoch_start_offset`: the log's end when the leadership began. All markers of earlier leaders lie below."""
        self._others_end = epoch_start_offset  # no marker that is not in `_ends`, and not committed, ends behind it
        self._markers_max = markers_max
        # by producer id; ascending; an ordinary dictionary is slow when its first keys are removed one by one
        self._ends: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, producer_id: int, end_offset: int, high_watermark: int) -> None:
        """This leader has appended the producer's marker just before `end_offset`, the log's end."""
        ends = self._ends
        while ends and ends[first := next(iter(ends))] <= high_watermark:
            del ends[first]
        ends.pop(producer_id, None)
        if end_offset <= high_watermark:
            return
        ends[producer_id] = end_offset
        if len(ends) > self._markers_max:
            _, self._others_end = ends.popitem(last=False)

    def end_of(self, producer_id: int) -> int:
        """When everything below it is committed, the producer's last marker is."""
        return self._ends.get(producer_id, self._others_end)
