"""How `apache_kafka_4_1_transactions.tar.xz` was made: `python -m tests.spark_offload.apache_kafka_writer JARS TARGET`.

A real Apache Kafka writes the same records into two topics, with transactions of two producers that it commits and
aborts, an idempotent producer, one that is neither, deletes, headers and every codec. One topic it leaves alone, the
other one its log cleaner compacts.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.single_kafka import single_kafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = {
    "left-alone": {"cleanup.policy": "delete"},
    "cleaned": {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.001",
        "delete.retention.ms": "86400000",
    },
}
NOW_MS = 1_700_000_000_000
TIMESTAMP_AFTER_MAX_MS = str(2**60)

SETTINGS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "100000",
}


def main(jars: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with single_kafka(jars, folder, SETTINGS) as bootstrap:
            write(bootstrap)
            time.sleep(8)  # the cleaner runs by a timer, and tells no client when it is done
        for path in (folder / "data").iterdir():
            if path.name.split("-0")[0] not in TOPICS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        with tarfile.open(target, "w:xz") as packed:
            for topic in TOPICS:
                packed.add(folder / "data" / f"{topic}-0", f"{topic}-0", filter=_that_holds)


def _that_holds(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.name.endswith(".deleted") else entry


def write(bootstrap: str) -> None:
    settings = {"index.interval.bytes": "100", "segment.ms": "1500", "retention.ms": "-1"}
    settings["message.timestamp.after.max.ms"] = TIMESTAMP_AFTER_MAX_MS
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, 1, 1, config=settings | more) for name, more in TOPICS.items()]
    for made in admin.create_topics(topics).values():
        made.result(30)
    for topic in TOPICS:
        write_topic(bootstrap, topic)


def write_topic(bootstrap: str, topic: str) -> None:
    common = {"bootstrap.servers": bootstrap, "linger.ms": 5}
    first = Producer(common | {"transactional.id": f"{topic}-first", "compression.type": "lz4"})
    second = Producer(common | {"transactional.id": f"{topic}-second"})
    first.init_transactions(30)
    second.init_transactions(30)
    number = 0

    def send(producer: Producer, count: int, *, deletes: bool = False) -> None:
        nonlocal number
        for _ in range(count):
            key, value = b"key-%d" % (number * 7 % 23), b"value of %d " % number * (number % 9)
            deleted = deletes and number % 3 == 0
            headers: dict[str, str | bytes | None] | None = {"h": b"%d" % number} if number % 4 == 0 else None
            sent = None if deleted else value
            producer.produce(topic, sent, key, timestamp=NOW_MS + number, headers=headers)
            number += 1
        producer.flush(30)

    for codec in CODECS:
        plain = Producer(common | {"compression.type": codec})
        idempotent = Producer(common | {"compression.type": codec, "enable.idempotence": True})
        first.begin_transaction()
        send(first, 7)
        send(plain, 9)
        second.begin_transaction()
        send(second, 4, deletes=True)
        send(first, 3)
        first.abort_transaction(30)
        send(idempotent, 8, deletes=True)
        send(second, 5)
        second.commit_transaction(30)
        first.begin_transaction()
        send(first, 6, deletes=True)
        first.commit_transaction(30)
        second.begin_transaction()
        send(second, 2)
        second.abort_transaction(30)
        time.sleep(1.6)  # the next record begins a segment
    send(Producer(common), 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
