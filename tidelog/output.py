"""The output of commands: a table for users or JSON for programs, and one line for an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

EXIT_FAILED, EXIT_USAGE = 1, 2
PIPE_WIDTH = 240  # columns where the output is no terminal

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def fail(message: str, status: int = EXIT_FAILED) -> NoReturn:
    """Print an error in one line on standard error and exit."""
    print(f"tidelog: {message}", file=sys.stderr)
    raise typer.Exit(status)


def show(rows: Sequence[dict[str, Any]], *, as_json: bool, columns: Sequence[str], empty: str = "nothing") -> None:
    """`rows` as JSON, or as a table of `columns` (all rows have them)."""
    if as_json:
        print(json.dumps(list(rows)))
        return
    if not rows:
        print(empty)
        return
    from rich.console import Console  # noqa: PLC0415  heavy, and only people need it
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*[_cell(row[column]) for column in columns])
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def show_one(value: dict[str, Any], *, as_json: bool) -> None:
    """One thing's properties."""
    if as_json:
        print(json.dumps(value))
        return
    width = max(len(name) for name in value)
    for name, item in value.items():
        print(f"{name.replace('_', ' '):{width}}  {_cell(item)}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value)
