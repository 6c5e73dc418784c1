"""python -m tests.sim.work_unit [--seed N]: what a unit of counted work costs on this machine.

One seed runs with a count and then with a clock. It takes the same course each time, so that each callback has both.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

from tests.sim.cluster import Cluster
from tests.sim.counted_work import UNITS_MAX, WorkCount
from tests.sim.loop import SimLoop, run_callback
from tests.sim.plan import draw_plan
from tests.sim.world import collect_dead, no_collection

LONG_UNITS = 2_000  # of a callback that is looked at by itself
CLOCKED_RUNS = 3

Runs = Callable[[SimLoop, asyncio.Handle], None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.sim.work_unit", description="Measure a unit of counted work.")
    parser.add_argument("--seed", type=int, default=4)
    seed = parser.parse_args().seed
    units = of_each(seed, counting)
    clocked = [of_each(seed, clocking) for _ in range(CLOCKED_RUNS)]
    seconds = [min(each) for each in zip(*clocked, strict=True)]
    per_unit = [1e6 * s / u for u, s in zip(units, seconds, strict=True) if u >= LONG_UNITS]
    print(
        f"{len(units)} callbacks of nodes, {1e6 * sum(seconds) / sum(units):.3f} µs per unit\n"
        f"{len(per_unit)} of {LONG_UNITS} units and more: median {statistics.median(per_unit):.3f} µs per unit, "
        f"most {max(per_unit):.3f}\n"
        f"costliest: {max(units):.0f} of {UNITS_MAX} units, {1e3 * max(seconds):.1f} ms"
    )


def of_each(seed: int, measures: Callable[[WorkCount, list[float]], Runs]) -> list[float]:
    """What each callback of a node costs in one run, as `measures` it."""
    costs: list[float] = []
    with no_collection():
        cluster = Cluster(draw_plan(seed))
        cluster.world.scheduler.runs = measures(cluster.work, costs)
        with cluster.world.heard_logs():
            cluster.run()
        cluster.world.close()
        del cluster
        collect_dead()
    return costs


def counting(work: WorkCount, units: list[float]) -> Runs:
    def runs(loop: SimLoop, handle: asyncio.Handle) -> None:
        work.run(loop, handle)
        if loop.name in work.nodes:
            units.append(work.units)

    return runs


def clocking(work: WorkCount, seconds: list[float]) -> Runs:
    def runs(loop: SimLoop, handle: asyncio.Handle) -> None:
        begin = time.thread_time()
        run_callback(loop, handle)
        if loop.name in work.nodes:
            seconds.append(time.thread_time() - begin)

    return runs


if __name__ == "__main__":
    main()
