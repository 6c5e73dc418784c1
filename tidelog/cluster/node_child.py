"""A node of an embedded cluster as its supervisor sees it: a process, or the wish for one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.cluster.layout import PROXY_DEFAULTS, NodeLayout

STOP_TIMEOUT_S = 30.0
Answer = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class Child:
    """One node's process, or the wish for one."""

    node: NodeLayout
    pid: int = 0
    wanted: bool = True
    ready: bool = False
    stopping: bool = False
    started_at: float = 0.0
    restarts: int = 0
    restart_at: float | None = None
    kill_at: float | None = None
    answer_at: float | None = None
    last_exit: str = ""
    reason: str = ""  # why it ended by itself, in its own words
    status_fd: int = -1
    waiting: list[Answer] = field(default_factory=list)

    @property
    def state(self) -> str:
        if self.pid:
            return "stopping" if self.stopping else "running" if self.ready else "starting"
        return "crashed" if self.wanted else "stopped"

    def kill(self) -> None:
        """A proxy is several processes, of which the others would first part from their clients."""
        if self.node.role == "proxy":
            os.killpg(self.pid, signal.SIGKILL)
        else:
            os.kill(self.pid, signal.SIGKILL)

    @property
    def why(self) -> str:
        """Of its last end."""
        return f"{self.last_exit}: {self.reason}" if self.reason else self.last_exit


def stop_timeout_s(node: NodeLayout, shared: Mapping[str, str]) -> float:
    """How long a node may take to stop, with the settings that all share: a proxy also for as long as it drains."""
    if node.role != "proxy":
        return STOP_TIMEOUT_S
    return STOP_TIMEOUT_S + int({**PROXY_DEFAULTS, **shared}["tidelog.proxy.drain.ms"]) / 1000
