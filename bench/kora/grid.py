"""p95 from produce to consume over partitions and rates, beside Apache Kafka: `python -m bench.kora --only grid`.

Three brokers, three replicas and `acks=all`, and the same librdkafka client (`bench.kora.grid_load`) for both systems.
They are started in turn, twice each in one run, the order turned round the second time; a cell is the mean of its two
p95. Each is first warmed up at the highest rate, because Java compiles what it runs often. All share the machine's
processors, so a cell is to be compared with the other system's, and with no other machine's.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.kora.drawing import plotted
from bench.kora.evidence import ALL, CannotRun, Evidence, Parts, Row
from bench.load import create_topic
from bench.peers import KAFKA_VERSION, KafkaPeer, MissingTool, Peer, TidelogPeer, kafka_jars

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "bench" / "work"
PARTITIONS = (10, 100, 1_000)
RATES = (500, 2_000, 8_000)  # records a second
RECORD_BYTES = 1_000
WARM_S, STEP_S = 1.0, 3.0
ROUNDS = 2
LOAD_TIMEOUT_S = 150
RATIO_MAX = 1.0
SYSTEMS = ("tidelog", "kafka")
Cell = dict[str, Any]


def of_peer(peer: Peer) -> list[Cell]:
    """Every cell that the system keeps up with, and the first of each row that it does not."""
    peer.start()
    found = []
    try:
        for partitions in PARTITIONS:
            rates = [RATES[-1], RATES[-1], *RATES] if partitions == PARTITIONS[0] else RATES
            given = {
                "topic": create_topic(peer.bootstrap, partitions), "partitions": partitions, "rates": rates,
                "warm_s": WARM_S, "seconds": STEP_S, "size": RECORD_BYTES,
            }  # fmt: skip
            line = [sys.executable, "-m", "bench.kora.grid_load", peer.bootstrap, json.dumps(given)]
            done = subprocess.run(line, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, cwd=ROOT, check=False)
            if done.returncode:
                raise RuntimeError(f"{peer.name}, {partitions} partitions: {done.stderr[-800:]}")
            for step in json.loads(done.stdout.splitlines()[-1])[len(rates) - len(RATES) :]:
                found.append({"partitions": partitions, **step})
                print(json.dumps({"system": peer.name, **found[-1]}), flush=True)
    finally:
        peer.stop()
    return found


def gathered(rounds: dict[str, list[list[Cell]]]) -> list[Cell]:
    """By partitions and rate: each system's p95 of every round; a round that was given up before has none."""
    cells = []
    for partitions in PARTITIONS:
        for rate in RATES:
            cell: Cell = {"partitions": partitions, "rate": rate}
            for system in SYSTEMS:
                here = [
                    one
                    for cells_of_round in rounds[system]
                    for one in cells_of_round
                    if (one["partitions"], one["rate"]) == (partitions, rate)
                ]
                cell[system] = {
                    "p95_ms": [one["p95_ms"] for one in here],
                    "p99_ms": [one["p99_ms"] for one in here],
                    "missing": sum(one["missing"] for one in here),
                }
            cells.append(cell)
    return cells


def measure() -> dict[str, Any]:
    WORK.mkdir(exist_ok=True)
    try:
        jars = kafka_jars(WORK)
    except MissingTool as missing:
        raise CannotRun(str(missing)) from None
    make: dict[str, Callable[[], Peer]] = {"kafka": lambda: KafkaPeer(WORK, jars), "tidelog": lambda: TidelogPeer(WORK)}
    rounds: dict[str, list[list[Cell]]] = {system: [] for system in SYSTEMS}
    for number in range(ROUNDS):
        for system in list(make) if number % 2 == 0 else list(make)[::-1]:
            rounds[system].append(of_peer(make[system]()))
    return {
        "kafka": KAFKA_VERSION, "brokers": 3, "record_bytes": RECORD_BYTES, "seconds": STEP_S, "rounds": ROUNDS,
        "cells": gathered(rounds),
    }  # fmt: skip


