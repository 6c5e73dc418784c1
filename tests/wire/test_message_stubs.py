"""The types of the messages are what the schemas say, and the classes that run have the fields which the types name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.message_stubs import FOLDER, ROOT, stubs
from wire import messages


def test_the_stubs_are_current() -> None:
    found = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / FOLDER).glob("*.pyi")}
    made = stubs()
    for name, text in made.items():
        assert (ROOT / name).read_text() == text, f"{name} is old: run `python -m tests.wire.message_stubs`"
    assert set(found) <= set(made), "files that nothing makes any more"


def test_every_name_of_the_module_is_in_its_stub() -> None:
    names = {
        node.name
        for name, text in stubs().items()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    assert set(messages.__all__) <= names


def declared(name: str, text: str) -> Iterator[tuple[Any, ast.ClassDef]]:
    """Every class of a stub with the one that runs."""
    pairs = [(getattr(messages, node.name), node) for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    while pairs:
        made, node = pairs.pop()
        yield made, node
        pairs += [(getattr(made, inner.name), inner) for inner in node.body if isinstance(inner, ast.ClassDef)]


@pytest.mark.parametrize("name", [name for name in stubs() if name.startswith(FOLDER) and "/base." not in name])
def test_a_class_takes_exactly_the_fields_of_its_stub(name: str) -> None:
    for made, node in declared(name, stubs()[name]):
        fields = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign) if hasattr(item.target, "id")}
        required = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)
                    if hasattr(item.target, "id") and item.value is None}  # fmt: skip
        value: Any = object()
        made(**dict.fromkeys(fields, value))
        with pytest.raises(ValueError, match="no_such_field"):
            made(no_such_field=value)
        plain = made()
        for field in fields - required:
            getattr(plain, field)
        for field in required:
            with pytest.raises(NotImplementedError):
                getattr(plain, field)
