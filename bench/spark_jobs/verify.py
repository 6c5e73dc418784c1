"""`python -m bench.spark_jobs.verify`: verification in Spark, beside a plain read plus CRC-32C of the same files.

A tier of several partitions is made in a directory: one partition's files, and links to them for the others, so that
all is read from the page cache and a run lasts long enough for Spark's fixed cost of some tenths of a second not to
decide. The plain reader is a Python loop that reads the files in pieces and sums them up, on one core, and for
comparison in two processes. Per round all run one after the other on the same files. Goals, beside the loop: shallow at
least 0.5 times, deep at least 0.3 times. Ends 1 when one is missed, 2 without Java.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from random import Random
from struct import pack_into
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from common.checksum import crc32c
from records.builder import build_batch
from records.compression import Compression
from records.record import Record
from spark_offload.java_home import ensure_java
from spark_offload.job import SilentProgress
from spark_offload.verification.job import VerifyOptions, run
from tiering.keys import PartitionPath, TierRoot
from tiering.manifest import ManifestHead, encode_head
from tiering.segment import SegmentState, TieredSegment
from tiering.segment_writer import SegmentWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
MIB = 1 << 20
BATCH_BYTES = 16 << 10
SEGMENT_BYTES, SEGMENTS, PARTITIONS = 128 * MIB, 8, 8
PIECE_BYTES = 4 * MIB
TEMPLATES = 64
NOW = 1_700_000_000_000
RESULTS = Path(__file__).resolve().parents[1] / "results" / "spark_verify.json"
SHALLOW_MIN, DEEP_MIN = 0.5, 0.3


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    value_bytes: int
    codec: Compression


KINDS = {
    "100 B": Kind("100 B", 87, Compression.NONE),
    "1 KiB": Kind("1 KiB", 1_011, Compression.NONE),
    "1 KiB lz4": Kind("1 KiB lz4", 1_011, Compression.LZ4),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds of each round, on `megabytes`; `ratio` is the median of the rounds', held against `goal`. `two_s` and
    `ratio_to_two` are those of two plain processes."""

    kind: str
    what: str
    megabytes: float
    plain_s: list[float]
    two_s: list[float]
    verify_s: list[float]
    ratio: float
    ratio_to_two: float
    goal: float

    @property
    def met(self) -> bool:
        return self.ratio >= self.goal


# the tier ----------------------------------------------------------------------------------------------------


def templates(kind: Kind) -> list[bytearray]:
    """Batches that differ; offsets are written into copies of them, which their CRCs do not cover."""
    size = kind.value_bytes + 25
    count = max(1, BATCH_BYTES // size)
    chance = Random(7)
    found = []
    for number in range(TEMPLATES):
        records = [
            Record(0, NOW + n, b"key-%09d" % (number * count + n), value(chance, kind.value_bytes))
            for n in range(count)
        ]
        found.append(build_batch(records, compression=kind.codec, leader_epoch=0))
    return found


def value(chance: Random, size: int) -> bytes:
    """Text like JSON, of which lz4 leaves about half."""
    fields: list[str] = []
    while sum(map(len, fields)) < size:
        flight, tail, delay = chance.randrange(10**6), chance.getrandbits(20), chance.random()
        fields.append(f'{{"flight":{flight},"tail":"N{tail:05x}","delay":{delay:.3f}}},')
    return "".join(fields).encode()[:size]


def write_segment(
    directory: Path, root: TierRoot, path: PartitionPath, base: int, made: list[bytearray]
) -> TieredSegment:
    writer = SegmentWriter(base)
    log = bytearray()
    offset, number = base, 0
    while len(log) < SEGMENT_BYTES:
        batch = made[number % len(made)]
        number += 1
        count = int.from_bytes(batch[57:61], "big")
        pack_into(">q", batch, 0, offset)
        offset += count
        log += batch
    writer.append(log)
    uuid = f"{base + 1:032x}"
    covered = TieredSegment(
        uuid=uuid, base_offset=base, end_offset=offset, max_timestamp=NOW, log_bytes=len(log), epochs=[(0, 0)],
        state=SegmentState.COPY_FINISHED, broker_id=1, leader_epoch=0, changed_ms=NOW,
    )  # fmt: skip
    finished = writer.finish(uuid, [covered], {}, b"", NOW)
    segment = msgspec.structs.replace(finished.segment, rewritten=False)
    file = directory / root.segment_key(path, segment.id)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(log) + b"".join(finished.tail))
    return segment


