"""Tenants throttled below their quota, by how quotas are split: `python -m bench.kora --only quotas`.

1,000 tenants on a cell of six brokers offer a generated week each: days and nights, bursts, and hot partitions that
wander from broker to broker. How uneven tenants are is calibrated such that under an even split of quotas 99.0 % of
them stay within five unfair minutes a week, which Kora's authors report for theirs. Then the same week is replayed with
the controller's own code (`kraft.quotas`): split by demand, and by demand only near the quota (lazy).

A replay is exact and slow, so each tenant is replayed only around the intervals in which it could be throttled, which
are found with arrays, and brokers' parts are computed for those alone: a tenant whose whole load is less than an even
part of its quota is throttled in no way.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.kora.drawing import bars, plotted
from bench.kora.evidence import ALL, Evidence, Parts, Row
from kraft.quotas.shares import PER_MILLE
from kraft.quotas.split_quota import SplitRules
from kraft.quotas.use_in_advance import FAIR_FROM, advanced
from kraft.quotas.what_if import BUDGET_S, Policy, TenantReplay, Throttled, within_budget

BROKERS = 6
STEP_S = 5.0  # brokers' reports
STEPS = int(7 * 86_400 / STEP_S)
QUOTA = 1_000_000_000
TARGET, GOAL = 0.990, 0.999
TENANTS, SEED = 1_000, 17
HALVINGS = 12  # of the calibration's interval
DYNAMIC_TENANTS = 20
"""Those that an even split throttles unfairly for longest are replayed without lazy throttling too, which has to look
at every interval."""
MARGIN_STEPS = 24
"""Replayed before and after an interval in which a tenant is near its quota: more than shares take to begin and end."""
SPLIT_STEPS = round(SplitRules().every_s / STEP_S)
Array = Any


class Shape(NamedTuple):
    """`peak`: use at noon, of the quota; `hot`: part of the load that a hot partition has."""

    peak: float
    night: float
    bursts_a_day: float
    burst_size: float
    hot_a_day: float
    hot: float


def shape(seed: int, number: int) -> Shape:
    rng = np.random.default_rng((seed, number, 0))
    return Shape(
        float(np.clip(rng.lognormal(np.log(0.08), 0.9), 0.002, 0.95)),
        float(rng.uniform(0.2, 0.7)),
        float(rng.exponential(3.0)),
        float(rng.uniform(0.2, 2.0)),
        float(rng.exponential(1.0)),
        float(rng.beta(1.5, 4.0)),
    )


def episodes(rng: Any, a_day: float, mean_s: float) -> list[tuple[int, int]]:
    """Begin and end of random episodes, in steps."""
    count = rng.poisson(a_day * 7)
    begins = rng.integers(0, STEPS, count)
    lengths = np.maximum(rng.exponential(mean_s / STEP_S, count).astype(int), 1)
    return [(int(begin), min(int(begin + length), STEPS)) for begin, length in zip(begins, lengths, strict=True)]


class Week(NamedTuple):
    """What a tenant offers, of its quota, in each interval: `load` over all brokers, of which each has its part.
    `hot`: begin, end, part and broker of hot partitions."""

    load: Array
    parts: Array
    hot: list[tuple[int, int, float, int]]

    def offered(self, at: Array) -> Array:
        """In these intervals, which ascend: a row for each, a column for each broker."""
        weights = np.tile(self.parts, (len(at), 1))
        for begin, end, part, broker in self.hot:
            first, last = np.searchsorted(at, (begin, end))
            weights[first:last] *= 1 - part
            weights[first:last, broker] += part
        return self.load[at][:, None] * weights

    def above(self, share: float) -> Array:
        """The intervals in which the load may be more than `share` of the quota; the sum of parts is 1 but for the
        rounding."""
        return np.flatnonzero(self.load > share * (1 - 1e-9))


def week(seed: int, number: int, unevenness: float) -> Week:
    form, rng = shape(seed, number), np.random.default_rng((seed, number, 1))
    moment = np.arange(STEPS) * STEP_S
    day = 0.5 - 0.5 * np.cos(2 * np.pi * (moment / 86_400 + rng.uniform()))
    load = form.peak * (form.night + (1 - form.night) * day)
    load *= 1 + 0.05 * rng.standard_normal(STEPS)
    for begin, end in episodes(rng, form.bursts_a_day, 180.0):
        load[begin:end] *= 1 + form.burst_size * rng.pareto(2.5)
    load = np.clip(load, 0, 1.5)
    parts = rng.dirichlet(np.full(BROKERS, 60.0 / max(unevenness, 1e-6)))
    part = min(form.hot * unevenness, 0.95)
    hot = [(begin, end, part, int(rng.integers(BROKERS))) for begin, end in episodes(rng, form.hot_a_day, 1_800.0)]
    return Week(load, parts, hot)


def static(tenant: Week) -> Throttled:
    part = 1.0 / BROKERS
    at = tenant.above(part)
    offered = tenant.offered(at)
    held = (offered > part).any(axis=1)
    served = np.minimum(offered, part).sum(axis=1)
    whole = tenant.load.copy()  # what is below an even part is served
    whole[at] = served
    unfair = held & ~with_reason(whole)[at]
    return Throttled(float(held.sum() * STEP_S), float(unfair.sum() * STEP_S))


def with_reason(served: Array) -> Array:
    """Whether the tenant has reason to wait in each interval, if it is served so much of its quota."""
    found = np.zeros(len(served), dtype=bool)
    end = 0
    for begin in np.flatnonzero(served * PER_MILLE >= FAIR_FROM).tolist():
        advance, at = None, max(begin, end)
        while at < len(served) and (advance := advanced(advance, served[at], 1.0, at * STEP_S)) is not None:
            found[at] = True
            at += 1
        end = max(at, end)
    return found


def around(near: Array) -> Array:
    """These intervals and those before and after them, ascending. Each row of them begins with one at whose end a split
    would be computed if none were left out."""
    marks = np.zeros(STEPS + 1, dtype=np.int64)
    begins = np.maximum(near - MARGIN_STEPS, 0)
    np.add.at(marks, begins - begins % SPLIT_STEPS, 1)
    np.add.at(marks, np.minimum(near + MARGIN_STEPS + 1, STEPS), -1)
    return np.flatnonzero(np.cumsum(marks[:-1]) > 0)


def near_quota(tenant: Week, rules: SplitRules) -> Array:
    """The intervals in which a tenant may get or keep shares under lazy throttling."""
    least = rules.lazy_per_mille - 150
    may = tenant.above(least / 1000)
    offered = tenant.offered(may)
    return may[(offered.sum(axis=1) * 1000 >= least) | (offered > 1).any(axis=1)]


def replayed(policy: Policy, tenant: Week, rules: SplitRules) -> Throttled:
    """By the controller's code, around the intervals in which the tenant may have shares at all."""
    wide = np.arange(STEPS) if policy is Policy.DYNAMIC else around(near_quota(tenant, rules))
    one = TenantReplay(policy, QUOTA, range(BROKERS), rules)
    loads = (tenant.offered(wide) * QUOTA).astype(np.int64)
    for at, row in zip(wide.tolist(), loads.tolist(), strict=True):
        one.pass_interval((at + 1) * STEP_S, STEP_S, dict(enumerate(row)), {})
    return one.throttled


