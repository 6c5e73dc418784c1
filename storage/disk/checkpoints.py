"""The offset checkpoints of a log directory, written one at a time, and their possible values on the device.

The next start trusts them: it does not scan a log below its recovery point, serves nothing below its log start, and
treats everything below the high watermark as committed. It takes gaps below the cleaner's offset for compaction's, and
the cleaner takes the records there for compacted. So before a log's content below one of these changes (it is
truncated, starts over, or another topic gets its name), the values must be lowered on the device.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from common.lifecycle import duty
from common.pacing import Pacer, Work
from common.ports import Disk
from common.whole_files import replace_file
from storage.disk.checkpoint_files import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    TopicPartition,
    encode_offsets,
)
from storage.disk.directory_health import OUT_OF_FILES_PAUSE_S, DirectoryHealth

T = TypeVar("T")

Offsets = Mapping[TopicPartition, int]


class Held(Protocol):
    """A log, opened."""

    @property
    def recovery_point(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...


class _Limit(NamedTuple):
    recovery_point: int
    offset: int
    done: Callable[[], None] | None

    def of(self, name: str) -> int:
        return self.recovery_point if name == RECOVERY_POINTS else self.offset


Collect = Callable[[dict[TopicPartition, int]], Work[None]]
"""Adds offsets to a dictionary, in slices of the loop."""

STEP = 256  # partitions per slice


def collector(logs: Mapping[TopicPartition, T], of: Callable[[T], int | None]) -> Collect:
    """Collects the offset that `of` returns for each log; None: no offset."""

    def collect(into: dict[TopicPartition, int]) -> Work[None]:
        every = iter(list(logs))
        while some := list(islice(every, STEP)):
            for who in some:
                log = logs.get(who)
                offset = of(log) if log is not None else None
                if offset is not None:
                    into[who] = offset
            yield len(some) // 2

    return collect


def _differ(offsets: Offsets, said: Offsets) -> Work[bool]:
    if len(offsets) != len(said):
        return True
    rows = iter(offsets.items())
    while some := list(islice(rows, STEP)):
        if any(said.get(who) != offset for who, offset in some):
            return True
        yield len(some) // 4
    return False


class Checkpoints:
    """One per log directory; calls on the loop. A disk failure takes the directory offline."""

    __slots__ = (
        "_changes",
        "_covered",
        "_directory",
        "_disk",
        "_health",
        "_limits",
        "_pacer",
        "_said",
        "_tasks",
        "_turn",
        "_waiting",
        "_withdrawal",
    )

    def __init__(self, disk: Disk, directory: str, health: DirectoryHealth, pacer: Pacer) -> None:
        self._disk = disk
        self._directory = directory
        self._health = health
        self._turn = asyncio.Lock()
        self._said: dict[str, Offsets] = {HIGH_WATERMARKS: {}, LOG_STARTS: {}, RECOVERY_POINTS: {}, CLEANER_OFFSETS: {}}
        # the first of each may be being written
        self._waiting: dict[str, deque[Offsets]] = {name: deque() for name in self._said}
        self._changes = dict.fromkeys(self._said, 1)  # number of changes, the start included
        self._covered = dict.fromkeys(self._said, 0)  # number of changes that the file includes
        self._limits: dict[TopicPartition, _Limit] = {}
        self._withdrawal: asyncio.Task[bool] | None = None
        self._tasks: dict[asyncio.Task[bool], None] = {}
        self._pacer = pacer

    def found(self, name: str, offsets: Offsets) -> None:
        """The last run's content of the file `name`."""
        self._said[name] = offsets

    def note(self, name: str) -> None:
        """An offset of the file `name` has moved."""
        self._changes[name] += 1

    def changes(self, name: str) -> int:
        """Grows with each change of an offset of the file `name`."""
        return self._changes[name]

    async def _replace(self, name: str, offsets: Offsets) -> bool:
        try:
            await asyncio.to_thread(lambda: replace_file(self._disk, self._directory, name, encode_offsets(offsets)))
        except OSError as error:
            self._health.refused(f"write {name}", error)
            return False
        self._said[name] = offsets
        return True

    async def write_collected(self, name: str, collect: Collect) -> bool:
        """Rewrite the file `name` with the offsets that `collect` adds to a dictionary; False: retry later.

        If no offset has moved, nothing is collected, so an idle directory costs the same however many logs it has; and
        nothing is written if the file has the same content. Collected offsets count as waiting to be written: a
        truncation meanwhile withdraws them.
        """
        if self._health.offline is not None:
            return False
        if self._covered[name] == self._changes[name]:
            return True
        return await self._write_in_turn(name, collect, covers=True)

    async def write_some(self, name: str, collect: Collect) -> bool:
        """Rewrite the file `name` with what `collect` adds, and the other offsets as they are; False: retry later."""

        def with_others(into: dict[TopicPartition, int]) -> Work[None]:
            rows = iter(self._said[name].items())
            while some := list(islice(rows, STEP)):
                into.update(some)
                yield len(some) // 4
            yield from collect(into)

        if self._health.offline is not None:
            return False
        return await self._write_in_turn(name, with_others, covers=False)

    async def _write_in_turn(self, name: str, collect: Collect, *, covers: bool) -> bool:
        offsets: dict[TopicPartition, int] = {}
        self._waiting[name].append(offsets)
        # a thread cannot be cancelled, so it keeps its turn
        return await asyncio.shield(self._begin(self._collect_and_write(name, offsets, collect, covers=covers)))

    async def _collect_and_write(
        self, name: str, offsets: dict[TopicPartition, int], collect: Collect, *, covers: bool
    ) -> bool:
        """`covers`: all offsets are collected, so the changes until now are in the file."""
        async with self._turn:
            changes = self._changes[name] if covers else self._covered[name]
            try:
                await self._pacer.run(collect(offsets), "checkpoints", own=True)
                said = self._said[name]  # an empty dictionary does not show whether the file exists
                differ = not said or await self._pacer.run(_differ(offsets, said), "checkpoints", own=True)
                is_done = not differ or await self._replace(name, offsets)
                if is_done:
                    self._covered[name] = changes
                return is_done
            finally:
                self._waiting[name].popleft()

    def said(self, name: str) -> Offsets:
        """The content of the file `name`, or its future content when waiting writes are done."""
        waiting = self._waiting[name]
        return waiting[-1] if waiting else self._said[name]

    def on_device(self, name: str) -> Offsets:
        """The current content of the file `name`."""
        return self._said[name]

    def exceed(self, who: TopicPartition, recovery_point: int, offset: int) -> bool:
        """Whether a start after a power loss might read a larger recovery point of `who` than `recovery_point`, or a
        larger value than `offset` in the other files."""
        return any(
            one.get(who, 0) > (recovery_point if name == RECOVERY_POINTS else offset)
            for name, said in self._said.items()
            for one in (said, *self._waiting[name])
        )

    def limit(
        self, who: TopicPartition, recovery_point: int, offset: int, done: Callable[[], None] | None = None
    ) -> None:
        """Limit the values of `who` in all files; then call `done`, unless the disk fails."""
        self._limits[who] = _Limit(recovery_point, offset, done)
        if self._withdrawal is None:
            self._withdrawal = self._begin(self._withdraw())

    def fit(self, logs: Mapping[TopicPartition, Held]) -> Work[None]:
        """Limit the values to what each log holds: a log that lost its end may grow past these offsets again, with
        other records that are not flushed."""
        every = iter(list(logs))
        while some := list(islice(every, STEP)):
            for who in some:
                log = logs.get(who)
                if log is not None and self.exceed(who, log.recovery_point, log.log_end_offset):
                    self.limit(who, log.recovery_point, log.log_end_offset)
            yield len(some) * 2

    async def _withdraw(self) -> bool:
        """Withdraw all waiting limits at once: a deleted topic may have thousands of partitions."""
        while self._limits and self._health.offline is None:
            async with self._turn:
                limits, self._limits = self._limits, {}
                is_done = await self._write_less(limits)
            if is_done:
                for limit in limits.values():
                    if limit.done is not None:
                        limit.done()
            else:
                self._limits = limits | self._limits
                await asyncio.sleep(OUT_OF_FILES_PAUSE_S)
        self._withdrawal = None
        return True

    async def _write_less(self, limits: dict[TopicPartition, _Limit]) -> bool:
        for name, said in list(self._said.items()):
            ours = {who: limit.of(name) for who, limit in limits.items()}
            less = {who: offset for who, offset in ours.items() if said.get(who, 0) > offset}
            if less:
                if not await self._replace(name, {**said, **less}):
                    return False
                self.note(name)  # if the log is not truncated after all, it holds more than the file says
        return True

    def _begin(self, work: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
        task = asyncio.get_running_loop().create_task(work, name=duty("checkpoints"))
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[bool]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            self._health.fail(f"checkpoints stopped: {task.exception()!r}")

    async def idle(self) -> None:
        """Return when nothing is being written any more."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))
