"""Load and latency as more is asked of a broker (Kora, Fig. 3): `python -m bench.kora --only load`.

One broker is asked for 10 to 95 % of what it can do, at random times (Poisson), in three shapes. What it can do is what
a client gets that always has some requests without an answer. A machine's pace changes within seconds, so that is
measured again right before and after each part of a step. A step's figures are the medians of its parts; of the load it
is the median distance from what was offered in the same part, because both follow the pace. The load follows from the
broker's own counters, latencies count from the time at which a request was due, and the rate that was reached is kept
beside the one that was asked for. The load should be a straight line while latencies explode.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.kora.evidence import Evidence, Parts, Row, span
from bench.kora.lone_broker import LoneBroker, lone_broker
from bench.kora.random_requests import Client, Offered
from common.loop_load import TURN_COST_S, LoadMeans, LoopCounters, sample
from records.builder import build_batch
from records.record import Record
from wire.codec import encode_request
from wire.messages import FetchRequest, ProduceRequest

STEPS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
ROUNDS, SOUGHT_ROUNDS, PART_S, PACE_S = 7, 5, 2.5, 0.8
IN_FLIGHT = 12
"""Requests without an answer while the capacity is sought; 5 to 17 are there at once when 95 % of it is asked for at
random times. With fewer the loop waits for its client between long requests; with more, more jobs share a turn."""
KEPT_BYTES, SEGMENT_BYTES = 256 << 20, 16 << 20
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


class Part(NamedTuple):
    """A part of a step. `capacity`: requests a second, of the time before and after it. `added`: to the broker's
    counters."""

    capacity: float
    rate: float
    offered: Offered
    added: LoopCounters


class Prober:
    """A client that asks a broker for shares of what it can do at that time."""

    def __init__(self, client: Client, broker: LoneBroker) -> None:
        self._client = client
        self._broker = broker
        self._rng = random.Random(1)

    def capacity(self) -> float:
        """Requests a second."""
        return self._client.in_turns(PACE_S, IN_FLIGHT)

    def part(self, share: float) -> Part:
        before = self.capacity()
        counters = self._broker.counters()
        offered = self._client.offer(before * share, PART_S, self._rng)
        added = self._broker.added_since(counters)
        return Part((before + self.capacity()) / 2, before * share, offered, added)


def step_of(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    """Medians of its parts, because what else is on the machine disturbs single ones."""
    medians = {name: statistics.median(one[name] for one in figures) for name in figures[0]}
    medians["load"] = medians["offered"] + statistics.median(one["load"] - one["offered"] for one in figures)
    return {name: round(value, 4) for name, value in medians.items()}


def figures_of(part: Part) -> dict[str, float]:
    one = part.offered
    seen = sample(part.added, one.whole_s)
    if seen is None:
        raise RuntimeError("no time has passed")
    means = LoadMeans().with_sample(seen, one.whole_s)
    p50, p99 = cuts(one.latencies)
    return {
        "offered": part.rate / part.capacity,
        "rate": part.rate,
        "reached": one.reached,
        "load": means.load,
        "busy": means.busy,
        "wait_ms": means.wait_s * 1e3,
        "service_ms": means.job_s * 1e3,
        "service_variation": means.service_variation,
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
    """`parts` of a step: what was offered, and the load."""
    kept = [] if shape.reads else ["--config", f"retention.bytes={KEPT_BYTES}"]
    frames = [produce_frame("load", shape.batch_bytes)]
    frames += [fetch_frame("load", shape.read_bytes)] * shape.reads
    words = ["--partitions", "1", "--config", f"segment.bytes={SEGMENT_BYTES}", *kept]
    with lone_broker("load", *words) as broker:
        client = Client(broker.address, frames)
        client.offer(50, 1.0, random.Random(0))
        prober = Prober(client, broker)
        found = round(statistics.median(prober.capacity() for _ in range(SOUGHT_ROUNDS)), 1)
        rounds = [[prober.part(share) for share in STEPS] for _ in range(ROUNDS)]
        client.close()
    figures = [[figures_of(part) for part in parts] for parts in zip(*rounds, strict=True)]
    steps = [step_of(one) for one in figures]
    return {
        "shape": shape._asdict(),
        "turn_us": TURN_COST_S * 1e6,
        "capacity": found,
        "steps": steps,
        "parts": [" ".join(f"{one['offered']:.3f}:{one['load']:.3f}" for one in step) for step in figures],
        "line": line_through(steps),
    }


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
