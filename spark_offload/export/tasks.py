"""A Spark task of an export: writes some splits of one partition to data files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from object_store.errors import StoreError
from spark_offload.export.day_files import DayFiles, FileTarget, WrittenFile
from spark_offload.export.offset_spans import Spans, merged, without
from spark_offload.export.table_columns import TableColumns, ValueFormat
from spark_offload.options import ReadOptions
from spark_offload.reading.decoding import Decoder
from spark_offload.reading.segment_reading import read_split
from spark_offload.reading.splits import Split
from spark_offload.reading.task import attempt_id, store_at
from spark_offload.running.job import Problem
from spark_offload.segments.aborted import AbortedRanges
from spark_offload.segments.column_names import OFFSET
from spark_offload.segments.varints import DamagedRecords

NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class SplitDone:
    """How reading a split ended. Offsets are of its first and last row; `problem` is what cut it short."""

    rows: int
    first_offset: int = NO_OFFSET
    last_offset: int = NO_OFFSET
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class TaskDone:
    files: list[WrittenFile]
    splits: list[SplitDone]
    undecoded: int


@dataclass(frozen=True, slots=True)
class ExportTask:
    """Called in executors with the splits of one task, which are of one partition and in order."""

    reading: ReadOptions
    values: ValueFormat
    include_headers: bool
    target: FileTarget
    run: str
    file_bytes: int

    def __call__(self, splits: Sequence[Split]) -> TaskDone:
        """Raises only if files cannot be written; an unreadable object is a split's problem."""
        columns = TableColumns(self.values, include_headers=self.include_headers)
        first = splits[0]
        suffix = f"{self.run}-{attempt_id()}"
        files = DayFiles(columns.schema, self.target, first.topic, first.partition, suffix, self.file_bytes)
        done, undecoded = [], 0
        for split in splits:
            one, bad = self._export(split, columns, files)
            done.append(one)
            undecoded += bad
        return TaskDone(files.close(), done, undecoded)

    def _export(self, split: Split, columns: TableColumns, files: DayFiles) -> tuple[SplitDone, int]:
        decoder = Decoder(
            columns.source,
            split.topic,
            split.partition,
            AbortedRanges(split.aborted),
            inflated_bytes_max=self.reading.inflated_batch_bytes,
        )
        rows, undecoded, first, last = 0, 0, NO_OFFSET, NO_OFFSET
        problem = None
        batches = read_split(store_at(self.reading.tier), split, decoder, chunk_bytes=self.reading.chunk_bytes)
        while True:
            try:
                batch = next(batches, None)
            except (DamagedRecords, StoreError) as error:
                offset = split.start if last == NO_OFFSET else last + 1
                problem = unreadable(error, split.topic, split.partition, offset, split.key)
                break
            if batch is None:
                break
            if not batch.num_rows:
                continue
            last = batch.column(OFFSET)[-1].as_py()
            first = batch.column(OFFSET)[0].as_py() if first == NO_OFFSET else first
            rows += batch.num_rows
            table, bad = columns.rows(batch)
            undecoded += bad
            files.add(table)
        return SplitDone(rows, first, last, problem), undecoded


def unreadable(error: Exception, topic: str, partition: int, offset: int = NO_OFFSET, key: str = "") -> Problem:
    what = "damaged" if isinstance(error, ValueError) else "unreadable"
    return Problem(what, str(error), topic=topic, partition=partition, offset=offset, key=key)


def covered(wanted: Spans, done: Sequence[tuple[Split, SplitDone]]) -> Spans:
    """What of `wanted` the table holds when the files of these splits, all of one partition in order, are committed.

    Several splits of a segment share its bounds, so where one begins is known by its rows alone. A split that was cut
    short leaves out what lies between the last row before the fault and the next row behind it: no row of the table is
    in there.
    """
    missing = []
    for at, (split, result) in enumerate(done):
        if result.problem is None:
            continue
        before = [one.last_offset + 1 for _, one in done[: at + 1] if one.last_offset != NO_OFFSET]
        after = [one.first_offset for _, one in done[at + 1 :] if one.first_offset != NO_OFFSET]
        first = max([split.start, *(offset for offset in before if offset > split.start)])
        missing.append((first, min([split.end, *after])))
    return without(wanted, merged(missing))
