"""What a request costs a broker, and each partition in it: `python -m bench.kora --only
request_costs`.

One broker takes produce requests, then answers fetches, with 1 to 32 partitions and one small batch in each, at random
times and little load. The cost is the time of its event loop for a request, as the broker's own meter counts it. A line
through the costs gives a request's and a partition's part. Client and controller have a processor of their own.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from bench.embedded import EmbeddedCluster
from bench.kora.evidence import ALL, Evidence, Parts, Row
from bench.kora.load import REPORTS_S, SETTINGS, apart, counters
from bench.kora.random_requests import Client
from records.builder import build_batch
from records.record import Record
from tidelog.cluster.layout import load_layout
from wire.codec import encode_request
from wire.messages import FetchRequest, ProduceRequest

TOPIC, PARTITIONS = "costs", 32
COUNTS = (1, 4, 16, 32)  # partitions in a request
RECORD_BYTES = 200
BUSY = 0.25  # of the loop, about
GUESS_S, GUESS_EACH_S = 80e-6, 15e-6
STEP_S = 4.0
STRAIGHT = 0.9


def produce_frame(count: int) -> bytes:
    data = ProduceRequest.TopicProduceData
    batch = bytes(build_batch([Record(0, int(time.time() * 1_000), b"k", random.Random(1).randbytes(RECORD_BYTES))]))
    parts = [data.PartitionProduceData(index=index, records=batch) for index in range(count)]
    request = ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=10_000, topic_data=[data(name=TOPIC, partition_data=parts)]
    )
    return encode_request(request, 9, 1, "costs")


def fetch_frame(count: int) -> bytes:
    of = FetchRequest.FetchTopic
    parts = [
        of.FetchPartition(
            partition=index, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
            partition_max_bytes=RECORD_BYTES,
        )
        for index in range(count)
    ]  # fmt: skip
    request = FetchRequest(
        replica_id=-1, max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[of(topic=TOPIC, partitions=parts)], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    return encode_request(request, 11, 1, "costs")


def step(address: tuple[str, int], port: int, frame: bytes, count: int) -> dict[str, float]:
    client, rng = Client(address, [frame]), random.Random(count)
    rate = BUSY / (GUESS_S + count * GUESS_EACH_S)
    client.offer(rate, 2 * REPORTS_S, rng)
    before = counters(port)
    client.offer(rate, STEP_S, rng)
    added = counters(port).since(before)
    client.settle()
    if added is None or not added.jobs:
        raise RuntimeError("the broker has counted nothing")
    mean = added.service_s / added.jobs
    variation = added.service_squares / added.jobs / mean**2 - 1
    return {
        "partitions": count,
        "rate": round(rate, 1),
        "service_us": round(mean * 1e6, 2),
        "service_variation": round(variation, 3),
    }


def line_of(steps: list[dict[str, float]]) -> dict[str, float]:
    counts, costs = [one["partitions"] for one in steps], [one["service_us"] for one in steps]
    slope, intercept = statistics.linear_regression(counts, costs)
    return {
        "request_us": round(intercept, 2),
        "partition_us": round(slope, 2),
        "r_squared": round(statistics.correlation(counts, costs) ** 2, 4),
        "variation": round(statistics.median(one["service_variation"] for one in steps), 3),
    }


def measure() -> dict[str, Any]:
    found: dict[str, Any] = {"record_bytes": RECORD_BYTES, "step_s": STEP_S}
    with EmbeddedCluster(brokers=1, controllers=1, settings=SETTINGS) as cluster:
        cluster.command_of("topics", "create", TOPIC, "--partitions", str(PARTITIONS))
        layout = load_layout(cluster.data)
        if layout is None:
            raise RuntimeError("the cluster has no layout")
        port = next(node.metrics_port for node in layout.nodes if node.role == "broker")
        host, client_port = cluster.bootstrap.rsplit(":", 1)
        with apart((row["pid"], row["role"] == "broker") for row in cluster.nodes() if row["pid"]):
            for kind, make in (("produce", produce_frame), ("fetch", fetch_frame)):
                steps = [step((host, int(client_port)), port, make(count), count) for count in COUNTS]
                found[kind] = {"line": line_of(steps), "steps": steps}
    return found


def row(parts: Parts) -> Row:
    lines = {kind: parts[ALL][kind]["line"] for kind in ("produce", "fetch")}
    told = [f"{kind} {line['request_us']:.0f} + {line['partition_us']:.1f} for each" for kind, line in lines.items()]
    return Row(
        "µs of a broker's loop for a request and the partitions in it, which `cells` simulates",
        "",
        "; ".join(told),
        f"a straight line, R² >= {STRAIGHT}",
        all(line["r_squared"] >= STRAIGHT for line in lines.values()),
    )


EVIDENCE = Evidence("request_costs", 1, {ALL: measure}, row)
