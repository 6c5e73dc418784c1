"""A private event loop in its own thread, for a client library whose work must not hold up the node's loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import uvloop

from common.outlasting import outlast

T = TypeVar("T")
JOIN_TIMEOUT_S = 10.0


class OffLoopStopped(Exception):
    """The private loop ended before the call did, or had ended already."""


class OffLoop:
    """Started by the first call. Several event loops and plain threads may call at once.

    Its thread ends with `stop`, or once the object is garbage, as a store that a cache dropped.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def runs(self) -> bool:
        """Whether its thread lives: not before the first call, nor in a process forked later."""
        return self._thread is not None and self._thread.is_alive()

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine that `make` returns on the private loop.

        Cancelling the caller cancels the coroutine, and this returns only after it has ended. Its exceptions lose their
        traceback, which would hold the bodies of requests. Raises OffLoopStopped.
        """
        private = self._started()
        caller = asyncio.get_running_loop()
        if caller is private:
            return await make()
        ended: asyncio.Future[T] = caller.create_future()
        crossing = _Crossing(make, ended, caller, private)
        crossing.hand_over(crossing.begin)
        return await outlast(ended, lambda: crossing.hand_over(crossing.cancel))

    def wait(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `run`, blocking a plain thread."""
        future = self.begin(make)
        try:
            return future.result()
        except CancelledError:
            raise OffLoopStopped from None
        except BaseException:
            future.cancel()  # the thread was interrupted
            raise

    def begin(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """As `run`, returning a future. Its CancelledError means OffLoopStopped."""
        private = self._started()
        try:
            return asyncio.run_coroutine_threadsafe(make(), private)
        except RuntimeError:
            raise OffLoopStopped from None

    def stop(self) -> None:
        """Cancel running calls and end the thread. Blocks. Idempotent. Not to be called on the private loop."""
        with self._lock:
            self._stopped = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(loop.stop)
            thread.join(JOIN_TIMEOUT_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._stopped:
                raise OffLoopStopped
            if self._loop is None:
                self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(target=self._main, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
                weakref.finalize(self, _end, self._loop, self._thread).atexit = False
            return self._loop

    @staticmethod
    def _main(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if thread.is_alive():  # not in a process forked later, which shares the descriptor that wakes the loop
        with contextlib.suppress(RuntimeError):  # it has ended already
            loop.call_soon_threadsafe(loop.stop)


class _Crossing:
    """One call from the caller's loop to the private loop and back."""

    __slots__ = ("_caller", "_cancelled", "_ended", "_make", "_private", "_task")

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, Any]],
        ended: asyncio.Future[Any],
        caller: asyncio.AbstractEventLoop,
        private: asyncio.AbstractEventLoop,
    ) -> None:
        self._make = make
        self._ended = ended
        self._caller = caller
        self._private = private
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def hand_over(self, step: Callable[[], None]) -> None:
        try:
            self._private.call_soon_threadsafe(step)
        except RuntimeError:  # the private loop is closed, and with it all its tasks
            self._settle(None, OffLoopStopped())

    # on the private loop

    def begin(self) -> None:
        if self._cancelled:
            self._come_back(None, OffLoopStopped())
            return
        self._task = self._private.create_task(self._make())
        self._task.add_done_callback(self._over)

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._task = None  # it keeps the traceback
        if task.cancelled():
            self._come_back(None, OffLoopStopped())
        elif (error := task.exception()) is not None:
            error.__context__ = error.__cause__ = None
            self._come_back(None, error.with_traceback(None))
        else:
            self._come_back(task.result(), None)

    def _come_back(self, result: Any, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed
            self._caller.call_soon_threadsafe(self._settle, result, error)

    # on the caller's loop

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is not None:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(result)
