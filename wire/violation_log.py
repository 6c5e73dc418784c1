"""Logs connections that were closed because their peer broke the protocol, up to a number per address and minute.

Further ones are counted, and a line at the minute's end reports their number, so that a peer that sends malformed
frames cannot fill the disk with log lines.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice

from msgspec import Struct

from common.node_settings.connections import ConnectionSettings
from wire.connection import Connection

WINDOW_S = 60.0
ADDRESSES_MAX = 1_000
CLOSED_PER_TURN = 50  # a log line costs tens of microseconds, and the loop serves others meanwhile
LINES_MAX = ConnectionSettings().violation_lines_max  # per address and window


class _Window(Struct):
    began: float
    lines: int = 0
    unsaid: int = 0


class ViolationLog:
    """One per node, made while its event loop runs."""

    def __init__(self, log: logging.Logger, lines_max: int = LINES_MAX) -> None:
        self._log = log
        self._lines_max = lines_max
        self._loop = asyncio.get_running_loop()
        self._windows: dict[str, _Window] = {}  # by address, the oldest first
        self._timer: asyncio.TimerHandle | None = None
        self.count = 0  # of all violations since the start

    def report(self, connection: Connection, reason: str) -> None:
        """A `ViolationHandler`; `reason` names the broken rule."""
        self.count += 1
        ip, port = connection.peer[0], connection.peer[1]
        window = self._window(ip if connection.identity is None else connection.identity.client_address[0])
        if window.lines < self._lines_max:
            window.lines += 1
            self._log.warning("connection closed", extra={"peer": f"{ip}:{port}", "reason": reason})
            return
        window.unsaid += 1
        if self._timer is None:
            self._timer = self._loop.call_later(WINDOW_S, self._log_rest)

    def _window(self, ip: str) -> _Window:
        now = self._loop.time()
        window = self._windows.get(ip)
        if window is not None and now - window.began < WINDOW_S:
            return window
        if window is not None:
            self._close(ip)
        elif len(self._windows) >= ADDRESSES_MAX:
            self._close(next(iter(self._windows)))
        window = self._windows[ip] = _Window(now)
        return window

    def _log_rest(self) -> None:
        """Log the counts of addresses whose window is over, some per turn of the loop."""
        self._timer = None
        now = self._loop.time()
        over = (ip for ip, window in self._windows.items() if now - window.began >= WINDOW_S)
        for ip in list(islice(over, CLOSED_PER_TURN)):
            self._close(ip)
        oldest = next((window.began for window in self._windows.values() if window.unsaid), None)
        if oldest is not None:
            self._timer = self._loop.call_later(max(oldest + WINDOW_S - now, 0.0), self._log_rest)

    def _close(self, ip: str) -> None:
        window = self._windows.pop(ip)
        if window.unsaid:
            self._log.warning("more connections closed", extra={"peer": ip, "connections": window.unsaid})
