"""Tables of commands show what clients named, and obey nothing of it."""

from __future__ import annotations

import io
import string

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from tidelog.output import fail, printable, show, show_one, write_table

NAMES = ["[/bold]", "[red]x", ":smile:", "a\x1b]0;owned\x07b", "two\nlines", "\u202eleft", "nul\0"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_shown_as_they_are_but_for_what_a_terminal_obeys(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show([{"group": name, "lag": 1}], as_json=False, columns=["group", "lag"])
    show_one({"group": name}, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.isprintable() for line in lines)
    assert all(printable(name) in line for line in lines[1:])


@pytest.mark.parametrize("name", NAMES)
def test_an_error_shows_a_name_without_what_a_terminal_obeys(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        fail(f"there is no group {name}", details=[name, "more"])
    assert capsys.readouterr().err.split("\n") == [
        f"tidelog: there is no group {printable(name)}", printable(name), "more", "",
    ]  # fmt: skip


@given(st.text(st.characters(codec=None)))
def test_what_is_printable_is_not_changed(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and (shown == text) == text.isprintable()


LONG = [f"{letter}{'-orders' * 35}{number:03}" for number, letter in enumerate("abc")]  # 249 characters, as topics may
FINDINGS = [
    {"check": "partitions", "what": f"3 have no leader: {', '.join(LONG)}", "to_do": f"ask who owns {LONG[0]} now"},
    {"check": "brokers", "what": "a short one", "to_do": "restart it"},
]


def written(rows: list[dict[str, str]], width: int | None, *, brief: bool = True) -> list[str]:
    file = io.StringIO()
    write_table(rows, list(rows[0]), file, width, brief=brief)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_terminal_keeps_its_width_and_learns_where_names_are_whole(width: int) -> None:
    lines = written(FINDINGS, width)
    assert max(map(len, lines)) <= width and "--json" in lines[-1]
    assert len(lines) < 30, "the middle of names is not shown"
    text = "".join(lines)
    assert all(name not in text and name[-3:] in text for name in LONG)
    assert not any("--json" in line for line in written(FINDINGS[1:], width))
    folded = written(FINDINGS, width, brief=False)
    assert max(map(len, folded)) <= width and len(folded) > len(lines) - 2


def test_where_there_is_no_terminal_a_row_is_a_line_with_whole_names() -> None:
    lines = written(FINDINGS, None)
    assert len(lines) == 1 + len(FINDINGS)
    assert all(name in lines[1] for name in LONG) and len(lines[2]) <= len(lines[1])
    assert all(line == line.rstrip() for line in lines)


@given(st.lists(st.text(string.printable, max_size=300), min_size=1, max_size=4))
def test_every_cell_is_whole_in_a_pipe(cells: list[str]) -> None:
    rows = [{"name": cell, "lag": "1"} for cell in cells]
    lines = written(rows, None)
    assert [line.rstrip() for line in lines[1:]] == lines[1:] and len(lines) == 1 + len(cells)
    assert all(printable(cell).rstrip() in line for cell, line in zip(cells, lines[1:], strict=True))
