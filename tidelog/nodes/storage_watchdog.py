"""Ends a node whose storage is stuck, from a thread, because the event loop itself may hang in a write.

A thread in the kernel's uninterruptible sleep cannot be killed, and neither its process nor the process's sockets go
away before it wakes up. So the watchdog shuts every socket down first: peers and clients see the end at once, and the
ports refuse connections. The process ends with status 70 as soon as the disk lets its threads go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from common.disk_operations import DiskOperations
from common.metrics import Metrics
from common.node_settings.health import HealthSettings
from tidelog.nodes.storage_watch import TURN, StorageWatch, Stuck

logger = logging.getLogger(__name__)

EXIT_STUCK = 70  # EX_SOFTWARE, as after each other failure: the supervisor starts the node again
LOOKS = 20  # while an operation grows old enough
LOOK_INTERVAL_S_MAX = 0.5
WITHDRAW_S = 3.0  # for the controller's answer
LOG_S = 0.5  # for a line of the log, whose file may be on the same disk
COMPLAINT_S = 10.0  # between two log lines about a storage that stays stuck
DESCRIPTORS = "/proc/self/fd"

Withdraw = Callable[[], Awaitable[str]]


class StorageWatchdog:
    """One thread, from `start` on. Make it on the loop's thread while the loop runs.

    `withdraw` asks the controller to fence this node and returns "", or a reason to stay; it is called on the loop, and
    only while that runs. `report` gets the reason of the end. `shut_down` shuts the sockets down, `end`
    ends the process.
    """

    def __init__(
        self,
        settings: HealthSettings,
        report: Callable[[str], None],
        operations: DiskOperations | None = None,
        withdraw: Withdraw | None = None,
        shut_down: Callable[[], int] | None = None,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        stuck_s = settings.storage_stuck_ms / 1000
        self._interval_s = min(LOOK_INTERVAL_S_MAX, stuck_s / LOOKS)
        self._acts = settings.storage_enable
        self._report = report
        self._operations = operations or DiskOperations()
        self._withdraw = withdraw
        self._shut_down = shut_down or shut_down_sockets
        self._end = end
        self._watch = StorageWatch(stuck_s, self._interval_s)
        self._loop = asyncio.get_running_loop()
        self._main = threading.get_ident()
        self._busy = BusyTime(threading.get_native_id(), self._main)
        self._answered = True
        self._complained_s = float("-inf")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storage-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def register(self, metrics: Metrics) -> None:
        """The age of the oldest operation."""
        metrics.gauge("tidelog_storage_stuck_seconds", lambda: self._watch.oldest_s)

    def _run(self) -> None:
        looked_s, busy_s = time.monotonic(), self._busy.seconds()
        while not self._stopped.wait(self._interval_s):
            now_s, now_busy_s = time.monotonic(), self._busy.seconds()
            is_answered, running = self._answered, self._operations.running()
            busy_lately_s = now_s - looked_s if self._busy.is_runnable() else now_busy_s - busy_s
            stuck = self._watch.look(now_s - looked_s, is_answered, busy_lately_s, running)
            looked_s, busy_s = now_s, now_busy_s
            if is_answered:
                self._ask()
            if stuck is not None:
                self._act(stuck)

    def _ask(self) -> None:
        self._answered = False
        with contextlib.suppress(RuntimeError):  # the loop is closed: the node is ending
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._answered = True

    def _act(self, stuck: Stuck) -> None:
        where = f" in {self._place()}" if stuck.what == TURN else ""
        reason = f"the storage is stuck: {stuck.what} has not ended for {stuck.seconds:.1f} s{where}"
        if not self._acts:
            self._complain(f"{reason}; tidelog.health.storage.enable is false, so this node stays")
            return
        if stuck.loop_runs and (objection := self._ask_to_leave()):
            self._complain(f"{reason}; this node stays, because {objection}")
            return
        count = self._shut_down()
        self._report(reason)
        _log(f"{reason}; {count} sockets are shut down, the process ends with status {EXIT_STUCK}")
        self._end(EXIT_STUCK)

    def _ask_to_leave(self) -> str:
        """A reason to stay; "" if the controller has fenced this node, or the loop does not run after all."""
        if self._withdraw is None:
            return ""

        async def ask(withdraw: Withdraw) -> str:
            return await withdraw()

        asked = asyncio.run_coroutine_threadsafe(ask(self._withdraw), self._loop)
        try:
            return asked.result(WITHDRAW_S)
        except Exception:
            return ""

    def _complain(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._complained_s >= COMPLAINT_S:
            self._complained_s = now_s
            _log(text)

    def _place(self) -> str:
        """The functions that the loop's thread is in, the innermost first."""
        frame, names = sys._current_frames().get(self._main), list[str]()
        while frame is not None and len(names) < 3:
            names.append(f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}")
            frame = frame.f_back
        return " < ".join(names)


class BusyTime:
    """How long a thread has used a processor or waited for one, in seconds: by the scheduler's account if the system
    has one, else by CPU time alone."""

    def __init__(self, native_id: int, ident: int) -> None:
        self._path = Path(f"/proc/self/task/{native_id}/schedstat")
        self._state_path = Path(f"/proc/self/task/{native_id}/stat")
        self._ident = ident

    def seconds(self) -> float:
        try:
            ran_ns, waited_ns, _ = self._path.read_text().split()
            return (int(ran_ns) + int(waited_ns)) / 1e9
        except (OSError, ValueError):
            return time.clock_gettime(time.pthread_getcpuclockid(self._ident))

    def is_runnable(self) -> bool:
        """Whether the thread runs or waits for a processor now, so that it waits for no disk. The scheduler's account
        has such a wait only when it has ended, which on a machine that is busy with others takes long."""
        try:
            return self._state_path.read_text().rpartition(")")[2].split()[0] == "R"
        except (OSError, IndexError):
            return False


def shut_down_sockets() -> int:
    """Shut all sockets of this process down, listening ones too; returns how many. Waits for nothing.

    Closing would not do, because a call in progress in another thread keeps a socket open.
    """
    count = 0
    try:
        names = os.listdir(DESCRIPTORS)
    except OSError:  # not Linux: the sockets end with the process
        return 0
    for name in names:
        try:
            if not os.readlink(f"{DESCRIPTORS}/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=int(name))
        except OSError:
            continue
        try:
            found.shutdown(socket.SHUT_RDWR)
            count += 1
        except OSError:  # not connected
            pass
        finally:
            found.detach()
    return count


def _log(text: str) -> None:
    """Log without waiting for long: the log's file may be on the stuck disk, and its lock with a thread that hangs."""
    line = threading.Thread(target=logger.critical, args=("%s", text), daemon=True)
    line.start()
    line.join(LOG_S)
