"""Reads that would wait for the device: detected on the event loop, done in a few threads, then retried.

A reader that must not wait reads while `is_strict` is set. If the bytes are not in the page cache, the read raises
PagesMissing, with a `PageWait` to listen to: a thread reads the bytes, and the reader retries. Bytes that a thread has
read count as present for a moment, whatever the system reports, so that every reader makes progress even if pages are
evicted at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Protocol, Self, TypeVar

from common.ports import File

T = TypeVar("T")

THREADS_MAX = 4  # per log directory; further reads queue
BRING_IN_BYTES = 1 << 20  # read from one file at a time
STEP_BYTES = 256 << 10
TRUSTED_S = 1.0  # how long bytes read by a thread count as present
TRUSTED_MAX = 1_024
AGE_S = 30.0  # bytes written in the current or the previous period of this length are in memory


class Work(Protocol):
    """A read for a thread."""

    @property
    def key(self) -> Hashable:
        """Equal keys share one wait."""
        ...

    def run(self) -> None:
        """In a thread. Raises OSError, or ValueError for damaged bytes."""
        ...

    def finish(self) -> None:
        """On the loop, whether or not `run` has failed."""
        ...


class Listener(Protocol):
    """As in `tiering.reading.downloads`."""

    def download_settled(self) -> None: ...


class PageWait:
    """One read that is queued or in progress, with its waiters. It never fails: the retry meets the disk's error, if
    any."""

    __slots__ = ("_callbacks", "work")

    failure = None

    def __init__(self, work: Work) -> None:
        self.work = work
        self._callbacks: dict[object, Callable[[], None]] = {}

    def listen(self, listener: Listener) -> None:
        """Call `listener` once, when the read is done."""
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
        """Return when the read is done."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call(done, lambda: None if done.done() else done.set_result(None))
        try:
            await done
        finally:
            self.unlisten(done)


class PagesMissing(Exception):
    """The requested bytes are not in memory. Retry when `wait` is done."""

    def __init__(self, wait: PageWait) -> None:
        super().__init__("not in memory")
        self.wait = wait


class Pinned(Protocol):
    """Keeps a file open."""

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
    """One per log directory; calls on the loop. Reads within `with cold.only_in_memory():` raise PagesMissing instead
    of waiting."""

    __slots__ = ("_age_due_s", "_running", "_tasks", "_trusted", "_waits", "age", "count", "is_strict", "queue")

    def __init__(self) -> None:
        self.is_strict = False
        self.age = 0  # grows every AGE_S
        self.count = 0  # reads done by threads
        self.queue: deque[PageWait] = deque()  # bounded by the fetches and look-ups in progress
        self._waits: dict[Hashable, PageWait] = {}
        self._running = 0
        self._age_due_s = 0.0
        # key of a read -> until when its bytes count as present
        self._trusted: OrderedDict[Hashable, float] = OrderedDict()
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
        """Called now and then; `now_s` by the monotonic clock."""
        if now_s >= self._age_due_s:
            self._age_due_s = now_s + AGE_S
            self.age += 1

    def pread_trusted(self, file: File, pin: Pinned, path: str, size: int, position: int) -> bytes:
        """Bytes that the system does not report as present. PagesMissing unless they are trusted."""
        have = file.in_memory(size, position)
        if have < size:
            wait = self.wait_for(file, pin, path, position + have)
            if wait is not None:
                raise PagesMissing(wait)
        return file.pread(size, position)

    def wait_for(self, file: File, pin: Pinned, path: str, position: int) -> PageWait | None:
        """Start reading the missing bytes from `position` on; None if they were read just now."""
        key = (path, position)
        if self.trusts(key):
            return None
        return self._waits.get(key) or self.begin(_BytesOfFile(key, file, pin, position, BRING_IN_BYTES))

    def trusts(self, key: Hashable) -> bool:
        """Whether the read with that key was done just now, so that repeating it would not help."""
        until = self._trusted.get(key)
        return until is not None and until >= asyncio.get_running_loop().time()

    def begin(self, work: Work) -> PageWait:
        """Queue `work`, or join the wait for an equal one."""
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
                    pass  # the retry meets the error
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
        """Call `ask`, which only reads from memory, repeatedly until nothing is missing. Returns its result."""
        while True:
            try:
                with self.only_in_memory():
                    return ask()
            except PagesMissing as missing:
                wait = missing.wait
            await wait.settled()

    async def idle(self) -> None:
        """Return when no read is in progress."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))
