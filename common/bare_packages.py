"""Third-party packages of which one part is wanted, entered without what their own `__init__` would import.

A package that pulls in its clients, its codecs and a command line for one submodule's sake costs every node megabytes
of memory and a tenth of a second of its start.
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

    That code runs when something of its own is first asked for (`from kafka import KafkaConsumer`), so whoever uses
    the whole package in this process notices nothing. Does nothing for a package that is imported already.
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
            raise AttributeError(attribute)  # a submodule: the import system goes on to import it
        module.__dict__.pop("__getattr__", None)
        loader.exec_module(module)
        return getattr(module, attribute)

    module.__dict__["__getattr__"] = run_package
    sys.modules[name] = module


@contextmanager
def absent(name: str) -> Iterator[None]:
    """Within, `import name` fails, unless it was imported before: for packages that make use of it where it is found,
    and that are asked for nothing that needs it."""
    if name in sys.modules:
        yield
        return
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    modules[name] = None
    try:
        yield
    finally:
        del modules[name]
