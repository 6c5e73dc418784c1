"""Mistakes to plant into the product, each for the length of one run: the simulator has to catch every one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Replace = Callable[[Any, str, object], None]
BUGS: dict[str, Callable[[Replace], None]] = {}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Within, the product has the mistake `name` ("": none); after it, it is as before."""
    undo: list[tuple[Any, str, object]] = []

    def replace(owner: Any, attribute: str, value: object) -> None:
        undo.append((owner, attribute, vars(owner)[attribute]))
        setattr(owner, attribute, value)

    try:
        if name:
            BUGS[name](replace)
        yield
    finally:
        for owner, attribute, value in reversed(undo):
            setattr(owner, attribute, value)
