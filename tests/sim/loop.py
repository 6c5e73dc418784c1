"""Virtual time for asyncio: one `Scheduler` for the whole world, one `SimLoop` per life of a node.

A node has a loop of its own, so the running loop says whose code runs, `loop.time()` carries that node's clock
error, a pause or a blocking call holds one loop, and death is one flag. The scheduler owns time (whole nanoseconds)
and the heap of events. A loop wakes up as a real one does: it collects due timers and ready sockets, then runs the
callbacks that are ready at that moment; each costs a little virtual CPU time, so that work piles up and is batched.

Invariants: time never goes back; a timer never fires early; nothing here reads a real clock, starts a thread or opens
a file; every choice comes from the seed. Nothing of a dead loop runs again: its tasks are kept, neither cancelled
nor freed, because freeing a suspended coroutine would run its `finally` blocks at the collector's whim.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import random
import weakref
import zlib
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol, cast

from tests.sim.file_races import FileRaces

NS = 1_000_000_000
MS = NS // 1000
_set_running_loop = events._set_running_loop
THREAD_COUNT = 8
THREAD_LATENCY_NS = (20_000, 400_000)
CALLBACKS_PER_SECOND_MAX = 50_000  # more of one loop in one virtual second is a busy loop
CALLBACK_COST_NS = (2_000, 15_000)


class SimulationFailure(Exception):
    """The run is wrong: the seed that led here is the bug report."""


class Deadlock(SimulationFailure): ...


class Livelock(SimulationFailure): ...


class LeakedTasks(SimulationFailure): ...


class FilesRaced(SimulationFailure): ...


class UnhandledException(SimulationFailure): ...


class NodeDead(BaseException):
    """A port was used after its node died. Not an Exception: cleanup code must not swallow it."""


class Pollable(Protocol):
    def poll(self) -> bool:
        """Queue the callbacks that are due; False when nothing is ready any more."""
        ...


class SimTask(asyncio.Task[Any]):
    """A task that hashes by its number: sets of tasks (TaskGroup, wait, all_tasks) iterate alike in every process."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, number: int, **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[Any]):
    def __init__(self, *, number: int, loop: SimLoop) -> None:
        self.number = number
        super().__init__(loop=cast(asyncio.AbstractEventLoop, loop))

    def __hash__(self) -> int:
        return self.number


class Scheduler:
    """Time and the heap of what happens next: packets, faults, wake-ups of loops."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(f"{seed}/scheduler")
        self.now_ns = 0
        self.steps = 0
        self.in_thread: SimLoop | None = None  # whose simulated thread is running
        self.failure: BaseException | None = None
        self.on_step: Callable[[SimLoop], None] | None = None
        self.runs: Callable[[SimLoop, asyncio.Handle], None] | None = None  # in place of `run_callback`, to count
        self.graveyard: list[Any] = []  # what dead nodes left; freed at the end
        self.crc = 0
        self._events: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = 0

    def number(self) -> int:
        self._sequence += 1
        return self._sequence

    def at(self, when_ns: int, callback: Callable[..., object], *args: Any) -> None:
        """An event of the world; it belongs to no node and runs outside of any loop."""
        self._sequence = sequence = self._sequence + 1
        now_ns = self.now_ns
        heappush(self._events, (when_ns if when_ns > now_ns else now_ns, sequence, callback, args))

    def after(self, delay_ns: int, callback: Callable[..., object], *args: Any) -> None:
        self.at(self.now_ns + delay_ns, callback, *args)

    def run(self, until_ns: int, done: Callable[[], bool] | None = None) -> None:
        """Run what is due up to `until_ns`, or until `done`; raises the run's first failure."""
        heap = self._events
        try:
            while heap and heap[0][0] <= until_ns and (done is None or not done()):
                self.now_ns, _, callback, args = heappop(heap)
                callback(*args)
                if self.failure is not None:
                    raise self.failure
        finally:
            events._set_running_loop(None)
        if done is None:
            self.now_ns = max(self.now_ns, until_ns)

    def mark(self, text: bytes) -> None:
        self.crc = zlib.crc32(text, self.crc)

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error

    def clear(self) -> None:
        self._events.clear()


