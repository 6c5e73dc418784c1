"""The output of commands: a table for users or JSON for programs, and one line for an error."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn, TextIO

import typer

EXIT_FAILED, EXIT_USAGE = 1, 2
BRIEF_MIN, BRIEF_SHARE = 16, 4  # characters of a word on a terminal, and its part of the width

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def fail(message: str, status: int = EXIT_FAILED, details: Iterable[str] = ()) -> NoReturn:
    """Print an error on standard error, on one line, with `details` on further lines, and exit. Names and what servers
    say are in it."""
    remark(message)
    for line in details:
        print(printable(line), file=sys.stderr)
    raise typer.Exit(status)


def remark(message: str) -> None:
    """Print on standard error what is no part of the output."""
    print(f"tidelog: {printable(message)}", file=sys.stderr)


def is_terminal(stream: TextIO | None) -> bool:
    """A standard stream is None in a process that was started without it."""
    return stream is not None and stream.isatty()


def needed(stream: TextIO | None, name: str) -> TextIO:
    """Ends the command if it was started without the stream: whatever is opened next would get its number."""
    if stream is None:
        fail(f"{name} is closed", EXIT_USAGE)
    return stream


def show(
    rows: Sequence[dict[str, Any]],
    *,
    as_json: bool,
    columns: Sequence[str],
    empty: str = "nothing",
    brief: bool = False,
) -> None:
    """`rows` as JSON, or as a table of `columns` (all rows have them). `brief`: shorten long words on a terminal."""
    if as_json:
        print(json.dumps(list(rows)))
        return
    if not rows:
        print(empty)
        return
    from rich.console import Console  # noqa: PLC0415  heavy, and only people need it

    width = Console().width if is_terminal(sys.stdout) else None
    write_table(rows, columns, sys.stdout, width, brief=brief)


def write_table(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    file: TextIO | None,
    width: int | None,
    *,
    brief: bool = False,
) -> None:
    """`width`: of the terminal, whose lines are folded; None for a file or a pipe, where each row is one line. Without
    a file nothing is written, as `print` does."""
    if file is None:
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    cells = [[_cell(row[column]) for column in columns] for row in rows]
    whole = cells
    if brief and width is not None:
        longest = max(BRIEF_MIN, width // BRIEF_SHARE)
        cells = [[_shortened(cell, longest) for cell in row] for row in whole]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in cells:
        table.add_row(*row)
    # clients choose names: what looks like markup or an emoji's code in them is neither
    if width is not None:
        Console(file=file, width=width, markup=False, emoji=False).print(table)
        if cells != whole:
            print("\nNames are shortened; a pipe or --json has them whole.", file=file)
        return
    buffer = io.StringIO()
    console = Console(file=buffer, width=sys.maxsize, markup=False, emoji=False)
    console.width = console.measure(table).maximum
    console.print(table)
    file.writelines(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


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
        return printable(" ".join(f"{name}={item}" for name, item in value.items()))
    if isinstance(value, (list, tuple)):
        return printable(",".join(str(item) for item in value))
    return printable(str(value))


def _shortened(text: str, longest: int) -> str:
    """`text` without the middle of its words that are longer than `longest`: names often differ at their ends."""
    head, tail = longest // 2, longest - longest // 2 - 1
    return re.sub(rf"\S{{{longest + 1},}}", lambda word: f"{word[0][:head]}…{word[0][-tail:]}", text)


def printable(text: str) -> str:
    """`text` with escapes for what a terminal would obey instead of showing it: clients choose names of groups."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
