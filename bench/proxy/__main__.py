"""`python -m bench.proxy`: the rows of `make bench` for the proxy, beside haproxy in one run on one machine.

Both have the same certificate, the same backend and one core each, and are measured in turn. A run that was interrupted
goes on where it stopped: rows measured at the same revision and scale are kept, unless they are named with --only or
--again is given. Results go to bench/results/proxy.json. Without haproxy nothing is measured, and that is said. Ends 1
when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.peers import MissingTool
from bench.proxy.measures import greeting, idling, passing, requests, restarting, storming, terminating
from bench.tier.rows import Figure, Row, Scene, load_average

HERE = Path(__file__).resolve().parents[1]
RESULTS, WORK = HERE / "results" / "proxy.json", HERE / "work"
ROUNDS_MIN = 1


@dataclass(frozen=True, slots=True)
class Kind:
    measure: Callable[[Scene], list[Figure]]
    rounds: int


KINDS = {
    "terminating": Kind(terminating, 12),
    "passing": Kind(passing, 12),
    "requests": Kind(requests, 12),
    "handshakes": Kind(greeting, 12),
    "idle": Kind(idling, 1),
    "storm": Kind(storming, 3),
    "rolling-restart": Kind(restarting, 1),
}


def revision() -> str:
    """Of the code, with a mark when files differ from it; "unknown" outside a repository."""
    line = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(line, cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def measured(name: str, scale: float, rounds: int | None, console: Console) -> Row:
    kind = KINDS[name]
    work = WORK / f"proxy-{name}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    say = lambda text: console.print(f"  {text}", highlight=False)  # noqa: E731
    scene = Scene(work, scale, max(ROUNDS_MIN, rounds or kind.rounds), say)
    load, began = load_average(), time.monotonic()
    console.print(f"{name}: scale {scale:g}, rounds {scene.rounds}, load {load}")
    try:
        figures = kind.measure(scene)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Row(name, scale, revision(), round(time.monotonic() - began, 1), [load, load_average()], figures)


def kept_rows(path: Path) -> dict[str, Row]:
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {one["name"]: Row.from_json(one) for one in raw["rows"]}


def save(rows: dict[str, Row], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
    ordered = [rows[name].as_json() for name in KINDS if name in rows]
    path.write_text(json.dumps({"machine": machine, "rows": ordered}, indent=1) + "\n")


def cells(figure: Figure) -> list[str]:
    medians = [f"{statistics.median(values):,.2f}" if values else "" for values in (figure.values, figure.others)]
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    return [f"{figure.name}, {figure.unit}", medians[0], figure.beside, medians[1], ratio, figure.goal]


COLUMNS = ("figure", "here", "beside", "there", "ratio", "goal")


def show(rows: dict[str, Row], console: Console) -> None:
    table = Table(title="the proxy: medians, and the median of each round's ratio")
    for column in ("row", *COLUMNS, ""):
        table.add_column(column, justify="right" if column in ("here", "there", "ratio") else "left")
    for row in (rows[name] for name in KINDS if name in rows):
        for one in row.figures:
            mark = "" if not one.goal else "[green]✓[/]" if one.met else "[red]✗[/]"
            table.add_row(row.name, *cells(one), mark)
    console.print(table)


def print_markdown(rows: dict[str, Row]) -> None:
    """The table of docs/performance.md."""
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for row in (rows[name] for name in KINDS if name in rows):
        for one in row.figures:
            print("| " + " | ".join(cells(one)) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.proxy", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(KINDS), metavar="NAME", help=", ".join(KINDS))
    parser.add_argument("--scale", type=float, default=1.0, help="of sizes and durations; 1 for figures that count")
    parser.add_argument("--rounds", type=int, help="instead of each row's own number")
    parser.add_argument("--again", action="store_true", help="also the rows that are measured already")
    parser.add_argument("--markdown", action="store_true", help="only print the table of the results so far")
    options = parser.parse_args()
    path = RESULTS if options.scale == 1.0 else WORK / f"proxy-scale-{options.scale:g}.json"
    console = Console()
    WORK.mkdir(exist_ok=True)
    rows = kept_rows(path)
    if options.markdown:
        print_markdown(rows)
        return 0
    now = revision()
    for name in options.only or KINDS:
        known = rows.get(name)
        if known is not None and known.revision == now and not options.only and not options.again:
            console.print(f"{name}: measured already at {now}")
            continue
        try:
            rows[name] = measured(name, options.scale, options.rounds, console)
        except MissingTool as missing:
            console.print(f"{name}: skipped, {missing}")
            continue
        save(rows, path)
    rows = {name: row for name, row in rows.items() if name in (options.only or KINDS)}
    show(rows, console)
    missed = [f"{row.name}: {one.name}" for row in rows.values() for one in row.figures if not one.met]
    console.print("all goals are met" if not missed else "missed: " + "; ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
