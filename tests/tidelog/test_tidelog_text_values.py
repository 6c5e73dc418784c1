"""No text of a command line that is not UTF-8 reaches a cluster: in the library's thread it would end nothing."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from tests.tidelog.command_parameters import parameters_of
from tidelog.command_group import CommandGroup
from tidelog.command_line import application
from tidelog.text_values import AnyBytes, with_text_check

NO_UTF8 = b"a\xff".decode(errors="surrogateescape")
OF_RECORDS = {  # their bytes go into records, or are printed beside them
    ("produce", "--header"),
    ("produce", "--key-separator"),
    ("consume", "--format"),
    ("topics", "tail", "--format"),
}


def refused(parameter: Any) -> bool:
    if parameter.callback is None:
        return False
    try:
        parameter.callback(None, parameter, [NO_UTF8] if parameter.multiple or parameter.nargs == -1 else NO_UTF8)
    except (typer.BadParameter, typer.Exit):
        return True
    return False


def test_every_command_refuses_a_text_that_is_no_utf8() -> None:
    command: Any = typer.main.get_command(application())
    taken = {(*words, one.opts[0]) for words, one in parameters_of(command, {str}) if not refused(one)}
    assert taken == OF_RECORDS


@pytest.mark.parametrize("words", [[NO_UTF8], ["a", "--of", NO_UTF8], ["a", "--each", "b", "--each", NO_UTF8]])
def test_the_parameter_is_named_and_nothing_is_done(words: list[str]) -> None:
    app, done = CommandGroup("test"), []

    @app.command("look")
    def look(name: str, of: str | None = None, each: Annotated[list[str] | None, typer.Option()] = None) -> None:
        done.append((name, of, each))

    result = CliRunner().invoke(app, words)
    assert (result.exit_code, done) == (2, [])
    assert r"b'a\xff' is no UTF-8" in result.output
    assert CliRunner().invoke(app, ["Größe"]).exit_code == 0
    assert done == [("Größe", None, None)]


@pytest.mark.parametrize("kind", [int, Path, Path | None, list[int], Annotated[str, typer.Option(), AnyBytes]])
def test_other_parameters_stay_as_they_are(kind: Any) -> None:
    parameter = inspect.Parameter("one", inspect.Parameter.KEYWORD_ONLY, annotation=kind)
    assert with_text_check(parameter) is parameter
