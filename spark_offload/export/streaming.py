"""Continuous export: each micro-batch of a stream becomes one commit of the same table that batch runs fill.

    writer = StreamExport(ExportOptions(…))
    stream.writeStream.foreachBatch(writer).option("checkpointLocation", …).start()

Spark promises each batch at least once: after a failure it comes again, and after a lost checkpoint from the start. The
table's own offsets make it once: rows that the table holds already are left out, in the same commit that says which
offsets it holds now.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.machine import MachineClock
from common.ports import Clock
from object_store.blocking import BlockingStore
from spark_offload.export.day_files import DayFiles, FileTarget, WrittenFile
from spark_offload.export.job import HOUR_MS, new_run_id, open_table
from spark_offload.export.offset_spans import Place, Spans, merged, place_of, without
from spark_offload.export.options import ExportOptions
from spark_offload.export.table_columns import TableColumns, ValueFormat
from spark_offload.export.tables import Addition, Beaten, commit_addition
from spark_offload.options import OptionError
from spark_offload.reading.catalog import Catalog
from spark_offload.reading.task import attempt_id
from spark_offload.segments.column_names import OFFSET, PARTITION, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Part = tuple[str, int]  # topic and partition, as rows name them


@dataclass(frozen=True, slots=True)
class PartDone:
    """What one Spark task saw of a partition, rows that were left out too, and wrote."""

    part: Part
    first_offset: int
    last_offset: int
    undecoded: int
    files: list[WrittenFile]


@dataclass(frozen=True, slots=True)
class StreamTask:
    """Called in executors with a task's rows, whose columns are those of the data source."""

    values: ValueFormat
    include_headers: bool
    target: FileTarget
    run: str
    file_bytes: int
    exported: dict[Part, Spans]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = TableColumns(self.values, include_headers=self.include_headers)
        suffix = f"{self.run}-{attempt_id()}"
        files: dict[Part, DayFiles] = {}
        seen: dict[Part, list[int]] = {}  # first offset, last offset, undecoded
        for batch in batches:
            for part, rows in _by_part(batch.select(columns.source.names).cast(columns.source)):
                bounds = pc.min_max(rows.column(OFFSET))
                span = seen.setdefault(part, [bounds["min"].as_py(), -1, 0])
                span[0] = min(span[0], bounds["min"].as_py())
                span[1] = max(span[1], bounds["max"].as_py())
                fresh = _without(rows, self.exported.get(part, ()))
                if not fresh.num_rows:
                    continue
                if part not in files:
                    files[part] = DayFiles(columns.schema, self.target, *part, suffix, self.file_bytes)
                table, undecoded = columns.rows(fresh)
                files[part].add(table)
                span[2] += undecoded
        done = [
            PartDone(part, first, last, undecoded, files[part].close() if part in files else [])
            for part, (first, last, undecoded) in seen.items()
        ]
        yield pa.RecordBatch.from_pydict({"done": pa.array([pickle.dumps(done)], pa.binary())})


class StreamExport:
    """A function for `foreachBatch`; one query at a time."""

    def __init__(self, options: ExportOptions, clock: Clock | None = None) -> None:
        """Raises OptionError."""
        options.check()
        self._options = options
        self._clock = clock or MachineClock()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Commits the rows of `frame`, which has the columns of the data source.

        Raises Beaten when another run exported the same offsets meanwhile; the batch can then come again.
        """
        options = self._options
        began_ms = self._clock.wall_ms()
        columns = options.columns()
        table = open_table(options)
        try:
            table.prepare(columns.schema)
            state = table.state()
            places = self._places()
            task = StreamTask(
                options.values,
                options.include_headers,
                table.target(),
                new_run_id(),
                options.file_bytes,
                {part: state.exported.get(place, ()) for part, place in places.items()},
            )
            rows = frame.select(*columns.source.names).mapInArrow(task, "done binary").collect()
            done: list[PartDone] = [one for row in rows for one in pickle.loads(row["done"])]
            addition = self._addition(task, places, done)
            if options.orphan_hours and addition.committed_ms - began_ms >= options.orphan_hours * HOUR_MS:
                raise Beaten(f"batch {batch} took so long that another run may have removed its files")
            if addition.spans:
                commit_addition(table, state, addition)
            if options.orphan_hours:
                table.sweep(began_ms - options.orphan_hours * HOUR_MS)
        finally:
            table.close()

    def _addition(self, task: StreamTask, places: dict[Part, Place], done: Sequence[PartDone]) -> Addition:
        """A batch holds all there is between the first and the last row of a partition."""
        bounds: dict[Part, tuple[int, int]] = {}
        for one in done:
            first, last = bounds.get(one.part, (one.first_offset, one.last_offset))
            bounds[one.part] = min(first, one.first_offset), max(last, one.last_offset)
        spans: dict[Place, Spans] = {}
        for part, (first, last) in sorted(bounds.items()):
            if part not in places:
                raise OptionError(f"the stream has rows of {part[0]}-{part[1]}, which this export is not for")
            if fresh := without(merged([(first, last + 1)]), task.exported[part]):
                spans[places[part]] = fresh
        return Addition(
            run=task.run,
            cluster_id=next(iter(places.values())).topic.split("/")[0] if places else "",
            committed_ms=self._clock.wall_ms(),
            spans=spans,
            files=[file for one in done for file in one.files],
            undecoded=sum(one.undecoded for one in done),
        )

    def _places(self) -> dict[Part, Place]:
        """Rows name a topic, the table's offsets one incarnation of it."""
        reading = self._options.reading()
        with BlockingStore(reading.tier) as store:
            found = store.wait(lambda: Catalog(store.store, reading).contents())
        return {(one.path.topic, one.path.partition): place_of(one.root.cluster_id, one.path) for one in found}


def _by_part(batch: pa.RecordBatch) -> Iterator[tuple[Part, pa.RecordBatch]]:
    """The rows of each partition; those of a task are of one, unless the query has mixed them."""
    topics, partitions = batch.column(TOPIC), np.asarray(batch.column(PARTITION))
    for topic in pc.unique(topics).to_pylist():
        of_topic = pc.equal(topics, topic)
        for number in np.unique(partitions[np.asarray(of_topic)]).tolist():
            rows = pc.and_(of_topic, pc.equal(batch.column(PARTITION), number))
            yield (topic, number), batch.filter(rows)


def _without(batch: pa.RecordBatch, exported: Spans) -> pa.RecordBatch:
    """Rows whose offsets are not among those that the table holds."""
    if not exported:
        return batch
    offset = np.asarray(batch.column(OFFSET))
    bounds = np.array(exported).reshape(-1)
    inside = np.searchsorted(bounds, offset, side="right") % 2 == 1
    return batch.filter(pa.array(~inside)) if inside.any() else batch
