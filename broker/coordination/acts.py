"""Acts after commit: what a shard wants done outside once its records are committed, such as sending markers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

ACTS_AT_ONCE = 200  # in one turn of the loop; a load may find thousands
STEPS_AT_ONCE = 5_000  # begun in one turn, or a single act with more


def steps_of(act: object) -> int:
    """Of how many parts an act consists, such as markers to be written: what it takes to begin it grows with them."""
    steps: int = getattr(act, "steps", 1)
    return steps


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
        acts = steps = 0
        while self._due and acts < ACTS_AT_ONCE:  # an act may drop the shard
            acts, steps = acts + 1, steps + steps_of(self._due[0])
            if acts > 1 and steps > STEPS_AT_ONCE:
                break
            self._begin(self._due.popleft())
        if self._due and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._begin_some)
