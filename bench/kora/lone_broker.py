"""A broker by itself, for measurements of its event loop: it has a processor of its own, and memory for its disk.

Client and controller have another processor. Where that is allowed, all have the highest priority, so that what
else is on the machine takes little from them. A process of idle priority keeps the broker's processor awake, because
one of a virtual machine that falls asleep makes what comes after it cost two to three times as much.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bench.embedded import EmbeddedCluster
from bench.kora.evidence import CannotRun
from common.loop_load import LoopCounters
from tidelog.cluster.layout import load_layout

REPORTS_S = 0.25  # the broker's; its counters are as old as its last report
SETTINGS = {
    "log.retention.check.interval.ms": "50",
    "log.segment.delete.delay.ms": "100",
    "tidelog.usage.report.interval.ms": str(int(REPORTS_S * 1000)),
}
MEMORY = Path("/dev/shm")
SCARCE = 5
"""A broker that has to keep this part of its free space looks for deleted files every 100 ms instead of every second.
The segments of a second, freed at once, make requests take twice as long for 0.4 s."""
PRIORITY = -20
AWAKE = "from collections import deque; from itertools import repeat; deque(repeat(None), maxlen=0)"
COUNTERS = ("jobs", "wait_seconds", "service_seconds", "service_squares", "busy_seconds")


def counters(metrics_port: int) -> LoopCounters:
    """Of a broker's loop, as of its last report."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10).read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("tidelog_loop_"))
    jobs, *times = (float(values[f"tidelog_loop_{name}_total"]) for name in COUNTERS)
    return LoopCounters(int(jobs), *times)


class LoneBroker(NamedTuple):
    address: tuple[str, int]
    metrics_port: int

    def counters(self) -> LoopCounters:
        """Of its loop, when it is at rest: all that was asked before counts."""
        time.sleep(1.2 * REPORTS_S)
        return counters(self.metrics_port)

    def added_since(self, before: LoopCounters) -> LoopCounters:
        added = self.counters().since(before)
        if added is None or not added.jobs:
            raise RuntimeError("the broker has counted nothing")
        return added


def settings(directory: str) -> dict[str, str]:
    """`directory`: on the device of the broker's logs."""
    return {**SETTINGS, "log.dir.free.bytes.min": str(shutil.disk_usage(directory).free // SCARCE)}


@contextmanager
def lone_broker(topic: str, *words: str) -> Iterator[LoneBroker]:
    """`words`: options of `tidelog topics create` for the one topic."""
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        raise CannotRun("the broker and its client need a processor each")
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="tidelog-") as directory,
        EmbeddedCluster(
            brokers=1, controllers=1, settings=settings(directory), data=Path(directory) / "data"
        ) as cluster,
    ):
        cluster.command_of("topics", "create", topic, *words)
        layout = load_layout(cluster.data)
        if layout is None:
            raise RuntimeError("the cluster has no layout")
        port = next(node.metrics_port for node in layout.nodes if node.role == "broker")
        host, client_port = cluster.bootstrap.rsplit(":", 1)
        nodes = [(row["pid"], row["role"] == "broker") for row in cluster.nodes() if row["pid"]]
        with apart(nodes, *processors[:2]):
            yield LoneBroker((host, int(client_port)), port)


@contextmanager
def apart(nodes: Iterable[tuple[int, bool]], others: int, brokers: int) -> Iterator[None]:
    """`nodes`: process ids, and whether they are brokers. `others` and `brokers`: processors."""
    before, priority = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    for pid, is_broker in nodes:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), {brokers if is_broker else others})
                _hasten(int(task.name))
    awake = subprocess.Popen([sys.executable, "-c", AWAKE])
    os.sched_setaffinity(awake.pid, {brokers})
    os.sched_setscheduler(awake.pid, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, {others})
    _hasten(0)
    try:
        yield
    finally:
        awake.kill()
        awake.wait()
        os.sched_setaffinity(0, before)
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, priority)


def _hasten(thread: int) -> None:
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, thread, PRIORITY)