def make_tier(directory: Path, kind: Kind, partitions: int) -> float:
    """Its size in MB."""
    root, made = TierRoot("bench"), templates(kind)
    first = PartitionPath("records", bytes(15) + b"\x01", 0)
    segments: list[TieredSegment] = []
    for _ in range(SEGMENTS):
        base = segments[-1].end_offset if segments else 0
        segments.append(write_segment(directory, root, first, base, made))
    for number in range(partitions):
        path = first._replace(partition=number)
        for segment in segments if number else ():
            link = directory / root.segment_key(path, segment.id)
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(directory / root.segment_key(first, segment.id), link)
        head = ManifestHead(
            cluster_id="bench", incarnation=1, topic=path.topic, topic_id=path.topic_id.hex(), partition=number,
            tenant="", version=1, leader_epoch=0, broker_id=1, broker_epoch=1, tier_state_offset=1, published_ms=NOW,
            log_start_offset=0, end_offset=segments[-1].end_offset, segments=segments,
        )  # fmt: skip
        file = directory / root.manifest_key(path, 1)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode_head(head))
    (directory / root.cluster_file).write_text(
        json.dumps({"format": 1, "cluster_id": "bench", "incarnation": 1, "created_ms": NOW, "changed_ms": NOW})
    )
    return partitions * sum(segment.log_bytes for segment in segments) / 1e6


# the two ways ------------------------------------------------------------------------------------------------


def read_plainly(files: list[str]) -> int:
    """What `verify` is held against: every byte read and summed up, and nothing else."""
    total = 0
    for name in files:
        checksum = 0
        with open(name, "rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                checksum = crc32c(piece, checksum)
                total += len(piece)
    return total


def plain_seconds(pool: Pool | None, directory: Path) -> float:
    """Without a pool in this process."""
    files = sorted(str(file) for file in directory.rglob("*.segment"))
    began = time.monotonic()
    if pool is None:
        read_plainly(files)
    else:
        pool.map(read_plainly, [[name] for name in files], chunksize=1)
    return time.monotonic() - began


def verify_seconds(spark: SparkSession, directory: Path, *, deep: bool) -> float:
    began = time.monotonic()
    report = run(spark, VerifyOptions(tier=directory.as_uri(), deep=deep), SilentProgress())
    seconds = time.monotonic() - began
    if report.failed:
        raise RuntimeError("\n".join(report.lines()))
    return seconds


def session(work: Path) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415  heavy

    if ensure_java(work / "java") is None:
        raise SystemExit(2)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: SparkSession.Builder = SparkSession.builder
    return (
        builder.master(f"local[{CORES}]")
        .appName("bench-verify")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.local.dir", str(work / "local"))
        .getOrCreate()
    )


def measured(kinds: list[Kind], rounds: int, partitions: int, work: Path) -> Iterator[Figure]:
    spark = session(work)
    try:
        with get_context("spawn").Pool(CORES) as pool:
            for kind in kinds:
                directory = work / kind.name.replace(" ", "-")
                megabytes = make_tier(directory, kind, partitions)
                verify_seconds(spark, directory, deep=False)  # a session's first jobs are slow
                plain_seconds(pool, directory)
                times: dict[str, list[float]] = {"plain": [], "two": [], "shallow": [], "deep": []}
                for _ in range(rounds):
                    times["plain"].append(plain_seconds(None, directory))
                    times["two"].append(plain_seconds(pool, directory))
                    for what in ("shallow", "deep"):
                        times[what].append(verify_seconds(spark, directory, deep=what == "deep"))
                for what, goal in (("shallow", SHALLOW_MIN), ("deep", DEEP_MIN)):
                    yield Figure(
                        kind=kind.name,
                        what=what,
                        megabytes=megabytes,
                        plain_s=times["plain"],
                        two_s=times["two"],
                        verify_s=times[what],
                        ratio=_ratio(times["plain"], times[what]),
                        ratio_to_two=_ratio(times["two"], times[what]),
                        goal=goal,
                    )
                shutil.rmtree(directory)
    finally:
        spark.stop()


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_jobs.verify", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="of 1 GiB each")
    options = parser.parse_args()
    console = Console()
    table = Table(title=f"verify on {CORES} cores beside a plain read plus CRC-32C: medians")
    columns = ("records", "", "GB", "plain, MB/s", "two plain, MB/s", "verify, MB/s", "ratio", "to two", "goal", "")
    for column in columns:
        table.add_column(column, justify="right")
    figures = []
    with tempfile.TemporaryDirectory(prefix="tidelog-verify-") as work:
        kinds = [KINDS[name] for name in options.only or KINDS]
        for one in measured(kinds, options.rounds, options.partitions, Path(work)):
            figures.append(one)
            every = (one.plain_s, one.two_s, one.verify_s)
            speeds = [f"{one.megabytes / statistics.median(seconds):,.0f}" for seconds in every]
            mark = "[green]✓[/]" if one.met else "[red]✗[/]"
            ratios = [f"{ratio:.2f}" for ratio in (one.ratio, one.ratio_to_two)]
            size = f"{one.megabytes / 1e3:.1f}"
            table.add_row(one.kind, one.what, size, *speeds, *ratios, f">= {one.goal}", mark)
    console.print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(one) | {"met": one.met} for one in figures], indent=1) + "\n")
    return 0 if all(one.met for one in figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
