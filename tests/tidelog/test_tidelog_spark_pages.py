"""Commands on the pages about jobs are ones that there are: jobs, options, schedules."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from tests.documentation.pages import ALL, ROOT, commands
from tidelog.commands.spark import app
from tidelog.configuration.job_schedule import parse_schedule

SUBMITTED = ("$(tidelog spark script)", "$(packed/bin/tidelog spark script)")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = {
    name: {"--help"} | {option for parameter in command.params for option in parameter.opts}
    for name, command in COMMANDS.items()
}


def command_lines() -> list[tuple[str, list[str]]]:
    """(page, words from the job's name on) of each command line about jobs."""
    found = []
    for block in ALL:
        for line in commands(block) if block.language == "sh" else []:
            words = shlex.split(line, comments=True)
            places = [at for at, word in enumerate(words) if word in SUBMITTED or word.endswith("spark_submit.py")]
            if not places and words[:2] != ["tidelog", "spark"]:
                continue
            at = places[0] if places else 1
            if at + 1 < len(words):
                found.append((block.page, words[at + 1 :]))
    return found


LINES = command_lines()


def test_there_are_lines_to_look_at() -> None:
    assert len(LINES) >= 8
    assert {words[0] for _, words in LINES} >= {"read", "verify", "erase", "compact", "package"}


@pytest.mark.parametrize(("page", "words"), LINES, ids=[" ".join(words)[:60] for _, words in LINES])
def test_a_line_names_a_job_and_its_options(page: str, words: list[str]) -> None:
    assert words[0] in OPTIONS, page
    for word in words[1:]:
        if word.startswith("--"):
            assert word.split("=")[0] in OPTIONS[words[0]], page


def test_the_schedule_on_the_page_is_one() -> None:
    page = (ROOT / "docs" / "spark-clusters.md").read_text()
    (text,) = re.findall(r"^tidelog\.spark\.schedule=(.*)$", page, re.MULTILINE)
    entries = parse_schedule(text)
    assert len(entries) == 2
    for entry in entries:
        assert {word for word in entry.words if word.startswith("--")} <= OPTIONS[entry.words[0]]
