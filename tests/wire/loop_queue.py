"""A loop that serves a queue in virtual time, measured by the brokers' meter, beside what jobs really waited."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from common.loop_load import LoadMeans, sample
from wire.loop_meter import LoopMeter

POLL_S = 10e-6  # from the end of a turn to the begin of the next, when jobs wait
TURN_S = 20e-6  # what a turn costs beside its jobs, half of it at its begin
SAMPLE_S = 5.0

Drawn = Callable[[random.Random], float]


class Outcome(NamedTuple):
    """`rho`: the share of time in which the loop was busy, `needed` what its jobs took of it. Means in seconds:
    `waited_s` of what jobs waited, `probes_s` of what probes did, which came at random times and cost nothing."""

    rho: float
    needed: float
    waited_s: float
    probes_s: float
    means: LoadMeans


def arrivals(rng: random.Random, rate: float, burst: int, until: float) -> Iterator[float]:
    """Times at which jobs come, `burst` of them at once."""
    at = 0.0
    while (at := at + rng.expovariate(rate / burst)) < until:
        for _ in range(burst):
            yield at


def served(
    rho: float,
    service: Drawn,
    *,
    mean_s: float = 1e-3,
    turn_s: float = TURN_S,
    burst: int = 1,
    seconds: float = 120.0,
    seed: int = 1,
) -> Outcome:
    """Jobs of a mean service time of `mean_s`, which come so often that they take about a share `rho` of the time."""
    rng = random.Random(seed)
    coming = [(at, False) for at in arrivals(rng, rho / mean_s, burst, seconds)]
    coming += [(at, True) for at in arrivals(rng, 50.0, 1, seconds)]
    coming.sort()
    now = 0.0
    meter = LoopMeter(lambda: now)
    means, looked, before = LoadMeans(), 0.0, meter.counters
    waited, count, busy, needed = [0.0, 0.0], [0, 0], 0.0, 0.0  # of jobs and of probes
    at = 0
    while at < len(coming):
        now = began = max(now, coming[at][0])
        meter.begin()
        now += turn_s / 2
        while at < len(coming) and coming[at][0] <= began:
            came, is_probe = coming[at]
            waited[is_probe] += now - came
            count[is_probe] += 1
            at += 1
            if not is_probe:
                meter.begin()
                took = service(rng)
                now += took
                needed += took
                meter.job()
        now += turn_s / 2
        meter.end()
        busy += now - began
        now += POLL_S
        if now - looked >= SAMPLE_S:
            added = meter.counters.since(before)
            one = None if added is None else sample(added, now - looked)
            assert one is not None
            means = means.with_sample(one, now - looked)
            before, looked = meter.counters, now
    return Outcome(busy / now, needed / now, waited[0] / count[0], waited[1] / count[1], means)
