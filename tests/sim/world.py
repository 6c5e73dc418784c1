"""The world: nodes, their lives and what outlives them. A node runs `async def main(ports)`.

kill       SIGKILL: every task, timer and connection is gone at once; no cleanup code runs; the page cache stays
power_off  the same, and the disk loses a random part of what was not synced; peers hear nothing
stop       SIGTERM: `main` is cancelled; a task left over fails the run
pause      SIGSTOP: connections stay up, nothing runs, timers fire late after `resume`
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import sys
import warnings
import zlib
from asyncio import events
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

from common.ports import Ports
from tests.sim.disk import Device, Keeps, SimDisk
from tests.sim.loop import NS, LeakedTasks, NodeDead, Scheduler, SimLoop, describe
from tests.sim.network import Fabric, SimNetwork
from tidelog.nodes.logs import KeyValueFormatter

Main = Callable[[Ports], Awaitable[None]]
WALL_START_MS = 1_700_000_000_000
CLOCK_ERROR_S_MAX = 1_000
RESTART_NS = NS // 2  # a supervisor starts a node that ended by itself


class SimClock:
    def __init__(self, node: Node, loop: SimLoop) -> None:
        self._node, self._loop = node, loop

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return WALL_START_MS + self._loop.now_ns() // 1_000_000 + self._node.wall_error_ms


class Node:
    def __init__(self, name: str, main: Main, device: Device, wall_error_ms: int) -> None:
        self.name, self.main, self.device, self.wall_error_ms = name, main, device, wall_error_ms
        self.loop: SimLoop | None = None
        self.main_task: asyncio.Task[None] | None = None
        self.life_count = 0
        self.down_until_started = False  # stopped on purpose: no supervisor brings it back
        self.paused = False
        self.program: Any = None  # for invariants to look into; set by main


class World:
    def __init__(self, seed: int | str, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.nodes: dict[str, Node] = {}
        self.trace_lines: list[str] | None = [] if keep_trace else None
        self.fabric = Fabric(self.scheduler, self.stream("network"), self.trace)
        self.on_death: Callable[[str, bool], None] | None = None  # name, and whether power was lost
        self.tolerates: Callable[[str, BaseException], bool] = lambda name, error: False
        self.crash_count = 0
        self._watchers: list[Callable[[SimLoop], None]] = []

    def stream(self, name: str) -> random.Random:
        """Each user of chance has its own: one more draw here moves nothing there."""
        return random.Random(f"{self.seed}/{name}")  # a str seed is hashed with SHA-512, not hash()

    def watch(self, *watchers: Callable[[SimLoop], None]) -> None:
        """Call these after each callback of each node, behind those that watch already."""
        self._watchers += watchers
        several = self._watchers

        def each(loop: SimLoop) -> None:
            for watcher in several:
                watcher(loop)

        self.scheduler.on_step = each if len(several) > 1 else several[0]

    # -- nodes

    def add_node(self, name: str, main: Main) -> Node:
        device = Device(self.scheduler, self.stream(f"{name}/disk"))
        node = Node(name, main, device, self.stream(f"{name}/node").randint(-200, 200))
        device.kill = lambda: self.kill(name)
        self.nodes[name] = node
        self.fabric.hosts_up[name] = True
        return node

    def node_of(self, loop: object) -> Node:
        """Whose code runs on `loop`."""
        return next(node for node in self.nodes.values() if node.loop is loop)

    def start(self, name: str) -> None:
        node = self.nodes[name]
        if node.loop is not None:
            return
        node.life_count += 1
        rng = self.stream(f"{name}/life/{node.life_count}")
        loop = node.loop = SimLoop(self.scheduler, name, self.stream(f"{name}/loop/{node.life_count}"))
        loop.clock_error_ns = rng.randint(0, CLOCK_ERROR_S_MAX * NS)
        loop.threads_held = node.device.stuck
        loop.exceptions = self._exception
        node.paused = node.down_until_started = False
        self.fabric.hosts_up[name] = True
        ports = Ports(SimNetwork(self.fabric, loop), SimDisk(node.device, loop), SimClock(node, loop), rng)
        self.trace(f"{name} starts, life {node.life_count}")
        loop.deliver(self._run_main, node, loop, ports)

    def _run_main(self, node: Node, loop: SimLoop, ports: Ports) -> None:
        async def main() -> None:
            await node.main(ports)

        task = node.main_task = loop.create_task(main(), name=f"{node.name}-main")
        task.add_done_callback(lambda task: self._main_ended(node, loop, task))

    def _main_ended(self, node: Node, loop: SimLoop, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NodeDead):
            self._exception(loop, "main", error)
        elif node.loop is loop:
            if leaked := loop.pending_tasks():
                self.scheduler.fail(LeakedTasks(", ".join(describe(left) for left in leaked)))
            self._end_life(node.name, silent=False)

    def _exception(self, loop: SimLoop, message: str, error: BaseException | None) -> None:
        """An exception that nobody caught ends the process; whether the run may go on is the scenario's say."""
        if error is not None and self.tolerates(loop.name, error):
            if not loop.dead:
                self.crash_count += 1
                self.trace(f"{loop.name} ends with {type(error).__name__}: {error}")
                self._end_life(loop.name, silent=False)
                self.scheduler.after(RESTART_NS, self._restart, loop.name)
            return
        loop._fail_run(loop, message, error)

    def _restart(self, name: str) -> None:
        if not self.nodes[name].down_until_started:
            self.start(name)

    def stop(self, name: str) -> None:
        """SIGTERM: cancels the program, which cleans up after itself and must leave no task."""
        node = self.nodes[name]
        told = node.down_until_started
        if node.loop is not None and node.main_task is not None and not node.main_task.done() and not told:
            self.trace(f"{name} is told to stop")
            node.down_until_started = True
            node.loop.deliver(node.main_task.cancel)

    def kill(self, name: str) -> None:
        self.nodes[name].down_until_started = True
        self._end_life(name, silent=False)

    def power_off(self, name: str, keeps: Keeps | None = None) -> None:
        self.nodes[name].down_until_started = True
        self._end_life(name, silent=True)
        self.fabric.hosts_up[name] = False
        self.trace(f"{name} lost power: {self.nodes[name].device.lose_power(keeps)}")

    def _end_life(self, name: str, *, silent: bool) -> None:
        node = self.nodes[name]
        loop, node.loop = node.loop, None
        if loop is not None:
            self.trace(f"{name} dies")
            self.fabric.host_down(loop, silent=silent)
            loop.kill()
            node.device.kill_countdown = None
            self.scheduler.graveyard.append((loop, node.program, node.main_task))
            node.program = node.main_task = None
        if self.on_death is not None:
            self.on_death(name, silent)

    def pause(self, name: str) -> None:
        node = self.nodes[name]
        if node.loop is not None and not node.paused:
            self.trace(f"{name} is paused")
            node.paused = True
            node.loop.pause()

    def resume(self, name: str) -> None:
        node = self.nodes[name]
        if node.loop is not None and node.paused:
            self.trace(f"{name} resumes")
            node.paused = False
            node.loop.resume()

    def set_stuck(self, name: str, stuck: bool) -> None:
        """The device behind the page cache answers no more: threads hang, writes to the cache get slow."""
        node = self.nodes[name]
        node.device.stuck = stuck
        if node.loop is not None:
            node.loop.threads_held = stuck
            node.loop.release_threads()

    # -- running and telling

    def run_for(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now_ns + int(seconds * NS))

    def run_until(self, done: Callable[[], bool], seconds_max: float) -> bool:
        """Whether `done` came true in time."""
        self.scheduler.run(self.scheduler.now_ns + int(seconds_max * NS), done)
        return done()

    @property
    def now_s(self) -> float:
        return self.scheduler.now_ns / NS

    def trace(self, text: str) -> None:
        """Part of the story and of its hash. Never put an address, a `repr` or a set in it."""
        self.scheduler.mark(text.encode())
        if self.trace_lines is not None:
            self.trace_lines.append(f"{self.now_s:12.6f}  {text}")

    @contextlib.contextmanager
    def heard_logs(self) -> Iterator[None]:
        """The nodes' log lines go into a kept trace, beside the hash; without one nobody formats them."""
        if self.trace_lines is None:
            disabled = logging.root.manager.disable
            logging.disable(logging.CRITICAL)
            try:
                yield
            finally:
                logging.disable(disabled)
            return
        handler, level = _TraceHandler(self), logging.root.level
        logging.root.addHandler(handler)
        logging.root.setLevel(logging.INFO)
        try:
            yield
        finally:
            logging.root.removeHandler(handler)
            logging.root.setLevel(level)

    @property
    def trace_hash(self) -> str:
        """Story, every wake-up of every loop, number of steps, and where the streams of chance stand."""
        state = zlib.crc32(repr(self.fabric.random.getstate()).encode())
        return f"{self.scheduler.crc:08x}-{self.scheduler.steps}-{state:08x}"

    def close(self) -> None:
        """After the run: kill all, then free the dead. Their `finally` blocks do run now, with every port refusing;
        what they raise is nobody's business. What still refers to nodes keeps them alive until it goes too."""
        self.scheduler.on_step = self.on_death = None
        self.tolerates = lambda name, error: True
        self._bury_all()
        self.scheduler.clear()
        self.scheduler.failure = None  # its traceback holds frames
        self.fabric.sockets.clear()
        self.fabric.listeners.clear()
        self.scheduler.graveyard.clear()
        collect_dead()

    def _bury_all(self) -> None:
        for node in self.nodes.values():
            if node.loop is not None:
                loop, node.loop = node.loop, None
                loop.dead = True
                for task in loop.tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                self.scheduler.graveyard.append((loop, node.program, node.main_task))
            node.program = node.main_task = None