def static_of(seed: int, unevenness: float, number: int) -> Throttled:
    return static(week(seed, number, unevenness))


def replayed_of(policy: Policy, seed: int, unevenness: float, number: int) -> Throttled:
    return replayed(policy, week(seed, number, unevenness), SplitRules())


def even_split(pool: ProcessPoolExecutor, seed: int, tenants: int, unevenness: float) -> dict[str, Throttled]:
    found = pool.map(partial(static_of, seed, unevenness), range(tenants), chunksize=50)
    return {str(number): one for number, one in enumerate(found)}


def calibrated(pool: ProcessPoolExecutor, seed: int, tenants: int) -> float:
    """How uneven the tenants are, such that an even split keeps the objective for `TARGET` of them."""
    low, high = 0.0, 2.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if within_budget(even_split(pool, seed, tenants, middle), STEPS * STEP_S) >= TARGET:
            low = middle
        else:
            high = middle
    return low


def summary(found: dict[str, Throttled]) -> dict[str, Any]:
    unfair = sorted(one.unfair_s for one in found.values())
    return {
        "tenants": len(found),
        "within_budget": round(within_budget(found, STEPS * STEP_S), 4),
        "unfair_s_total": round(sum(unfair), 1),
        "unfair_s_worst": round(unfair[-1], 1),
        "throttled_s_total": round(sum(one.all_s for one in found.values()), 1),
    }


def measure(seed: int = SEED, tenants: int = TENANTS) -> dict[str, Any]:
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        unevenness = calibrated(pool, seed, tenants)
        even = even_split(pool, seed, tenants, unevenness)
        worst = sorted(even, key=lambda name: -even[name].unfair_s)[:DYNAMIC_TENANTS]
        found = {Policy.STATIC: even}
        for policy, names in ((Policy.DYNAMIC, worst), (Policy.LAZY, list(even))):
            numbers = [int(name) for name in names]
            replays = pool.map(partial(replayed_of, policy, seed, unevenness), numbers, chunksize=5)
            found[policy] = dict(zip(names, replays, strict=True))
    return {
        "what": "share of tenants with at most five unfair throttle minutes in a generated week",
        "brokers": BROKERS,
        "interval_s": STEP_S,
        "budget_s": BUDGET_S,
        "seed": seed,
        "unevenness": round(unevenness, 4),
        "policies": {policy.value: summary(of) for policy, of in found.items()},
    }


def row(parts: Parts) -> Row:
    policies = parts[ALL]["policies"]
    even, lazy = (policies[policy.value] for policy in (Policy.STATIC, Policy.LAZY))
    return Row(
        f"{even['tenants']:,} tenants with at most five unfair throttle minutes in a generated week",
        "99 → 99.9 %",
        f"{even['within_budget']:.1%} split evenly (calibrated) → {lazy['within_budget']:.1%}; "
        f"unfair minutes of all {even['unfair_s_total'] / 60:,.0f} → {lazy['unfair_s_total'] / 60:,.0f}",
        f">= {GOAL:.1%}",
        lazy["within_budget"] >= GOAL,
    )


def plot(parts: Parts, path: Path) -> None:
    policies, ways = parts[ALL]["policies"], {"split evenly": Policy.STATIC, "split by demand, lazily": Policy.LAZY}
    with plotted(path, width=9, height=2.4, columns=2) as (minutes, beyond):
        unfair = {name: policies[policy.value]["unfair_s_total"] / 60 for name, policy in ways.items()}
        bars(minutes, unfair, ",.0f", "unfair minutes of all tenants")
        shares = {name: 100 * (1 - policies[policy.value]["within_budget"]) for name, policy in ways.items()}
        bars(beyond, shares, ".1f", "% of tenants with more than five")


EVIDENCE = Evidence("quotas", 2, {ALL: measure}, row, plot)
