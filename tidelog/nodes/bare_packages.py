"""Imports submodules of third-party packages without running the packages' own `__init__`.

That code would import clients, codecs and a command line, which cost every node megabytes of memory and a tenth of a
second at its start.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def enter(name: str) -> None:
    """Make the submodules of package `name` importable without running the package's own code.

    That code runs when one of its own names is first used (`from kafka import KafkaConsumer`), so the whole package
    stays usable. Does nothing for a package that is imported already.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    loader = spec.loader
    module = importlib.util.module_from_spec(spec)

    def run_package(attribute: str) -> Any:
        if importlib.util.find_spec(f"{name}.{attribute}") is not None:
            raise AttributeError(attribute)  # a submodule, which the import system imports next
        module.__dict__.pop("__getattr__", None)
        loader.exec_module(module)
        return getattr(module, attribute)

    module.__dict__["__getattr__"] = run_package
    sys.modules[name] = module


@contextmanager
def absent(name: str) -> Iterator[None]:
    """Make `import name` fail within, unless it was imported before: for packages that import it only if present."""
    if name in sys.modules:
        yield
        return
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    modules[name] = None
    try:
        yield
    finally:
        del modules[name]
