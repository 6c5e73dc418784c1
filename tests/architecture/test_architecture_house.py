"""The house rules: sizes, forbidden doors to the outside world, rooms without code in `__init__.py`."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["tidelog", "broker", "proxy", "spark_offload", "kraft", "tiering", "storage", "object_store", "wire",
         "records", "common"]  # fmt: skip
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


ALL = python_files(*ROOMS, "tests", "bench")
PRODUCT = python_files(*[room for room in ROOMS if room != "tidelog"])


@pytest.mark.parametrize("path", ALL, ids=relative)
def test_file_is_read_in_one_sitting(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LINES_MAX
    assert path.stem not in FORBIDDEN_NAMES
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "every file says what it is"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < FUNCTION_LINES_MAX, f"{node.name} is too long"


@pytest.mark.parametrize("path", [p for p in ALL if p.name == "__init__.py"], ids=relative)
def test_init_holds_a_docstring_and_nothing_else(path: Path) -> None:
    assert len(ast.parse(path.read_text()).body) == 1


@pytest.mark.parametrize("path", PRODUCT, ids=relative)
def test_the_world_is_reached_through_ports(path: Path) -> None:
    if relative(path) in WORLD_USERS:
        return
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in WORLD:
                    allowed = alias.name in VALUE_TYPES and _only_as_type(tree, alias.name)
                    assert allowed, f"line {node.lineno}: import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in WORLD:
            names = {alias.name for alias in node.names}
            assert names <= {"Random", "UUID"}, f"line {node.lineno}: from {node.module} import {names}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "open", f"line {node.lineno}: open()"


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
