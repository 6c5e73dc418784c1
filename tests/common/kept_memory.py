"""How much memory something keeps, as Python counts what it gives out: the same on every machine."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def kept_bytes(make: Callable[[], T]) -> tuple[T, int]:
    """The result of `make`, and the bytes that it keeps, or that something else keeps since then."""
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        made = make()
        gc.collect()  # frees the interpreter's stock of tuples as well
        return made, tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
