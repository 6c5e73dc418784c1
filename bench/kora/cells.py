"""Cluster load with cells and without (Kora's evaluation: 53 against 73 %): `python -m bench.kora --only
cells`.

24 brokers serve four tenants, each with 2 topics of 24 and 2 of 240 partitions, either all brokers together or six for
each tenant. All of it is simulated, event by event: producers with linger, consumers and followers that ask again when
they are answered, and each broker as a queue with one server. What a job takes is what `bench.kora.request_costs` has
measured on a real broker; a follower's append is assumed to take half of a leader's. The load is the product's own
formula (`common.loop_load`) over the simulated queues.

A producer sends what it has for a broker when the oldest record has lingered. So a producer that has to do with fewer
brokers sends fewer requests with more in each: about 1 / (linger + 1 / rate) a second for each broker.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.kora.evidence import ALL, Evidence, Parts, Row, kept
from common.loop_load import LoadMeans, LoopCounters, sample
from kraft.balancer.load_shares import WEIGHTS

BROKERS, CELL, TENANTS, REPLICAS = 24, 6, 4, 3
PARTITIONS = 2 * 24 + 2 * 240  # of each tenant
RATE = 50_000.0  # records a second of all tenants
GOAL = 0.73  # the paper's 53 to 73 %
WARM_S = 0.5
SEEDS = (1, 2)
FOLLOWER_PART = 0.5  # of what a leader's append takes


class Costs(NamedTuple):
    """Seconds of a broker's loop: for a request, for each partition in it, for a byte; and cs² of a job's time."""

    produce: float
    produce_partition: float
    fetch: float
    fetch_partition: float
    byte_in: float = WEIGHTS.byte_in
    byte_out: float = WEIGHTS.byte_out
    variation: float = 1.0


class Given(NamedTuple):
    """`producers` and `consumers`: of each tenant. `away_s`: from an answer to the next fetch, network included."""

    costs: Costs
    rate: float = RATE
    producers: int = 25
    consumers: int = 25
    linger_s: float = 0.005
    record_bytes: int = 1_000
    away_s: float = 0.001
    seconds: float = 1.5


class Loop:
    """A broker's event loop: one job after the other."""

    def __init__(self) -> None:
        self.free_s = 0.0
        self.jobs = 0
        self.wait_s = self.service_s = self.squares = 0.0

    def ends(self, now: float, service_s: float) -> float:
        start = max(now, self.free_s)
        self.jobs += 1
        self.wait_s += start - now
        self.service_s += service_s
        self.squares += service_s * service_s
        self.free_s = start + service_s
        return self.free_s

    def counters(self) -> LoopCounters:
        return LoopCounters(self.jobs, self.wait_s, self.service_s, self.squares, self.service_s)


class Reader:
    """A follower or consumer at one leader: a fetch waits there until there is something."""

    __slots__ = ("batches", "follower", "leader", "records", "waits")

    def __init__(self, leader: int, follower: int = -1) -> None:
        self.leader, self.follower = leader, follower
        self.batches, self.records = 0, 0.0
        self.waits = True


