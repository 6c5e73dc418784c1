"""Keeps numerous long-lived objects out of the garbage collector's rounds.

A full round visits every container of the process on the event loop, about 4 µs for each replica of a broker.
Long-lived state needs no visit: without cycles it is freed when it is dropped.
"""

from __future__ import annotations

import gc


class LongLived:
    """Freezes all live objects in the collector whenever the owner has made `many` more.

    Code that drops such state breaks its cycles. Other objects that live at that moment and later end in a cycle are
    never freed, but they are few beside the `many`.
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
