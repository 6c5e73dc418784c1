"""The batches that a shard has appended and followers do not all have yet, with what waits for their commit."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from broker.coordination.acts import Acts
from broker.coordination.partition_access import CoordinatedPartition
from common.errors import ErrorCode, ProtocolError

NEVER = float("inf")

Waiter = tuple["asyncio.Future[Any]", object]
"""A waiting caller's future and its result: a value, or an exception."""


class _Uncommitted(NamedTuple):
    """One appended batch, the acts that it asked for, and callers that came when it was not the newest any more."""

    end_offset: int
    bytes: int
    acts: list[object]
    latecomers: list[Waiter]


class _Waiting(NamedTuple):
    """Callers that wait until the log is committed up to `end_offset`, or for `deadline_s` (monotonic seconds)."""

    end_offset: int
    deadline_s: float
    waiters: list[Waiter]


class AwaitingCommit:
    """`lost` is called when the partition says that this broker no longer leads it.

    Each caller waits for what is the newest append when it comes, so offsets and deadlines rise together along the
    queue: what is committed and what is late are both at its head. Those that wait for an earlier append are with its
    batch, and in a queue by deadline. With silent followers there may be 100,000 batches.
    """

    def __init__(self, partition: CoordinatedPartition, timeout_s: float, acts: Acts, lost: Callable[[], None]) -> None:
        self._partition = partition
        self._timeout_s = timeout_s
        self._acts = acts
        self._lost = lost
        self._batches: deque[_Uncommitted] = deque()
        self._waiting: deque[_Waiting] = deque()
        self._latecomers: deque[_Waiting] = deque()  # until their deadline, also if they are answered
        self._bytes = 0
        self._is_closed = False

    @property
    def bytes(self) -> int:
        """Of all records that wait for followers."""
        return self._bytes

    @property
    def deadline_s(self) -> float:
        """When `expire` has something to do; monotonic seconds."""
        return min((some[0].deadline_s for some in (self._waiting, self._latecomers) if some), default=NEVER)

    def add(self, end_offset: int, size: int, acts: list[object], waiters: list[Waiter], now_s: float) -> None:
        """A batch was appended: the log ends at `end_offset` now."""
        self._batches.append(_Uncommitted(end_offset, size, acts, []))
        self._bytes += size
        self._wait(waiters, now_s)
        if not self._partition.on_commit(end_offset, self._changed):
            self._changed(None)

    def join(self, waiters: list[Waiter], now_s: float) -> None:
        """The waiters wait for the newest append, if it is not committed yet."""
        if self._batches:
            self._wait(waiters, now_s)
        else:
            for future, reply in waiters:
                answer(future, reply)

    def join_at(self, end_offset: int, waiters: list[Waiter], now_s: float) -> None:
        """The waiters wait until everything below `end_offset` is committed, whatever was appended behind it."""
        if end_offset <= self._partition.high_watermark:
            for future, reply in waiters:
                answer(future, reply)
            return
        at = bisect_left(self._batches, end_offset, key=_end_of)
        if at < len(self._batches):
            self._batches[at].latecomers.extend(waiters)
            self._latecomers.append(_Waiting(end_offset, now_s + self._timeout_s, waiters))
        else:
            self.add(end_offset, 0, [], waiters, now_s)

    def join_acts(self, acts: list[object]) -> None:
        """Acts that no record of their own asks for: they begin when the newest append is committed."""
        if self._batches:
            self._batches[-1].acts.extend(acts)
        else:
            self._acts.begin(acts)

    def _wait(self, waiters: list[Waiter], now_s: float) -> None:
        if waiters:
            self._waiting.append(_Waiting(self._batches[-1].end_offset, now_s + self._timeout_s, waiters))

    def expire(self, now_s: float) -> None:
        """Answer waiters whose time is up: the outcome of their writes is unknown."""
        for some in (self._waiting, self._latecomers):
            while some and some[0].deadline_s <= now_s:
                for future, _ in some.popleft().waiters:
                    answer(future, ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the write was not confirmed"))

    def _changed(self, error: ErrorCode | None) -> None:
        if self._is_closed:
            return
        if error is not None:
            self._lost()
            return
        high_watermark = self._partition.high_watermark
        while self._batches and self._batches[0].end_offset <= high_watermark:
            batch = self._batches.popleft()
            self._bytes -= batch.bytes
            self._acts.begin(batch.acts)
            for future, reply in batch.latecomers:
                answer(future, reply)
        while self._waiting and self._waiting[0].end_offset <= high_watermark:
            for future, reply in self._waiting.popleft().waiters:
                answer(future, reply)

    def close(self) -> list[asyncio.Future[Any]]:
        """Forget all batches and their acts. Returns the callers that wait for them."""
        self._is_closed = True
        waiting = [future for some in (*self._waiting, *self._latecomers) for future, _ in some.waiters]
        self._batches.clear()
        self._waiting.clear()
        self._latecomers.clear()
        self._acts.drop()
        return waiting


def _end_of(batch: _Uncommitted) -> int:
    return batch.end_offset


def answer(future: asyncio.Future[Any], reply: object) -> None:
    if future.done():
        return
    if isinstance(reply, ProtocolError):
        future.set_exception(reply)
    else:
        future.set_result(reply)
