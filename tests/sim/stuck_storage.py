"""Brokers' storage watchdogs in the simulator, and disks that freeze.

A watchdog is a thread of its own in a process, so it runs beside the loops here: it looks at fixed intervals of virtual
time, at a node whose loop hangs too. A simulated thread does its work at one moment; while its device is stuck the
work is held, which stands for an operation that has begun. A process that the watchdog ended is started again, as by a
supervisor, and its start waits until its disk takes a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.sim.loop import NS, SimLoop
from tests.sim.world import World
from tidelog.nodes.storage_watch import StorageWatch, Stuck

STUCK_S, INTERVAL_S = 10.0, 0.5
WATCHED = ("LogWriter._write_all", "LogFlusher._run_jobs")


class SimWatchdog:
    """Of one broker, over all its lives. `ended`: what the watchdog found, and the virtual time in seconds."""

    def __init__(self, world: World, name: str) -> None:
        self.ended: list[tuple[float, Stuck]] = []
        self.objections: list[str] = []
        self.waits_for_disk = False
        self._world = world
        self._node = world.nodes[name]
        self._life = -1
        self._watch = StorageWatch(STUCK_S, INTERVAL_S)
        self._answered = True
        self._asks = False
        self._schedule()

    def _schedule(self) -> None:
        self._world.scheduler.after(int(INTERVAL_S * NS), self._look)

    def _look(self) -> None:
        node, loop = self._node, self._node.loop
        if self.waits_for_disk and not node.device.stuck:
            self.waits_for_disk = False
            self._world.start(node.name)
        elif loop is not None:
            if node.life_count != self._life:
                self._life, self._watch = node.life_count, StorageWatch(STUCK_S, INTERVAL_S)
                self._answered, self._asks = True, False
            is_answered = self._answered
            stuck = self._watch.look(INTERVAL_S, is_answered, 0.0, held_operations(loop))
            if is_answered:
                self._answered = False
                loop.deliver(self._answer, node.life_count)
            if stuck is not None and not self._asks:
                self._act(stuck, loop)
        self._schedule()

    def _answer(self, life: int) -> None:
        if life == self._life:
            self._answered = True

    def _act(self, stuck: Stuck, loop: SimLoop) -> None:
        if not stuck.loop_runs:
            self._end(stuck)
            return
        self._asks = True
        program, life = self._node.program, self._life

        async def ask() -> None:
            objection = await program.withdraw()
            if self._life == life and objection:
                self.objections.append(objection)
                self._asks = False
            elif self._life == life:
                self._world.scheduler.after(0, self._end, stuck)

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(ask())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

        loop.deliver(begin)

    def _end(self, stuck: Stuck) -> None:
        if self._node.loop is not None:
            self.ended.append((self._world.now_s, stuck))
            self._world.kill(self._node.name)
            self._node.paused = False
            self.waits_for_disk = True


def held_operations(loop: SimLoop) -> dict[int, str]:
    """The writes and flushes of logs that threads have begun while the device is stuck."""
    return {begin_ns * 64 + thread: name for name, thread, begin_ns in loop.held_work() if name in WATCHED}


def freeze(world: World, name: str, seconds: float, *, hangs: bool, thawed: Callable[[], None]) -> None:
    """The disk of a node answers no more for a while; `hangs`: its loop waits for it too."""
    world.set_stuck(name, True)
    life = world.nodes[name].life_count
    if hangs:
        world.pause(name)

    def thaw() -> None:
        world.set_stuck(name, False)
        if hangs and world.nodes[name].life_count == life:
            world.resume(name)
        thawed()

    world.scheduler.after(int(seconds * NS), thaw)
