"""Who changes what: an object's fields are assigned by its own methods alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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


def test_nothing_in_storage_assigns_to_another_objects_field() -> None:
    found = {path.name: names for path in sorted((ROOT / "storage").glob("*.py")) if (names := foreign(path))}
    assert found == {}


def test_storage_hides_no_circle_of_imports() -> None:
    files = (ROOT / "storage").glob("*.py")
    assert [path.name for path in files if "TYPE_CHECKING" in path.read_text()] == []
