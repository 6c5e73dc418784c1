"""Load and latency as more is asked of a broker (Kora, Fig. 3): `python -m bench.kora --only load`.

One broker is asked for 10 to 95 % of what it can do, at random times (Poisson), in three shapes. What it can do is the
greatest rate at which requests that come so are answered as fast as they come; requests that follow answers would fill
turns of its event loop that random ones do not. For each step the load follows from the broker's own counters over that
step, latencies count from the time at which a request was due, and the rate that was reached is kept beside the one
that was asked for. The load should be a straight line while latencies explode. The broker's loop has a processor of its
own; client, controller and the broker's other threads have the other one.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.embedded import EmbeddedCluster
from bench.kora.evidence import Evidence, Parts, Row, span
from bench.kora.random_requests import Client
from common.loop_load import ARRIVAL_VARIATION, LoadMeans, LoopCounters, sample
from records.builder import build_batch
from records.record import Record
from tidelog.cluster.layout import load_layout
from wire.codec import encode_request
from wire.messages import FetchRequest, ProduceRequest

STEPS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
STEP_S, TRIAL_S = 6.0, 3.0
REPORTS_S = 0.1  # the broker's; its counters are as old as its last report
SETTINGS = {
    "log.dir.free.bytes.min": "0",
    "log.retention.check.interval.ms": "1000",
    "tidelog.usage.report.interval.ms": str(int(REPORTS_S * 1000)),
}
KEPT_BYTES, SEGMENT_BYTES = 256 << 20, 64 << 20  # less than the kernel writes back by itself
KEEPS_UP = 0.98  # of the requests, answered in the time in which they were due
GROWTH, NEAR = 1.25, 1.03  # of rates, while the capacity is sought
STRAIGHT, ERROR_MAX = 0.95, 0.1
COUNTERS = ("jobs", "wait_seconds", "service_seconds", "service_squares", "busy_seconds")


class Shape(NamedTuple):
    """Requests are produced batches of `batch_bytes`, each with `reads` fetches of `read_bytes` from the log's begin.
    Without reads, old segments are deleted meanwhile."""

    batch_bytes: int
    reads: int = 0
    read_bytes: int = 0


SHAPES = {"tiny": Shape(200), "1 MB": Shape(1_000_000), "fan-out": Shape(16_000, reads=4, read_bytes=64_000)}


def produce_frame(topic: str, size: int) -> bytes:
    data = ProduceRequest.TopicProduceData
    value = random.Random(1).randbytes(size)
    batch = build_batch([Record(0, int(time.time() * 1_000), b"k", value)])
    part = data.PartitionProduceData(index=0, records=bytes(batch))
    request = ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=10_000, topic_data=[data(name=topic, partition_data=[part])]
    )
    return encode_request(request, 9, 1, "load")


def fetch_frame(topic: str, size: int) -> bytes:
    of = FetchRequest.FetchTopic
    part = of.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=size,
    )  # fmt: skip
    request = FetchRequest(
        replica_id=-1, max_wait_ms=100, min_bytes=1, max_bytes=size, isolation_level=0, session_id=0, session_epoch=-1,
        topics=[of(topic=topic, partitions=[part])], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    return encode_request(request, 11, 1, "load")


def counters(port: int) -> LoopCounters:
    """The broker's, as of its last report."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("tidelog_loop_"))
    jobs, *times = (float(values[f"tidelog_loop_{name}_total"]) for name in COUNTERS)
    return LoopCounters(int(jobs), *times)


def greatest_rate(keeps_up: Callable[[float], bool], guess: float) -> float:
    """The greatest rate that is kept up with, within `NEAR`; a rate has failed when it fails twice."""
    low, high, rate = 0.0, math.inf, guess
    while not low or high > low * NEAR:
        if keeps_up(rate) or keeps_up(rate):
            low = rate
        else:
            high = rate
        rate = low * GROWTH if high == math.inf else math.sqrt(low * high) if low else high / GROWTH
    return low


def capacity(client: Client) -> dict[str, Any]:
    """And the rates that were tried for it, with the share that was answered."""
    rng, tried = random.Random(1), list[list[float]]()

    def keeps_up(rate: float) -> bool:
        one = client.offer(rate, TRIAL_S, rng)
        client.settle()
        tried.append([round(rate, 1), round(one.answered_share, 4)])
        return one.answered_share >= KEEPS_UP

    in_turns = client.in_turns(TRIAL_S)
    return {
        "capacity": round(greatest_rate(keeps_up, in_turns * 0.6), 1),
        "in_turns": round(in_turns, 1),
        "tried": tried,
    }


