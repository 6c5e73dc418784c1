"""Load and latency as more is asked of a broker (Kora, Fig. 3): `python -m bench.kora --only load`.

One broker is asked for 10 to 95 % of what it can do, at random times (Poisson), in three shapes. What it can do is what
clients get of it that ask again once they are answered, or less, if requests that come as often at random times are not
answered as fast. For each step the load follows from the broker's own counters over that step, latencies count from the
time at which a request was due, and the rate that was reached is kept beside the one that was asked for. The load
should be a straight line while latencies explode.
"""

from __future__ import annotations

import random
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.kora.evidence import Evidence, Parts, Row, span
from bench.kora.lone_broker import LoneBroker, lone_broker
from bench.kora.random_requests import Client, Offered
from common.loop_load import ARRIVAL_VARIATION, LoadMeans, sample
from records.builder import build_batch
from records.record import Record
from wire.codec import encode_request
from wire.messages import FetchRequest, ProduceRequest

STEPS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
STEP_S, SOUGHT_S = 4.5, 4.0
IN_FLIGHT, MANY_IN_FLIGHT = 6, 24
"""Requests while the capacity is sought. Many fill turns of the loop, whose jobs share more than random ones do; what
they get is kept beside the capacity."""
KEPT_BYTES, SEGMENT_BYTES = 256 << 20, 64 << 20
STRAIGHT, ERROR_MAX, EXPLODES = 0.95, 0.1, 3.0


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


def capacity(client: Client) -> dict[str, float]:
    """Requests a second: `in_turns`, of clients that wait for their answers, and `at_random`, answered of as many that
    did not wait. `many`: with more in flight."""
    client.in_turns(1.0, IN_FLIGHT)  # to be warm
    in_turns = client.in_turns(SOUGHT_S, IN_FLIGHT)
    at_random = client.offer(in_turns, SOUGHT_S, random.Random(1)).reached
    many = client.in_turns(SOUGHT_S / 2, MANY_IN_FLIGHT)
    found = {"capacity": min(in_turns, at_random), "in_turns": in_turns, "at_random": at_random, "many": many}
    return {name: round(rate, 1) for name, rate in found.items()}


def step_at(client: Client, broker: LoneBroker, offered: float, rate: float) -> dict[str, float]:
    before = broker.counters()
    one = client.offer(rate, STEP_S, random.Random(int(offered * 100)))
    added = broker.added_since(before)
    seen = sample(added, one.whole_s)
    if seen is None:
        raise RuntimeError("no time has passed")
    return step_of(offered, rate, one, LoadMeans().with_sample(seen, one.whole_s))


def step_of(offered: float, rate: float, one: Offered, means: LoadMeans) -> dict[str, float]:
    p50, p99 = cuts(one.latencies)
    return {
        "offered": offered,
        "rate": round(rate, 1),
        "reached": round(one.reached, 1),
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


def line_through(steps: list[dict[str, float]]) -> dict[str, float]:
    """How near the loads are to the best straight line (`r_squared`, `from_line_max`), and to what was offered
    (`error_max`)."""
    offered, loads = [step["offered"] for step in steps], [step["load"] for step in steps]
    slope, intercept = statistics.linear_regression(offered, loads)
    pairs = list(zip(offered, loads, strict=True))
    return {
        "r_squared": round(statistics.correlation(offered, loads) ** 2, 4),
        "from_line_max": round(max(abs(load - intercept - slope * one) for one, load in pairs), 3),
        "error_max": round(max(abs(load - one) for one, load in pairs), 3),
        "p99_growth": round(steps[-1]["p99_ms"] / steps[0]["p99_ms"], 1),
    }


def measure(shape: Shape) -> dict[str, Any]:
    kept = [] if shape.reads else ["--config", f"retention.bytes={KEPT_BYTES}"]
    frames = [produce_frame("load", shape.batch_bytes)]
    frames += [fetch_frame("load", shape.read_bytes)] * shape.reads
    words = ["--partitions", "1", "--config", f"segment.bytes={SEGMENT_BYTES}", *kept]
    with lone_broker("load", *words) as broker:
        client = Client(broker.address, frames)
        client.offer(50, 1.0, random.Random(0))
        found = capacity(client)
        steps = [step_at(client, broker, offered, found["capacity"] * offered) for offered in STEPS]
        client.close()
    line = line_through(steps)
    return {"shape": shape._asdict(), "arrival_variation": ARRIVAL_VARIATION, **found, "steps": steps, "line": line}


def row(parts: Parts) -> Row:
    lines = [parts[name]["line"] for name in SHAPES]
    straight = [line["r_squared"] for line in lines]
    errors, growth = [line["error_max"] for line in lines], [line["p99_growth"] for line in lines]
    return Row(
        f"load as more is asked of a broker, in {len(SHAPES)} shapes",
        "a straight line while latency explodes (Fig. 3)",
        f"R² {span(straight)}, error at most {max(errors):.2f}, p99 {span(growth, '.0f')} times as long",
        f"R² >= {STRAIGHT}, error <= {ERROR_MAX}, p99 >= {EXPLODES:.0f} times",
        min(straight) >= STRAIGHT and max(errors) <= ERROR_MAX and min(growth) >= EXPLODES,
    )


def plot(parts: Parts, path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415  heavy

    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, (loads, waits) = pyplot.subplots(1, 2, figsize=(9, 4))
    for name in SHAPES:
        steps = parts[name]["steps"]
        offered = [step["offered"] for step in steps]
        loads.plot(offered, [step["load"] for step in steps], marker=".", label=name)
        waits.plot(offered, [step["p99_ms"] for step in steps], marker=".", label=name)
    loads.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle="--")
    loads.set_ylabel("load")
    waits.set_ylabel("p99, ms")
    waits.set_yscale("log")
    for axes in (loads, waits):
        axes.set_xlabel("offered, as a share of the broker's capacity")
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


EVIDENCE = Evidence("load", 4, {name: partial(measure, shape) for name, shape in SHAPES.items()}, row, plot)
