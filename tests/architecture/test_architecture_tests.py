"""What tests do to the code behind its back, and where they wait for the machine's clock: a count that only falls."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.lanes import files_behind, is_call_of, parsed, runs_in_virtual_time

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["console", "tidelog", "broker", "proxy", "spark_offload", "kraft", "tiering", "storage", "object_store",
         "wire", "records", "common"]  # fmt: skip
FILES = sorted((ROOT / "tests").rglob("*.py"))

# Lower these as the counts fall. Instead of raising them: run the test in virtual time (tests/virtual_time.py), or
# give the code what the test lacks, a parameter of a constructor or a property that an operator would want as well.
REAL_SLEEPS_MAX = 75
PRIVATE_MAX = 5
PATCHES_MAX = 3


SLEEP, PATCH, PRIVATE = "sleep", "patch", "private"
DEFINED = re.compile(r"^ *(?:self\.|cls\.)?(_[a-z]\w*)(?:: [^=\n]+)? = |^ *(?:async )?def (_[a-z]\w*)", re.MULTILINE)
"""Names with one underscore that a file gives to attributes, fields, constants and functions."""

CANDIDATE = re.compile(r"sleep\(|attr\(|method-assign|(?<!self)(?<!cls)\._[a-z]")
"""What a file has that is worth looking at closely."""
OF_LIBRARIES = {"_replace", "_struct", "_fields", "_callback", "_context", "_cancelled"}
"""What libraries call so and others are meant to use, or what the simulator's loop does for asyncio's."""


@pytest.fixture(scope="module")
def found() -> dict[str, dict[Path, list[str]]]:
    """By kind and file, the lines of tests that do what should be rare."""
    of_product = {name for room in ROOMS for path in (ROOT / room).rglob("*.py") for name in private_names(path)}
    found: dict[str, dict[Path, list[str]]] = {SLEEP: {}, PATCH: {}, PRIVATE: {}}
    for path in FILES:
        if not CANDIDATE.search(path.read_text()):
            continue
        names = of_product - private_names(path)
        for node in ast.walk(parsed(path)):
            if kind := kind_of(node, names):
                line = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
                found[kind].setdefault(path, []).append(line)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.endswith(f"# type: {'ignore'}[method-assign]"):
                found[PATCH].setdefault(path, []).append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return found


def test_few_tests_wait_for_the_clock_of_the_machine(found: dict[str, dict[Path, list[str]]]) -> None:
    tests = [path for path in FILES if path.name.startswith("test_")]
    virtual = {file for path in tests if runs_in_virtual_time(path) for file in files_behind(path)}
    real = {file for path in tests if not runs_in_virtual_time(path) for file in files_behind(path)}
    lines = [
        line
        for path, lines in found[SLEEP].items()
        if path.parent.name != "sim" and (path in real or path not in virtual)
        for line in lines
    ]
    assert len(lines) <= REAL_SLEEPS_MAX, "\n".join(lines)


@pytest.mark.parametrize(("kind", "most"), [(PRIVATE, PRIVATE_MAX), (PATCH, PATCHES_MAX)])
def test_few_tests_go_behind_the_codes_back(found: dict[str, dict[Path, list[str]]], kind: str, most: int) -> None:
    lines = [line for lines in found[kind].values() for line in lines]
    assert len(lines) <= most, "\n".join(lines)


def private_names(path: Path) -> set[str]:
    return {name for names in DEFINED.findall(path.read_text()) for name in names if name}


def kind_of(node: ast.AST, names: set[str]) -> str:
    """What a node does that should be rare, or nothing. `names` are private to the code."""
    if is_call_of(node, ("sleep",)):
        return SLEEP
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("setattr", "delattr"):
        return PATCH
    if not isinstance(node, ast.Attribute) or node.attr not in names - OF_LIBRARIES:
        return ""
    of = node.value
    is_own = isinstance(of, ast.Name) and of.id in ("self", "cls")
    return "" if is_own or (isinstance(of, ast.Call) and is_call_of(of, ("super",))) else PRIVATE
