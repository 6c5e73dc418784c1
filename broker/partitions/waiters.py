"""Who waits for an offset of one partition to be committed, in order of offsets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from common.errors import ErrorCode


class CommitWaiter(Protocol):
    """Something that goes on once an offset is below the high watermark, or never will be."""

    def committed(self, offset: int) -> None:
        """Everything before `offset` is committed."""
        ...

    def refused(self, offset: int, error: ErrorCode) -> None:
        """This broker cannot tell any more: it leads no longer. The records may still be committed."""
        ...

    def starved(self, offset: int) -> bool:
        """The ISR has become too small to commit anything; whether the waiter gives up."""
        ...


class CommitCallback:
    """A CommitWaiter of one callback, called with None or an error. A starved ISR lets it wait on."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[ErrorCode | None], None]) -> None:
        self._done = done

    def committed(self, offset: int) -> None:
        self._done(None)

    def refused(self, offset: int, error: ErrorCode) -> None:
        self._done(error)

    def starved(self, offset: int) -> bool:
        return False


class CommitQueue:
    """Sorted by offset, so that a moving high watermark pops from the left and looks at nothing else.

    Its length is bounded by the requests in work on all connections.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, CommitWaiter]] | None = None  # most partitions never have anyone waiting

    def __len__(self) -> int:
        return len(self._waiting) if self._waiting is not None else 0

    def add(self, offset: int, waiter: CommitWaiter) -> None:
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = deque()
        if not waiting or waiting[-1][0] <= offset:
            waiting.append((offset, waiter))
            return
        at = len(waiting)  # a duplicate of an earlier batch: rare, and close to the end
        while at and waiting[at - 1][0] > offset:
            at -= 1
        waiting.insert(at, (offset, waiter))

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
        """Ask all whether they give up; the others keep their places."""
        asked, self._waiting = self._waiting, None
        if asked:
            self._waiting = deque(entry for entry in asked if not entry[1].starved(entry[0]))