def p95_ms(cell: Cell, system: str) -> float | None:
    """The mean of the rounds; None where one of them has not kept up."""
    one = cell[system]
    if one["missing"] or len(one["p95_ms"]) < ROUNDS:
        return None
    return statistics.fmean(one["p95_ms"])


def ratio(cell: Cell) -> float | None:
    """Tidelog : Apache Kafka; None where either has not kept up."""
    ours, theirs = (p95_ms(cell, system) for system in SYSTEMS)
    return None if ours is None or theirs is None else ours / theirs


def row(parts: Parts) -> Row:
    """A cell that only Apache Kafka keeps up with is a miss, one that only Tidelog does is none."""
    cells = parts[ALL]["cells"]
    ours, theirs = ([one for cell in cells if (one := p95_ms(cell, system)) is not None] for system in SYSTEMS)
    ratios = [one for cell in cells if (one := ratio(cell)) is not None]
    lost = [cell for cell in cells if p95_ms(cell, "tidelog") is None and p95_ms(cell, "kafka") is not None]
    counts, rates = ({cell[name] for cell in cells} for name in ("partitions", "rate"))
    seen = [
        f"{min(found):.1f} to {max(found):.1f} ms in {len(found)} of {len(cells)}{name}" if found else f"none{name}"
        for found, name in ((ours, ""), (theirs, f" for Apache Kafka {parts[ALL]['kafka']}"))
    ]
    beside = f": {min(ratios):.2f} to {max(ratios):.2f} of its" if ratios else ""
    return Row(
        f"p95 end to end, {min(counts)} to {max(counts):,} partitions, {min(rates)} to {max(rates):,} records/s",
        "a grid of partitions and throughput, beside Apache Kafka",
        f"{seen[0]}; {seen[1]}{beside}",
        f"<= {RATIO_MAX:g} of its in each cell",
        bool(ours) and not lost and all(one <= RATIO_MAX for one in ratios),
    )


def plot(parts: Parts, path: Path) -> None:
    from matplotlib import colors  # noqa: PLC0415  heavy

    cells = {(cell["partitions"], cell["rate"]): cell for cell in parts[ALL]["cells"]}
    counts, rates = (sorted({key[at] for key in cells}) for at in (0, 1))
    values = {
        system: [[p95_ms(cells[count, rate], system) for rate in rates] for count in counts] for system in SYSTEMS
    }
    known = [one for lines in values.values() for line in lines for one in line if one is not None]
    scale, image = colors.LogNorm(min(known), max(known)), None
    names = {"tidelog": "Tidelog", "kafka": f"Apache Kafka {parts[ALL]['kafka']}"}
    with plotted(path, width=9, height=3.6, columns=2) as both:
        for axes, system in zip(both, SYSTEMS, strict=True):
            lines = [[float("nan") if one is None else one for one in line] for line in values[system]]
            image = axes.imshow(lines, norm=scale, cmap="viridis_r", origin="lower", aspect="auto")
            for (down, across), text in told(values[system]).items():
                box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1.5}
                axes.text(across, down, text, ha="center", va="center", bbox=box)
            axes.set_xticks(range(len(rates)), [f"{rate:,}" for rate in rates])
            axes.set_yticks(range(len(counts)), [f"{count:,}" for count in counts])
            axes.set_xlabel("records/s")
            axes.set_ylabel("partitions")
            axes.set_title(names[system])
        both[0].figure.colorbar(image, ax=both, label="p95 end to end, ms")


def told(values: list[list[float | None]]) -> dict[tuple[int, int], str]:
    """By row and column."""
    return {
        (down, across): "behind" if one is None else f"{one:.1f}"
        for down, line in enumerate(values)
        for across, one in enumerate(line)
    }


EVIDENCE = Evidence("grid", 6, {ALL: measure}, row, plot)
