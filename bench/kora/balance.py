"""Brokers' loads and latencies before and after a plan (Kora, Fig. 5): `python -m bench.kora --only balance`.

The plan is the balancer's own. The brokers are simulated: a broker's load is what its replicas cost by the measured
weights of `kraft.balancer.load_shares` (a follower's is assumed), and its latency is that of a queue with one server,
at random arrivals, whose service times have mean and variation of a measured step of `bench.kora.load`. Copying itself,
which also costs, is not simulated.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.kora.drawing import WITH, WITHOUT, plotted
from bench.kora.evidence import ALL, Evidence, Parts, Row, kept, span
from common.pacing import at_once
from kraft.balancer.layout import LOAD, Layout, layout_of
from kraft.balancer.model import ModelBroker, ModelPartition, model_of
from kraft.balancer.move import Limits, MoveKind
from kraft.balancer.planner import planning_layout

BROKERS, TOPICS, PARTITIONS = 24, 60, 40  # partitions of each topic
MEAN_LOAD = 0.45
SKEW = 3.0  # times the traffic, for what a third of the brokers lead
REQUESTS = 40_000  # of each broker's queue
SEEDS = (1, 2, 3)
SKEWED, LEVEL = 1.5, 1.15  # the largest load in relation to the mean: before at least, after at most
NEAR_OFFERED = 0.4  # of its capacity, what the broker was asked for whose service times are taken


def cluster(seed: int) -> tuple[list[ModelBroker], list[ModelPartition]]:
    """Topics of uneven traffic, placed in turn; a third of the brokers lead what is busy."""
    rng = random.Random(seed)
    brokers = [ModelBroker(number, "default", disk_size=10**12) for number in range(BROKERS)]
    rows: list[tuple[bytes, int, tuple[int, ...], float]] = []
    for _ in range(TOPICS):
        topic_id, busy = rng.randbytes(16), min(rng.paretovariate(1.2), 20.0)
        for index in range(PARTITIONS):
            replicas = tuple(rng.sample(range(BROKERS), 3))
            rate = busy * rng.uniform(0.5, 1.5) * (SKEW if replicas[0] < BROKERS // 3 else 1.0)
            rows.append((topic_id, index, replicas, rate))

    def scaled(factor: float) -> list[ModelPartition]:
        return [
            ModelPartition(
                topic_id,
                index,
                replicas,
                replicas[0],
                replicas,
                rate * factor,
                2 * rate * factor,
                (rate * factor * 600,) * 3,
            )
            for topic_id, index, replicas, rate in rows
        ]

    unit = sum(at_once(layout_of(model_of(brokers, scaled(1.0)))).amounts[LOAD]) / BROKERS
    return brokers, scaled(MEAN_LOAD / unit)


def p99_ms(load: float, service_ms: float, variation: float, rng: random.Random) -> float:
    """Of waiting and service in a queue with that load: log-normal service times, random arrivals."""
    sigma = math.sqrt(math.log1p(variation))
    mean_log = math.log(service_ms) - sigma * sigma / 2
    waits, wait = [], 0.0
    for _ in range(REQUESTS):
        service = rng.lognormvariate(mean_log, sigma)
        waits.append(wait + service)
        wait = max(wait + service - rng.expovariate(load / service_ms), 0.0)
    return sorted(waits)[REQUESTS * 99 // 100]


def loads(layout: Layout) -> list[float]:
    return [layout.value(LOAD, slot) for slot in range(BROKERS)]


def spread(values: Sequence[float]) -> float:
    """The largest in relation to the mean."""
    return max(values) * len(values) / sum(values)


def run(seed: int, service_ms: float, variation: float) -> dict[str, float | int]:
    brokers, partitions = cluster(seed)
    layout = at_once(layout_of(model_of(brokers, partitions)))
    before = loads(layout)
    began = time.process_time()
    plan = at_once(planning_layout(layout, Limits()))
    took_s = time.process_time() - began
    after = loads(layout)
    rng = random.Random(seed)
    slow, fast = (
        [p99_ms(min(load, 0.97), service_ms, variation, rng) for load in values] for values in (before, after)
    )
    return {
        "seed": seed,
        "load_before": round(spread(before), 3),
        "load_after": round(spread(after), 3),
        "p99_ms_worst_before": round(max(slow), 2),
        "p99_ms_best_before": round(min(slow), 2),
        "p99_ms_worst_after": round(max(fast), 2),
        "p99_ms_best_after": round(min(fast), 2),
        "leader_moves": sum(move.kind is MoveKind.LEADER for move in plan.moves),
        "copies": sum(move.kind is MoveKind.REPLICA for move in plan.moves),
        "partitions": len(partitions),
        "planned_s": round(took_s, 2),
    }


def measured_service(steps: Sequence[dict[str, float]]) -> tuple[float, float]:
    """Mean in ms and variation of service times at a broker with some load."""
    step = min(steps, key=lambda one: abs(one["offered"] - NEAR_OFFERED))
    return step["service_ms"], step["service_variation"]


def measure() -> dict[str, Any]:
    service_ms, variation = measured_service(kept("load")["tiny"]["steps"])
    return {
        "simulated": "brokers and their queues",
        "planned": "by the balancer itself",
        "service_ms": service_ms,
        "service_variation": variation,
        "rows": [run(seed, service_ms, variation) for seed in SEEDS],
    }


def row(parts: Parts) -> Row:
    rows = parts[ALL]["rows"]
    before, after = ([one[f"load_{when}"] for one in rows] for when in ("before", "after"))
    slow, fast = ([one[f"p99_ms_worst_{when}"] for one in rows] for when in ("before", "after"))
    return Row(
        "brokers' skew after a plan, simulated",
        "brokers' latencies converge (Fig. 5)",
        f"largest to mean load {span(before)} → {span(after)}; worst broker's p99 {span(slow)} → {span(fast)} ms",
        f"from >= {SKEWED} to <= {LEVEL}",
        min(before) >= SKEWED and max(after) <= LEVEL,
    )


def plot(parts: Parts, path: Path) -> None:
    rows = parts[ALL]["rows"]
    with plotted(path, width=9, height=3, columns=2) as (loads, latencies):
        for at, (when, color) in enumerate((("before", WITHOUT), ("after", WITH))):
            places = [row + 0.4 * at for row in range(len(rows))]
            loads.bar(places, [row[f"load_{when}"] for row in rows], 0.4, color=color, label=f"{when} the plan")
            worst, best = ([row[f"p99_ms_{which}_{when}"] for row in rows] for which in ("worst", "best"))
            spread = [high - low for high, low in zip(worst, best, strict=True)]
            latencies.bar(places, spread, 0.4, bottom=best, color=color)
        for axes in (loads, latencies):
            axes.set_xticks([row + 0.2 for row in range(len(rows))], [f"seed {row['seed']}" for row in rows])
        loads.set_ylabel("largest to mean load")
        loads.legend(loc="lower right")
        latencies.set_ylabel("p99 of the brokers, ms")
        latencies.set_ylim(bottom=0)


EVIDENCE = Evidence("balance", 0.2, {ALL: measure}, row, plot)
