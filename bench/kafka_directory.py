"""A partition directory that a real Apache Kafka wrote, opened by our storage and read record by record."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers import CLUSTER_ID
from bench.single_kafka import single_kafka
from common.directory_config import DirectoryConfig
from common.machine import machine_ports
from records.batch import iterate_batches
from records.record import decode_records
from storage.audit.audit_trail import NoTrail
from storage.directory.log_directory import LogDirectory
from storage.log.log_config import LogConfig

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS_EACH, VALUE_BYTES = 400, 2_000
TOPIC = "foreign"
INFLATED_BYTES_MAX = 1 << 26


def check_foreign_directory(jars: Path, folder: Path) -> int:
    """Start Apache Kafka, write with every codec, kill it, and read its directory; how many records were served.

    RuntimeError when a record is missing or different.
    """
    folder.mkdir(parents=True)
    write_with_kafka(jars, folder)
    for path in (folder / "data").iterdir():  # other topics, the metadata log among them, are not under test
        if path.is_dir() and not path.name.startswith(f"{TOPIC}-"):
            shutil.rmtree(path)
    expected = {f"key-{c}-{n}".encode(): value(c, n) for c in CODECS for n in range(RECORDS_EACH)}
    got = asyncio.run(read_directory(folder / "data"))
    if got != expected:
        raise RuntimeError(f"{len(expected)} records were written by Apache Kafka, {len(got)} were read as written")
    return len(got)


def value(codec: str, number: int) -> bytes:
    """Bytes that no codec makes much smaller, so that the log gets several segments."""
    return random.Random(f"{codec}/{number}").randbytes(VALUE_BYTES)


def write_with_kafka(jars: Path, folder: Path) -> None:
    with single_kafka(jars, folder) as bootstrap:
        topic = NewTopic(TOPIC, 1, 1, config={"segment.bytes": "1048576", "index.interval.bytes": "512"})
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([topic])[TOPIC].result(30)
        for codec in CODECS:
            settings = {"compression.type": codec, "enable.idempotence": True, "batch.size": 8_000, "linger.ms": 2}
            producer = Producer({"bootstrap.servers": bootstrap, **settings})
            for number in range(RECORDS_EACH):
                producer.produce(TOPIC, value(codec, number), f"key-{codec}-{number}".encode())
            if producer.flush(30):
                raise RuntimeError("Apache Kafka did not take the records")


async def read_directory(root: Path) -> dict[bytes, bytes]:
    """Key and value of every record that our storage serves from Kafka's log directory."""
    directory = LogDirectory(machine_ports(root), "", 1, NoTrail(), DirectoryConfig())
    await directory.open(CLUSTER_ID)
    await directory.recover(lambda topic: LogConfig())
    log = directory.get(TOPIC, 0)
    if log is None:
        raise RuntimeError("the partition was not found")
    found: dict[bytes, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        region = log.read(offset, 10_000, log.log_end_offset)
        if region is None:
            raise RuntimeError(f"nothing is served at offset {offset}")
        view = memoryview(region.file.pread(region.length, region.position))
        for position, header in iterate_batches(view, 0, len(view), verify_crc=True):
            for record in decode_records(view, position, header.size, inflated_bytes_max=INFLATED_BYTES_MAX):
                found[record.key or b""] = record.value or b""
            offset = header.next_offset
    await directory.close()
    return found
