"""Ends Spark's Python workers on this machine.

When a session stops, Spark closes the sockets of its idle workers and only then ends the daemon that forked them. A
worker that wakes in between writes to its socket that its input has ended, and the daemon prints a traceback with
BrokenPipeError. Over TCP the socket accepts the write; over Unix sockets it depends on timing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 2.0  # of all daemons together; they only have to pass the signal on
_DAEMON = "pyspark.daemon"


def end_python_workers(session: SparkSession) -> None:
    """End the daemons that the driver's Java has started, and with them all their workers, so that no worker sees its
    socket close. Daemons on other machines are not affected.

    Does nothing if Java has ended or has no such processes.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415  only where Spark is

    java: Any = session.sparkContext._jvm
    try:
        daemons = [child for child in java.java.lang.ProcessHandle.current().children().toArray() if _is_daemon(child)]
        for daemon in daemons:
            daemon.destroy()  # SIGTERM, as Spark itself ends it
        ends = [daemon.onExit() for daemon in daemons]
        for end in ends:
            _wait(java, end, LIMIT_S / len(ends))
    except (Py4JError, OSError):
        return  # Java has ended, and what it started ends with it


def _is_daemon(process: Any) -> bool:
    """spark-submit's Java has the driver itself among its children."""
    line = process.info().commandLine()
    return bool(line.isPresent()) and _DAEMON in line.get().split()


def _wait(java: Any, end: Any, limit_s: float) -> None:
    """Wait for a process's end, for at most `limit_s`."""
    unit = java.java.util.concurrent.TimeUnit.MILLISECONDS
    end.completeOnTimeout(None, round(limit_s * 1000), unit).get()
