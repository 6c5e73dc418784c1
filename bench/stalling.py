"""A process that is slow without being dead: it is stopped for most of the time."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import TracebackType

STOPPED_S, RUNS_S = 0.4, 0.15


class Stalling:
    """Stops a process for `STOPPED_S`, lets it run for `RUNS_S`, and so on until the end of the block."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Stalling:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                os.kill(self._pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(self._pid, signal.SIGCONT)
                time.sleep(RUNS_S)
        finally:
            os.kill(self._pid, signal.SIGCONT)
