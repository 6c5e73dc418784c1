"""Look-ups of aborted transactions that need several turns of the event loop, and how much of them fits into one.

A look-up whose turn is over is kept for the retry of its reader, which goes on with it in the next turn. So a
transaction that was open for long, or very many aborted ones, slow down who reads there, but no others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable

from storage.disk.cold_reads import PagesMissing, PageWait
from storage.indexes.aborted_look_up import AbortedLookUp

TURN_COST = 2_000  # of all look-ups together in one turn, in units of `common.pacing`
KEPT_S = 2.0  # after the last turn, because its reader may have left
KEPT_MAX = 256
KEPT_BYTES_MAX = 16 << 20  # of rows; the newest look-up may exceed it


class _NextTurn:
    """What the readers wait for: no read."""

    key = None

    def run(self) -> None:
        pass

    def finish(self) -> None:
        pass


class AbortedLookUps:
    """One per log directory, and one for the tier; calls on the loop."""

    __slots__ = ("_expiry", "_kept", "_left", "_turn", "_wait")

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[float, AbortedLookUp]] = OrderedDict()
        self._expiry: asyncio.TimerHandle | None = None
        self._turn = False  # something was spent in this turn
        self._left = TURN_COST
        self._wait: PageWait | None = None

    def __len__(self) -> int:
        """Look-ups that are kept."""
        return len(self._kept)

    def admits(self, cost: int) -> bool:
        """Whether a step of that cost may be done in this turn; counts it if so."""
        if not self._turn:
            self._turn = True
            asyncio.get_running_loop().call_soon(self._new_turn)
        if self._left <= 0:
            return False
        self._left -= cost
        return True

    def kept(self, key: Hashable) -> AbortedLookUp | None:
        """The look-up that an earlier attempt has begun."""
        found = self._kept.get(key)
        return found[1] if found is not None else None

    def keep(self, key: Hashable, look_up: AbortedLookUp) -> None:
        """Keep it for the next attempt."""
        loop, kept = asyncio.get_running_loop(), self._kept
        kept[key] = (loop.time() + KEPT_S, look_up)
        kept.move_to_end(key)
        surplus = sum(len(one.rows) for _, one in kept.values()) - KEPT_BYTES_MAX
        while len(kept) > 1 and (len(kept) > KEPT_MAX or surplus > 0):
            _, (_, evicted) = kept.popitem(last=False)
            surplus -= len(evicted.rows)
        if self._expiry is None:
            self._expiry = loop.call_later(KEPT_S, self._expire)

    def next_turn(self) -> PagesMissing:
        """To be raised: the reader retries in the next turn."""
        if self._wait is None:
            self._wait = PageWait(_NextTurn())
            asyncio.get_running_loop().call_soon(self._settle)
        return PagesMissing(self._wait)

    def _new_turn(self) -> None:
        self._turn, self._left = False, TURN_COST

    def _settle(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.settle()

    def _expire(self) -> None:
        loop, kept = asyncio.get_running_loop(), self._kept
        while kept and next(iter(kept.values()))[0] <= loop.time():
            kept.popitem(last=False)
        self._expiry = loop.call_at(next(iter(kept.values()))[0], self._expire) if kept else None
