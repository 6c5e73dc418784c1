"""What hostile requests do to another client: `python -m bench.hostile [--elements N] [--seconds S] [--only ROW,…]`.

Three brokers. One client produces a record at a time with acks=all; beside it another sends the most expensive legal
requests, one API and shape after another, each again and again on one connection. Printed: the producer's latencies
without and with it, the processor time of each process, the largest resident memory of a broker, and brokers that were
fenced. `--only` takes names of APIs, or a row's API and shape: `FindCoordinator/distinct`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.embedded import EmbeddedCluster, held_loops
from bench.hostile.requests import Hostile, Names, hostile_requests
from bench.peers import resident_mb, wait_serving
from wire.codec import encode_request
from wire.listeners import ListenerKind

TOPIC, PARTITIONS = "victim", 50
LEFT_OUT = {"UnregisterBroker", "UpdateFeatures", "DeleteTopics", "DeleteGroups"}
ANSWER_S = 30.0
RATIO_MAX = 3.0
HELD_SHOWN = 20  # of the lines of nodes whose loop was held


@dataclass(slots=True)
class Row:
    """Milliseconds of one produce request, megabytes of the largest broker, and how many answers there were."""

    label: str
    p50_ms: float
    p99_ms: float
    resident_mb: float
    answers: int
    closed: int
    busy: dict[str, float]  # share of one processor that each node and the attacker had


class Busy:
    """What share of a processor each of some processes has had since this was made."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._began = time.monotonic()
        self._before = {name: _processor_s(pid) for name, pid in pids.items()}

    def shares(self) -> dict[str, float]:
        passed_s = time.monotonic() - self._began
        return {name: round((_processor_s(pid) - self._before[name]) / passed_s, 3) for name, pid in self._pids.items()}


def _processor_s(pid: int) -> float:
    """Seconds that all threads of a process have run."""
    runs = (task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(run.split()[0]) for run in runs) / 1e9


class Victim:
    """Produces a record, waits for its acknowledgement, and again."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all", "log_level": 0})

    def measure(self, seconds: float) -> list[float]:
        """Latencies in milliseconds, sorted."""
        found: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begin = time.perf_counter()
            self._producer.produce(TOPIC, b"x" * 100, partition=len(found) % PARTITIONS)
            self._producer.flush(ANSWER_S)
            found.append((time.perf_counter() - begin) * 1_000)
        return sorted(found)


class Attacker:
    """A process that sends one frame again and again until it is stopped, on a new connection when one is closed."""

    def __init__(self, port: int, frame: bytes) -> None:
        self.answers = self.closed = 0
        command = [sys.executable, "-m", "bench.hostile.attacker", str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        self._process.stdin.write(frame)
        self._process.stdin.close()
        self._process.stdin = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.terminate()
        counts, _ = self._process.communicate(timeout=ANSWER_S)
        self.answers, self.closed = map(int, counts.split())


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(int(len(sorted_values) * share), len(sorted_values) - 1)]


def measure(cluster: EmbeddedCluster, hostile: Hostile | None, seconds: float) -> Row:
    """The victim's latencies while `hostile` is sent; None: undisturbed."""
    victim = Victim(cluster.bootstrap)
    victim.measure(0.3)  # connections, metadata
    pids = {f"{node['role']}-{node['id']}": node["pid"] for node in cluster.nodes()}
    attacker = None
    if hostile is not None:
        port = int(cluster.bootstrap.split(",")[0].rsplit(":", 1)[1])
        attacker = Attacker(port, encode_request(hostile.message, hostile.version, 1, "hostile"))
    busy = Busy(pids if attacker is None else {**pids, "attacker": attacker.pid})
    found = victim.measure(seconds)
    shares = busy.shares()
    largest = max(resident_mb([pid]) for name, pid in pids.items() if name.startswith("broker"))
    if attacker is not None:
        attacker.stop()
    return Row(
        "undisturbed" if hostile is None else hostile.label,
        percentile(found, 0.5),
        percentile(found, 0.99),
        largest,
        attacker.answers if attacker is not None else 0,
        attacker.closed if attacker is not None else 0,
        shares,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    parser.add_argument("--elements", type=int, default=10_000, help="of the longest list of a request")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each request")
    parser.add_argument("--only", default="", help="APIs, or API/shape, separated by commas")
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    rows: list[Row] = []
    with EmbeddedCluster(3) as cluster:
        wait_serving(cluster.bootstrap)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC]
        made.result(30)
        names = Names(TOPIC, "victims")
        calm = [measure(cluster, None, options.seconds)]
        for hostile in hostile_requests(names, options.elements, every_version=False):
            is_served = ListenerKind.OPERATOR in hostile.api.kinds and hostile.api.name not in LEFT_OUT
            is_meant = not only or hostile.api.name in only or f"{hostile.api.name}/{hostile.shape}" in only
            if is_served and is_meant:
                calm.append(measure(cluster, None, options.seconds))
                rows.append(row := measure(cluster, hostile, options.seconds))
                print(_line(row, _undisturbed(calm)), flush=True)
        fenced = _fenced(cluster.data)
        held = held_loops(cluster.data)
    undisturbed = _undisturbed(calm)
    print(f"undisturbed, median of {len(calm)}: p99 {undisturbed:.2f} ms")
    print(f"fenced: {fenced}; callbacks that held a loop: {len(held)}")
    for line in held[:HELD_SHOWN]:
        print(line)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    worst = max(row.p99_ms for row in rows) / undisturbed
    print(f"worst p99: {worst:.1f} x undisturbed; largest broker: {max(row.resident_mb for row in rows):.0f} MB")
    return int(worst > RATIO_MAX or fenced > 0)


def _undisturbed(calm: list[Row]) -> float:
    """Milliseconds: the p99 of the producer alone, which is measured again before each row."""
    return statistics.median(row.p99_ms for row in calm)


def _line(row: Row, undisturbed: float) -> str:
    ratio = row.p99_ms / undisturbed
    return (
        f"{row.label:45} p50 {row.p50_ms:6.2f}  p99 {row.p99_ms:7.2f} ms  x{ratio:4.1f}  {row.resident_mb:5.0f} MB  "
        f"{row.answers} answers, {row.closed} closed  busy {_percent(row.busy)}"
    )


def _percent(busy: dict[str, float]) -> str:
    return " ".join(f"{name} {share:.0%}" for name, share in sorted(busy.items()))


def _fenced(data: Path) -> int:
    """How often a controller has fenced a broker."""
    return sum(log.read_text().count("broker fenced") for log in (data / "logs").glob("controller-*.log"))


if __name__ == "__main__":
    raise SystemExit(main())
