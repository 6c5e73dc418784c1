"""No number of an API stands outside `wire/`: code that means an API names a member of `ApiKey`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from wire.apis import ApiKey

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("bench", "broker", "kraft", "proxy", "tidelog", "tiering")
TAKING_A_KEY = {
    "RequestContext", "RowsWriter", "charge", "decode_response", "decode_response_work", "element_work",
    "encode_response", "encode_response_work", "response_head", "response_start", "served",
}  # fmt: skip
"""Functions and classes to which an API is named by its key."""


def _is_number(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_is_number(one) for one in node.elts)
    return isinstance(node, ast.Constant) and type(node.value) is int


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def numbers(tree: ast.AST) -> Iterator[int]:
    """The lines on which an API is named by a number."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                is_key = any(_name(one).lower() == "api_key" or ast.unparse(one) == "api.key" for one in sides)
                if is_key and any(_is_number(one) for one in sides):
                    yield node.lineno
            case ast.Subscript(value=value, slice=index) if _name(value) == "APIS" and _is_number(index):
                yield node.lineno
            case ast.Call(func=function, args=args) if _name(function) in TAKING_A_KEY and any(
                map(_is_number, args[:2])
            ):
                yield node.lineno
            case ast.Dict(keys=keys) if len(keys) > 2 and all(_is_number(key) for key in keys):
                yield node.lineno
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int(number))):
                if number == ApiKey.__members__.get(name.lstrip("_")):
                    yield node.lineno


def test_no_number_of_an_api_stands_outside_wire() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for line in numbers(ast.parse(path.read_text()))
    ]
    assert not found, "name a member of wire.apis.ApiKey: " + ", ".join(found)


@pytest.mark.parametrize("source", [
    "header.api_key == 3", "api_key in (17, 36)", "64 != header.api_key", "api.key in (0, 1, *more)",
    "APIS[18]", "encode_response(18, 0, 1, answer)", "throttle.charge(session, 3, size)",
    "{2: of.list_offsets, 3: of.metadata, 8: of.commit}", "_METADATA = 3",
])  # fmt: skip
def test_a_number_is_noticed(source: str) -> None:
    assert list(numbers(ast.parse(source))) == [1]
