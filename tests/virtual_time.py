"""The simulator's loop and network below single tests: time passes only when nothing is left to do.

A module says `pytestmark = pytest.mark.virtual_time`, and each of its coroutines runs on a loop of its own. Waiting
for seconds takes none, a timer never fires while something else may still run, and the same test takes the same
course on every machine. Work of threads takes effect at one moment of virtual time, on the test's own thread, so a
function that blocks until the test releases it does not belong here; nor do real sockets, signals and processes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from common.machine import machine_ports
from common.machine_disk import MachineDisk
from common.ports import Ports
from tests.sim.loop import NS, Deadlock, Scheduler, SimLoop, SimTask, describe
from tests.sim.network import Fabric, SimNetwork

HOST = "127.0.0.1"
END_NS = 1 << 62


class LoopClock:
    """The time of the loop that runs; its wall clock begins at the machine's, whose times are on its files."""

    def __init__(self) -> None:
        self._begun_ms = time.time_ns() // 1_000_000
        self._begun_s = self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return self._begun_ms + int((self.monotonic() - self._begun_s) * 1000)


class VirtualLoop(SimLoop):
    """A `SimLoop` that `asyncio.Runner` can drive. A test begins at 0 s, and its `asyncio.timeout` ends it as usual."""

    def __init__(self) -> None:
        super().__init__(Scheduler(0), HOST)

    @cached_property
    def network(self) -> SimNetwork:
        """One host, with a loopback interface that cuts what is sent where it likes."""
        fabric = Fabric(self.scheduler, random.Random("loopback"), lambda _: None)
        fabric.hosts_up[HOST] = True
        return SimNetwork(fabric, self)

    def run_until_complete(self, future: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> Any:
        task = future if isinstance(future, asyncio.Future) else self.create_task(future)
        try:
            self.scheduler.run(END_NS, task.done)
        except BaseException:
            self._recover()
            raise
        if not task.done():
            waiting: list[SimTask] = self.pending_tasks()
            raise Deadlock(f"nothing is due; waiting: {', '.join(map(describe, waiting))}")
        return task.result()

    def _recover(self) -> None:
        """What a failed run has left is cancelled by one more run."""
        self.scheduler.failure, self._second_ends_ns, self._wake_ns = None, 0, -1
        self._wake(self.scheduler.now_ns)

    def set_exception_handler(self, handler: Callable[[VirtualLoop, dict[str, Any]], None]) -> None:
        """What a callback raises goes there, and does not end the run."""
        self.exceptions = lambda _, message, error: handler(self, {"message": message, "exception": error})

    def set_debug(self, enabled: bool) -> None: ...

    async def shutdown_asyncgens(self) -> None: ...

    def close(self) -> None:
        """End like a killed node, so that nothing which was left runs on."""
        self.scheduler.clear()


def stall(seconds: float) -> None:
    """Hold the running virtual loop up, as a call does that blocks it."""
    cast(VirtualLoop, asyncio.get_running_loop()).stall(int(seconds * NS))


def lab_ports(root: Path) -> Ports:
    """The machine's disk below `root`; on a virtual loop with its time and its network, else with the machine's."""
    loop: object = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        return Ports(loop.network, MachineDisk(root), LoopClock(), random.Random(root.name))
    return machine_ports(root)
