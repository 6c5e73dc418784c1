"""`python -m bench.kora`: what Kora's authors have published, measured here in shape, row by row.

Results and plots are saved under bench/kora/results, each part when it is measured; `python -m bench.doc_tables` writes
the tables of docs/performance.md from them. Ends 1 when a goal is missed, 2 when a row cannot be measured here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.kora.evidence import RESULTS, CannotRun, Evidence, keep, kept, row_of
from bench.kora.suite import SUITE


def measure(evidence: Evidence, parts: Sequence[str], console: Console, results: Path = RESULTS) -> None:
    """Measure these parts, all by default, and draw the plot once there are all."""
    for part in parts or list(evidence.parts):
        console.print(f"{evidence.name}: {part}", highlight=False)
        found = keep(evidence.name, part, evidence.parts[part](), results)
        console.print(f"  {json.dumps(found[part])[:2_000]}", highlight=False, markup=False)
    draw([evidence], results)


def show(chosen: Sequence[Evidence], console: Console, results: Path = RESULTS) -> list[str]:
    """A table of what is saved; return the names of the rows that have missed their goal."""
    table, missed = Table(title="Kora's published results, in shape"), list[str]()
    for column in ("row", "", "Kora", "here", "goal", ""):
        table.add_column(column)
    for evidence in chosen:
        row = row_of(evidence, kept(evidence.name, results))
        mark = "" if row.met and not row.goal else "[green]✓[/]" if row.met else "[red]✗[/]"
        table.add_row(evidence.name, row.what, row.published, row.seen, row.goal, mark)
        if not row.met:
            missed.append(evidence.name)
    console.print(table)
    return missed


def draw(chosen: Sequence[Evidence], results: Path = RESULTS) -> None:
    """The plots of the rows of which all parts are saved."""
    for evidence in chosen:
        found = kept(evidence.name, results)
        if evidence.plot is not None and all(part in found for part in evidence.parts):
            evidence.plot(found, results / f"{evidence.name}.png")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.kora", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(SUITE), metavar="NAME", help=", ".join(SUITE))
    parser.add_argument("--part", action="append", default=[], help="of the one row that --only names")
    parser.add_argument("--list", action="store_true", help="the rows, their parts, and about how long they take")
    parser.add_argument("--show", action="store_true", help="the table of what is saved; nothing is measured")
    parser.add_argument("--draw", action="store_true", help="the plots of what is saved; nothing is measured")
    given = parser.parse_args()
    if given.part:
        if given.only is None or len(given.only) != 1:
            parser.error("--part needs --only with one row")
        if unknown := set(given.part) - set(SUITE[given.only[0]].parts):
            parser.error(f"no such part: {', '.join(unknown)}")
    return given


def main() -> int:
    given, console = options(), Console()
    chosen = [SUITE[name] for name in given.only or SUITE]
    if given.list:
        for evidence in chosen:
            line = f"{evidence.name}: {evidence.minutes:g} min, in parts: {', '.join(evidence.parts)}"
            console.print(line, highlight=False, soft_wrap=True)
        return 0
    lacking = False
    if given.draw:
        draw(chosen)
    for evidence in [] if given.show or given.draw else chosen:
        try:
            measure(evidence, given.part, console)
        except CannotRun as reason:
            console.print(f"{evidence.name}: {reason}", highlight=False)
            lacking = True
    missed = show(chosen, console)
    console.print("all goals are met" if not missed else f"missed: {', '.join(missed)}")
    return 2 if lacking else 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
