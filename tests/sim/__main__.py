"""python -m tests.sim --seed N --count K [--jobs J] [--bug NAME] [--shrink] [--verify] [--trace] [--count-work]
[--transactions]"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.sim import nemesis
from tests.sim.bugs import BUGS, planted
from tests.sim.cluster import run_seed
from tests.sim.report import Report
from tests.sim.transaction_bugs import TRANSACTION_BUGS
from tests.sim.world import moved_memory


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.sim", description="Run seeds of the simulated cluster.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--bug", choices=sorted(BUGS | TRANSACTION_BUGS), default="", help="plant a mistake")
    parser.add_argument("--transactions", action="store_true", help="in every seed")
    parser.add_argument("--trace", action="store_true", help="tell the story")
    parser.add_argument("--shrink", action="store_true", help="minimise the faults of a failure")
    parser.add_argument("--verify", action="store_true", help="run each seed twice, with objects elsewhere in memory")
    parser.add_argument("--count-work", action="store_true", help="of each callback in every seed")
    parser.add_argument("--quiet", action="store_true", help="print failures and the sum only")
    arguments = parser.parse_args()
    arguments.transactions |= arguments.bug in TRANSACTION_BUGS
    begin, failed, steps = time.perf_counter(), 0, 0
    coverage: Counter[str] = Counter()
    for report in reports(arguments):
        failed += bool(report.failure)
        steps += report.steps
        coverage += report.coverage
        if arguments.trace:
            print("\n".join(report.trace))
        if report.failure or not arguments.quiet:
            print(line(report), flush=True)
        if report.failure and arguments.shrink:
            tell_shrunk(report, arguments)
    wall_s = time.perf_counter() - begin
    print(
        f"{arguments.count} seeds, {failed} failed, {arguments.count / wall_s:.2f} seeds/s, "
        f"{steps / wall_s:,.0f} callbacks/s\n"
        + ", ".join(f"{what} {count}" for what, count in sorted(coverage.items()))
    )
    return 1 if failed else 0


def reports(arguments: argparse.Namespace) -> Iterator[Report]:
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    run = functools.partial(run_one, arguments)
    if arguments.jobs <= 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        yield from pool.imap(run, seeds)


def run_one(arguments: argparse.Namespace, seed: int) -> Report:
    transactions = arguments.transactions or None
    with planted(arguments.bug):
        report = run_seed(
            seed, keep_trace=arguments.trace, counts_work=arguments.count_work or None, transactions=transactions
        )
        if arguments.verify:
            with moved_memory(seed):
                again = run_seed(seed, transactions=transactions)
            if again.trace_hash != report.trace_hash:
                report.failure = f"NotDeterministic: {report.trace_hash} then {again.trace_hash}"
    return report


def line(report: Report) -> str:
    return (
        f"seed {report.plan.seed}  hash {report.trace_hash}  faults {len(report.plan.faults)}  "
        f"acknowledged {report.acknowledged}  {report.virtual_s:.1f} s in {report.wall_s:.2f} s  "
        f"{report.failure or 'ok'}{report.costliest and '  costliest: '}{report.costliest}"
    )


def tell_shrunk(report: Report, arguments: argparse.Namespace) -> None:
    kind, transactions = report.failure.split(":")[0], arguments.transactions or None

    def fails(faults: list[nemesis.Fault]) -> bool:
        return run_seed(report.plan.seed, faults=faults, transactions=transactions).failure.startswith(kind)

    with planted(arguments.bug):
        fewer, runs = nemesis.shrink(list(report.plan.faults), fails)
    print(f"  shrunk from {len(report.plan.faults)} faults to {len(fewer)} in {runs} runs:")
    for fault in fewer:
        print(f"    {fault}")


if __name__ == "__main__":
    sys.exit(main())