class _TraceHandler(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio.events._get_running_loop() or self._world.scheduler.in_thread
        node = getattr(loop, "name", "world")
        text = KeyValueFormatter().format(record).partition(" ")[2]
        if self._world.trace_lines is not None:
            self._world.trace_lines.append(f"{self._world.now_s:12.6f}      {node}: {text}")


def handled_cancellation() -> None:
    """The task that stops a node now is told to end no longer, as in a process, which stops in a task of its own.
    Python 3.11.2 takes every timeout of a cancelled task for the cancellation itself."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def collect_dead() -> None:
    """Free what dead nodes left in cycles, in silence.

    A `finally` block may make one more task. Without a running loop asyncio would take that of the process, which keeps
    the task for ever, and with it the whole world; the loop that runs here is dead and takes none.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    running, grave = events._get_running_loop(), SimLoop(Scheduler("grave"), "grave")
    grave.dead = True
    events._set_running_loop(cast(asyncio.AbstractEventLoop, grave))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of coroutines whose task died before its first step
            gc.collect()
            gc.collect()  # what a `finally` block kept alive once more
    finally:
        events._set_running_loop(running)
        sys.unraisablehook = hook


@contextlib.contextmanager
def moved_memory(seed: int) -> Iterator[None]:
    """Fill holes of many sizes, so that what is made inside lies elsewhere than before."""
    rng = random.Random(seed)
    padding: list[object] = [bytes(rng.randrange(1, 2000)) for _ in range(20_000)]
    padding += [asyncio.Event() for _ in range(rng.randrange(1, 2000))]
    del padding[:: rng.randrange(2, 5)]
    yield
    padding.clear()


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Cycles are freed between runs only: in the middle, finalisers would run at a point that the past decides.

    What was there before is left out of every collection within: modules and schemas are most of the heap. A session
    of tests has left them out already, and goes on so.
    """
    enabled, is_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    if not is_frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not is_frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()
