"""The end of large messages in slices: to free 250,000 objects at once takes tens of milliseconds."""

from __future__ import annotations

from typing import Any

from common.pacing import Work

FEW = 1_000  # elements of a list, each of which is looked into for longer lists
STRETCH = 16  # elements that are let go of at once: each may have as many below it as are too few to be found
STRETCH_COST = 100


def disposal(message: Any) -> Work[None] | None:
    """Keeps a decoded message's elements alive and lets go of them little by little; None when they are few.

    Begin it while the message is still referred to. Nothing in the message changes, so others may go on using parts.
    """
    held: list[Any] = []
    _gather(message, held)
    return _letting_go(held) if held else None


def _gather(item: Any, held: list[Any]) -> None:
    for name, field in item._struct.fields.items():
        elements = getattr(item, name, None) if field.is_array() else None
        if not elements:
            continue
        if len(elements) > FEW:
            held += elements
        elif field.is_struct_array():
            for element in elements:
                _gather(element, held)


def _letting_go(held: list[Any]) -> Work[None]:
    while held:
        del held[-STRETCH:]
        yield STRETCH_COST
