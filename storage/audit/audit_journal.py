"""A broker's audit journal: the audit trail of its logs, and the events that are shipped to `__audit`.

The loop collects announced acts; one task at a time has a thread write and fsync them in groups, so that acts of the
same turn, or during the same fsync, share the next one. Nothing runs while nothing is announced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from common.errors import ErrorCode, ProtocolError
from common.lifecycle import duty
from common.ports import Clock
from records.audit_event import AuditKind
from storage.audit.audit_trail import Act
from storage.audit.journal_writer import Announced, JournalWriter
from storage.disk.directory_health import OUT_OF_FILES_PAUSE_S

JOURNAL_DIRECTORY = "audit-journal"
OUTSTANDING_MAX = 100_000  # announced acts that are not done yet; above it the oldest must be announced again

_log = logging.getLogger("audit")

T = TypeVar("T")
Place = tuple[str, str, int]


class _Outstanding:
    __slots__ = ("act", "is_durable")

    def __init__(self, act: Act) -> None:
        self.act = act
        self.is_durable = False

    def written(self) -> None:
        self.is_durable = True


class AuditJournal:
    """An `AuditTrail`. `passes(what, error)` returns whether a failed disk operation may be retried; if not, it has
    reported the failure, and every act is rejected from then on."""

    def __init__(
        self,
        writer: JournalWriter,
        clock: Clock,
        passes: Callable[[str, OSError], bool] = lambda what, error: False,
    ) -> None:
        self._passes = passes
        self.events = 0  # written by this process
        self._writer = writer
        self._clock = clock
        self._outstanding: dict[Place, list[_Outstanding]] = {}
        self._outstanding_count = 0
        self._queue: list[tuple[Announced, _Outstanding]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._failed: str | None = None
        self._reported_lost = 0
        self._on_written: Callable[[], None] | None = None  # called when there is more to ship

    @property
    def lost(self) -> int:
        """Events that were dropped unshipped because the journal was full."""
        return self._writer.lost

    @property
    def size_bytes(self) -> int:
        return self._writer.size_bytes

    def watch(self, on_written: Callable[[], None]) -> None:
        """Call `on_written`, on the loop, whenever there is more to `take`."""
        self._on_written = on_written

    def unwatch(self) -> None:
        self._on_written = None

    # the trail ---------------------------------------------------------------------------------------------

    def note(self, event: str, /, **fields: object) -> None:
        _log.warning(event, extra={"audit": event} | fields)

    def announce(self, act: Act) -> None:
        self._find(act)

    def permits(self, act: Act) -> bool:
        """Raises ProtocolError(KAFKA_STORAGE_ERROR) if the journal can no longer be written."""
        if not self._find(act).is_durable:
            return False
        self._forget(_place(act))  # other acts there were decided on the state that this one changes
        fields = {name: value for name, value in act._asdict().items() if name != "event" and value not in ("", -1)}
        fields["topic_id"] = act.topic_id.hex()
        _log.warning(str(act.event), extra={"audit": str(act.event)} | fields)
        return True

    def _find(self, act: Act) -> _Outstanding:
        if self._failed is not None:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, self._failed)
        waiting = self._outstanding.setdefault(_place(act), [])
        found = next((one for one in waiting if one.act == act), None)
        if found is None:
            found = _Outstanding(act)
            waiting.append(found)
            self._outstanding_count += 1
            if self._outstanding_count > OUTSTANDING_MAX:
                self._forget(next(iter(self._outstanding)))
            self._queue.append((Announced(act, self._clock.wall_ms()), found))
            self._begin()
        return found

    def _forget(self, place: Place) -> None:
        self._outstanding_count -= len(self._outstanding.pop(place))

    def when_durable(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        self._begin()

    # writing -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write(), name=duty("audit-journal"))

    async def _write(self) -> None:
        try:
            while self._queue or self._callbacks:
                group, self._queue = self._queue, []
                callbacks, self._callbacks = self._callbacks, []
                if group and self._failed is None:
                    await self._write_group(group)
                for callback in callbacks:
                    callback()
        finally:
            self._task = None

    async def _write_group(self, group: list[tuple[Announced, _Outstanding]]) -> None:
        announced = [one for one, _ in group]
        try:
            await self._in_thread(lambda: self._writer.write(announced))
        except OSError as error:
            self._failed = f"the audit journal failed: {error}"
            return
        self.events += len(group)
        if self._writer.lost > self._reported_lost:
            self._reported_lost = self._writer.lost
            self.announce(
                Act(AuditKind.EVENTS_LOST, cause="the journal was full", after={"events": self._reported_lost})
            )
        for _, outstanding in group:
            outstanding.written()
        if self._on_written is not None:
            self._on_written()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run one at a time to its end. Raises OSError for a permanent failure."""
        async with self._turn:
            while True:
                try:
                    return await _uncancelled(asyncio.to_thread(work))
                except OSError as error:
                    if not self._passes("write the audit journal", error):
                        raise
                await asyncio.sleep(OUT_OF_FILES_PAUSE_S)

    # shipping ----------------------------------------------------------------------------------------------

    async def incarnation(self) -> str:
        """The id of this journal among all of this node. Raises OSError, as the next two methods."""
        await self._in_thread(self._writer.open)
        return self._writer.incarnation

    async def take(self, from_sequence: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Durable events from that sequence on, as `JournalWriter.take`."""
        return await self._in_thread(lambda: self._writer.take(from_sequence, bytes_max))

    async def release(self, before_sequence: int) -> None:
        """Events below that sequence are shipped."""
        await self._in_thread(lambda: self._writer.release(before_sequence))

    async def close(self) -> None:
        """Close after waiting events are written."""
        while self._task is not None:
            await asyncio.wait((self._task,))
        async with self._turn:
            self._writer.close()


def _place(act: Act) -> Place:
    """The object of an act: different acts on it wait beside each other."""
    return (act.event, act.topic, act.partition)


async def _uncancelled(work: Awaitable[T]) -> T:
    """A thread cannot be cancelled, so its waiter is cancelled only when the thread has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
