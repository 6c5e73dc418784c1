"""The tier's loads, one process each, through librdkafka: `python -m bench.tier.loads KIND BOOTSTRAP JSON`."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from bench.load import make_producer
from object_store.limits import StoreLimits
from object_store.opening import open_store

POLL_RECORDS = 500
PATIENCE_S = 60.0
TURN_S = 0.02


def fill(bootstrap: str, topic: str, partitions: int, records: int, size: int, batch: int) -> dict[str, Any]:
    """`records` random values of `size` bytes over the partitions, in batches of about `batch` bytes."""
    producer = make_producer(bootstrap, **{"linger.ms": 5, "batch.size": batch})
    value, failed = os.urandom(size), [0]
    run = max(1, 2 * batch // size)

    def delivered(error: KafkaError | None, _: Message) -> None:
        failed[0] += error is not None

    started = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number // run % partitions, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 200 == 0:
            producer.poll(0)
    left = producer.flush(300)
    seconds = time.perf_counter() - started
    return {"errors": failed[0] + left, "mb_s": round(records * size / seconds / 1e6, 2)}


def _reader(bootstrap: str, queued_kbytes: int) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "enable.metrics.push": False,
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": queued_kbytes,
            "fetch.queue.backoff.ms": 5,
        }
    )


def paced(
    bootstrap: str, topic: str, partitions: int, mb_s: float, windows: list[tuple[float, float]]
) -> dict[str, Any]:
    """Read on at `mb_s` in each window of monotonic time, and rest between them. `mb_s` of the answer: per window."""
    consumer = _reader(bootstrap, 4_096)
    places = [TopicPartition(topic, index, 0) for index in range(partitions)]
    consumer.assign(places)
    consumer.pause(places)
    expected = [0] * partitions
    paces, errors = [], 0
    for begin, end in windows:
        time.sleep(max(0.0, begin - time.monotonic()))
        consumer.resume(places)
        size = 0
        while (now := time.monotonic()) < end:
            ahead_s = size / (mb_s * 1e6) - (now - begin)
            if ahead_s > 0:
                time.sleep(min(ahead_s, TURN_S))
                continue
            for message in consumer.consume(POLL_RECORDS, TURN_S):
                partition, offset = message.partition(), message.offset()
                if message.error() or partition is None or offset is None:
                    errors += 1
                    continue
                errors += offset != expected[partition]
                expected[partition] = offset + 1
                size += len(message.value() or b"")
        consumer.pause(places)
        paces.append(round(size / (end - begin) / 1e6, 2))
    consumer.close()
    return {"errors": errors, "mb_s": paces}


def probe(bootstrap: str, topic: str, partitions: int, rate: int, seconds: float, size: int) -> dict[str, Any]:
    """When each record was sent, monotonic time, and how long it took to arrive. Prints "flowing" once they do."""
    consumer = _reader(bootstrap, 65_536)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    sent: list[float] = []
    latencies: list[float] = []
    stop = threading.Event()

    def receive() -> None:
        while not stop.is_set():
            message = consumer.poll(0.05)
            if message is not None and not message.error():
                at = struct.unpack_from("<d", message.value() or b"")[0]
                latencies.append(time.monotonic() - at)
                sent.append(at)

    reader = threading.Thread(target=receive)
    reader.start()
    producer = make_producer(bootstrap, **{"linger.ms": 0})
    padding, count = b"x" * (size - 8), int(rate * seconds)
    begin = time.monotonic()
    told = False
    for number in range(count):
        due = begin + number / rate
        while (left := due - time.monotonic()) > 0:
            producer.poll(min(left, 0.001) if left > 0.0005 else 0)
        producer.produce(topic, struct.pack("<d", time.monotonic()) + padding, partition=number % partitions)
        if latencies and not told:
            told = True
            print("flowing", flush=True)
    producer.flush(60)
    deadline = time.monotonic() + 20
    while len(latencies) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    stop.set()
    reader.join()
    consumer.close()
    missing = max(0, count - len(latencies))  # a record may come twice when its answer was late
    return {"errors": missing, "sent": sent, "latencies": latencies}


def read(bootstrap: str, topic: str, partitions: int, records: int) -> dict[str, Any]:
    """The first `records` records, as fast as they come; gaps and repetitions count as errors."""
    consumer = _reader(bootstrap, 1 << 18)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    expected = [0] * partitions
    count = size = errors = 0
    began = time.perf_counter()
    deadline = time.monotonic() + PATIENCE_S
    while count < records and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 0.5):
            partition, offset = message.partition(), message.offset()
            if message.error() or partition is None or offset is None:
                errors += 1
                continue
            errors += offset != expected[partition]
            expected[partition] = offset + 1
            count += 1
            size += len(message.value() or b"")
    seconds = time.perf_counter() - began
    consumer.close()
    missing = max(0, records - count)
    return {"errors": errors + missing, "mb_s": round(size / seconds / 1e6, 2), "gigabytes": size / 1e9}


def get_objects(uri: str, prefix: str, chunk: int, at_once: int, limit: int) -> dict[str, Any]:
    """Ranged GETs of up to `limit` bytes of segments below `prefix`, `at_once` at a time, with the product's client."""
    return asyncio.run(_get_objects(uri, prefix, chunk, at_once, limit))


async def _get_objects(uri: str, prefix: str, chunk: int, at_once: int, limit: int) -> dict[str, Any]:
    store = await open_store(uri, StoreLimits())
    ranges: list[tuple[str, int, int]] = []
    async for info in store.list(prefix):
        if info.key.endswith(".segment"):
            ranges += [(info.key, at, min(chunk, info.size - at)) for at in range(0, info.size, chunk)]
    del ranges[max(1, limit // chunk) :]
    total = sum(length for _, _, length in ranges)
    waiting = iter(ranges)

    async def worker() -> None:
        for key, at, length in waiting:
            await store.get(key, at, length)

    began = time.perf_counter()
    await asyncio.gather(*[worker() for _ in range(at_once)])
    seconds = time.perf_counter() - began
    await store.close()
    return {"errors": 0, "mb_s": round(total / seconds / 1e6, 2), "gigabytes": total / 1e9}


def put_objects(uri: str, size: int, count: int, at_once: int) -> dict[str, Any]:
    """PUTs of `count` objects of `size` bytes with the product's client; also its CPU seconds per gigabyte."""
    return asyncio.run(_put_objects(uri, size, count, at_once))


async def _put_objects(uri: str, size: int, count: int, at_once: int) -> dict[str, Any]:
    store = await open_store(uri, StoreLimits())
    body = os.urandom(size)
    waiting = iter(range(count))

    async def worker() -> None:
        for number in waiting:
            await store.put(f"bench-put/{number}", body)

    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*[worker() for _ in range(at_once)])
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    await store.delete([f"bench-put/{number}" for number in range(count)])
    await store.close()
    gigabytes = size * count / 1e9
    return {"errors": 0, "mb_s": round(1e3 * gigabytes / seconds, 2), "cpu_s_gb": used / gigabytes}


LOADS: dict[str, Callable[..., dict[str, Any]]] = {
    "fill": fill,
    "paced": paced,
    "probe": probe,
    "read": read,
    "get_objects": get_objects,
    "put_objects": put_objects,
}

if __name__ == "__main__":
    print(json.dumps(LOADS[sys.argv[1]](sys.argv[2], **json.loads(sys.argv[3]))))
