"""Filters of a query that leave out whole partitions, offsets and segments of the tier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from spark_offload.options import OFFSET_MAX
from spark_offload.reading.catalog import OffsetRange
from spark_offload.segments.column_names import OFFSET, PARTITION, TIMESTAMP, TOPIC
from tiering.bucket.keys import PartitionPath

Comparison = EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual


@dataclass(frozen=True, slots=True)
class PushedBounds:
    """What rows must fulfil, as far as it leaves out whole objects. None and the outermost offsets bound nothing."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start: int = 0
    end: int = OFFSET_MAX
    timestamp_from: int | None = None

    def with_filter(self, one: Filter) -> PushedBounds:
        """The conjunction of both; a filter on other columns changes nothing."""
        if not isinstance(one, Comparison):
            return self
        if one.attribute == (TOPIC,) and isinstance(one, EqualTo | In):
            return replace(self, topics=_both(self.topics, _values(one)))
        if one.attribute == (PARTITION,) and isinstance(one, EqualTo | In):
            return replace(self, partitions=_both(self.partitions, _values(one)))
        if one.attribute == (OFFSET,):
            return self._with_offsets(one)
        if one.attribute == (TIMESTAMP,) and isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            moment = int(one.value.timestamp() * 1_000) - 1  # rounding never leaves out a row
            before = moment if self.timestamp_from is None else self.timestamp_from
            return replace(self, timestamp_from=max(moment, before))
        return self

    def keeps(self, path: PartitionPath) -> bool:
        return (self.topics is None or path.topic in self.topics) and (
            self.partitions is None or path.partition in self.partitions
        )

    def narrowed(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        since = self.timestamp_from
        cut = [
            replace(one, start=max(one.start, self.start), end=min(one.end, self.end), timestamp_from=since)
            for one in ranges
        ]
        return [one for one in cut if one.start < one.end]

    def _with_offsets(self, one: Comparison) -> PushedBounds:
        if isinstance(one, EqualTo | In):
            values = _values(one)
            low, high = (min(values), max(values) + 1) if values else (0, 0)
        elif isinstance(one, GreaterThan | GreaterThanOrEqual):
            low, high = one.value + isinstance(one, GreaterThan), OFFSET_MAX
        else:
            low, high = 0, one.value + isinstance(one, LessThanOrEqual)
        return replace(self, start=max(self.start, low), end=min(self.end, high))


def _values(one: EqualTo | In) -> frozenset[Any]:
    return frozenset(one.value) if isinstance(one, In) else frozenset((one.value,))


def _both(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more
