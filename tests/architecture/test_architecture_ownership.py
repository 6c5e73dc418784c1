"""Who changes what: an object's fields are assigned by its own methods alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ROOMS = [
    "broker",
    "kraft",
    "storage",
    "tiering",
]
"""Rooms, or folders of one, in which objects own their fields."""

REPLACED = {"kraft/quorum/node.py": {"library.monotonicTime", "library.createJournal"}}
"""Names of PySyncObj that the quorum replaces where the library looks them up."""


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Every attribute that is the target of an assignment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node


def foreign(path: Path) -> set[str]:
    """Assigned fields of anything but the object itself; a constructor's names it `self` as well."""
    targets = assigned(ast.parse(path.read_text()))
    return {
        ast.unparse(one) for one in targets if not (isinstance(one.value, ast.Name) and one.value.id in ("self", "cls"))
    }


def unseen(tree: ast.AST) -> Iterator[str]:
    """Modules that are imported for type checkers alone: import-linter sees them, a circle of them does not fail."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for one in node.body:
                if isinstance(one, ast.ImportFrom):
                    yield one.module or ""
                elif isinstance(one, ast.Import):
                    yield from (name.name for name in one.names)


@pytest.mark.parametrize("room", ROOMS)
def test_no_object_assigns_to_another_objects_field(room: str) -> None:
    found = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if names := foreign(path) - REPLACED.get(name, set()):
            found[name] = names
    assert found == {}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_hides_no_circle_of_imports(room: str) -> None:
    found = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        if ours := [name for name in unseen(ast.parse(path.read_text())) if (ROOT / name.split(".")[0]).is_dir()]:
            found[path.relative_to(ROOT).as_posix()] = ours
    assert found == {}


def test_an_import_for_type_checkers_alone_is_found() -> None:
    text = "if TYPE_CHECKING:\n    from jwt import PyJWK\n    from broker.node import BrokerNode\nimport kraft\n"
    assert list(unseen(ast.parse(text))) == ["jwt", "broker.node"]
