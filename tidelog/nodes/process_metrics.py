"""What a node is as a process: its role, version, start, memory and CPU time."""

from __future__ import annotations

import os
import time

from common.metrics import Metrics
from tidelog.version import VERSION

STATM = "/proc/self/statm"  # pages: of the address space, resident, …
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def register_node(metrics: Metrics, role: str) -> None:
    """What this node is, and since when."""
    labels, started_s = {"role": role, "version": VERSION}, time.time()
    metrics.family("tidelog_node_info", lambda: [(labels, 1.0)])
    metrics.gauge("tidelog_process_start_timestamp_seconds", lambda: started_s)


def register_process(metrics: Metrics) -> None:
    """What this process uses; of a proxy that would be its steward's alone."""
    metrics.counter("tidelog_process_cpu_seconds_total", time.process_time)
    metrics.gauge("tidelog_process_resident_bytes", _resident_bytes)


def _resident_bytes() -> float:
    try:
        with open(STATM, encoding="ascii") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except (OSError, ValueError, IndexError):  # not Linux
        return 0
