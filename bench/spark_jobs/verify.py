"""`python -m bench.spark_jobs.verify`: verification in Spark, beside a plain read plus CRC-32C of the same files.

A tier of several partitions is made in a directory: one partition's files, and links to them for the others, so that
all is read from the page cache and a run lasts long enough for Spark's fixed cost of some tenths of a second not to
decide. The plain reader is a Python loop that reads the files in pieces and sums them up, on one core, and for
comparison in two processes. Per round all run one after the other on the same files. Goals, beside the loop: shallow at
least 0.5 times, deep at least 0.3 times. Ends 1 when one is missed, 2 without Java.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from random import Random
from struct import pack_into
from typing import TYPE_CHECKING

import msgspec

from bench.spark_jobs.row import BenchRow, Figures, timed
from common.checksum import crc32c
from records.builder import build_batch
from records.compression import Compression
from records.record import Record
from spark_offload.running.job import SilentProgress
from spark_offload.verification.job import VerifyOptions, run
from spark_offload.verification.report import VerifyReport
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.bucket.segment import SegmentState, TieredSegment
from tiering.jobs.segment_writer import SegmentWriter
from tiering.manifests.manifest import ManifestHead, encode_head

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
MIB = 1 << 20
BATCH_BYTES = 16 << 10
SEGMENT_BYTES, SEGMENTS, PARTITIONS = 128 * MIB, 8, 8
PIECE_BYTES = 4 * MIB
TEMPLATES = 64
NOW = 1_700_000_000_000
GOALS = {"shallow": 0.5, "deep": 0.3}


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    value_bytes: int
    codec: Compression


KINDS = [
    Kind("100 B", 87, Compression.NONE),
    Kind("1 KiB", 1_011, Compression.NONE),
    Kind("1 KiB lz4", 1_011, Compression.LZ4),
]


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
    if pool is None:
        return timed(lambda: read_plainly(files))
    return timed(lambda: pool.map(read_plainly, [[name] for name in files], chunksize=1))


def verify_seconds(spark: SparkSession, directory: Path, *, deep: bool) -> float:
    reports: list[VerifyReport] = []
    options = VerifyOptions(tier=directory.as_uri(), deep=deep)
    seconds = timed(lambda: reports.append(run(spark, options, SilentProgress())))
    if reports[0].failed:
        raise RuntimeError("\n".join(reports[0].lines()))
    return seconds


def measure(spark: SparkSession, kind: Kind, directory: Path, rounds: int) -> list[Figures]:
    megabytes = make_tier(directory, kind, PARTITIONS)
    seconds: dict[str, list[float]] = {"plain": [], "two": [], "shallow": [], "deep": []}
    with get_context("spawn").Pool(CORES) as pool:
        verify_seconds(spark, directory, deep=False)  # a session's first jobs are slow
        plain_seconds(pool, directory)
        for _ in range(rounds):
            seconds["plain"].append(plain_seconds(None, directory))
            seconds["two"].append(plain_seconds(pool, directory))
            for what in GOALS:
                seconds[what].append(verify_seconds(spark, directory, deep=what == "deep"))
    shutil.rmtree(directory)
    return [figures(kind, what, megabytes, seconds) for what in GOALS]


def figures(kind: Kind, what: str, megabytes: float, seconds: dict[str, list[float]]) -> Figures:
    """Seconds of each round on `megabytes`; `ratio` is the median of the rounds', `ratio_to_two` the same beside two
    plain processes."""
    ratio = _ratio(seconds["plain"], seconds[what])
    return {
        "kind": kind.name,
        "what": what,
        "megabytes": megabytes,
        "plain_s": seconds["plain"],
        "two_s": seconds["two"],
        "verify_s": seconds[what],
        "ratio": ratio,
        "ratio_to_two": _ratio(seconds["two"], seconds[what]),
        "goal": GOALS[what],
        "met": ratio >= GOALS[what],
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def line(one: Figures) -> str:
    speeds = {name: one["megabytes"] / statistics.median(one[f"{name}_s"]) for name in ("plain", "two", "verify")}
    told = ", ".join(f"{name} {speed:,.0f} MB/s" for name, speed in speeds.items())
    return f"{one['kind']}, {one['what']}, {one['megabytes'] / 1e3:.1f} GB: {told}"


ROW = BenchRow("verify", __doc__ or "", KINDS, measure, line)

if __name__ == "__main__":
    sys.exit(ROW.main())
