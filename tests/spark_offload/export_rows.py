"""Topics for the tests of exports, what readers of committed records see in them, and what a table holds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem

from common.machine import MachineClock
from records.compression import Compression
from records.control import MarkerKind
from records.record import Record
from spark_offload.export.iceberg_table import open_catalog
from spark_offload.export.job import Export, new_run_id, open_table
from spark_offload.export.options import ExportOptions
from spark_offload.export.parquet_table import committed_files
from spark_offload.export.report import ExportReport
from spark_offload.export.tables import ExportTable
from spark_offload.running.job import SilentProgress
from storage.indexes.transaction_index import AbortedTransaction
from tests.spark_offload.segment_bytes import Seen, by_kafka_python
from tests.spark_offload.session_here import HERE
from tests.spark_offload.tier_builder import NOW, BuiltPartition, TierBuilder, batch, marker, plain_batches

DAY_MS = 86_400_000
KINDS = ["parquet", "iceberg"]
CODECS = [Compression.NONE, Compression.LZ4, Compression.ZSTD, Compression.GZIP, Compression.SNAPPY]


class Row(NamedTuple):
    topic: str
    partition: int
    seen: Seen


@dataclass
class RandomPartition:
    """Grows by segments of random batches, and knows what of them is committed."""

    built: BuiltPartition
    chance: random.Random
    rows: list[Row] = field(default_factory=list)
    next_offset: int = 0
    producer: int = 100

    def grow(self, batches: int = 12) -> None:
        """One more segment, published. No transaction is left open."""
        logs: list[bytes] = []
        aborted: list[AbortedTransaction] = []
        for _ in range(batches):
            kind = self.chance.random()
            if kind < 0.6:
                self._take(self._batch(), logs)
            else:
                self.producer += 1
                first = self.next_offset
                data = self._batch(producer_id=self.producer, producer_epoch=0, base_sequence=0, transactional=True)
                commits = kind < 0.8
                self._take(data, logs, committed=commits)
                last = self.next_offset
                decision = MarkerKind.COMMIT if commits else MarkerKind.ABORT
                self._take(marker(decision, self.producer, self.next_offset), logs)
                if not commits:
                    aborted.append(AbortedTransaction(self.producer, first, last, last))
            if self.chance.random() < 0.2:
                self.next_offset += self.chance.randint(1, 30)  # as compaction leaves it
        self.built.add(logs, aborted=aborted)
        self.built.publish(end_offset=self.next_offset)

    def _batch(self, **fields: Any) -> bytes:
        chance = self.chance
        start = NOW + self.next_offset * 1000 + chance.choice([0, 0, 0, DAY_MS, -3 * DAY_MS])
        records = [
            Record(
                0,
                start + chance.randrange(1000),
                chance.choice([None, b"", b"key %d" % chance.randrange(9)]),
                chance.choice([None, b"", chance.randbytes(chance.randrange(60))]),
                tuple((f"h{at}", chance.choice([None, b"x"])) for at in range(chance.choice([0, 0, 2]))),
            )
            for _ in range(chance.randint(1, 40))
        ]
        return batch(records, self.next_offset, chance.choice(CODECS), **fields)

    def _take(self, data: bytes, logs: list[bytes], *, committed: bool = True) -> None:
        logs.append(data)
        path = self.built.path
        seen = by_kafka_python(data)
        if committed:
            self.rows += [Row(path.topic, path.partition, one) for one in seen]
        self.next_offset = (seen[-1].offset if seen else self.next_offset) + 1


def random_partitions(tier: TierBuilder, topic: str, count: int, seed: int) -> list[RandomPartition]:
    return [
        RandomPartition(tier.partition(topic, number), random.Random(f"{seed}-{number}")) for number in range(count)
    ]


def table_of(options: ExportOptions, file_system: FileSystem | None = None) -> pa.Table:
    """All rows of the table; `file_system` is where an export to Parquet in a bucket went."""
    if options.to == "iceberg":
        catalog = open_catalog(options)
        try:
            return catalog.load_table(options.table_name).scan().to_arrow()
        finally:
            catalog.close()
    root = options.output.removeprefix("file://").removeprefix("s3://").split("?")[0]
    system = file_system or LocalFileSystem()
    tables = []
    for file in committed_files(options.output):
        with system.open_input_file(f"{root}/{file.path}") as source:
            tables.append(pq.ParquetFile(source).read())
        assert tables[-1].num_rows == file.rows
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


def rows_of(table: pa.Table) -> list[Row]:
    """In order of topic, partition and offset."""
    ticks = table["timestamp"].cast(pa.int64()).to_pylist()
    headers = table["headers"].to_pylist() if "headers" in table.column_names else [None] * len(table)
    names = ("topic", "partition", "offset", "timestampType", "key", "value")
    rows = []
    for topic, partition, offset, kind, key, value, tick, pairs in zip(
        *(table[name].to_pylist() for name in names), ticks, headers, strict=True
    ):
        found = tuple((pair["key"], pair["value"]) for pair in pairs or ())
        rows.append(Row(topic, partition, Seen(offset, tick // 1000, kind, key, value, found)))
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.seen.offset))


def data_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def options_for(tier: TierBuilder, kind: str, **more: Any) -> ExportOptions:
    chosen: dict[str, Any] = {"topics": ("flights",), "output": (tier.root.parent / kind).as_uri(), "task_bytes": 4096}
    return ExportOptions(tier=tier.uri, to=kind, **(chosen | more))


def export(options: ExportOptions, table: ExportTable | None = None, clock: Any = None) -> ExportReport:
    options.check()
    used = table or open_table(options)
    try:
        return Export(HERE, options, SilentProgress(), used, clock or MachineClock(), new_run_id()).run()
    finally:
        used.close()


def offsets_in(options: ExportOptions, partition: int = 0) -> list[int]:
    table = table_of(options)
    if not table.num_columns:
        return []
    return sorted(
        offset
        for number, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
        if number == partition
    )


def make_segments(tier: TierBuilder, count: int, partitions: int = 1) -> None:
    for number in range(partitions):
        partition = tier.partition("flights", number)
        for at in range(count):
            partition.add(plain_batches(at * 50, 50))
        partition.publish()
