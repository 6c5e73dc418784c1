"""What a request costs a broker, and each partition in it: `python -m bench.kora --only request_costs`.

A broker takes produce requests with 1 to 32 partitions and one small batch in each, at random times and little load:
alone; then with a consumer that waits for each of them; then with a second broker that follows. What a consumer's or
follower's exchange costs, a fetch with the answer that it waits for, is what the broker spends beyond the produce
requests. A line through the costs gives a request's and a partition's part.

The cost is the processor time of the thread that runs the event loop, so that what else runs here does not count. Each
of these jobs comes alone, in a turn of the loop of its own. Where a broker is busy, jobs share turns: what that saves
(`turn_us`) is measured by requests that follow answers over all connections at once.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.embedded import EmbeddedCluster
from bench.kora.drawing import plotted
from bench.kora.evidence import ALL, Evidence, Parts, Row
from bench.kora.lone_broker import REPORTS_S, SETTINGS, counters
from bench.kora.random_requests import CONNECTIONS, Client
from records.builder import build_batch
from records.record import Record
from tidelog.cluster.layout import load_layout
from wire.codec import encode_request
from wire.messages import ProduceRequest

PARTITIONS = 32
COUNTS = (1, 4, 16, 32)  # partitions in a request
RECORD_BYTES = 200
BUSY = 0.2  # of the loop, about
GUESS_S, GUESS_EACH_S = 80e-6, 15e-6  # of a produce request; an exchange takes as much again
IDLE_S, STEP_S, TURNS_S = 2.0, 3.0, 2.0
STRAIGHT = 0.9
LEADER, FOLLOWER = 0, 1
ALONE, CONSUMED, COPIED = "alone", "consumed", "copied"
KINDS = ("produce", "fetch", "replicate", "follow")


class Done(NamedTuple):
    """Since the broker began: seconds of its loop's thread on a processor, and jobs of the loop."""

    cpu_s: float
    jobs: int
    service_s: float
    service_squares: float


class Watched:
    """A broker: `idle` is what it spends in a second in which nothing is asked of it."""

    def __init__(self, pid: int, metrics_port: int) -> None:
        self._path = Path(f"/proc/{pid}/task/{pid}/schedstat")
        self._port = metrics_port
        self.idle = 0.0

    def so_far(self) -> Done:
        counted = counters(self._port)
        return Done(
            int(self._path.read_text().split()[0]) / 1e9, counted.jobs, counted.service_s, counted.service_squares
        )

    def since(self, before: Done, passed_s: float) -> Done:
        """What was done, without what the broker spends when idle."""
        cpu_s, jobs, service_s, squares = self.so_far()
        return Done(
            cpu_s - before.cpu_s - passed_s * self.idle,
            jobs - before.jobs,
            service_s - before.service_s,
            squares - before.service_squares,
        )


def produce_frame(topic: str, count: int) -> bytes:
    data = ProduceRequest.TopicProduceData
    batch = bytes(build_batch([Record(0, int(time.time() * 1_000), b"k", random.Random(1).randbytes(RECORD_BYTES))]))
    parts = [data.PartitionProduceData(index=index, records=batch) for index in range(count)]
    request = ProduceRequest(
        transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[data(name=topic, partition_data=parts)]
    )
    return encode_request(request, 9, 1, "costs")


@contextmanager
def tail(bootstrap: str, topic: str, count: int) -> Iterator[None]:
    """A consumer that reads what comes, of `count` partitions."""
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition  # noqa: PLC0415

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, index, OFFSET_END) for index in range(count)])
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            consumer.consume(100_000, 0.2)
        consumer.close()

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        ended.set()
        thread.join()


def spent(client: Client, brokers: list[Watched], rate: float, rng: random.Random) -> tuple[int, list[Done]]:
    """Produce requests of a step, and what each broker did."""
    client.offer(rate, 3 * REPORTS_S, rng)
    time.sleep(2 * REPORTS_S)
    began, before = time.perf_counter(), [broker.so_far() for broker in brokers]
    offered = client.offer(rate, STEP_S, rng)
    time.sleep(2 * REPORTS_S)
    passed_s = time.perf_counter() - began
    return len(offered.latencies), [broker.since(old, passed_s) for broker, old in zip(brokers, before, strict=True)]


def turn_us(address: tuple[str, int], leader: Watched, alone_us: float) -> float:
    """What a produce request of one partition costs less when all connections have one at once."""
    client = Client(address, [produce_frame(ALONE, 1)])
    try:
        before, began = leader.so_far(), time.perf_counter()
        client.in_turns(TURNS_S, CONNECTIONS)
        time.sleep(2 * REPORTS_S)
        done = leader.since(before, time.perf_counter() - began)
    finally:
        client.close()
    return round(alone_us - done.cpu_s / done.jobs * 1e6, 2)


