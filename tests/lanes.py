"""Which tests are in the quick lane, by what their files use: nobody keeps a list.

A file is slow when it, or test code that it imports, starts processes, needs Spark's room, waits for the machine's
clock, runs seeds of a simulator, or counts the lines that run. In the other files a test is slow that is marked so,
that has a fixture with a process of its own, or that draws its examples.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

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
SLOW_CALLS = ("sleep", "settrace")
SLOW_MARKS = ("processes", "simulation", "compose")
SLOW_FIXTURES = frozenset({"moto_endpoint", "spark"})
TEST_CODE = ("tests.", "bench.")


def is_quick_file(path: Path) -> bool:
    """Whether nothing in this file, and in the test code that it imports, takes long by its kind."""
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        is_slow, imported = _looked_at(one)
        if is_slow:
            return False
        waiting += imported
    return True


def is_quick_test(item: pytest.Item) -> bool:
    """Whether a test of a quick file is quick."""
    is_marked = any(item.get_closest_marker(name) for name in SLOW_MARKS)
    has_process = not SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    return not (is_marked or has_process or is_hypothesis_test(getattr(item, "obj", None)))


@cache
def _looked_at(path: Path) -> tuple[bool, list[Path]]:
    """Whether a file is slow itself, and the test code that it imports."""
    tree = ast.parse(path.read_text())
    names = {name for node in ast.walk(tree) for name in _imports(node)}
    is_slow = any(_is_in(name, slow) for name in names for slow in SLOW_MODULES) or any(map(_is_slow, ast.walk(tree)))
    files = [ROOT / (name.replace(".", "/") + ".py") for name in names if name.startswith(TEST_CODE)]
    return is_slow, [file for file in files if file.exists()]


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_in(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _is_slow(node: ast.AST) -> bool:
    """A call that waits or that traces. `sleep(0)` only lets others run."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    is_turn = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
    return name in SLOW_CALLS and not is_turn
