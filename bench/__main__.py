"""`make bench`: Tidelog beside Apache Kafka, interleaved in one run on one machine, as medians and ratios.

Both are started in turn, at least three rounds, the order turned round each time; the same librdkafka loads run
against each. Prints a table and saves JSON and a chart under bench/results/. Ends 1 when a goal is missed.
`python -m bench --partitions` measures 10,000 partitions on Tidelog alone, `--partitions N` any number up to 100,000.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.failover import SteadyLoad
from bench.peers import KAFKA_VERSION, KafkaPeer, MissingTool, Peer, TidelogPeer, cpu_seconds, kafka_jars, resident_mb

HERE = Path(__file__).resolve().parent
RESULTS, WORK = HERE / "results", HERE / "work"
BROKERS = 3
LOAD_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Load:
    """One load: arguments of bench.load, and the goal of each figure as ratio Tidelog : Apache Kafka."""

    name: str
    kind: str
    arguments: dict[str, Any]
    goals: dict[str, tuple[str, float]]


LOADS = [
    Load("produce, 1 MB batches", "produce", {"records": 400_000, "size": 1024, "batch": 1_000_000, "run": 2_000},
         {"mb_s": (">=", 1.5), "cpu_s_gb": ("<=", 0.4)}),
    Load("produce, 16 KB batches", "produce", {"records": 120_000, "size": 1024, "batch": 16_384, "run": 1},
         {"mb_s": (">=", 2.5), "cpu_s_gb": ("<=", 0.35)}),
    Load("produce, 100-byte records", "produce", {"records": 800_000, "size": 100, "batch": 1_000_000, "run": 2_000},
         {"rec_s": (">=", 1.0)}),
    Load("consume", "consume", {"records": 400_000}, {"mb_s": (">=", 0.95), "cpu_s_gb": ("<=", 0.6)}),
    Load("one in flight", "one_in_flight", {"records": 2_000, "size": 100},
         {"p50_ms": ("<=", 0.6), "p99_ms": ("<=", 0.6)}),
    Load("end to end, 200 records/s", "end_to_end", {"rate": 200, "seconds": 10, "size": 512},
         {"p95_ms": ("<=", 0.6), "p99_ms": ("<=", 0.8)}),
    Load("end to end, 1,000 records/s", "end_to_end", {"rate": 1_000, "seconds": 10, "size": 512},
         {"p95_ms": ("<=", 0.2), "p99_ms": ("<=", 0.4)}),
]  # fmt: skip
CLUSTER_GOALS = {
    ("cold start", "seconds"): ("<=", 0.2),
    ("memory at rest", "mb_per_broker"): ("<=", 0.25),
    ("memory after the load", "mb_per_broker"): ("<=", 0.12),
    ("leader killed", "seconds"): ("<=", 0.2),
}


@dataclass(slots=True)
class Row:
    """One figure of both systems: every round, the medians and their ratio."""

    load: str
    figure: str
    kafka: list[float]
    tidelog: list[float]
    goal: str
    ratio: float
    met: bool


class Figures:
    """What was measured, by load and figure, system and round."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], dict[str, list[float]]] = {}

    def add(self, load: str, figure: str, system: str, value: float) -> None:
        self._values.setdefault((load, figure), {}).setdefault(system, []).append(round(value, 3))

    def rows(self) -> list[Row]:
        goals = {(load.name, figure): goal for load in LOADS for figure, goal in load.goals.items()} | CLUSTER_GOALS
        rows = []
        for (load, figure), systems in self._values.items():
            kafka, tidelog = systems["kafka"], systems["tidelog"]
            ratio = statistics.median(tidelog) / statistics.median(kafka)
            sign, bound = goals.get((load, figure), ("", 0.0))
            met = not sign or (ratio >= bound if sign == ">=" else ratio <= bound)
            rows.append(Row(load, figure, kafka, tidelog, f"{sign} {bound}" if sign else "", round(ratio, 3), met))
        return rows