class Run:
    """`cell`: how many brokers serve a tenant."""

    def __init__(self, given: Given, cell: int, seed: int) -> None:
        self._given, self._cell = given, cell
        self._rng = random.Random(seed)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.loops = [Loop() for _ in range(BROKERS)]
        self.requests = {"produce": 0, "fetch": 0, "follower": 0}
        self.batches = 0
        sigma_squared = math.log1p(given.costs.variation)
        self._mean_log, self._sigma = -sigma_squared / 2, math.sqrt(sigma_squared)
        self._followers = {
            (leader, other): Reader(leader, other)
            for leader in range(BROKERS)
            for other in self._brokers_of(self._cell_of(leader))
            if other != leader
        }
        self._consumers = [self._consumers_of(tenant) for tenant in range(TENANTS)]

    def _cell_of(self, broker: int) -> int:
        return broker // self._cell

    def _brokers_of(self, cell: int) -> range:
        return range(cell * self._cell, (cell + 1) * self._cell)

    def _home(self, tenant: int) -> range:
        return self._brokers_of(tenant % (BROKERS // self._cell))

    def _consumers_of(self, tenant: int) -> dict[int, list[Reader]]:
        """By leader: a reader for each consumer that has partitions there."""
        found: dict[int, list[Reader]] = {}
        if not self._given.consumers:
            return found
        each = PARTITIONS / self._given.consumers
        home = self._home(tenant)
        for _ in range(self._given.consumers):
            count = min(len(home), max(1, round(each)))
            for leader in self._rng.sample(home, count):
                found.setdefault(leader, []).append(Reader(leader))
        return found

    def _at(self, when: float, act: Callable[..., None], *words: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, act, words))

    def _job(self, broker: int, mean_s: float) -> float:
        """When it ends, if it comes now."""
        return self.loops[broker].ends(self._now, mean_s * self._rng.lognormvariate(self._mean_log, self._sigma))

    # -- producers

    def _first_record(self, tenant: int, broker: int, rate: float) -> None:
        self._at(self._now + self._given.linger_s, self._send, tenant, broker, rate)

    def _send(self, tenant: int, broker: int, rate: float) -> None:
        """What has come while the first record lingered, in as many partitions as it hits."""
        given, led = self._given, PARTITIONS / self._cell
        records = 1 + self._poisson(rate * given.linger_s)
        hit = led * (1 - (1 - 1 / led) ** records)
        batches = max(1, int(hit) + (self._rng.random() < hit % 1))
        self.requests["produce"] += 1
        self.batches += batches
        costs = given.costs
        mean_s = costs.produce + batches * costs.produce_partition + records * given.record_bytes * costs.byte_in
        self._at(self._job(broker, mean_s), self._appended, tenant, broker, batches, records)
        self._at(self._now + self._rng.expovariate(rate), self._first_record, tenant, broker, rate)

    def _poisson(self, mean: float) -> int:
        if mean > 50:
            return max(0, round(self._rng.gauss(mean, math.sqrt(mean))))
        bound, count, product = math.exp(-mean), 0, self._rng.random()
        while product > bound:
            count += 1
            product *= self._rng.random()
        return count

    def _appended(self, tenant: int, broker: int, batches: int, records: int) -> None:
        others = [other for other in self._brokers_of(self._cell_of(broker)) if other != broker]
        each = records / batches
        for _ in range(batches):
            for other in self._rng.sample(others, REPLICAS - 1):
                self._offers(self._followers[broker, other], each)
            readers = self._consumers[tenant].get(broker)
            if readers:
                self._offers(self._rng.choice(readers), each)

    # -- followers and consumers

    def _offers(self, reader: Reader, records: float) -> None:
        reader.batches += 1
        reader.records += records
        if reader.waits:
            self._answer(reader)

    def _answer(self, reader: Reader) -> None:
        given, costs = self._given, self._given.costs
        is_follower = reader.follower >= 0
        self.requests["follower" if is_follower else "fetch"] += 1
        batches, records = reader.batches, reader.records
        reader.batches, reader.records = 0, 0.0
        reader.waits = False
        size = records * given.record_bytes
        end = self._job(reader.leader, costs.fetch + batches * costs.fetch_partition + size * costs.byte_out)
        if is_follower:
            self._at(end + given.away_s / 2, self._copied, reader, batches, size)
        else:
            self._at(end + given.away_s, self._asks, reader)

    def _copied(self, reader: Reader, batches: int, size: float) -> None:
        costs = self._given.costs
        mean_s = FOLLOWER_PART * (costs.produce + batches * costs.produce_partition + size * costs.byte_in)
        self._at(self._job(reader.follower, mean_s) + self._given.away_s / 2, self._asks, reader)

    def _asks(self, reader: Reader) -> None:
        if reader.batches:
            self._answer(reader)
        else:
            reader.waits = True

    # -- the whole

    def run(self) -> dict[str, Any]:
        given = self._given
        rate = given.rate / TENANTS / given.producers / self._cell  # of a producer at a broker
        for tenant in range(TENANTS):
            for _ in range(given.producers):
                for broker in self._home(tenant):
                    self._at(self._rng.expovariate(rate), self._first_record, tenant, broker, rate)
        self._until(WARM_S)
        before = [loop.counters() for loop in self.loops]
        counts, batches = dict(self.requests), self.batches
        self._until(WARM_S + given.seconds)
        loads, busy = [], []
        for loop, old in zip(self.loops, before, strict=True):
            added = loop.counters().since(old)
            one = None if added is None else sample(added, given.seconds)
            if one is None:
                raise RuntimeError("nothing was simulated")
            loads.append(LoadMeans().with_sample(one, given.seconds).load)
            busy.append(one.busy)
        made = {name: (count - counts[name]) / given.seconds for name, count in self.requests.items()}
        return {
            "cluster_load": round(max(loads), 3),
            "mean_load": round(statistics.fmean(loads), 3),
            "busy": round(statistics.fmean(busy), 3),
            "produce_requests": round(made["produce"]),
            "batches_a_request": round((self.batches - batches) / given.seconds / made["produce"], 2),
            "consumer_fetches": round(made["fetch"]),
            "follower_fetches": round(made["follower"]),
        }

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self._now, _, act, words = heapq.heappop(self._events)
            act(*words)
        self._now = end


def costs() -> Costs:
    """As measured. The bytes of the small records there are in the part of a partition too: less than a microsecond."""
    found = kept("request_costs")[ALL]
    produce, fetch = found["produce"]["line"], found["fetch"]["line"]
    return Costs(
        produce["request_us"] / 1e6,
        produce["partition_us"] / 1e6,
        fetch["request_us"] / 1e6,
        fetch["partition_us"] / 1e6,
        variation=max(produce["variation"], fetch["variation"]),
    )


def compared(what: str, given: Given) -> dict[str, Any]:
    """All brokers for every tenant, and a cell for each."""
    found: dict[str, Any] = {"what": what}
    for name, cell in (("together", BROKERS), ("cells", CELL)):
        runs = [Run(given, cell, seed).run() for seed in SEEDS]
        found[name] = {key: round(statistics.fmean(run[key] for run in runs), 3) for key in runs[0]}
    for key in ("cluster_load", "busy"):
        found[f"{key}_ratio"] = round(found["cells"][key] / found["together"][key], 3)
    return found


def cases(measured: Costs) -> list[tuple[str, Given]]:
    """The first is the one that is compared with the paper's; the paper does not say what the others vary."""
    base = Given(measured)
    cheap = measured._replace(
        produce_partition=measured.produce_partition / 2, fetch_partition=measured.fetch_partition / 2
    )
    return [
        ("25 producers and consumers of each tenant, linger 5 ms", base),
        ("linger 1 ms", base._replace(linger_s=0.001)),
        ("linger 20 ms", base._replace(linger_s=0.02)),
        ("5 producers of each tenant", base._replace(producers=5)),
        ("100 producers of each tenant", base._replace(producers=100)),
        ("no consumers", base._replace(consumers=0)),
        ("records of 200 bytes", base._replace(record_bytes=200)),
        ("80 % of the rate", base._replace(rate=RATE * 0.8)),
        ("half the rate", base._replace(rate=RATE / 2)),
        ("a network of 3 ms", base._replace(away_s=0.003)),
        ("partitions in a request cost half", base._replace(costs=cheap)),
    ]


def plot(parts: Parts, path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415  heavy

    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    rows = parts[ALL]["rows"]
    figure, axes = pyplot.subplots(figsize=(9, 5))
    shown = {"together": (f"{BROKERS} brokers for all", "#b0b0b0"), "cells": (f"{CELL} for each", "#3b6ea5")}
    for at, (name, (label, color)) in enumerate(shown.items()):
        loads = [row[name]["cluster_load"] for row in rows]
        axes.barh([row + 0.4 * at for row in range(len(rows))], loads, 0.4, label=label, color=color)
    axes.set_yticks([row + 0.2 for row in range(len(rows))], [row["what"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("cluster load (simulated)")
    axes.set_xlim(0, 1)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def measure() -> dict[str, Any]:
    measured = costs()
    return {
        "simulated": "clients, followers and brokers' queues",
        "measured": "what requests and partitions cost",
        "brokers": BROKERS, "cell": CELL, "tenants": TENANTS, "partitions": PARTITIONS, "records_per_s": RATE,
        "costs_us": {name: round(value * 1e6, 3) for name, value in measured._asdict().items() if name != "variation"},
        "rows": [compared(what, given) for what, given in cases(measured)],
    }  # fmt: skip


def row(parts: Parts) -> Row:
    """The first case is the one that is compared."""
    first = parts[ALL]["rows"][0]
    together, cells = (first[name]["cluster_load"] for name in ("together", "cells"))
    ratio = first["cluster_load_ratio"]
    return Row(
        f"cluster load of {BROKERS} brokers with cells of {CELL}, simulated",
        "73 → 53 %, a ratio of 0.73",
        f"{together:.0%} → {cells:.0%}, a ratio of {ratio:.2f}",
        f"ratio <= {GOAL}",
        ratio <= GOAL,
    )


EVIDENCE = Evidence("cells", 4, {ALL: measure}, row, plot)
