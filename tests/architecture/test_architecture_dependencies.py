"""What an object needs is given to it by name: no constructor of services is called with many positions."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import msgspec

from broker.dispatch import Dispatcher
from broker.replication.leader_link import LinkServices
from kraft.image.partitions import PartitionImage
from kraft.records import PartitionRecord
from wire.hot_codec import FetchedRow

ROOT = Path(__file__).resolve().parents[2]
POSITIONS_MAX = 5
ROOMS = ("broker", "kraft")
MADE_OFTEN = {"FullFetch", "IncrementalFetch", "Partition", "PendingFetch", "ProducePortion", "ReplicaSet"}
"""Made for each request of a hot path, or for each of very many partitions: names would cost time."""


def is_service(made: object) -> bool:
    """A class with dependencies; not one of values, which are read in the order of their fields."""
    if not inspect.isclass(made) or issubclass(made, tuple | BaseException) or made.__name__ in MADE_OFTEN:
        return False
    is_value = issubclass(made, msgspec.Struct) or dataclasses.is_dataclass(made)
    return not is_value or made.__name__.endswith("Services")


def calls(path: Path) -> Iterator[tuple[ast.Call, object]]:
    """Calls of names with too many positions, and what the name stands for."""
    found = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > POSITIONS_MAX
    ]
    if found:
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for node in found:
            assert isinstance(node.func, ast.Name)
            yield node, getattr(module, node.func.id, None)


def test_a_service_is_known_from_a_value() -> None:
    assert is_service(Dispatcher) and is_service(LinkServices)
    assert not any(map(is_service, (FetchedRow, PartitionImage, PartitionRecord, print)))


def test_services_are_made_by_name() -> None:
    positional = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for node, made in calls(path)
        if is_service(made)
    ]
    assert not positional, "name the arguments: " + ", ".join(positional)
