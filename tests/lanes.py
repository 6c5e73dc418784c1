"""Which tests are in the quick lane, by what their files use: nobody keeps a list.

A file is slow when it, or test code that it imports, starts processes, needs Spark's room, waits for the machine's
clock, runs seeds of a simulator, or counts the lines that run. Who waits in virtual time waits for no clock. In the
other files a test is slow that is marked so, that has a fixture with a process of its own, or that draws its examples.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import is_hypothesis_test

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
SLOW_MODULES = (
    "subprocess",
    "multiprocessing",
    "bench.embedded",
    "pyspark",
    "spark_offload",
    "tests.sim",
    "tests.kraft.quorum_world",
)
SLOW_MARKS = ("processes", "simulation", "compose")
SLOW_FIXTURES = frozenset({"moto_endpoint", "spark"})
TEST_CODE = ("tests.", "bench.")


def is_quick_file(path: Path) -> bool:
    """Whether nothing in this file, and in the test code that it imports, takes long by its kind."""
    return not any(_is_slow_file(file, runs_in_virtual_time(path)) for file in files_behind(path))


def files_behind(path: Path) -> set[Path]:
    """A file of tests and the test code that it imports."""
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += _imported_test_code(one)
    return seen


@cache
def runs_in_virtual_time(path: Path) -> bool:
    """Whether a file has the mark, or gives its coroutines to the simulator's `run`."""
    text = path.read_text()
    if "virtual_time" not in text and "tests.sim.loop" not in text:
        return False
    tree = parsed(path)
    is_marked = any(isinstance(node, ast.Attribute) and node.attr == "virtual_time" for node in ast.walk(tree))
    return is_marked or any(name == "tests.sim.loop.run" for node in ast.walk(tree) for name in _imports(node))


def is_quick_test(item: pytest.Item) -> bool:
    """Whether a test of a quick file is quick."""
    is_marked = any(item.get_closest_marker(name) for name in SLOW_MARKS)
    has_process = not SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    return not (is_marked or has_process or is_hypothesis_test(getattr(item, "obj", None)))


def part_of(tests: Sequence[T], part: str) -> list[T]:
    """`2/4`: the second of every four. Raises ValueError."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", part)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(f"a part is written as 2/4, with a number from 1 to the count of parts, not {part!r}")
    return list(tests[int(match[1]) - 1 :: int(match[2])])


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _imported_test_code(path: Path) -> list[Path]:
    nodes = (node for node in ast.walk(parsed(path)) if isinstance(node, (ast.Import, ast.ImportFrom)))
    names = {name for node in nodes for name in _imports(node)}
    files = [ROOT / (name.replace(".", "/") + ".py") for name in names if name.startswith(TEST_CODE)]
    return [file for file in files if file.exists()]


@cache
def _is_slow_file(path: Path, is_virtual: bool) -> bool:
    """Whether a file is slow itself, for tests in virtual time or in the machine's."""
    tree = parsed(path)
    names = {name for node in ast.walk(tree) for name in _imports(node)}
    calls = ("settrace",) if is_virtual else ("settrace", "sleep")
    return any(_is_in(name, slow) for name in names for slow in SLOW_MODULES) or any(
        is_call_of(node, calls) for node in ast.walk(tree)
    )


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_in(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def is_call_of(node: ast.AST, names: tuple[str, ...]) -> bool:
    """A call that waits or that traces. `sleep(0)` only lets others run."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    is_turn = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
    return name in names and not is_turn
