"""Transactions beside Apache Kafka 4.2: `python -m bench.transactions [--rounds N] [--name NAME]`.

Three brokers each, RF 3, `min.insync.replicas` 2, librdkafka for both, in turn in one run. Rows: produce in batches of
16 KB with a commit each 100 ms; one record and a commit; 100 producers that commit one record each, as fast as they
can; and how long a SIGKILL of the transaction coordinator holds up the commits of an id. Ends 1 when a goal
is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaException, Producer
from kafka.admin import KafkaAdminClient
from rich.console import Console

from bench.__main__ import WORK, Row, save, show
from bench.load import create_topic, make_producer, percentile
from bench.peers import KafkaPeer, MissingTool, Peer, TidelogPeer, cpu_seconds, kafka_jars

KAFKA_VERSION = "4.2.0"  # the first one whose stable APIs Tidelog's transactions follow
PARTITIONS = 6
SETTINGS = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}
PATIENCE_S = 60.0
TIMEOUTS = {"transaction.timeout.ms": 60_000, "message.timeout.ms": 60_000}
PRODUCERS = 100
GOALS = {
    ("transactional produce, 16 KB batches", "mb_s"): (">=", 1.5),
    ("transactional produce, 16 KB batches", "cpu_s_gb"): ("<=", 0.5),
    ("one record and commit", "p50_ms"): ("<=", 0.6),
    ("one record and commit", "p99_ms"): ("<=", 0.6),
    ("100 producers", "commits_s"): (">=", 1.0),
    ("coordinator killed", "seconds"): ("<=", 0.3),
}
Figures = dict[tuple[str, str], float]


def _producer(bootstrap: str, name: str, **settings: object) -> Producer:
    producer = make_producer(bootstrap, **{"transactional.id": name, **TIMEOUTS, **settings})
    producer.init_transactions(PATIENCE_S)
    return producer


def throughput(peer: Peer, seconds: float) -> Figures:
    """One producer, batches of 16 KB, a commit each 100 ms."""
    topic = create_topic(peer.bootstrap, PARTITIONS)
    producer = _producer(peer.bootstrap, f"{topic}-id", **{"linger.ms": 5, "batch.size": 16_384})
    value, done, count = os.urandom(1_024), 0, 0
    before, began = cpu_seconds(peer.pids()), time.perf_counter()
    while time.perf_counter() - began < seconds:
        producer.begin_transaction()
        due = time.perf_counter() + 0.1
        while time.perf_counter() < due:
            try:
                producer.produce(topic, value, partition=count % PARTITIONS)
                count += 1
            except BufferError:
                producer.poll(0.005)
            if count % 100 == 0:
                producer.poll(0)
        producer.commit_transaction(PATIENCE_S)
        done = count
    took, used = time.perf_counter() - began, cpu_seconds(peer.pids()) - before
    name, size = "transactional produce, 16 KB batches", done * len(value)
    return {(name, "mb_s"): size / took / 1e6, (name, "cpu_s_gb"): used / (size / 1e9)}


def one_record(peer: Peer, commits: int) -> Figures:
    topic = create_topic(peer.bootstrap, PARTITIONS)
    producer = _producer(peer.bootstrap, f"{topic}-id", **{"linger.ms": 0})
    latencies = []
    for number in range(commits + 50):
        began = time.perf_counter()
        producer.begin_transaction()
        producer.produce(topic, b"x" * 100, partition=number % PARTITIONS)
        producer.commit_transaction(PATIENCE_S)
        if number >= 50:  # the first ones open connections
            latencies.append(time.perf_counter() - began)
    name = "one record and commit"
    return {(name, "p50_ms"): percentile(latencies, 0.5), (name, "p99_ms"): percentile(latencies, 0.99)}


def many_producers(peer: Peer, seconds: float) -> Figures:
    topic = create_topic(peer.bootstrap, PARTITIONS)
    with ThreadPoolExecutor(PRODUCERS) as pool:
        producers = list(
            pool.map(lambda n: _producer(peer.bootstrap, f"{topic}-{n}", **{"linger.ms": 0}), range(PRODUCERS))
        )
        stop, begin = threading.Event(), threading.Barrier(PRODUCERS)

        def run(number: int) -> int:
            begin.wait()
            done, producer = 0, producers[number]
            while not stop.is_set():
                producer.begin_transaction()
                producer.produce(topic, b"x" * 100, partition=number % PARTITIONS)
                producer.commit_transaction(PATIENCE_S)
                done += 1
            return done

        futures = [pool.submit(run, number) for number in range(PRODUCERS)]
        time.sleep(seconds)
        stop.set()
        done = sum(future.result() for future in futures)
    return {("100 producers", "commits_s"): done / seconds}


def coordinator_killed(peer: Peer) -> Figures:
    """The longest time between two commits while the coordinator is killed; it may die well before the call that kills
    it returns. The producer's partition is led by another broker."""
    topic = create_topic(peer.bootstrap, PARTITIONS)
    name = f"failover-{uuid.uuid4().hex[:8]}"
    producer = _producer(peer.bootstrap, name, **{"linger.ms": 0})
    admin = KafkaAdminClient(bootstrap_servers=peer.bootstrap.split(","))
    coordinator = admin.describe_transactions([name])[name].coordinator_id
    (described,) = admin.describe_topics([topic])
    admin.close()
    partition = next(p["partition_index"] for p in described["partitions"] if p["leader_id"] != coordinator)

    def commit() -> None:
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=partition)
        while True:
            try:
                producer.commit_transaction(PATIENCE_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    for _ in range(20):
        commit()
    killer = threading.Thread(target=peer.kill, args=(coordinator,))
    last, gap, after = time.perf_counter(), 0.0, 0
    killer.start()
    while after < 20:
        after += not killer.is_alive()
        commit()
        now = time.perf_counter()
        last, gap = now, max(gap, now - last)
    peer.revive(coordinator)
    return {("coordinator killed", "seconds"): gap}


def measure(peer: Peer, scale: float, kills: int) -> dict[tuple[str, str], list[float]]:
    rows: list[Callable[[], Figures]] = [
        lambda: throughput(peer, 10 * scale),
        lambda: one_record(peer, int(500 * scale)),
        lambda: many_producers(peer, 8 * scale),
    ]
    found: dict[tuple[str, str], list[float]] = {}
    peer.start()
    try:
        for row in rows:
            for key, value in row().items():
                found.setdefault(key, []).append(round(value, 3))
        for _ in range(kills):
            for key, value in coordinator_killed(peer).items():
                found.setdefault(key, []).append(round(value, 3))
            time.sleep(8.0)  # until the broker is back in the ISR
    finally:
        peer.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows' durations")
    parser.add_argument("--kills", type=int, default=2, help="of a coordinator, in each round")
    parser.add_argument("--name", default="transactions", help="of the result files")
    options = parser.parse_args()
    console = Console()
    WORK.mkdir(exist_ok=True)
    try:
        jars = kafka_jars(WORK, KAFKA_VERSION)
    except MissingTool as missing:
        console.print(f"bench: {missing}")
        return 2
    values: dict[str, dict[tuple[str, str], list[float]]] = {"kafka": {}, "tidelog": {}}
    for number in range(options.rounds):
        peers: list[Peer] = [KafkaPeer(WORK, jars, SETTINGS), TidelogPeer(WORK)]
        for peer in peers if number % 2 == 0 else peers[::-1]:
            for key, found in measure(peer, options.scale, options.kills).items():
                values[peer.name].setdefault(key, []).extend(found)
                console.print(f"  {peer.name:8} {key[0]:40} {key[1]:10} {found}")
    rows = []
    for key, kafka in values["kafka"].items():
        tidelog, (sign, bound) = values["tidelog"][key], GOALS[key]
        ratio = statistics.median(tidelog) / statistics.median(kafka)
        met = ratio >= bound if sign == ">=" else ratio <= bound
        rows.append(Row(*key, kafka, tidelog, f"{sign} {bound}", round(ratio, 3), met))
    show(rows, console, KAFKA_VERSION)
    save(rows, options.name, KAFKA_VERSION)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
