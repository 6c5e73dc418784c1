"""A node of an embedded cluster in its supervisor: a process, and whether it should run."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tidelog.cluster.layout import PROXY_DEFAULTS, NodeLayout
from tidelog.nodes.logs import flush_streams

STOP_TIMEOUT_S = 30.0
RESTART_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
STEADY_S = 30.0
STATUS_BYTES_MAX = 4_096
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)  # what a supervisor handles
Answer = Callable[[dict[str, Any]], None]
Work = Callable[[int], int]  # the work of a node's process, from its end of the status pipe to its exit status


@dataclass(slots=True)
class Child:
    """One node's process, and whether it should run."""

    node: NodeLayout
    pid: int = 0
    wanted: bool = True
    ready: bool = False
    stopping: bool = False
    ending: bool = False  # it has reported why it ends, and may still have to wait for its disk
    started_at: float = 0.0
    restarts: int = 0
    restart_at: float | None = None
    kill_at: float | None = None
    answer_at: float | None = None
    last_exit: str = ""
    reason: str = ""  # the node's own message about why it ended
    status_fd: int = -1
    waiting: list[Answer] = field(default_factory=list)

    @property
    def state(self) -> str:
        if self.pid:
            return "stopping" if self.stopping or self.ending else "running" if self.ready else "starting"
        return "crashed" if self.wanted else "stopped"

    def start(self, work: Work, log: Path, life_fd: int, now_s: float) -> None:
        """Fork a process that does `work`, appends its output to `log` and holds `life_fd`."""
        status_read, status_write = os.pipe()
        flush_streams()
        # A node that gets a signal before its own handlers are set would run its parent's.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                os.close(status_read)
                _become(work, status_write, log, life_fd)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(status_write)
        os.set_blocking(status_read, False)
        self.status_fd = status_read
        self.pid, self.ready, self.stopping, self.ending = pid, False, False, False
        self.started_at, self.restart_at, self.kill_at = now_s, None, None

    def hear(self) -> bool:
        """Read the node's message: that it is ready, or why it ends. False if there are no more messages."""
        try:
            data = os.read(self.status_fd, STATUS_BYTES_MAX)
        except BlockingIOError:
            return True
        for line in data.decode(errors="replace").splitlines():
            word, _, rest = line.partition(" ")
            if word == "fatal":
                self.reason, self.ready, self.ending = rest, False, True
            elif word == "ready" and self.pid:
                self.ready, self.reason = True, ""
        return bool(data)

    def hear_no_more(self) -> None:
        os.close(self.status_fd)
        self.status_fd = -1

    def ended(self, code: int, now_s: float, *, starts_again: bool = True) -> float | None:
        """Its process has ended. Returns the pause before the next one, None if there must be none."""
        expected, lived_s = self.stopping or not self.wanted, now_s - self.started_at
        self.last_exit = f"signal {-code}" if code < 0 else f"status {code}"
        self.pid, self.ready, self.stopping, self.ending, self.kill_at = 0, False, False, False, None
        if expected or not starts_again:
            return None
        self.restarts = 0 if lived_s > STEADY_S else self.restarts + 1
        pause = RESTART_BACKOFF_S[min(self.restarts, len(RESTART_BACKOFF_S) - 1)]
        self.restart_at = now_s + pause
        return pause

    def kill(self) -> None:
        """Kill all processes of a proxy, because the others would first drain their connections."""
        if self.node.role == "proxy":
            os.killpg(self.pid, signal.SIGKILL)
        else:
            os.kill(self.pid, signal.SIGKILL)

    @property
    def why(self) -> str:
        """The reason of its last end."""
        return ": ".join(part for part in (self.last_exit, self.reason) if part)


def _become(work: Work, status_fd: int, log: Path, life_fd: int) -> NoReturn:
    """In the forked process: nothing of the supervisor may stay open here."""
    status = 70
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # pending signals end it here
        null = os.open(os.devnull, os.O_RDONLY)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        keep = {0, 1, 2, status_fd, life_fd}
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in keep:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        status = work(status_fd)
    except BaseException:
        logging.getLogger(__name__).exception("node ended")
    finally:
        flush_streams()
        os._exit(status)


def stop_timeout_s(node: NodeLayout, shared: Mapping[str, str]) -> float:
    """How long a node may take to stop, with the common settings; a proxy also for its drain time."""
    if node.role != "proxy":
        return STOP_TIMEOUT_S
    return STOP_TIMEOUT_S + int({**PROXY_DEFAULTS, **shared}["tidelog.proxy.drain.ms"]) / 1000
