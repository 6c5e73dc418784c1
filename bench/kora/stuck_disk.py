"""How long producers wait when a leader's disk stops answering: `python -m bench.kora.stuck_disk`, as root.

The data directory of each of three brokers is a file system of its own on a loop device. While an idempotent producer
with acks=all and time-outs of 120 s writes to one partition, the leader's file system is frozen (`fsfreeze`) for a
minute. The gap is the longest time without an acknowledgement. Measured with and without the storage watchdog.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.embedded import EmbeddedCluster
from bench.failover import SteadyLoad
from bench.kora.availability import month_of_freezes
from bench.kora.loop_disks import LoopDisk, lacking

RESULT = Path(__file__).resolve().parent / "results" / "stuck_disk.json"
FROZEN_S = 60.0
GAP_S_MAX = 15.0
RETURN_S_MAX = 120.0
PATIENT = {"request.timeout.ms": 120_000, "socket.timeout.ms": 120_000, "message.timeout.ms": 300_000}
"""A client that relies on the cluster alone: it gives a request up after two minutes."""


def measure(frozen_s: float, *, watched: bool) -> dict[str, Any]:
    """Start a cluster on disks of its own and freeze the leader's once."""
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
                return freeze_leader(cluster, disks, frozen_s)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frozen", type=float, default=FROZEN_S, help="seconds for which the disk is frozen")
    parser.add_argument("--only", choices=("with", "without"), help="measure this alone, and save nothing")
    given = parser.parse_args()
    if reason := lacking():
        print(f"stuck_disk: {reason}", file=sys.stderr)
        return 2
    found: dict[str, Any] = {"frozen_s": given.frozen, "client": PATIENT}
    for name in ("without", "with"):
        if given.only in (None, name):
            found[name] = measure(given.frozen, watched=name == "with")
            print(json.dumps({name: found[name]}), flush=True)
    if given.only is None:
        found["month"] = month_of_freezes(found["without"]["gap_s"], found["with"]["gap_s"])
        RESULT.write_text(json.dumps(found, indent=2) + "\n")
        print(json.dumps(found["month"]))
    runs = [found[name] for name in ("without", "with") if name in found]
    sound = all(run["lost"] == run["doubled"] == run["reordered"] == 0 for run in runs)
    return 0 if sound and ("with" not in found or found["with"]["gap_s"] <= GAP_S_MAX) else 1


if __name__ == "__main__":
    sys.exit(main())
