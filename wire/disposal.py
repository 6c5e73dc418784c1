"""Frees large messages in slices, because freeing 250,000 objects at once takes tens of milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from common.pacing import Work
from wire.messages import Message

FEW = 64  # elements, nested ones included, that may be freed at once
STRETCH = 16  # elements that are freed between two yields
STRETCH_COST = 30


def disposal(message: Message) -> Work[None] | None:
    """Work that keeps a decoded message's elements alive and frees them gradually; None when they are few.

    Begin it while the message is still referenced. It does not change the message, so other code may go on using parts.
    """
    return None if _left(message, FEW) >= 0 else _letting_go([list(elements) for elements in _lists(message)])


def _lists(item: Any) -> Iterator[list[Any]]:
    struct = getattr(item, "_struct", None)
    if struct is not None:
        for name, field in struct.fields.items():
            if field.is_array() and (elements := getattr(item, name, None)):
                yield elements


def _left(item: Any, enough: int) -> int:
    """`enough` less the number of elements below `item`; stops below zero."""
    for elements in _lists(item):
        enough -= len(elements)
        for element in elements:
            if enough < 0:
                return enough
            enough = _left(element, enough)
    return enough


def _letting_go(held: list[list[Any]]) -> Work[None]:
    """Elements below an element are held before that is freed."""
    while held:
        elements = held[-1]
        if not elements:
            held.pop()
            continue
        some = elements[-STRETCH:]
        del elements[-STRETCH:]
        for element in some:
            held += [list(below) for below in _lists(element)]
        del some
        yield STRETCH_COST
