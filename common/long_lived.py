"""State that is many and lives long, kept out of the garbage collector's rounds.

A full round of the collector looks at every container of the process in one go, on the event loop: some 4 µs for each
replica of a broker. What lives long need not be looked at: it is freed when it is dropped, unless it is in a cycle.
"""

from __future__ import annotations

import gc


class LongLived:
    """Counts what one owner has made, and has the collector leave out all that lives whenever `many` more were.

    The code that drops such state breaks its cycles. What else lives at that moment and later ends in a cycle is not
    freed: it is little beside the `many` that were made.
    """

    __slots__ = ("_made", "_many")

    def __init__(self, many: int) -> None:
        self._many = many
        self._made = 0

    def made(self) -> None:
        """One more."""
        self._made += 1
        if self._made >= self._many:
            self._made = 0
            gc.collect(1)  # young garbage only: it would stay for good
            gc.freeze()
