"""Runs the rows of one benchmark that is made of `rows`: which, at what scale, what is kept, the table, the goals.

A run that was interrupted goes on where it stopped: rows measured at the same revision and scale are kept, unless they
are named with --only or --again is given. A goal that is missed ends the run with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.peers import MissingTool
from bench.rows import Figure, Row, Scene, load_average

HERE = Path(__file__).resolve().parent
RESULTS, WORK = HERE / "results", HERE / "work"
ROUNDS_MIN = 1
COLUMNS = ("figure", "here", "beside", "there", "ratio", "goal")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a row is measured, and in how many rounds if nobody says another number."""

    measure: Callable[[Scene], list[Figure]]
    rounds: int


@dataclass(frozen=True, slots=True)
class Suite:
    """The rows of `python -m bench.NAME` in their order; results lie in bench/results/NAME.json.

    `goes_on_without_tools`: a row whose tool is missing is skipped, and said to be; else the run ends with 2.
    """

    name: str
    kinds: Mapping[str, Kind]
    goes_on_without_tools: bool = False

    def path(self, scale: float) -> Path:
        return RESULTS / f"{self.name}.json" if scale == 1.0 else WORK / f"{self.name}-scale-{scale:g}.json"


def revision() -> str:
    """Of the code, with a mark when files differ from it; "unknown" outside a repository."""
    line = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(line, cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def measured(suite: Suite, name: str, scale: float, rounds: int | None, console: Console) -> Row:
    kind = suite.kinds[name]
    work = WORK / f"{suite.name}-{name}"
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


def save(suite: Suite, rows: dict[str, Row], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
    ordered = [rows[name].as_json() for name in suite.kinds if name in rows]
    path.write_text(json.dumps({"machine": machine, "rows": ordered}, indent=1) + "\n")


def cells(figure: Figure) -> list[str]:
    """Of `COLUMNS`."""
    medians = [f"{statistics.median(values):,.2f}" if values else "" for values in (figure.values, figure.others)]
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    return [
        f"{figure.name}, {figure.unit}" if figure.unit else figure.name,
        medians[0],
        figure.beside,
        medians[1],
        ratio,
        figure.goal,
    ]


def show(suite: Suite, rows: dict[str, Row], console: Console) -> None:
    table = Table(title=f"the {suite.name}: medians, and the median of each round's ratio")
    for column in ("row", *COLUMNS, ""):
        table.add_column(column, justify="right" if column in ("here", "there", "ratio") else "left")
    for row in (rows[name] for name in suite.kinds if name in rows):
        for one in row.figures:
            mark = "" if not one.goal else "[green]✓[/]" if one.met else "[red]✗[/]"
            table.add_row(row.name, *cells(one), mark)
    console.print(table)


def options_of(suite: Suite, description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m bench.{suite.name}", description=description)
    parser.add_argument(
        "--only", action="append", choices=list(suite.kinds), metavar="NAME", help=", ".join(suite.kinds)
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of sizes and durations; 1 for figures that count")
    parser.add_argument("--rounds", type=int, help="instead of each row's own number")
    parser.add_argument("--again", action="store_true", help="also the rows that are measured already")
    return parser.parse_args()


def run(suite: Suite, description: str | None) -> int:
    """The command's exit code: 0, 1 when a goal is missed, 2 when a tool is."""
    options = options_of(suite, description)
    path = suite.path(options.scale)
    console = Console()
    WORK.mkdir(exist_ok=True)
    rows, now = kept_rows(path), revision()
    for name in options.only or suite.kinds:
        known = rows.get(name)
        if known is not None and known.revision == now and not options.only and not options.again:
            console.print(f"{name}: measured already at {now}")
            continue
        try:
            rows[name] = measured(suite, name, options.scale, options.rounds, console)
        except MissingTool as missing:
            if not suite.goes_on_without_tools:
                console.print(f"{name}: {missing}")
                return 2
            console.print(f"{name}: skipped, {missing}")
            continue
        save(suite, rows, path)
    rows = {name: row for name, row in rows.items() if name in (options.only or suite.kinds)}
    show(suite, rows, console)
    missed = [f"{row.name}: {one.name}" for row in rows.values() for one in row.figures if not one.met]
    console.print("all goals are met" if not missed else "missed: " + "; ".join(missed))
    return 1 if missed else 0
