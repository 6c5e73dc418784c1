"""No number of a command line is too large for what it stands for: it is refused by name and range."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from common.settings import INT_MAX, LONG_MAX
from tests.tidelog.command_parameters import parameters_of
from tidelog.command_group import CommandGroup
from tidelog.command_line import application
from tidelog.commands.replicas import broker_ids
from tidelog.moments import LATEST_MS, milliseconds

HUGE = str(10**25)
BELOW_ZERO = {("groups", "reset-offsets", "--shift-by")}  # numbers that may be


COMMAND: Any = typer.main.get_command(application())
ALL = sorted((words, one.opts[0]) for words, one in parameters_of(COMMAND, {int, float}))


def test_the_sweep_finds_the_numbers() -> None:
    found = {f"{' '.join(words)} {option}" for words, option in ALL}
    wanted = {"topics create --partitions", "balance add brokers", "topics elect --partition", "usage record --every"}
    assert wanted <= found


@pytest.mark.parametrize(("words", "option"), ALL)
@pytest.mark.parametrize("number", [HUGE, "-7"])
def test_every_number_has_a_range(
    words: tuple[str, ...], option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if number == "-7" and (*words, option) in BELOW_ZERO:
        number = f"-{HUGE}"
    given = [f"{option}={number}"] if option.startswith("-") else ["--", number]
    with pytest.raises(SystemExit, match="2"):
        COMMAND.main([*words, *given], prog_name="tidelog")
    told = capsys.readouterr().err
    name = option if option.startswith("-") else "ID"
    assert re.search(rf"'{name}…?'( / '-\w')?: .* must be a (whole )?number from \S+ to \d+\n", told), told


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_time_to_wait_has_an_end(number: str) -> None:
    done = CliRunner().invoke(application(), ["usage", "record", f"--every={number}"])
    assert done.exit_code == 2
    assert f"'--every': {number} must be a number from 0.1 to {INT_MAX}" in done.output


def test_the_ends_of_a_range_belong_to_it() -> None:
    group, told = CommandGroup("Some."), []

    @group.command()
    def go(
        ids: Annotated[list[int], typer.Argument()],
        plain: Annotated[int, typer.Option()] = 5,
        wide: Annotated[int | None, typer.Option(min=-1, max=LONG_MAX)] = None,
    ) -> None:
        """Go."""
        told.append((ids, plain, wide))

    @group.command()
    def other() -> None:
        """Do nothing."""

    for words in (["0", str(INT_MAX)], ["1", "--plain", "0"], ["1", "--wide=-1"], ["1", "--wide", str(LONG_MAX)]):
        assert CliRunner().invoke(group, ["go", *words]).exit_code == 0
    assert told == [([0, INT_MAX], 5, None), ([1], 0, None), ([1], 5, -1), ([1], 5, LONG_MAX)]
    for words in (["1", str(INT_MAX + 1)], ["1", "--plain=-1"], ["1", "--wide=-2"], ["1", f"--wide={LONG_MAX + 1}"]):
        assert CliRunner().invoke(group, ["go", *words]).exit_code == 2


def test_numbers_within_texts_have_ranges_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert milliseconds("--since", str(LATEST_MS)) == LATEST_MS
    assert broker_ids("1, 2") == (1, 2)
    for wrong in (lambda: milliseconds("--since", str(LATEST_MS + 1)), lambda: broker_ids(f"1,{INT_MAX + 1}")):
        with pytest.raises(typer.Exit):
            wrong()
    told = capsys.readouterr().err
    assert f"--since {LATEST_MS + 1}: it must be at most {LATEST_MS}" in told
    assert f"--to '1,{INT_MAX + 1}': a broker's id is 0 to {INT_MAX}" in told
