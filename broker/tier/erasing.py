"""Erasure on the local disk: deletes segments with records that were erased from the tier by key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker.partitions.partition import Partition
from common.errors import ProtocolError
from common.lifecycle import end_tasks
from common.ports import Clock
from storage.audit.audit_trail import audited

logger = logging.getLogger(__name__)


class LocalErasure:
    """One per broker with a tier. Called on the loop. Each replica has at most one task, which ends by itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        self._forgotten: dict[Partition, int] = {}  # offset below which cached reads were dropped
        self._stopped = False
        self.forget_read: Callable[[], Awaitable[None]] = _nothing_read

    def forget_through(self, forget_read: Callable[[], Awaitable[None]]) -> None:
        """`forget_read` drops cached reads from the tier, which may contain records erased since."""
        self.forget_read = forget_read

    def begin(self, partition: Partition) -> None:
        """Delete what the tier allows. Records that are not in the tier stay: call it again when the tier's end
        advances."""
        running = self._tasks.get(partition)
        if self._stopped or (running is not None and not running.done()):
            return
        task = asyncio.get_running_loop().create_task(self._drop(partition), name="tier-drop-erased")
        self._tasks[partition] = task

        def ended(task: asyncio.Task[None]) -> None:
            if self._tasks.get(partition) is task:
                del self._tasks[partition]
            error = None if task.cancelled() else task.exception()
            # a disk failure, which the log directory reports
            if error is not None and not isinstance(error, ProtocolError):
                logger.error("erased records stay on the disk", exc_info=error, extra={"partition": repr(partition)})

        task.add_done_callback(ended)

    def removed(self, partition: Partition) -> None:
        """The replica is no longer hosted here."""
        self._forgotten.pop(partition, None)
        task = self._tasks.get(partition)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        self._stopped = True
        await end_tasks(self._tasks.values())

    async def _drop(self, partition: Partition) -> None:
        if partition.erased_end_offset > self._forgotten.get(partition, 0):
            self._forgotten[partition] = partition.erased_end_offset
            await self.forget_read()
        log = partition.log

        def drop() -> int:
            return 0 if log.closed else partition.drop_erased(self._clock.wall_ms())

        while True:
            flushed = log.recovery_point
            if not await audited(drop) and await log.flush_closed() <= flushed and not await audited(drop):
                return  # no await since the last check, so a later request starts a new task
            await asyncio.sleep(0)


async def _nothing_read() -> None:
    """For a broker that does not read the tier."""