def costs_with(
    count: int, address: tuple[str, int], bootstrap: str, brokers: list[Watched]
) -> dict[str, dict[str, float]]:
    """Of requests with `count` partitions, by kind: microseconds for a request, and the partitions in it."""
    rate = BUSY / (GUESS_S + count * GUESS_EACH_S)
    rng, found, alone_s = random.Random(count), dict[str, dict[str, float]](), 0.0
    for what in (ALONE, CONSUMED, COPIED):
        client = Client(address, [produce_frame(what, count)])
        try:
            if what == CONSUMED:
                with tail(bootstrap, what, count):
                    requests, (leader, follower) = spent(client, brokers, rate / 2, rng)
            else:
                requests, (leader, follower) = spent(client, brokers, rate / (2 if what == COPIED else 1), rng)
        finally:
            client.close()
        if what == ALONE:
            alone_s = leader.cpu_s / requests
            variation = leader.service_squares / leader.jobs / (leader.service_s / leader.jobs) ** 2 - 1
            found["produce"] = {"partitions": count, "us": alone_s * 1e6, "variation": variation}
            continue
        exchanges = leader.jobs - requests
        each = {"partitions": count * requests / exchanges, "us": (leader.cpu_s - alone_s * requests) / exchanges * 1e6}
        found["fetch" if what == CONSUMED else "replicate"] = each
        if what == COPIED:
            found["follow"] = {
                "partitions": count * requests / follower.jobs,
                "us": follower.cpu_s / follower.jobs * 1e6,
            }
    return {kind: {name: round(value, 3) for name, value in one.items()} for kind, one in found.items()}


def line_of(steps: list[dict[str, float]]) -> dict[str, float]:
    counts, costs = [one["partitions"] for one in steps], [one["us"] for one in steps]
    slope, intercept = statistics.linear_regression(counts, costs)
    return {
        "request_us": round(intercept, 2),
        "partition_us": round(slope, 2),
        "r_squared": round(statistics.correlation(counts, costs) ** 2, 4),
    }


def create_topics(bootstrap: str) -> None:
    from kafka import KafkaAdminClient  # noqa: PLC0415
    from kafka.admin import NewTopic  # noqa: PLC0415

    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    homes = {ALONE: [LEADER], CONSUMED: [LEADER], COPIED: [LEADER, FOLLOWER]}
    admin.create_topics(
        [
            NewTopic(
                name=name, num_partitions=-1, replication_factor=-1,
                replica_assignments=dict.fromkeys(range(PARTITIONS), home),
            )
            for name, home in homes.items()
        ]
    )  # fmt: skip
    admin.close()
    time.sleep(1.0)


def watched(cluster: EmbeddedCluster) -> list[Watched]:
    """The brokers, by their numbers."""
    layout = load_layout(cluster.data)
    if layout is None:
        raise RuntimeError("the cluster has no layout")
    ports = {node.node_id: node.metrics_port for node in layout.nodes if node.role == "broker"}
    pids = {int(row["id"]): int(row["pid"]) for row in cluster.nodes() if row["role"] == "broker"}
    brokers = [Watched(pids[number], ports[number]) for number in sorted(ports)]
    before = [broker.so_far().cpu_s for broker in brokers]
    time.sleep(IDLE_S)
    for broker, old in zip(brokers, before, strict=True):
        broker.idle = (broker.so_far().cpu_s - old) / IDLE_S
    return brokers


def measure() -> dict[str, Any]:
    settings = SETTINGS | {"log.dir.free.bytes.min": "0", "tidelog.balance.enable": "false"}
    with EmbeddedCluster(brokers=2, controllers=1, settings=settings) as cluster:
        create_topics(cluster.bootstrap)
        host, port = cluster.bootstrap.split(",")[LEADER].rsplit(":", 1)
        address, brokers = (host, int(port)), watched(cluster)
        steps = [costs_with(count, address, cluster.bootstrap, brokers) for count in COUNTS]
        found: dict[str, Any] = {kind: {"steps": [one[kind] for one in steps]} for kind in KINDS}
        saved_us = turn_us(address, brokers[LEADER], steps[0]["produce"]["us"])
    for kind in KINDS:
        found[kind]["line"] = line_of(found[kind]["steps"])
    variation = statistics.median(one["produce"]["variation"] for one in steps)
    return {
        "record_bytes": RECORD_BYTES, "step_s": STEP_S, "turn_us": saved_us, "variation": variation,
        "idle_us_per_s": round(brokers[LEADER].idle * 1e6), **found,
    }  # fmt: skip


def row(parts: Parts) -> Row:
    lines = {kind: parts[ALL][kind]["line"] for kind in KINDS}
    told = [f"{kind} {line['request_us']:.0f} + {line['partition_us']:.1f} for each" for kind, line in lines.items()]
    return Row(
        "µs of a broker's loop for a request and the partitions in it, which `cells` simulates",
        "",
        "; ".join(told) + f"; of each request {parts[ALL]['turn_us']:.0f} for a turn of the loop",
        f"a straight line, R² >= {STRAIGHT}",
        all(line["r_squared"] >= STRAIGHT for line in lines.values()),
    )


def plot(parts: Parts, path: Path) -> None:
    names = {
        "produce": "produce request",
        "fetch": "consumer's fetch and its answer",
        "replicate": "follower's fetch and its answer",
        "follow": "the answer at the follower",
    }
    with plotted(path) as (axes,):
        for kind, name in names.items():
            steps, line = parts[ALL][kind]["steps"], parts[ALL][kind]["line"]
            counts = [one["partitions"] for one in steps]
            (dots,) = axes.plot(counts, [one["us"] for one in steps], "o", label=name)
            ends = [0, max(counts)]
            axes.plot(ends, [line["request_us"] + line["partition_us"] * end for end in ends], color=dots.get_color())
        axes.set_xlabel("partitions")
        axes.set_ylabel("µs of the broker's loop")
        axes.set_ylim(bottom=0)
        axes.legend()


EVIDENCE = Evidence("request_costs", 1.5, {ALL: measure}, row, plot)
