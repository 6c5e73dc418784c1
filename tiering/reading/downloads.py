"""Downloads from the tier for readers: one per item for any number of readers, bounded in number and memory, fair.

Each missing item has a key. Each reader (a client's connection, by number) has its own queue, and the queues take
turns, so that one reader's many requests do not delay another's. Items that readers wait for come before prefetched
ones. A download continues for the next reader when none waits any more. Its waiting readers read it before it can be
evicted; otherwise, with little room, readers of different items would evict each other's for ever. A failure is
remembered for a time that grows with each attempt, so that retrying readers do not load the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from common.backoff import Backoff
from common.errors import ErrorCode, ProtocolError
from common.lifecycle import end_tasks
from common.node_settings.tier import TierReads
from common.settings import same

logger = logging.getLogger(__name__)

RETRY = Backoff(0.5, 15.0)
FAILURES_MAX = 10_000
ROOM_POLL_S = 0.05  # interval of checks for room that waits for regions being sent

Key = tuple[str, int]
"""(uuid of a segment, number of its chunk; below zero for its indexes)."""


class Listener(Protocol):
    """A reader that waits for a download."""

    def download_settled(self) -> None:
        """Called when it succeeded or failed. The reader retries in the loop's next turn at the latest. Never
        raises."""
        ...


class Task(Protocol):
    """The work of a download. `size` bytes pass through memory."""

    @property
    def key(self) -> Key: ...

    @property
    def size(self) -> int: ...

    def admit(self) -> bool:
        """Whether there is room for the result; False to be asked again soon. Once True, `run` follows."""
        ...

    async def run(self, is_awaited: Callable[[], bool]) -> None:
        """Download and cache it, at low priority while no reader waits. Raises the ProtocolError for readers."""
        ...

    def release(self) -> None:
        """Called after `run`, when the waiting readers have retried; until then the result must stay. Never raises."""
        ...


@dataclass(slots=True, frozen=True)
class DownloadLimits:
    """`tidelog.tier.read.concurrency`, `tidelog.tier.read.memory.bytes`. One download may be larger than all memory.

    A download that failed is repeated after the pause of `retry`, whatever readers ask for meanwhile.
    """

    concurrency: int = same(TierReads, "tier_read_concurrency")
    memory_bytes: int = same(TierReads, "tier_read_memory_bytes")
    retry: Backoff = RETRY


class Failure(NamedTuple):
    error: ProtocolError
    attempts: int
    retry_at: float


class Ticket:
    """A download that is queued or under way, for its waiting readers.

    `failure` is the error of the previous attempt, for a reader that cannot wait for the end of this one.
    """

    __slots__ = ("_listeners", "ahead", "failure", "reader", "task")

    def __init__(self, task: Task, reader: int, ahead: bool, failure: ProtocolError | None) -> None:
        self.task = task
        self.failure = failure
        self.reader = reader
        self.ahead = ahead
        self._listeners: dict[Listener, None] = {}

    def listen(self, listener: Listener) -> None:
        """Call `listener` once, when it is settled."""
        self._listeners[listener] = None

    def want(self) -> None:
        """A reader waits for a prefetch."""
        self.ahead = False

    def move_to(self, reader: int) -> None:
        """A queued prefetch now belongs to the reader that waits for it."""
        self.ahead, self.reader = False, reader

    def unlisten(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    @property
    def listener_count(self) -> int:
        return len(self._listeners)

    def settle(self) -> None:
        listeners, self._listeners = self._listeners, {}
        for listener in listeners:
            listener.download_settled()


class _Lines:
    """Queues of tickets, one per reader, which take turns."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[Ticket]] = {}
        self.count = 0

    def add(self, ticket: Ticket) -> None:
        self._lines.setdefault(ticket.reader, deque()).append(ticket)
        self.count += 1

    def first(self) -> Ticket | None:
        for line in self._lines.values():
            return line[0]
        return None

    def take(self) -> None:
        """Remove the first ticket; its reader moves to the end."""
        reader, line = next(iter(self._lines.items()))
        line.popleft()
        self.count -= 1
        del self._lines[reader]
        if line:
            self._lines[reader] = line

    def remove(self, ticket: Ticket) -> None:
        line = self._lines[ticket.reader]
        line.remove(ticket)
        self.count -= 1
        if not line:
            del self._lines[ticket.reader]

    def of(self, reader: int) -> list[Ticket]:
        return list(self._lines.get(reader, ()))


