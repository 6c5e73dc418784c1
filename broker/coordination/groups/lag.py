"""How far groups lag, in records and in time: what one look finds, and what is remembered for the next. No I/O.

Memory between two looks grows with the partitions that lag, up to `HISTORIES_MAX`; what is shown is bounded by
`named_max`, however many groups there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple

from broker.coordination.groups.lag_history import LagHistory
from common.largest import Largest
from common.pacing import Work

HISTORIES_MAX = 20_000
"""Partitions whose lag in time is known; of further ones it counts as 0."""
OFFSET_COST, HISTORY_COST = 3, 2  # of `common.pacing`: to look at one offset, and to note one end
OFFSETS_AT_ONCE, HISTORIES_AT_ONCE = 100, 200
_OFFSET = Struct(">q")
_OFFSET_AT = 2  # of a committed offset's value, after the version

EndOf = Callable[[bytes], int | None]
"""The end of a partition, by topic and partition as in an offset's key; None while it is unknown, -1 if the partition
does not exist."""


class GroupLag(NamedTuple):
    """One group. `seconds` is that of its partition that is behind longest."""

    group: str
    records: int
    seconds: float


class LagTotals(NamedTuple):
    """Over all groups of a look."""

    groups: int = 0
    lagging: int = 0
    records: int = 0
    seconds: float = 0.0
    unknown: int = 0


class LagBook:
    """Looks one after another: `begin`, `add` for each group, `finish`. Times are seconds of one monotonic clock."""

    def __init__(self, named_max: int) -> None:
        self._named_max = named_max
        self._histories: dict[bytes, LagHistory] = {}
        self._looked_s: float | None = None
        self._now_s = 0.0
        self._lowest: dict[bytes, tuple[int, int]] = {}  # of this look: the slowest group's offset, and the end
        self._open = LagTotals()
        self._by_records: Largest[GroupLag] = Largest(0)
        self._by_seconds: Largest[GroupLag] = Largest(0)
        self.totals: LagTotals | None = None
        """Of the last whole look; None before there is one."""
        self.named: list[GroupLag] = []

    def begin(self, now_s: float) -> None:
        """A look begins; one that was not finished is forgotten."""
        self._now_s = now_s
        self._lowest = {}
        self._open = LagTotals()
        half = (self._named_max + 1) // 2
        self._by_records, self._by_seconds = Largest(half), Largest(self._named_max - half)

    def add(self, group: str, offsets: Iterable[tuple[bytes, bytes]], end_of: EndOf) -> Work[None]:
        """A group with places and values of its offsets."""
        records, seconds, unknown, number = 0, 0.0, 0, 0
        for number, (place, value) in enumerate(offsets, 1):
            if number % OFFSETS_AT_ONCE == 0:
                yield OFFSETS_AT_ONCE * OFFSET_COST
            end = end_of(place)
            if end is None:
                unknown += 1
                continue
            committed = _OFFSET.unpack_from(value, _OFFSET_AT)[0] if len(value) >= _OFFSET_AT + _OFFSET.size else end
            if committed >= end:
                continue
            records += end - committed
            slowest = self._lowest.get(place)
            if slowest is None or committed < slowest[0]:
                self._lowest[place] = committed, end
            history = self._histories.get(place)
            began_s = self._now_s if self._looked_s is None else self._looked_s
            behind_s = self._now_s - began_s if history is None else history.behind_s(committed, self._now_s, end)
            seconds = max(seconds, behind_s)
        totals = self._open
        self._open = LagTotals(
            totals.groups + 1,
            totals.lagging + (records > 0),
            totals.records + records,
            max(totals.seconds, seconds),
            totals.unknown + unknown,
        )
        if records:
            lag = GroupLag(group, records, seconds)
            self._by_records.add(lag, records)
            self._by_seconds.add(lag, seconds)
        yield number % OFFSETS_AT_ONCE * OFFSET_COST  # many groups have less than that each

    def finish(self) -> Work[None]:
        """The look is over: what it found is shown, and ends are remembered for the next."""
        named = {lag.group: lag for lag, _ in (*self._by_records.kept(), *self._by_seconds.kept())}
        self.totals, self.named = self._open, list(named.values())
        began_s = self._now_s if self._looked_s is None else self._looked_s
        kept: dict[bytes, LagHistory] = {}
        for number, (place, (lowest, end)) in enumerate(self._lowest.items(), 1):
            if len(kept) == HISTORIES_MAX:
                break
            history = self._histories.get(place)
            if history is None:
                history = LagHistory(began_s, lowest)  # not behind at the look before, so the log ended there or before
            history.seen(self._now_s, end, lowest)
            kept[place] = history
            if number % HISTORIES_AT_ONCE == 0:
                yield HISTORIES_AT_ONCE * HISTORY_COST
        self._histories, self._looked_s, self._lowest = kept, self._now_s, {}
