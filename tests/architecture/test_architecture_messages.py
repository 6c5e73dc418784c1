"""Requests and responses have their types: mypy sees which fields a message has."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("console", "tidelog", "broker", "proxy", "spark_offload", "kraft", "tiering")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def untyped(tree: ast.AST) -> list[str]:
    """What is called a request or a response and may be anything: parameters, fields and variables."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            name, annotation = node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign):
            name, annotation = ast.unparse(node.target), node.annotation
        else:
            continue
        if name.endswith(("request", "response")) and annotation is not None and ast.unparse(annotation) == "Any":
            found.append(f"line {node.lineno}: {name}")
    return found


def test_no_request_and_no_response_is_any() -> None:
    assert [f"{path.relative_to(ROOT)}, {one}" for path in FILES for one in untyped(ast.parse(path.read_text()))] == []


def test_what_is_untyped_is_found() -> None:
    text = "def f(self, request: Any, alter_response: Any): ...\nclass C:\n    response: Any\nself._request: Any = 1\n"
    assert len(untyped(ast.parse(text))) == 4
    assert not untyped(ast.parse("def f(request: FetchRequest, answer: Any): ..."))
