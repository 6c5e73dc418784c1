"""Runs scheduled Spark jobs as child processes of the active controller: one at a time, and none without leadership.

The controller's loop only starts, awaits and ends a process, so a job does not load it. A job does not outlive the
controller: a child whose standard input ends kills itself and its process group (`tidelog.owned_job`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence

from common.lifecycle import duty, end_task
from common.ports import Clock
from tidelog.configuration.job_schedule import Entry

logger = logging.getLogger(__name__)

LOOK_S = 0.5
END_GRACE_S = 10.0
TAIL_LINES = 20
LINE_BYTES_MAX = 2_000
COMMAND = (sys.executable, "-m", "tidelog.owned_job", "spark")


class JobScheduler:
    """`start` and `stop` once. `options` are added to each job, such as the tier's address."""

    def __init__(
        self,
        entries: Sequence[Entry],
        options: Callable[[], Sequence[str] | None],
        is_active: Callable[[], bool],
        clock: Clock,
        command: Sequence[str] = COMMAND,
        look_s: float = LOOK_S,
    ) -> None:
        """`options` returns None while they are unknown."""
        self._entries = entries
        self._options = options
        self._is_active = is_active
        self._clock = clock
        self._command = command
        self._look_s = look_s
        self._task: asyncio.Task[None] | None = None
        self._due: dict[Entry, int | None] = {}
        self.running: Entry | None = None
        self.ended = 0
        self.failed = 0

    def start(self) -> None:
        if self._entries:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=duty("spark-schedule"))

    async def stop(self) -> None:
        task, self._task = self._task, None
        await end_task(task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            if not self._is_active():
                self._due.clear()
                continue
            entry = self._next_due()
            options = self._options() if entry is not None else None
            if entry is None or options is None:
                continue
            try:
                await self._run_job(entry, [*self._command, entry.words[0], *options, *entry.words[1:]])
            except OSError as error:
                logger.error("a scheduled job does not start", extra={"job": entry.text, "cause": str(error)})
            except Exception:  # one failed job must not end the schedule
                logger.exception("a scheduled job was lost", extra={"job": entry.text})

    def _next_due(self) -> Entry | None:
        """The entry that has been due longest. An entry is due once, however often its time has passed meanwhile."""
        now_s = self._clock.wall_ms() // 1_000
        for entry in self._entries:
            if entry not in self._due:
                self._due[entry] = entry.when.after(now_s)
        waiting = [(due, entry) for entry, due in self._due.items() if due is not None and due <= now_s]
        if not waiting:
            return None
        _, entry = min(waiting, key=lambda one: one[0])
        self._due[entry] = entry.when.after(now_s)
        return entry

    async def _run_job(self, entry: Entry, line: Sequence[str]) -> None:
        logger.info("a scheduled job starts", extra={"job": entry.text})
        began = self._clock.monotonic()
        process = await asyncio.create_subprocess_exec(
            *line,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
        self.running = entry
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        reading = asyncio.create_task(_keep_tail(process, tail))
        waiting = asyncio.create_task(process.wait())
        try:
            while not waiting.done() and self._is_active():
                await asyncio.wait([waiting], timeout=self._look_s)
            lost = not waiting.done()
        finally:
            await _end(process, waiting)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self.running = None
        code = waiting.result()
        self.ended += 1
        self.failed += code != 0
        fields = {"job": entry.text, "exit": code, "seconds": round(self._clock.monotonic() - began, 1)}
        if lost:
            logger.warning("a scheduled job was ended, because another controller is active", extra=fields)
        elif code:
            logger.error("a scheduled job failed", extra={**fields, "said": "\n".join(tail)})
        else:
            logger.info("a scheduled job ended", extra=fields)


async def _keep_tail(process: asyncio.subprocess.Process, tail: deque[str]) -> None:
    """Read to the end, so that the child never blocks; overlong lines are dropped."""
    stream = process.stdout
    while stream is not None:
        try:
            line = await stream.readline()
        except ValueError:
            continue
        if not line:
            return
        tail.append(line.decode(errors="replace").rstrip())


async def _end(process: asyncio.subprocess.Process, waiting: asyncio.Task[int]) -> None:
    """Kill the child and its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if waiting.done():
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        await asyncio.wait([waiting], timeout=END_GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # its remaining children
    if process.stdin is not None:
        process.stdin.close()
    await waiting
