"""Requests that wait for an offset of one partition to be committed, ordered by offset."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Protocol

from common.errors import ErrorCode

COMPACT_FROM = 64  # length from which answered waiters are removed, because they keep their requests in memory


class CommitWaiter(Protocol):
    """Notified when an offset is below the high watermark, or when this broker can no longer know."""

    @property
    def settled(self) -> bool:
        """Whether it was answered otherwise, as after a timeout: the queue may drop it without a call."""
        ...

    def committed(self, offset: int) -> None:
        """Everything before `offset` is committed."""
        ...

    def refused(self, offset: int, error: ErrorCode) -> None:
        """This broker stopped leading and cannot know the outcome. The records may still be committed."""
        ...

    def starved(self, offset: int) -> bool:
        """The ISR has become too small to commit. Return whether the waiter gives up."""
        ...


class CommitCallback:
    """A CommitWaiter that calls one callback with None or an error. It does not give up on a small ISR."""

    __slots__ = ("_done",)

    settled = False

    def __init__(self, done: Callable[[ErrorCode | None], None]) -> None:
        self._done = done

    def committed(self, offset: int) -> None:
        self._done(None)

    def refused(self, offset: int, error: ErrorCode) -> None:
        self._done(error)

    def starved(self, offset: int) -> bool:
        return False


class CommitQueue:
    """Sorted by offset, so that a moving high watermark only pops from the left.

    Its length is at most twice the number of live waiters plus `COMPACT_FROM`, because timed-out requests are removed
    even if the high watermark does not move. The number of live waiters is bounded by the requests in progress.
    """

    __slots__ = ("_compact_at", "_waiting")

    def __init__(self) -> None:
        self._compact_at = COMPACT_FROM
        # None for most partitions, where nothing ever waits
        self._waiting: deque[tuple[int, CommitWaiter]] | None = None

    def __len__(self) -> int:
        return len(self._waiting) if self._waiting is not None else 0

    def add(self, offset: int, waiter: CommitWaiter) -> None:
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = deque()
        if len(waiting) >= self._compact_at:
            waiting = self._waiting = deque(entry for entry in waiting if not entry[1].settled)
            self._compact_at = max(COMPACT_FROM, 2 * len(waiting))
        if not waiting or waiting[-1][0] <= offset:
            waiting.append((offset, waiter))
            return
        # a duplicate of an earlier batch, or a repeated marker, which may be far from the end
        waiting.insert(bisect_right(waiting, offset, key=itemgetter(0)), (offset, waiter))

    def release(self, high_watermark: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= high_watermark:
            offset, waiter = waiting.popleft()
            waiter.committed(offset)

    def refuse_all(self, error: ErrorCode) -> None:
        refused, self._waiting = self._waiting, None
        for offset, waiter in refused or ():
            waiter.refused(offset, error)

    def starve(self) -> None:
        """Ask every waiter whether it gives up; the others keep their places."""
        asked, self._waiting = self._waiting, None
        if asked:
            self._waiting = deque(entry for entry in asked if not entry[1].starved(entry[0]))