def step_at(client: Client, port: int, offered: float, rate: float) -> dict[str, float]:
    rng = random.Random(int(offered * 100))
    client.offer(rate, 1.0, rng)
    before, began = counters(port), time.perf_counter()
    one = client.offer(rate, STEP_S, rng)
    added, passed_s = counters(port).since(before), time.perf_counter() - began
    client.settle()
    seen = None if added is None else sample(added, passed_s)
    if seen is None or len(one.latencies) < 2:
        raise RuntimeError("the broker has counted nothing")
    means = LoadMeans().with_sample(seen, passed_s)
    p50, p99 = cuts(one.latencies)
    return {
        "offered": offered,
        "rate": round(rate, 1),
        "reached": round(one.reached, 1),
        "jobs_per_s": round(seen.jobs / passed_s, 1),
        "load": round(means.load, 3),
        "busy": round(means.busy, 3),
        "wait_ms": round(means.wait_s * 1e3, 4),
        "service_ms": round(means.job_s * 1e3, 4),
        "service_variation": round(means.service_variation, 3),
        "p50_ms": p50,
        "p99_ms": p99,
        "late_p99_ms": cuts(one.lateness)[1],
    }


def cuts(seconds: list[float]) -> tuple[float, float]:
    """p50 and p99, in milliseconds."""
    found = statistics.quantiles(seconds, n=100)
    return round(found[49] * 1e3, 3), round(found[98] * 1e3, 3)


def line_through(steps: list[dict[str, float]], capacity: float) -> dict[str, float]:
    """How near the loads are to the best straight line (`from_line_max`), and to the share of the capacity that was
    reached (`error_max`)."""
    reached, loads = [step["reached"] / capacity for step in steps], [step["load"] for step in steps]
    slope, intercept = statistics.linear_regression(reached, loads)
    pairs = list(zip(reached, loads, strict=True))
    return {
        "r_squared": round(statistics.correlation(reached, loads) ** 2, 4),
        "from_line_max": round(max(abs(load - intercept - slope * one) for one, load in pairs), 3),
        "error_max": round(max(abs(load - one) for one, load in pairs), 3),
        "p99_growth": round(steps[-1]["p99_ms"] / steps[0]["p99_ms"], 1),
    }


@contextmanager
def apart(pids: Iterable[tuple[int, bool]]) -> Iterator[None]:
    """The brokers' main threads, which run their loops, on one processor, and all else on the other. `pids`: of the
    nodes, and whether they are brokers."""
    own, brokers = sorted(os.sched_getaffinity(0))[:2]
    for pid, is_broker in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {brokers if is_broker and int(task.name) == pid else own})
    os.sched_setaffinity(0, {own})
    try:
        yield
    finally:
        os.sched_setaffinity(0, {own, brokers})


def measure(shape: Shape) -> dict[str, Any]:
    with EmbeddedCluster(brokers=1, controllers=1, settings=SETTINGS) as cluster:
        kept = [] if shape.reads else ["--config", f"retention.bytes={KEPT_BYTES}"]
        words = ["--partitions", "1", "--config", f"segment.bytes={SEGMENT_BYTES}", *kept]
        cluster.command_of("topics", "create", "load", *words)
        layout = load_layout(cluster.data)
        if layout is None:
            raise RuntimeError("the cluster has no layout")
        port = next(node.metrics_port for node in layout.nodes if node.role == "broker")
        host, client_port = cluster.bootstrap.rsplit(":", 1)
        frames = [produce_frame("load", shape.batch_bytes)]
        frames += [fetch_frame("load", shape.read_bytes)] * shape.reads
        with apart((row["pid"], row["role"] == "broker") for row in cluster.nodes() if row["pid"]):
            client = Client((host, int(client_port)), frames)
            client.offer(50, 2.0, random.Random(0))
            client.settle()
            found = capacity(client)
            steps = [step_at(client, port, offered, found["capacity"] * offered) for offered in STEPS]
    line = line_through(steps, found["capacity"])
    return {"shape": shape._asdict(), "arrival_variation": ARRIVAL_VARIATION, **found, "steps": steps, "line": line}


def row(parts: Parts) -> Row:
    lines = [parts[name]["line"] for name in SHAPES]
    straight = [line["r_squared"] for line in lines]
    errors, growth = [line["error_max"] for line in lines], [line["p99_growth"] for line in lines]
    return Row(
        f"load as more is asked of a broker, in {len(SHAPES)} shapes",
        "a straight line while latency explodes (Fig. 3)",
        f"R² {span(straight)}, error at most {max(errors):.2f}, p99 {span(growth, '.0f')} times as long",
        f"R² >= {STRAIGHT}, error <= {ERROR_MAX}",
        min(straight) >= STRAIGHT and max(errors) <= ERROR_MAX,
    )


def plot(parts: Parts, path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415  heavy

    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, (loads, waits) = pyplot.subplots(1, 2, figsize=(9, 4))
    for name in SHAPES:
        steps, most = parts[name]["steps"], parts[name]["capacity"]
        reached = [step["reached"] / most for step in steps]
        loads.plot(reached, [step["load"] for step in steps], marker=".", label=name)
        waits.plot(reached, [step["p99_ms"] for step in steps], marker=".", label=name)
    loads.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle="--")
    loads.set_ylabel("load")
    waits.set_ylabel("p99, ms")
    waits.set_yscale("log")
    for axes in (loads, waits):
        axes.set_xlabel("share of the broker's capacity")
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


EVIDENCE = Evidence("load", 6, {name: partial(measure, shape) for name, shape in SHAPES.items()}, row, plot)
