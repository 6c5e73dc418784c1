"""The house rules: sizes, forbidden doors to the outside world, rooms without code in `__init__.py`."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["console", "tidelog", "broker", "proxy", "spark_offload", "kraft", "tiering", "storage", "object_store",
         "wire", "records", "common"]  # fmt: skip
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "misc", "manager", "impl"}

# What the simulator must own: modules that reach the world past the ports, and who may use them after all.
WORLD = {"socket", "time", "random", "secrets", "uuid", "datetime", "os", "pathlib", "threading", "tempfile", "select"}
WORLD_USERS = {
    "common/machine.py",  # is the real world
    "common/machine_disk.py",  # likewise
    "common/certificate_files.py",  # an operator's files, for OpenSSL; the simulator has no TLS
    "tidelog/nodes/http_endpoint.py",
    "tidelog/nodes/logs.py",  # stamps lines; no decision depends on it
    "proxy/sockets.py",  # peeks, shares a port among processes, and lends descriptors to OpenSSL: no port has that
    "proxy/server_tls.py",  # that OpenSSL: told by the environment what it reads when it is loaded
    "spark_offload/java_home.py",  # prepares a machine for Spark
    "spark_offload/running/session.py",  # likewise
    "spark_offload/rewriting/spool.py",  # what does not fit an executor's memory
    # The simulator has an object store of its own.
    "object_store/directory_files.py",
    "object_store/file_copying.py",
    "object_store/off_loop.py",
}
VALUE_TYPES = {"random": "Random", "uuid": "UUID"}  # modules whose one type may be named, and nothing else


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


ALL = python_files(*ROOMS, "tests", "bench", "release")
PRODUCT = python_files(*[room for room in ROOMS if room not in ("console", "tidelog")])


def test_files_are_read_in_one_sitting() -> None:
    assert [f"{relative(path)}: {fault}" for path in ALL for fault in faults(path, path.read_text())] == []


def faults(path: Path, text: str) -> Iterator[str]:
    """What makes a file hard to read."""
    if len(text.splitlines()) > FILE_LINES_MAX:
        yield "too long"
    if path.stem in FORBIDDEN_NAMES:
        yield "named after nothing"
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield "does not say what it is"
    if path.name == "__init__.py" and len(tree.body) != 1:
        yield "holds more than a docstring"
    for function in functions(tree):
        assert function.end_lineno is not None
        if function.end_lineno - function.lineno >= FUNCTION_LINES_MAX:
            yield f"{function.name} is too long"


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Also inner ones, found by statements alone: most of a tree is expressions."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, block, None)
            if isinstance(inside, list):
                left += inside


def test_the_world_is_reached_through_ports() -> None:
    paths = [path for path in PRODUCT if relative(path) not in WORLD_USERS]
    assert [f"{relative(path)}, {door}" for path in paths for door in doors(ast.parse(path.read_text()))] == []


def doors(tree: ast.Module) -> Iterator[str]:
    """What reaches the world past the ports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in WORLD and not (
                    alias.name in VALUE_TYPES and _only_as_type(tree, alias.name)
                ):
                    yield f"line {node.lineno}: import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in WORLD:
            names = {alias.name for alias in node.names}
            if not names <= {"Random", "UUID"}:
                yield f"line {node.lineno}: from {node.module} import {names}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield f"line {node.lineno}: open()"


def test_what_breaks_the_rules_is_found() -> None:
    body = "    pass\n" * FUNCTION_LINES_MAX
    found = list(faults(Path("room/__init__.py"), f"import a\ndef f():\n{body}"))
    assert found == ["does not say what it is", "holds more than a docstring", "f is too long"]
    assert list(faults(Path("room/utils.py"), '"""x"""\n' * (FILE_LINES_MAX + 1))) == [
        "too long",
        "named after nothing",
    ]
    assert list(faults(Path("room/noun.py"), '"""What it is."""\nimport a\n')) == []
    for text in (
        "import os.path",
        "from time import sleep",
        "open('x')",
        "import random\nrandom.Random()\nrandom.random()",
    ):
        assert len(list(doors(ast.parse(text)))) == 1
    assert list(doors(ast.parse("import random, re\nfrom uuid import UUID\nrandom.Random()\nx.open()"))) == []


def _only_as_type(tree: ast.Module, module: str) -> bool:
    """The module is imported for the name of its type alone."""
    return all(
        node.attr == VALUE_TYPES[module]
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == module
    )


def test_every_room_is_in_the_table_of_the_architecture_page() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    for room in ROOMS:
        assert f"`{room}/`" in page


def test_nothing_points_out_of_the_repository() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    outside = "../" + "shared"
    for name in tracked.stdout.splitlines():
        path = ROOT / name
        if name.startswith(".ci/") or not path.is_file():
            continue
        assert outside not in path.read_text(errors="replace"), name
