"""Keeps large numbers of long-lived objects out of the garbage collector.

A full collection visits every container of the process on the event loop, which takes about 4 µs per replica.
Long-lived state without reference cycles needs no collection: it is freed when the last reference goes.
"""

from __future__ import annotations

import gc


class LongLived:
    """Freezes all live objects in the collector whenever the owner has created `many` more.

    Code that drops such state must break its cycles. Other objects that are alive at that moment and later end in a
    cycle are never freed, but they are few compared with `many`.
    """

    __slots__ = ("_made", "_many")

    def __init__(self, many: int) -> None:
        self._many = many
        self._made = 0

    def made(self) -> None:
        self._made += 1
        if self._made >= self._many:
            self._made = 0
            gc.collect(1)  # young garbage, which would otherwise be frozen
            gc.freeze()
