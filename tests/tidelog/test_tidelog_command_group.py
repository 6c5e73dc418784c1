"""A class of options stands for each of them on a command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from tidelog.command_group import CommandGroup


@dataclass(frozen=True)
class Where:
    place: Annotated[str, typer.Option("--place", help="Where.")] = "here"
    floor: int = 0


def test_a_command_gets_one_value_of_options_that_stand_where_it_does() -> None:
    app, told = CommandGroup("Some."), []

    @app.command()
    def find(name: str, first: bool = False, *, where: Where, last: bool = False) -> None:
        """Find something."""
        told.append((name, first, where, last))

    @app.command("other")
    def none() -> None:
        """Do nothing."""

    for words in (["find", "x"], ["find", "y", "--last", "--place", "there", "--floor", "3"]):
        assert CliRunner().invoke(app, words).exit_code == 0
    assert told == [("x", False, Where(), False), ("y", False, Where("there", 3), True)]
    page = CliRunner().invoke(app, ["find", "--help"]).output
    assert "Find something." in page
    shown = [page.index(option) for option in ("--first", "--place", "--floor", "--last")]
    assert shown == sorted(shown)
