"""Reads that would wait for the device: noticed on the event loop, made in a few threads, then asked for again.

A reader that must not wait reads while `is_strict` is set. What the page cache does not hold is then raised as
PagesMissing, with a `PageWait` to listen to: a thread brings the bytes into memory, and the reader asks again. What was
brought in counts as there for a moment, whatever the system says of it, so that every reader gets on even while the
pages are evicted as fast as they come.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Protocol, Self, TypeVar

from common.ports import File

T = TypeVar("T")

THREADS_MAX = 4  # at a time, for one log directory: the others wait in turn
BRING_IN_BYTES = 1 << 20  # of one file at a time
STEP_BYTES = 256 << 10
TRUSTED_S = 1.0  # how long what was brought in counts as there
TRUSTED_MAX = 1_024
AGE_S = 30.0  # what was written during this age or the one before is in memory


class Work(Protocol):
    """What has to be read."""

    @property
    def key(self) -> Hashable:
        """Who asks for the same waits for the same."""
        ...

    def run(self) -> None:
        """In a thread. Raises OSError, or ValueError for damaged bytes."""
        ...

    def finish(self) -> None:
        """On the loop, whether or not `run` has failed."""
        ...


class Listener(Protocol):
    """As of `tiering.reading.downloads`."""

    def download_settled(self) -> None: ...


class PageWait:
    """One piece of work that is queued or under way, for its waiters. It never fails: a retry meets the disk's error,
    if there is one."""

    __slots__ = ("_callbacks", "work")

    failure = None

    def __init__(self, work: Work) -> None:
        self.work = work
        self._callbacks: dict[object, Callable[[], None]] = {}

    def listen(self, listener: Listener) -> None:
        """Have `listener` called once, when it is settled."""
        self._callbacks[listener] = listener.download_settled

    def call(self, owner: object, callback: Callable[[], None]) -> None:
        """As `listen`; `owner` may `unlisten`."""
        self._callbacks[owner] = callback

    def unlisten(self, owner: object) -> None:
        self._callbacks.pop(owner, None)

    def settle(self) -> None:
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback()

    async def settled(self) -> None:
        """Return when it is."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call(done, lambda: None if done.done() else done.set_result(None))
        try:
            await done
        finally:
            self.unlisten(done)


class PagesMissing(Exception):
    """What was asked for is not in memory. Ask again when `wait` is settled."""

    def __init__(self, wait: PageWait) -> None:
        super().__init__("not in memory")
        self.wait = wait


class Pinned(Protocol):
    """What keeps a file open."""

    def pin(self) -> None: ...

    def unpin(self) -> None: ...


class _BytesOfFile:
    """A range of an open file."""

    __slots__ = ("_file", "_pin", "_position", "_size", "key")

    def __init__(self, key: Hashable, file: File, pin: Pinned, position: int, size: int) -> None:
        self.key = key
        self._file, self._pin = file, pin
        self._position, self._size = position, size
        pin.pin()

    def run(self) -> None:
        scratch = memoryview(bytearray(min(self._size, STEP_BYTES)))
        at, end = self._position, self._position + self._size
        while at < end:
            count = self._file.pread_into(scratch[: end - at], at)
            if not count:
                return
            at += count

    def finish(self) -> None:
        self._pin.unpin()


class ColdReads:
    """One per log directory; calls on the loop. `with cold.only_in_memory():` makes the reads within raise PagesMissing
    instead of waiting."""

    __slots__ = ("_age_due_s", "_running", "_tasks", "_trusted", "_waits", "age", "count", "is_strict", "queue")

    def __init__(self) -> None:
        self.is_strict = False
        self.age = 0  # grows each AGE_S
        self.count = 0  # pieces of work that threads have done
        self.queue: deque[PageWait] = deque()  # bounded by the fetches and look-ups under way
        self._waits: dict[Hashable, PageWait] = {}
        self._running = 0
        self._age_due_s = 0.0
        self._trusted: OrderedDict[Hashable, float] = OrderedDict()  # what was brought in -> until when it counts
        self._tasks: dict[asyncio.Task[None], None] = {}

    def only_in_memory(self, *, is_strict: bool = True) -> Self:
        """As a context manager: whether the reads within must not wait for the device."""
        self.is_strict = is_strict
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.is_strict = False

    def grow_older(self, now_s: float) -> None:
        """Once in a while: `now_s` by the monotonic clock."""
        if now_s >= self._age_due_s:
            self._age_due_s = now_s + AGE_S
            self.age += 1

    def pread_trusted(self, file: File, pin: Pinned, path: str, size: int, position: int) -> bytes:
        """Bytes of which the system does not say that they are there. PagesMissing unless they are trusted to be."""
        have = file.in_memory(size, position)
        if have < size:
            wait = self.wait_for(file, pin, path, position + have)
            if wait is not None:
                raise PagesMissing(wait)
        return file.pread(size, position)

    def wait_for(self, file: File, pin: Pinned, path: str, position: int) -> PageWait | None:
        """Have the bytes from `position` on, which are not in memory, brought in; None when they were just now."""
        key = (path, position)
        if self.trusts(key):
            return None
        return self._waits.get(key) or self.begin(_BytesOfFile(key, file, pin, position, BRING_IN_BYTES))

    def trusts(self, key: Hashable) -> bool:
        """Whether the work of that key was done just now: to ask for it again would not help."""
        until = self._trusted.get(key)
        return until is not None and until >= asyncio.get_running_loop().time()

    def begin(self, work: Work) -> PageWait:
        """Queue `work`, or join who waits for the same."""
        wait = self._waits.get(work.key)
        if wait is None:
            wait = self._waits[work.key] = PageWait(work)
            self.queue.append(wait)
            if self._running < THREADS_MAX:
                self._running += 1
                task = asyncio.get_running_loop().create_task(self._run(), name="cold-reads")
                self._tasks[task] = None
                task.add_done_callback(self._tasks.pop)
        return wait

    async def _run(self) -> None:
        try:
            while self.queue:
                wait = self.queue.popleft()
                try:
                    await asyncio.to_thread(wait.work.run)
                except (OSError, ValueError):
                    pass  # a retry meets it
                finally:
                    self._settle(wait)
        finally:
            self._running -= 1

    def _settle(self, wait: PageWait) -> None:
        self.count += 1
        key = wait.work.key
        self._trusted[key] = asyncio.get_running_loop().time() + TRUSTED_S
        self._trusted.move_to_end(key)
        if len(self._trusted) > TRUSTED_MAX:
            self._trusted.popitem(last=False)
        del self._waits[key]
        wait.work.finish()
        wait.settle()

    async def when_there(self, ask: Callable[[], T]) -> T:
        """What `ask` returns, which only reads what is in memory: it is asked again until nothing is missing."""
        while True:
            try:
                with self.only_in_memory():
                    return ask()
            except PagesMissing as missing:
                wait = missing.wait
            await wait.settled()

    async def idle(self) -> None:
        """Return when nothing is read any more."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))