class Downloads:
    """All calls on the event loop."""

    def __init__(self, limits: DownloadLimits) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._tickets: dict[Key, Ticket] = {}
        self._wanted = _Lines()
        self._ahead = _Lines()
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._held: deque[Task] = deque()  # done; their readers are about to retry
        self._failures: dict[Key, Failure] = {}
        self._poll: asyncio.TimerHandle | None = None
        self._stopped = False
        self.bytes_running = 0
        self.bytes_total = 0
        self.finished_total = 0
        self.failed_total = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        return self._wanted.count + self._ahead.count

    @property
    def awaited(self) -> int:
        """Reads that wait for a download."""
        return sum(ticket.listener_count for ticket in self._tickets.values())

    def want(
        self,
        key: Key,
        make: Callable[[], Task],
        reader: int,
        is_worth_it: Callable[[ProtocolError], bool] = lambda error: False,
    ) -> Ticket:
        """Queue a download for a reader that waits.

        Raises the ProtocolError of a failure that is too recent for a retry, unless a retry `is_worth_it`.
        """
        ticket = self._tickets.get(key)
        if ticket is None:
            failure = self._failures.get(key)
            if failure is not None and self._loop.time() < failure.retry_at and not is_worth_it(failure.error):
                raise ProtocolError(failure.error.code, failure.error.message)
            before = failure.error if failure is not None else None
            ticket = self._tickets[key] = Ticket(make(), reader, ahead=False, failure=before)
            self._wanted.add(ticket)
            self._pump()
        elif ticket.ahead and key not in self._running:
            self._ahead.remove(ticket)
            ticket.move_to(reader)
            self._wanted.add(ticket)
            self._pump()
        else:
            ticket.want()
        return ticket

    def want_ahead(self, key: Key, make: Callable[[], Task], reader: int) -> None:
        """Queue a prefetch. A failed download is retried only when a reader needs it."""
        failure = self._failures.get(key)
        if key in self._tickets or failure is not None:
            return
        ticket = self._tickets[key] = Ticket(make(), reader, ahead=True, failure=None)
        self._ahead.add(ticket)
        self._pump()

    def errors(self) -> list[ProtocolError]:
        """The errors of downloads whose last attempt failed, oldest first; at most FAILURES_MAX."""
        return [failure.error for failure in self._failures.values()]

    def forget_ahead(self, reader: int) -> None:
        """Drop the queued prefetches of a reader that jumped."""
        for ticket in self._ahead.of(reader):
            self._ahead.remove(ticket)
            del self._tickets[ticket.task.key]

    async def stop(self) -> None:
        """Cancel all downloads without calling listeners."""
        self._stopped = True
        if self._poll is not None:
            self._poll.cancel()
        await end_tasks(self._running.values())
        while self._held:
            self._held.popleft().release()

    def _pump(self) -> None:
        """Start downloads within the limits. The last place is kept for readers that wait."""
        places = self._limits.concurrency
        while not self._stopped and len(self._running) < places:
            lines, ticket = self._wanted, self._wanted.first()
            if ticket is None:
                lines, ticket = self._ahead, self._ahead.first()
                if ticket is None or len(self._running) >= max(places - 1, 1):
                    return
            if self._running and self.bytes_running + ticket.task.size > self._limits.memory_bytes:
                return
            if not ticket.task.admit():
                if self._poll is None:
                    self._poll = self._loop.call_later(ROOM_POLL_S, self._poll_room)
                return
            lines.take()
            self.bytes_running += ticket.task.size
            key = ticket.task.key
            self._running[key] = asyncio.create_task(self._run(ticket), name="tier-download")

    def _poll_room(self) -> None:
        self._poll = None
        self._pump()

    async def _run(self, ticket: Ticket) -> None:
        key, size = ticket.task.key, ticket.task.size
        try:
            await ticket.task.run(lambda: not ticket.ahead)
        except ProtocolError as error:
            self._remember(key, error)
        except Exception:
            logger.exception("download from the tier failed", extra={"segment": key[0], "chunk": key[1]})
            self._remember(key, ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR))
        else:
            self._failures.pop(key, None)
            self.finished_total += 1
            self.bytes_total += size
        finally:
            self.bytes_running -= size
            del self._running[key]
            del self._tickets[key]
        ticket.settle()
        self._held.append(ticket.task)
        self._loop.call_soon(self._let_go)  # after the listeners' scheduled retries
        self._pump()

    def _let_go(self) -> None:
        if self._held:
            self._held.popleft().release()
            self._pump()

    def _remember(self, key: Key, error: ProtocolError) -> None:
        self.failed_total += 1
        before = self._failures.pop(key, None)
        attempts = before.attempts + 1 if before is not None else 1
        error.with_traceback(None)  # its frames hold what was downloaded
        self._failures[key] = Failure(error, attempts, self._loop.time() + self._limits.retry.pause_s(attempts))
        if len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]