if TYPE_CHECKING:

    class _LoopBase: ...

else:
    _LoopBase = asyncio.AbstractEventLoop


class SimLoop(_LoopBase):
    """What asyncio needs of a loop and no more, and one life of a node: ports hold it and ask whether it is alive.

    Sockets, signals and subprocesses are not implemented and say so, which is how a forbidden call is found.
    """

    def __init__(self, scheduler: Scheduler, name: str = "main", rng: random.Random | None = None) -> None:
        self.scheduler = scheduler
        self.name = name
        self.random = rng or random.Random(f"{name}/loop")
        self.dead = False
        self.clock_error_ns = 0
        self.threads_held = False  # a stuck device: no thread gets on
        self.device_ns = 0  # what the running thread waits for its device
        self.file_races = FileRaces()
        self.tasks: weakref.WeakSet[SimTask] = weakref.WeakSet()
        self.context = contextvars.Context()  # ports deliver in it: no leak from the sender's
        self.exceptions: Callable[[SimLoop, str, BaseException | None], None] = self._fail_run
        self.hot: dict[Pollable, None] = {}  # sockets that may be ready
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._wake_ns = -1
        self._busy_until_ns = 0
        self._elapsed_ns = 0  # virtual CPU time and blocking of the current wake-up
        self._paused = False
        self._held_calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._threads = [0] * THREAD_COUNT  # when each becomes free
        self._task_count = 0
        self._cost_ns = self.random.randint(*CALLBACK_COST_NS)
        self._second_ends_ns = 0
        self._ran = 0  # callbacks in that second

    # -- time

    def now_ns(self) -> int:
        """True time where this node's code stands now."""
        return self.scheduler.now_ns + self._elapsed_ns

    def time(self) -> float:
        return (self.scheduler.now_ns + self._elapsed_ns + self.clock_error_ns) / NS

    def stall(self, delay_ns: int) -> None:
        """A call that blocks: on the loop it holds up the node, in a thread that thread."""
        if self.scheduler.in_thread is self:
            self.device_ns += delay_ns
        else:
            self._elapsed_ns += delay_ns

    def check_alive(self) -> None:
        if self.dead:
            raise NodeDead(self.name)

    # -- what asyncio and ports schedule

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)  # type: ignore[arg-type]
        if not self.dead:
            self._ready.append(handle)
            if self._wake_ns < 0 or self._wake_ns > self.scheduler.now_ns:  # not within a wake-up
                self._wake(self.scheduler.now_ns)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)  # type: ignore[arg-type]
        if not self.dead:
            local_ns = int(when * NS)
            while local_ns / NS < when:  # never early: a float's last bit would make a busy loop
                local_ns += 1
            when_ns = local_ns - self.clock_error_ns
            heappush(self._timers, (when_ns, self.scheduler.number(), handle))
            self._wake(when_ns)
        return handle

    def deliver(self, callback: Callable[..., object], *args: Any) -> None:
        """For ports: an outside event enters the node, in the node's own context."""
        self.call_soon(callback, *args, context=self.context)

    def make_hot(self, source: Pollable) -> None:
        if not self.dead:
            self.hot[source] = None
            self._wake(self.scheduler.now_ns)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...  # the heap drops it in its time

    def _wake(self, when_ns: int) -> None:
        when_ns = max(when_ns, self._busy_until_ns, self.scheduler.now_ns)
        if (self._wake_ns < 0 or when_ns < self._wake_ns) and not self._paused:
            self._wake_ns = when_ns
            self.scheduler.at(when_ns, self._run_once, when_ns)

    # -- running

    def _run_once(self, when_ns: int) -> None:
        if when_ns != self._wake_ns or self.dead or self._paused:
            return  # another wake-up took its place
        scheduler, ready, timers = self.scheduler, self._ready, self._timers
        self._elapsed_ns = 1_000  # a wake-up is never free, or an idle one could repeat for ever at one instant
        while timers and (timers[0][0] <= when_ns or timers[0][2]._cancelled):
            ready.append(heappop(timers)[2])
        if self.hot:
            for source in list(self.hot):
                if not source.poll():
                    del self.hot[source]
        count = len(ready)
        scheduler.mark(f"{when_ns} {self.name} {count}".encode())
        _set_running_loop(self)  # type: ignore[arg-type]
        self._run_ready(count)
        _set_running_loop(None)
        self._busy_until_ns = scheduler.now_ns + self._elapsed_ns
        self._elapsed_ns = 0
        self._wake_ns = -1
        if ready or self.hot:
            self._wake(self._busy_until_ns)
        elif timers:
            self._wake(timers[0][0])

    def _run_ready(self, count: int) -> None:
        scheduler, ready, cost_ns, on_step = self.scheduler, self._ready, self._cost_ns, self.scheduler.on_step
        runs = scheduler.runs
        if scheduler.now_ns >= self._second_ends_ns:
            self._ran, self._second_ends_ns = 0, scheduler.now_ns // NS * NS + NS
        self._ran += count
        if self._ran > CALLBACKS_PER_SECOND_MAX:
            raise self._livelock()
        for _ in range(count):
            handle: Any = ready.popleft()
            if handle._cancelled:
                continue
            scheduler.steps += 1
            before_ns = self._elapsed_ns
            try:
                if runs is None:
                    handle._context.run(handle._callback, *handle._args)
                else:
                    runs(self, handle)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": label(handle), "exception": error})
            self._elapsed_ns += cost_ns
            if on_step is not None:
                on_step(self)
            if self.dead or scheduler.failure is not None or self._elapsed_ns - before_ns > MS:
                return

    def _livelock(self) -> Livelock:
        waiting = [label(handle) for handle in self._ready][:5]
        return Livelock(f"{self.name} ran {self._ran} callbacks in a second; ready: {waiting}")

    def poll_callback(self, callback: Callable[[], object]) -> None:
        """For sockets, from `poll`: runs within this wake-up."""
        self._ready.append(asyncio.Handle(callback, (), self, self.context))  # type: ignore[arg-type]

    # -- stopping, pausing, dying

    def pause(self) -> None:
        """SIGSTOP: nothing runs, threads included, until `resume`."""
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._wake_ns = -1
            self._wake(self.scheduler.now_ns)
            self.release_threads()

    def release_threads(self) -> None:
        if not self._paused and not self.threads_held:
            held, self._held_calls = self._held_calls, []
            for callback, args in held:
                self.scheduler.at(self.scheduler.now_ns, callback, *args)

    def held_work(self) -> list[tuple[str, int, int]]:
        """What threads have begun and cannot go on with, while the device is stuck or the node stopped: its name, the
        thread and when it began."""
        held = [args for _, args in self._held_calls]
        return [(work_name(func, args), thread, begin_ns) for _, thread, begin_ns, func, args in held]

    def kill(self) -> None:
        self.dead = True
        self.check_exceptions()
        for task in sorted(self.tasks, key=lambda task: task.number):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            self.scheduler.graveyard.append(task)
        self.scheduler.graveyard.append((self._ready, self._timers, self._held_calls, self.hot))

    # -- tasks, futures, threads

    def create_future(self) -> SimFuture:
        return SimFuture(number=self.scheduler.number(), loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None) -> SimTask:
        self.check_alive()
        self._task_count += 1  # asyncio's own "Task-N" counts per process
        name = name or f"{self.name}-{self._task_count}"
        task = SimTask(coro, number=self.scheduler.number(), loop=self, context=context, name=name)
        self.tasks.add(task)
        return task

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> SimFuture:
        """The function takes effect at one moment, its result arrives at a later one; in between the node may die."""
        future = self.create_future()
        thread = min(range(THREAD_COUNT), key=self._threads.__getitem__)
        begin_ns = max(self.now_ns(), self._threads[thread])
        effect_ns = begin_ns + self.random.randint(*THREAD_LATENCY_NS)
        self._threads[thread] = effect_ns
        self.scheduler.at(effect_ns, self._take_effect, future, thread, begin_ns, func, args)
        return future

    def _take_effect(
        self, future: SimFuture, thread: int, begin_ns: int, func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        scheduler = self.scheduler
        if self.dead:
            scheduler.graveyard.append((future, func, args))
            return
        if self._paused or self.threads_held:
            self._held_calls.append((self._take_effect, (future, thread, begin_ns, func, args)))
            return
        scheduler.in_thread = self
        self.file_races.thread_begins(work_name(func, args), begin_ns)
        self.device_ns = 0
        outcome, error = None, None
        try:
            outcome = contextvars.Context().run(func, *args)
        except BaseException as caught:
            error = caught
        finally:
            scheduler.in_thread = None
        end_ns = scheduler.now_ns + self.device_ns + self.random.randint(*THREAD_LATENCY_NS)
        self.file_races.thread_ends(end_ns)
        self._threads[thread] = end_ns
        scheduler.at(end_ns, self.deliver, finish, future, outcome, error)

    async def shutdown_default_executor(self) -> None: ...

    # -- failure

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (self.dead and isinstance(error, NodeDead)):
            self.exceptions(self, str(context.get("message")), error)

    def _fail_run(self, loop: SimLoop, message: str, error: BaseException | None) -> None:
        failure = UnhandledException(f"{self.name}: {message}: {error!r}")
        failure.__cause__ = error
        self.scheduler.fail(failure)

    def pending_tasks(self) -> list[SimTask]:
        return sorted((task for task in self.tasks if not task.done()), key=lambda task: task.number)

    def check_exceptions(self) -> None:
        """Report failed tasks at which nobody looked; asyncio tells only when they are freed, perhaps never."""
        for task in sorted(self.tasks, key=lambda task: task.number):
            if task.done() and task._log_traceback:
                self.call_exception_handler({"message": task.get_name(), "exception": task.exception()})

    def is_running(self) -> bool:
        return events._get_running_loop() is cast(asyncio.AbstractEventLoop, self)

    def is_closed(self) -> bool:
        return self.dead

    def get_debug(self) -> bool:
        return False


def run_callback(loop: SimLoop, handle: asyncio.Handle) -> None:
    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]


