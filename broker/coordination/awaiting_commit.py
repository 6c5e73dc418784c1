"""The batches that a shard has appended and followers do not all have yet, with what waits for their commit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from broker.coordination.acts import Acts
from broker.coordination.partition_access import CoordinatedPartition
from common.errors import ErrorCode, ProtocolError

NEVER = float("inf")

Waiter = tuple["asyncio.Future[Any]", object]
"""A waiting caller's future and its result: a value, or an exception."""


class _Uncommitted(Struct):
    """One appended batch, the callers that wait for its commit or an earlier one, and the acts that it asked for."""

    end_offset: int
    bytes: int
    acts: list[object]
    deadline_s: float = NEVER  # for the waiters; monotonic seconds
    waiters: list[Waiter] = field(default_factory=list)

    def add(self, waiters: list[Waiter], deadline_s: float) -> None:
        self.waiters.extend(waiters)
        self.deadline_s = min(self.deadline_s, deadline_s)

    def take_late(self, now_s: float) -> list[Waiter]:
        """The waiters, if their time is up."""
        if self.deadline_s > now_s:
            return []
        late, self.waiters, self.deadline_s = self.waiters, [], NEVER
        return late


class AwaitingCommit:
    """`lost` is called when the partition says that this broker no longer leads it."""

    def __init__(self, partition: CoordinatedPartition, timeout_s: float, acts: Acts, lost: Callable[[], None]) -> None:
        self._partition = partition
        self._timeout_s = timeout_s
        self._acts = acts
        self._lost = lost
        self._batches: deque[_Uncommitted] = deque()
        self._bytes = 0
        self._deadline_s = NEVER  # never later than the deadline of any waiter
        self._is_closed = False

    @property
    def bytes(self) -> int:
        """Of all records that wait for followers."""
        return self._bytes

    @property
    def deadline_s(self) -> float:
        """When `expire` has something to do; monotonic seconds."""
        return self._deadline_s

    def add(self, end_offset: int, size: int, acts: list[object], waiters: list[Waiter], now_s: float) -> None:
        """A batch was appended: the log ends at `end_offset` now."""
        batch = _Uncommitted(end_offset, size, acts)
        self._batches.append(batch)
        self._bytes += size
        if waiters:
            self._wait(batch, waiters, now_s)
        if not self._partition.on_commit(end_offset, self._changed):
            self._changed(None)

    def join(self, waiters: list[Waiter], now_s: float) -> None:
        """The waiters wait for the newest append, if it is not committed yet."""
        if self._batches:
            self._wait(self._batches[-1], waiters, now_s)
        else:
            for future, reply in waiters:
                answer(future, reply)

    def join_acts(self, acts: list[object]) -> None:
        """Acts that no record of their own asks for: they begin when the newest append is committed."""
        if self._batches:
            self._batches[-1].acts.extend(acts)
        else:
            self._acts.begin(acts)

    def _wait(self, batch: _Uncommitted, waiters: list[Waiter], now_s: float) -> None:
        batch.add(waiters, now_s + self._timeout_s)
        self._deadline_s = min(self._deadline_s, batch.deadline_s)

    def expire(self, now_s: float) -> None:
        """Answer waiters whose time is up: the outcome of their writes is unknown."""
        if self._deadline_s > now_s:
            return
        for batch in self._batches:
            for future, _ in batch.take_late(now_s):
                answer(future, ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the write was not confirmed"))
        self._deadline_s = min((batch.deadline_s for batch in self._batches), default=NEVER)

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
            for future, reply in batch.waiters:
                answer(future, reply)

    def close(self) -> list[asyncio.Future[Any]]:
        """Forget all batches and their acts. Returns the callers that wait for them."""
        self._is_closed = True
        waiting = [future for batch in self._batches for future, _ in batch.waiters]
        self._batches.clear()
        self._acts.drop()
        return waiting


def answer(future: asyncio.Future[Any], reply: object) -> None:
    if future.done():
        return
    if isinstance(reply, ProtocolError):
        future.set_exception(reply)
    else:
        future.set_result(reply)