def run_load(load: Load, peer: Peer, topic: str) -> dict[str, Any]:
    arguments = load.arguments | ({"topic": topic} if load.kind == "consume" else {})
    line = [sys.executable, "-m", "bench.load", load.kind, peer.bootstrap, json.dumps(arguments)]
    pids = peer.pids()
    before = cpu_seconds(pids)
    done = subprocess.run(line, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, cwd=HERE.parent, check=False)
    if done.returncode:
        raise RuntimeError(f"{peer.name}, {load.name}: {done.stderr[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if found["errors"]:
        raise RuntimeError(f"{peer.name}, {load.name}: {found['errors']} records failed")
    if "gigabytes" in found:
        found["cpu_s_gb"] = (cpu_seconds(pids) - before) / found["gigabytes"]
    return found


def run_round(peer: Peer, figures: Figures, say: Console) -> None:
    peer.start()
    try:
        figures.add("cold start", "seconds", peer.name, peer.start_s)
        figures.add("memory at rest", "mb_per_broker", peer.name, resident_mb(peer.pids()) / BROKERS)
        warm_up = Load("warm-up", "produce", {"records": 100_000, "size": 1024, "batch": 1_000_000, "run": 2_000}, {})
        read_again = Load("warm-up", "consume", {"records": 100_000}, {})  # the first group costs its topic's creation
        run_load(read_again, peer, run_load(warm_up, peer, "")["topic"])
        topic = ""
        for load in LOADS:
            found = run_load(load, peer, topic)
            topic = topic or found.get("topic", "")
            shown = {name: round(value, 2) for name, value in found.items() if name not in ("topic", "gigabytes")}
            say.print(f"  {peer.name:8} {load.name:28} {shown}")
            for figure in ("mb_s", "rec_s", "cpu_s_gb", "p50_ms", "p95_ms", "p99_ms"):
                if figure in found:
                    figures.add(load.name, figure, peer.name, found[figure])
        figures.add("memory after the load", "mb_per_broker", peer.name, resident_mb(peer.pids()) / BROKERS)
        figures.add("leader killed", "seconds", peer.name, leader_killed(peer))
    finally:
        peer.stop()


def leader_killed(peer: Peer) -> float:
    load = SteadyLoad(peer.bootstrap)
    try:
        load.wait_flowing()
        leader = load.leader()
        return load.gap(lambda: peer.kill(leader), watch_s=4.0)
    finally:
        outcome = load.finish()
        if outcome["lost"] or outcome["doubled"]:
            raise RuntimeError(f"{peer.name}: {outcome}")


def show(rows: list[Row], console: Console, kafka: str = KAFKA_VERSION) -> None:
    table = Table(title=f"Tidelog : Apache Kafka {kafka}, medians of {len(rows[0].tidelog)} rounds")
    for column in ("load", "figure", "Apache Kafka", "Tidelog", "ratio", "goal", ""):
        table.add_column(column, justify="left" if column in ("load", "figure", "") else "right")
    for row in rows:
        mark = "" if not row.goal else "[green]✓[/]" if row.met else "[red]✗[/]"
        medians = [f"{statistics.median(v):,.2f}" for v in (row.kafka, row.tidelog)]
        table.add_row(row.load, row.figure, *medians, f"{row.ratio:.2f}", row.goal, mark)
    console.print(table)


def save(rows: list[Row], name: str, kafka: str = KAFKA_VERSION) -> None:
    RESULTS.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
    body = {"kafka": kafka, "machine": machine, "rows": [asdict(row) for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(body, indent=1) + "\n")
    draw(rows, RESULTS / f"{name}.png", kafka)


def draw(rows: list[Row], path: Path, kafka: str) -> None:
    import matplotlib as mpl  # noqa: PLC0415  heavy

    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    shown = [row for row in rows if row.goal][::-1]
    figure, axes = pyplot.subplots(figsize=(9, 0.42 * len(shown) + 1.2))
    colours = ["#2a7f62" if row.met else "#b23a48" for row in shown]
    axes.barh([f"{row.load}: {row.figure}" for row in shown], [row.ratio for row in shown], color=colours)
    for index, row in enumerate(shown):
        bound = float(row.goal.split()[1])
        axes.plot([bound, bound], [index - 0.4, index + 0.4], color="black", linewidth=2)
        axes.text(row.ratio, index, f" {row.ratio:.2f}", va="center", fontsize=8)
    axes.axvline(1.0, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_xlabel(f"Tidelog : Apache Kafka {kafka} (black: the goal)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="kafka-4.1.1", help="of the result files")
    parser.add_argument(
        "--partitions", type=int, nargs="?", const=0, help="measure 10,000, or so many, partitions instead"
    )
    parser.add_argument("--counts", action="store_true", help="of --partitions N: judge no time and measure no rest")
    options = parser.parse_args()
    console = Console()
    WORK.mkdir(exist_ok=True)
    if options.partitions:
        from bench.partition_scale import measure_scale  # noqa: PLC0415

        return measure_scale(options.partitions, WORK, RESULTS, console, counts_only=options.counts)
    if options.partitions is not None:
        from bench.partitions import measure_partitions  # noqa: PLC0415

        return measure_partitions(WORK, RESULTS, console)
    try:
        jars = kafka_jars(WORK)
    except MissingTool as missing:
        console.print(f"bench: {missing}")
        return 2
    figures = Figures()
    for number in range(options.rounds):
        peers: list[Peer] = [KafkaPeer(WORK, jars), TidelogPeer(WORK)]
        for peer in peers if number % 2 == 0 else peers[::-1]:
            console.print(f"round {number + 1} of {options.rounds}: {peer.name}")
            run_round(peer, figures, console)
    rows = figures.rows()
    show(rows, console)
    save(rows, options.name)
    missed = [f"{row.load}, {row.figure}: {row.ratio:.2f}" for row in rows if not row.met]
    console.print("all goals are met" if not missed else "missed: " + "; ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
