"""No circle of imports, not between modules nor between the folders that hold them; and what `common` is for.

Imports within functions and for type checkers count as well: import-linter's contracts name the order of folders, and
this finds what lies within one layer, or was hidden from Python by importing later.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["console", "tidelog", "broker", "proxy", "spark_offload", "kraft", "tiering", "storage", "object_store",
         "wire", "records", "common"]  # fmt: skip
PACKAGES = ["", *sorted({path.parent.relative_to(ROOT).as_posix() for r in ROOMS for path in (ROOT / r).rglob("*.py")})]
"""Folders of code; the first is the one that the rooms lie in."""

Graph = dict[str, set[str]]


@cache
def imports() -> Graph:
    """Every module with those that it imports, by their dotted names."""
    paths = {path.relative_to(ROOT).with_suffix(""): path for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    modules = {".".join(name.parts): path for name, path in paths.items()}
    return {name: {one for one in imported(path) if one in modules and one != name} for name, path in modules.items()}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def children(graph: Graph, package: str) -> Graph:
    """What lies directly in `package`, files and folders, each with what it imports of the others."""
    prefix = package.replace("/", ".") + "." if package else ""
    found: Graph = {}
    for name, others in graph.items():
        if name.startswith(prefix):
            inside = {one.removeprefix(prefix).split(".")[0] for one in others if one.startswith(prefix)}
            child = name.removeprefix(prefix).split(".")[0]
            found.setdefault(child, set()).update(inside - {child})
    return found


def circle(graph: Graph) -> list[str]:
    """One circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_of_imports() -> None:
    graph = imports()
    assert [found for package in PACKAGES if (found := circle(children(graph, package)))] == []


COMMON = [path.stem for path in sorted((ROOT / "common").glob("*.py")) if path.stem != "__init__"]


def test_common_has_only_what_two_rooms_need() -> None:
    """What one room needs lies in that room."""
    rooms: dict[str, set[str]] = {module: set() for module in COMMON}
    for name, others in imports().items():
        for other in others:
            if other.removeprefix("common.") in rooms and other.startswith("common."):
                rooms[other.removeprefix("common.")].add(name.split(".")[0])
    assert {module: users for module, users in rooms.items() if len(users) < 2} == {}


def test_a_circle_is_found_between_folders_whose_modules_have_none() -> None:
    graph = {"room.a.one": {"room.b.two"}, "room.b.two": set(), "room.b.three": {"room.a.four"}, "room.a.four": set()}
    assert circle(graph) == []
    assert set(circle(children(graph, "room"))) == {"a", "b"}
    assert circle(children(graph, "room/b")) == []


def test_an_image_is_built_from_every_room() -> None:
    named = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{room}/" for room in ROOMS} <= set(named)


def test_checksums_come_from_the_compiled_module_alone() -> None:
    """Its package runs a command line's imports when it is first used: 20 ms and more of a request's turn."""
    users = {
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if any(name.split(".")[0] == "crc32c" for name in imported(path))
    }
    assert users == {"common/checksum.py"}
