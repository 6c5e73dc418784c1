"""Cluster load with cells and without (Kora's evaluation: 53 against 73 %): `python -m bench.kora --only
cells`.

24 brokers serve four tenants, each with 2 topics of 24 and 2 of 240 partitions, either all brokers together or six for
each tenant. All of it is simulated (`bench.kora.simulated_brokers`): producers with linger, consumers and followers
that ask again when they are answered, and brokers whose loops work in turns. What a turn, a request and a partition
take is what `bench.kora.request_costs` has measured on real brokers. The load is the product's own meter and formula
(`wire.loop_meter`, `common.loop_load`) over the simulated loops. To judge the simulation, what `bench.kora.cells_real`
measures on six real brokers is simulated too.

A processor is as fast as makes the load together the paper's 73 %: all costs are divided by one number, which is sought
in the first case. So what is compared does not depend on the machine that the costs were measured on, only on how large
they are beside each other. The paper does not tell its clients' settings, and what cells save depends on them. The
first case has those of the OpenMessaging Benchmark, a producer and a consumer for each topic, and the linger of its
driver for Confluent Cloud, 10 ms. The other cases vary them, with the processor of the first.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.kora import cells_real
from bench.kora.drawing import WITH, WITHOUT, plotted
from bench.kora.evidence import ALL, Evidence, Parts, Row, kept
from bench.kora.simulated_brokers import Costs, Given, Run

CELL = 6
TOGETHER, GOAL = 0.73, 0.73  # the paper's load, and its 53 to 73 %
NEAR, HALVINGS = 0.005, 8  # of the load together, when the speed is sought
SPEED_MAX = 16.0
SEED = 1
LOCAL_AWAY_S = 0.0002  # over the loopback


def costs() -> Costs:
    """As measured, where each request came in a turn of its own. The bytes of the small records there are in the part
    of a partition too: less than a microsecond."""
    found = kept("request_costs")[ALL]
    turn_s = found["turn_us"] / 1e6
    lines = [found[kind]["line"] for kind in ("produce", "fetch", "replicate", "follow")]
    parts = [
        cost
        for line in lines
        for cost in (max(line["request_us"] / 1e6 - turn_s, 0.0), max(line["partition_us"] / 1e6, 0.0))
    ]
    return Costs(turn_s, *parts)._replace(variation=found["variation"])


def faster(measured: Costs, speed: float) -> Costs:
    """On a processor that is so many times as fast."""
    return Costs._make([*(cost / speed for cost in measured[:-1]), measured.variation])


def calibrated(given: Given) -> float:
    """The speed at which the load of all brokers together is the paper's."""
    low, high = math.log(1 / SPEED_MAX), math.log(SPEED_MAX)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        load = Run(given._replace(costs=faster(given.costs, math.exp(middle))), given.brokers, SEED).run()["mean_load"]
        if abs(load - TOGETHER) <= NEAR:
            return math.exp(middle)
        low, high = (middle, high) if load > TOGETHER else (low, middle)
    return math.exp((low + high) / 2)


def compared(what: str, given: Given, cell: int = CELL) -> dict[str, Any]:
    """All brokers for every tenant, and a cell for each."""
    found: dict[str, Any] = {"what": what}
    for name, size in (("together", given.brokers), ("cells", cell)):
        found[name] = {key: round(value, 3) for key, value in Run(given, size, SEED).run().items()}
    for key in ("cluster_load", "busy"):
        found[f"{key}_ratio"] = round(found["cells"][key] / found["together"][key], 3)
    return found