def finish(future: SimFuture, outcome: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)


def work_name(func: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Of what a thread is given, also where `asyncio.to_thread` wraps it: partial(context.run, func, …)."""
    given: Any = func
    while isinstance(given, functools.partial):
        given, args = given.func, given.args + args
    if args and isinstance(getattr(given, "__self__", None), contextvars.Context):
        return work_name(args[0], args[1:])
    return str(getattr(given, "__qualname__", type(given).__qualname__))


def label(handle: asyncio.Handle) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {owner.get_name()}"
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def describe(task: SimTask) -> str:
    frames = task.get_stack(limit=1)
    where = f" at {frames[0].f_code.co_name}:{frames[0].f_lineno}" if frames else ""
    return task.get_name() + where


def run(main: Coroutine[Any, Any, Any], seed: int | str = 0) -> Any:
    """Run one coroutine to its end in virtual time; for tests of a single component."""
    scheduler = Scheduler(seed)
    loop = SimLoop(scheduler)
    task = loop.create_task(main)
    scheduler.run(1 << 62, task.done)
    if not task.done():
        raise Deadlock(f"nothing is due; waiting: {', '.join(describe(task) for task in loop.pending_tasks())}")
    result = task.result()
    loop.check_exceptions()
    if scheduler.failure is not None:
        raise scheduler.failure
    if leaked := loop.pending_tasks():
        raise LeakedTasks(", ".join(describe(task) for task in leaked))
    return result
