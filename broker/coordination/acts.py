"""Acts after commit: what a shard wants done outside once its records are committed, such as sending markers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

ACTS_AT_ONCE = 200  # in one turn of the loop; a load may find thousands


class Acts:
    """Begins the acts of one shard in one leader epoch, in the order in which their records were committed."""

    def __init__(self, begin: Callable[[object], None]) -> None:
        self._begin = begin
        self._due: deque[object] = deque()
        self._turn: asyncio.Handle | None = None

    def begin(self, acts: list[object]) -> None:
        """The records that asked for `acts` are committed. None begins within this call: a caller of the shard may be
        in the middle of its own work."""
        if not acts:
            return
        self._due.extend(acts)
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._begin_some)

    def drop(self) -> None:
        """The shard is dropped. The next leader's shard finds at its load what is still to be done."""
        self._due.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _begin_some(self) -> None:
        self._turn = None
        for _ in range(ACTS_AT_ONCE):
            if not self._due:  # an act may drop the shard
                break
            self._begin(self._due.popleft())
        if self._due and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._begin_some)
