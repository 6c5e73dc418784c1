"""Streams over the tier: each micro-batch reads what was copied since the last one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from common.ports import Clock
from object_store.blocking import BlockingStore
from spark_offload.options import ReadOptions
from spark_offload.reading.catalog import Catalog, OffsetRange, PartitionContents
from spark_offload.reading.offset_bounds import DataLoss, held, readable_ends, starting_offsets
from spark_offload.reading.planning import plan_tasks
from spark_offload.reading.stream_offsets import (
    Place,
    Places,
    StreamOffset,
    decode_offset,
    encode_offset,
    limited,
    place_of,
)
from spark_offload.reading.task import read_input, store_at

REFRESH_S = 1.0  # a partition's manifest changes no more often, but Spark asks up to a hundred times a second


class TierStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in the driver as long as the query; executors get copies of it that do no more than `read`."""

    def __init__(self, schema: StructType, options: ReadOptions, clock: Clock) -> None:
        self.schema = schema
        self.options = options
        self._clock = clock
        self._contents: dict[Place, PartitionContents] = {}
        self._ends: Places = {}
        self._looked_s: float | None = None
        self._target: Places | None = None
        self._checks_partitions = True  # once: a topic does not lose any

    # Spark's interface -------------------------------------------------------------------------------------

    def initialOffset(self) -> StreamOffset:  # noqa: N802  Spark's name, as all below
        """The starting offsets of a new query, from the options."""
        self._look()
        contents = list(self._contents.values())
        store = store_at(self.options.tier)
        starts = store.wait(lambda: starting_offsets(store.store, self.options, contents))
        return encode_offset(dict(zip(self._contents, starts, strict=True)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> StreamOffset:  # noqa: N802
        """The tier's end, or as much of the way as the limit allows. Raises DataLoss for a topic that is gone."""
        began = self._with_new_partitions(decode_offset(start))
        known = self._target if self._target is not None else self._newest()
        end = {place: max(offset, known.get(place, offset)) for place, offset in began.items()}
        return encode_offset(limited(began, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end)

    def reportLatestOffset(self) -> StreamOffset:  # noqa: N802
        return encode_offset(self._newest())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = dict(self._newest())

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> list[InputPartition]:
        """The splits between two offsets, which may come from a checkpoint."""
        self._newest()
        began, stop = decode_offset(start), decode_offset(end)
        ranges = []
        for place, last in stop.items():
            contents = self._contents.get(place)
            if contents is None:
                self._left(place)
                continue
            fail = self.options.fail_on_data_loss
            first = held(contents, began.get(place, contents.log_start), fail=fail)
            if first < last:
                ranges.append(OffsetRange(contents, first, held(contents, last, fail=fail)))
        store = store_at(self.options.tier)
        return [InputPartition(task) for task in store.wait(lambda: plan_tasks(store.store, self.options, ranges))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_input(self.options, self.schema, partition)

    # what the tier holds -----------------------------------------------------------------------------------

    def _newest(self) -> Places:
        """The readable end of each partition, at most `REFRESH_S` old."""
        now = self._clock.monotonic()
        if self._looked_s is None or now - self._looked_s >= REFRESH_S:
            self._look()
            self._looked_s = now
        return self._ends

    def _look(self) -> None:
        store = store_at(self.options.tier)
        found, ends = store.wait(lambda: self._read_catalog(store))
        self._contents = {place_of(contents.path): contents for contents in found}
        self._ends = dict(zip(self._contents, ends, strict=True))

    async def _read_catalog(self, blocking: BlockingStore) -> tuple[list[PartitionContents], list[int]]:
        catalog = Catalog(blocking.store, self.options, checks_partitions=self._checks_partitions)
        found = await catalog.contents()
        self._checks_partitions = False
        return found, await readable_ends(blocking.store, self.options, found)

    def _with_new_partitions(self, began: Places) -> Places:
        """Partitions that were not there when the query began are read from their start; DataLoss for one that left."""
        self._newest()
        places = dict(began)
        for place in began:
            if place not in self._contents:
                self._left(place)
        for place, contents in self._contents.items():
            places.setdefault(place, contents.log_start)
        return places

    def _left(self, place: Place) -> None:
        is_replaced = any(other.words == place.words for other in self._contents)
        self._lost(
            f"{place.words} is no longer in the tier" + (", another topic has its name now" if is_replaced else "")
        )

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{what}; with failOnDataLoss=false the stream goes on without it")
