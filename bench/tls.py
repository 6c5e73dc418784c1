"""What TLS costs: `python -m bench.tls`. Two clusters, without it and with it between nodes, run by turns.

The second is measured with plain clients and with clients over TLS. CPU seconds are all nodes' together, for every
gigabyte of record values; replication (three replicas) is in it, so with TLS each byte is encrypted three times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.embedded import EmbeddedCluster
from bench.peers import cpu_seconds

LOAD_TIMEOUT_S = 300
SETTINGS = {"log.dir.free.bytes.min": "0"}
LOADS: list[tuple[str, str, dict[str, Any]]] = [
    ("produce, 1 MB batches", "produce", {"records": 200_000, "size": 1024, "batch": 1_000_000, "run": 2_000}),
    ("consume", "consume", {"records": 200_000}),
    ("produce, 16 KB batches", "produce", {"records": 60_000, "size": 1024, "batch": 16_384, "run": 1}),
    ("one in flight", "one_in_flight", {"records": 1_000, "size": 100}),
]


@dataclass(slots=True)
class Variant:
    name: str
    cluster: EmbeddedCluster
    bootstrap: str
    client: dict[str, str]

    def run(self, kind: str, arguments: dict[str, Any]) -> dict[str, float]:
        """One load's figures, with the CPU of all nodes meanwhile."""
        pids = [row["pid"] for row in self.cluster.nodes() if row["pid"]]
        line = [sys.executable, "-m", "bench.load", kind, self.bootstrap, json.dumps(arguments)]
        environment = os.environ | {"BENCH_CLIENT": json.dumps(self.client)}
        before = cpu_seconds(pids)
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, check=False, env=environment
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}, {kind}: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if found["errors"]:
            raise RuntimeError(f"{self.name}, {kind}: {found['errors']} errors")
        if "gigabytes" in found:
            found["cpu_s_gb"] = round((cpu_seconds(pids) - before) / found["gigabytes"], 2)
        return found


def measure(rounds: int) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Figures by (load, variant)."""
    figures: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with EmbeddedCluster(settings=SETTINGS) as plain, EmbeddedCluster(settings=SETTINGS, tls=True) as secure:
        over_tls = {"security.protocol": "SSL", "ssl.ca.location": str(secure.data / "tls" / "ca.pem")}
        variants = [
            Variant("plaintext", plain, plain.bootstrap, {}),
            Variant("TLS between nodes", secure, secure.bootstrap, {}),
            Variant("TLS everywhere", secure, secure.secure_bootstrap, over_tls),
        ]
        topics: dict[str, str] = {}
        for turn in range(rounds):
            for name, kind, arguments in LOADS:
                for variant in variants if turn % 2 == 0 else reversed(variants):
                    own = arguments | ({"topic": topics[variant.name]} if kind == "consume" else {})
                    found = variant.run(kind, own)
                    if kind == "produce":
                        topics[variant.name] = str(found["topic"])
                    for figure in ("cpu_s_gb", "mb_s", "p50_ms", "p99_ms"):
                        if figure in found:
                            figures[name, variant.name][figure].append(found[figure])
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    table = Table(box=None, header_style="bold", title=f"medians of {rounds} rounds")
    for column in ("load", "clients and nodes", "CPU s/GB", "MB/s", "p50 ms", "p99 ms"):
        table.add_column(column)
    for (load, variant), figures in measure(rounds).items():
        shown = [figures.get(figure) for figure in ("cpu_s_gb", "mb_s", "p50_ms", "p99_ms")]
        table.add_row(load, variant, *(f"{statistics.median(found):g}" if found else "" for found in shown))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
