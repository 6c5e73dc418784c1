"""Each code block of a page says what it is, and is run unless it says why not."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Any

import pytest
import typer

from common.node_settings.catalogue import NODE_SETTINGS
from tests.documentation.pages import (
    AGAIN,
    ALL,
    LANGUAGES,
    NOT_RUN,
    OUTPUT,
    PAGES,
    REASONS,
    ROOT,
    RUN,
    RUN_BY,
    STAYS,
    Block,
    commands,
)  # fmt: skip
from tidelog.command_line import application

INDENTED = re.compile(r"\n\n {4,}(?![-*] |\d+\. )\S")
PROGRAMS = ("tidelog", ".venv/bin/tidelog", "packed/bin/tidelog")
CLI: Any = typer.main.get_command(application())


def named(blocks: list[Block]) -> dict[str, Any]:
    return {"argvalues": blocks, "ids": [block.name for block in blocks]}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_are_fenced(path: Any) -> None:
    """An indented one has no language, and no one runs it."""
    outside = re.sub(r"(?ms)^ *```.*?^ *```$", "", path.read_text())
    assert INDENTED.findall(outside) == []


@pytest.mark.parametrize("block", **named(ALL))
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES
    if block.mark == OUTPUT:
        assert block.language == "text"
    elif block.mark:
        assert block.language in RUN, f"nothing is done with it, so <!-- {block.mark} --> says nothing"
        assert block.mark == STAYS or block.mark.startswith((AGAIN, NOT_RUN)), block.mark
    if block.reason.startswith(RUN_BY):
        runner = (ROOT / block.reason.removeprefix(RUN_BY)).read_text()
        assert block.language == "sh"
        words = shlex.split(commands(block)[0], comments=True)[:3]
        assert all(word in runner for word in words[1:]), f"{block.reason} does not do {words}"
    elif block.reason:
        assert block.reason in REASONS


def test_pythons_blocks_are_all_run() -> None:
    assert [block.name for block in ALL if block.language == "python" and not block.is_run] == []


@pytest.mark.parametrize("block", **named([block for block in ALL if block.language == "sh"]))
def test_a_shell_takes_it_and_commands_are_there(block: Block) -> None:
    """Options too, also in what is not run."""
    if "…" not in block.text:
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
    for line in commands(block):
        if line.split()[0] in PROGRAMS:
            check_words(shlex.split(line.split(" ;")[0], comments=True)[1:])


def check_words(words: list[str]) -> None:
    command: Any = CLI
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, words[0]
        command, words = command.commands[words[0]], words[1:]
    known = {"--help"} | {name for parameter in command.params for name in parameter.opts + parameter.secondary_opts}
    for word in words:
        if word == "|":
            break
        if word.startswith("--"):
            assert word.split("=")[0] in known, word


def test_the_list_of_commands_names_all_that_there_are() -> None:
    (block,) = [block for block in ALL if block.page == "README.md" and block.text.startswith("tidelog up")]
    listed: dict[str, set[str]] = {}
    for line in block.text.splitlines():
        words = re.sub(r"\[.*?\]…?|#.*|--\S+ \S+", "", line).replace("|", " ").split()
        if words[:1] != ["tidelog"]:
            continue
        group = CLI.commands[words[1]]
        if hasattr(group, "commands"):
            listed.setdefault(words[1], set()).update(words[2:])
        else:
            listed |= {word: set() for word in words[1:] if word.islower()}
    assert set(CLI.commands) - set(listed) == set()
    for name, subcommands in listed.items():
        assert subcommands <= set(getattr(CLI.commands[name], "commands", {})), name


@pytest.mark.parametrize("block", **named([block for block in ALL if block.language == "properties"]))
def test_settings_of_nodes_are_ones_that_there_are(block: Block) -> None:
    if block.text.startswith(("# controller", "# broker", "# proxy")):
        for line in block.text.splitlines()[1:]:
            name, _, value = line.partition("=")
            NODE_SETTINGS[name].parse(value)
