"""How long producers wait when a leader's disk stops answering: `python -m bench.kora --only stuck_disk`,
as root.

The data directory of each of three brokers is a file system of its own on a loop device. While an idempotent producer
with acks=all and time-outs of 120 s writes to one partition, the leader's file system is frozen (`fsfreeze`) for a
minute. The gap is the longest time without an acknowledgement. Measured with and without the storage watchdog.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.embedded import EmbeddedCluster
from bench.failover import SteadyLoad
from bench.kora.availability import month_of_freezes
from bench.kora.drawing import bars, plotted
from bench.kora.evidence import CannotRun, Evidence, Parts, Row
from bench.kora.loop_disks import LoopDisk, lacking

FROZEN_S = 60.0
GAP_S_MAX = 15.0
RETURN_S_MAX = 120.0
PATIENT = {"request.timeout.ms": 120_000, "socket.timeout.ms": 120_000, "message.timeout.ms": 300_000}
"""A client that relies on the cluster alone: it gives a request up after two minutes."""


def measure(*, watched: bool, frozen_s: float = FROZEN_S) -> dict[str, Any]:
    """Start a cluster on disks of its own and freeze the leader's once."""
    if reason := lacking():
        raise CannotRun(reason)
    settings = {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "tidelog.health.storage.enable": str(watched).lower(),
    }
    with tempfile.TemporaryDirectory(prefix="tidelog-") as work:
        cluster = EmbeddedCluster(3, settings, Path(work) / "data")
        with cluster:
            rows = [row for row in cluster.nodes() if row["role"] == "broker"]
        with ExitStack() as stack:
            disks = {
                int(row["id"]): stack.enter_context(LoopDisk(Path(row["dir"]), Path(work) / f"{row['node']}.img"))
                for row in rows
            }
            with cluster:
                return {"frozen_s": frozen_s, "client": PATIENT} | freeze_leader(cluster, disks, frozen_s)


def freeze_leader(cluster: EmbeddedCluster, disks: dict[int, LoopDisk], frozen_s: float) -> dict[str, Any]:
    """The longest silence after the leader's disk was frozen, and what became of the broker."""
    load = SteadyLoad(cluster.bootstrap, client=PATIENT)
    try:
        load.wait_flowing()
        leader = load.leader()
        disk = disks[leader]
        began = time.monotonic()
        disk.freeze()
        try:
            time.sleep(frozen_s * 0.75)
            seen = next(row for row in cluster.nodes() if row["role"] == "broker" and int(row["id"]) == leader)
            time.sleep(max(0.0, began + frozen_s - time.monotonic()))
        finally:
            disk.thaw()
        thawed = time.monotonic()
        while len(load.isr()) < len(disks) and time.monotonic() - thawed < RETURN_S_MAX:
            time.sleep(0.1)
        returned_s = time.monotonic() - thawed
        load.wait_flowing()
        gap_s = load.longest_silence(began)
    finally:
        outcome = load.finish()
    return {
        "gap_s": round(gap_s, 2),
        "in_sync_after_thaw_s": round(returned_s, 2),
        "state_while_frozen": seen["state"],
        "reason_while_frozen": seen["reason"],
        **outcome,
    }


def row(parts: Parts) -> Row:
    without, watched = parts["without"], parts["with"]
    month = month_of_freezes(without["gap_s"], watched["gap_s"])
    is_sound = all(run["lost"] == run["doubled"] == run["reordered"] == 0 for run in (without, watched))
    return Row(
        "a leader's disk freezes for a minute: the gap in acknowledgements, and the month with such freezes",
        "a broker whose storage is stuck restarts itself",
        f"{without['gap_s']:.1f} → {watched['gap_s']:.1f} s; {month['without']:.3%} → {month['with']:.3%}",
        f"<= {GAP_S_MAX:g} s, nothing lost; >= {month['goal']:.2%}",
        is_sound and watched["gap_s"] <= GAP_S_MAX and month["with"] >= month["goal"],
    )


def plot(parts: Parts, path: Path) -> None:
    names = {"without": "storage is not watched", "with": "the broker restarts itself"}
    with plotted(path, height=2) as (axes,):
        gaps = {name: parts[part]["gap_s"] for part, name in names.items()}
        bars(axes, gaps, ".1f", "longest time without an acknowledgement, s")


EVIDENCE = Evidence(
    "stuck_disk", 4, {"without": partial(measure, watched=False), "with": partial(measure, watched=True)}, row, plot
)
