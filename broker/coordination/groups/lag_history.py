"""When a partition's log passed an offset, from ends that were seen now and then. No I/O.

Records' own timestamps do not say it, because clients choose them. Only partitions of groups that lag have a history,
and it has a bounded length: seen ends become sparser with their age, so that the error stays small beside the lag.
"""

from __future__ import annotations

from bisect import bisect_right

SEEN_MAX = 16  # ends of one partition


class LagHistory:
    """Ends of one partition. `seen(time, end)` with times that grow and ends that do not fall."""

    __slots__ = ("_ends", "_times")

    def __init__(self, time: float, end: int) -> None:
        """`end`: the log ended there or before at `time`."""
        self._times = [time]
        self._ends = [end]

    def __len__(self) -> int:
        return len(self._times)

    def behind_s(self, offset: int, now: float, end: int) -> float:
        """How long ago the log passed `offset`, of a log that ends with `end` now; 0 for one that it has not passed.
        Of what is older than the history, its whole length."""
        if offset >= end:
            return 0.0
        at = bisect_right(self._ends, offset) - 1
        if at < 0:
            return now - self._times[0]
        is_last = at + 1 == len(self._ends)
        next_time, next_end = (now, end) if is_last else (self._times[at + 1], self._ends[at + 1])
        part = (offset - self._ends[at]) / (next_end - self._ends[at])
        return now - (self._times[at] + part * (next_time - self._times[at]))

    def seen(self, now: float, end: int, lowest: int) -> None:
        """Note an end; forget what no group needs, the slowest of which is at `lowest`."""
        times, ends = self._times, self._ends
        if end < ends[-1]:  # the log was cut
            times[:], ends[:] = [now], [end]
        elif len(ends) > 1 and ends[-2] == end:
            times[-1] = now  # of an end that was seen several times, the first and the last time count
        else:
            times.append(now)
            ends.append(end)
        needed = max(bisect_right(ends, lowest) - 1, 0)
        del times[:needed], ends[:needed]
        if len(ends) > SEEN_MAX:
            del times[1 : SEEN_MAX // 2 : 2], ends[1 : SEEN_MAX // 2 : 2]