def cases(measured: Costs) -> list[tuple[str, Given]]:
    """The first is the one that is compared with the paper's; the paper does not say what the others vary."""
    base = Given(measured)
    cheap = measured._replace(
        produce_partition=0.0, fetch_partition=0.0, replicate_partition=0.0, follow_partition=0.0,
        byte_in=0.0, byte_out=0.0,
    )  # fmt: skip
    return [
        ("4 producers and consumers of each tenant, linger 10 ms", base),
        ("linger 1 ms", base._replace(linger_s=0.001)),
        ("linger 5 ms", base._replace(linger_s=0.005)),
        ("linger 20 ms", base._replace(linger_s=0.02)),
        ("25 producers and consumers, linger 5 ms", base._replace(producers=25, consumers=25, linger_s=0.005)),
        ("25 producers and consumers", base._replace(producers=25, consumers=25)),
        ("100 producers", base._replace(producers=100)),
        ("no consumers", base._replace(consumers=0)),
        ("a request for each partition, as librdkafka's", base._replace(one_each=True)),
        ("80 % of the rate", base._replace(rate=base.rate * 0.8)),
        ("half the rate", base._replace(rate=base.rate / 2)),
        ("a network of 3 ms", base._replace(away_s=0.003)),
        ("if partitions and bytes cost nothing", base._replace(costs=cheap)),
    ]


def real_case(measured: Costs) -> Given:
    """As `cells_real`, whose brokers and clients are on one machine, and whose clients are librdkafka's."""
    return Given(
        measured,
        rate=cells_real.TENANTS * cells_real.PRODUCERS * cells_real.RATE,
        brokers=cells_real.BROKERS,
        tenants=cells_real.TENANTS,
        partitions=cells_real.PARTITIONS,
        producers=cells_real.PRODUCERS,
        consumers=cells_real.CONSUMERS,
        linger_s=cells_real.LINGER_MS / 1_000,
        record_bytes=cells_real.RECORD_BYTES,
        away_s=LOCAL_AWAY_S,
        seconds=5.0,
        one_each=True,
    )


def plot(parts: Parts, path: Path) -> None:
    rows, brokers = parts[ALL]["rows"], parts[ALL]["brokers"]
    shown = {"together": (f"{brokers} brokers for all", WITHOUT), "cells": (f"{CELL} for each", WITH)}
    with plotted(path, width=9, height=5) as (axes,):
        for at, (name, (label, color)) in enumerate(shown.items()):
            loads = [row[name]["cluster_load"] for row in rows]
            axes.barh([row + 0.4 * at for row in range(len(rows))], loads, 0.4, label=label, color=color)
        names = [f"{row['what']}: {row['cluster_load_ratio']:.2f}" for row in rows]
        axes.set_yticks([row + 0.2 for row in range(len(rows))], names, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("cluster load (simulated), and the ratio")
        axes.set_xlim(0, 1)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def measure() -> dict[str, Any]:
    measured = costs()
    speed = calibrated(Given(measured))
    given = Given(faster(measured, speed))
    whats, givens = zip(*cases(given.costs), strict=True)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        real = pool.submit(compared, "six brokers", real_case(measured), cells_real.CELL)
        rows = list(pool.map(compared, whats, givens))
    return {
        "simulated": "clients, followers and brokers' loops",
        "measured": "what turns, requests and partitions cost",
        "brokers": given.brokers, "cell": CELL, "tenants": given.tenants, "partitions": given.partitions,
        "records_per_s": given.rate, "speed": round(speed, 2),
        "costs_us": {name: round(value * 1e6, 3) for name, value in measured._asdict().items() if name != "variation"},
        "rows": rows,
        "six_brokers": real.result(),
    }  # fmt: skip


def row(parts: Parts) -> Row:
    """The first case is the one that is compared."""
    first = parts[ALL]["rows"][0]
    together, cells = (first[name]["cluster_load"] for name in ("together", "cells"))
    ratio = first["cluster_load_ratio"]
    return Row(
        f"cluster load of {parts[ALL]['brokers']} brokers with cells of {CELL}, simulated",
        "73 → 53 %, a ratio of 0.73",
        f"{together:.0%} → {cells:.0%}, a ratio of {ratio:.2f}",
        f"ratio <= {GOAL}",
        ratio <= GOAL,
    )


EVIDENCE = Evidence("cells", 4, {ALL: measure}, row, plot)
