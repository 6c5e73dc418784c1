"""`python -m bench.held_quotas`: a quota of 1 MB/s, held for producers and consumers of three client libraries.

librdkafka, the Java clients and franz-go write and read at once, each client under a quota of its own, against Tidelog
and beside it Apache Kafka, one broker each. Bytes are those of the clients' sockets, as the kernel counts them, over
whole windows of the quota after the first one. Prints for each client what it had, and the throttle times that it saw.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.embedded import EmbeddedCluster
from bench.peers import MissingTool, kafka_jars
from bench.single_kafka import single_kafka

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / "work"
QUOTA = 1_000_000  # bytes per second, of requests and of responses
WINDOW_S = 11  # quota.window.num x quota.window.size.seconds
WINDOWS = 5  # measured, after the first one
RECORD = 1_000
START_S = 20  # the most for a client to connect
IN_ADVANCE_S = 10  # what a client may use at once
TO_READ = QUOTA * (WINDOW_S * (WINDOWS + 2) + IN_ADVANCE_S + START_S)
WITHIN = 0.05


class Client:
    """One running client. `seen` is what it says of its throttle times, once it has ended."""

    def __init__(self, library: str, role: str, line: list[str], count: Callable[[str], dict[str, float]]) -> None:
        self.library, self.role = library, role
        self._count = count
        piped = subprocess.PIPE
        self._process = subprocess.Popen(line, stdin=piped, stdout=piped, stderr=subprocess.DEVNULL, text=True)
        self.pid = self._process.pid
        self.seen: dict[str, float] = {}

    def end(self) -> None:
        """Wait for its own end, which the Java tools reach by a count of records."""
        try:
            out, _ = self._process.communicate(timeout=60)
        finally:
            self._process.kill()
        self.seen = self._count(out)


def java_metrics(out: str) -> dict[str, float]:
    """The throttle times that a Java client has measured, from the metrics that its tool prints."""
    named = re.findall(r"(?m)^\S+:(?:produce|fetch)-throttle-time-(avg|max):\{.*\}\s*: ([\d.]+)", out)
    return {f"throttled_{name}_ms": float(value) for name, value in named}


def last_line(out: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def franz_go() -> Path:
    """The program of franz-go, built from the module in this folder."""
    if shutil.which("go") is None:
        raise MissingTool("go is not installed, so franz-go cannot be run here")
    program = WORK / "held_quotas_franz_go"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=HERE / "franz_go", check=True)
    return program


class Programs:
    """How to start each client against one broker."""

    def __init__(self, jars: Path, franz: Path, folder: Path, bootstrap: str) -> None:
        self._jars, self._franz, self._folder, self._bootstrap = jars, franz, folder, bootstrap

    def start(self, library: str, role: str) -> Client:
        name = f"{library}-{role}"
        topic = "to-read" if role == "fetch" else name
        if library == "java":
            return Client(library, role, self._java(role, topic, name), java_metrics)
        own = [str(self._franz)] if library == "franz-go" else [sys.executable, "-m", "bench.held_quotas.librdkafka"]
        return Client(library, role, [*own, role, self._bootstrap, topic, name], last_line)

    def _java(self, role: str, topic: str, name: str) -> list[str]:
        line = ["java", "-Xmx256M", "-cp", f"{self._jars}/*"]
        records = str(QUOTA * (WINDOW_S * (WINDOWS + 2) + IN_ADVANCE_S) // RECORD)
        if role == "produce":
            tool = [
                "org.apache.kafka.tools.ProducerPerformance",
                "--num-records",
                records,
                "--record-size",
                str(RECORD),
            ]
            properties = [f"bootstrap.servers={self._bootstrap}", f"client.id={name}"]
            return [
                *line,
                *tool,
                "--throughput",
                "-1",
                "--topic",
                topic,
                "--print-metrics",
                "--producer-props",
                *properties,
            ]
        config = self._folder / "consumer.properties"
        config.write_text(f"client.id={name}\nauto.offset.reset=earliest\n")
        tool = ["org.apache.kafka.tools.ConsumerPerformance", "--messages", records, "--timeout", "60000"]
        where = ["--bootstrap-server", self._bootstrap, "--topic", topic, "--consumer.config", str(config)]
        return [*line, *tool, *where, "--print-metrics"]


LIBRARIES = ("librdkafka", "java", "franz-go")
ROLES = ("produce", "fetch")


def socket_bytes(bootstrap: str) -> dict[int, tuple[int, int]]:
    """What each process has sent to the broker and received from it."""
    port = bootstrap.rpartition(":")[2]
    out = subprocess.run(["ss", "-tinpH", f"dport = :{port}"], capture_output=True, text=True, check=True).stdout
    counted: dict[int, tuple[int, int]] = {}
    for pid, details in re.findall(r"pid=(\d+),[^\n]*\n([^\n]*)", out):
        sent, received = (re.search(rf"\b{name}:(\d+)", details) for name in ("bytes_sent", "bytes_received"))
        before = counted.get(int(pid), (0, 0))
        more = (int(sent[1]) if sent else 0, int(received[1]) if received else 0)
        counted[int(pid)] = (before[0] + more[0], before[1] + more[1])
    return counted


def prepare(bootstrap: str, jars: Path) -> None:
    """Topics, records to read, then the quota: of each client id."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = ["to-read", *(f"{library}-produce" for library in LIBRARIES)]
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for _ in range(TO_READ // RECORD):
        while True:
            try:
                producer.produce("to-read", bytes(RECORD), partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("the records to read were not written")
    command = ["java", "-cp", f"{jars}/*", "kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, "--alter"]
    quota = f"producer_byte_rate={QUOTA},consumer_byte_rate={QUOTA}"
    subprocess.run([*command, "--entity-type", "clients", "--entity-default", "--add-config", quota], check=True)


def watched(clients: list[Client], bootstrap: str) -> dict[int, list[tuple[float, int]]]:
    """By process: seconds since the client began, and its bytes until then."""
    samples: dict[int, list[tuple[float, int]]] = {client.pid: [] for client in clients}
    begun: dict[int, float] = {}
    deadline = time.monotonic() + START_S + WINDOW_S * (WINDOWS + 1)
    while (now := time.monotonic()) < deadline:
        counted = socket_bytes(bootstrap)
        for client in clients:
            used = counted.get(client.pid, (0, 0))[client.role == "fetch"]
            if used > QUOTA / 10:
                samples[client.pid].append((now - begun.setdefault(client.pid, now), used))
        if len(begun) == len(clients) and now > max(begun.values()) + WINDOW_S * (WINDOWS + 1) + 1:
            break
        time.sleep(0.1)
    return samples


def measured(programs: Programs, bootstrap: str) -> list[dict[str, Any]]:
    """Run all clients at once. A row for each."""
    clients = [programs.start(library, role) for library in LIBRARIES for role in ROLES]
    samples = watched(clients, bootstrap)
    rows: list[dict[str, Any]] = []
    for client in clients:
        first, last = (next((s for s in samples[client.pid] if s[0] >= at), None)
                       for at in (WINDOW_S, WINDOW_S * (WINDOWS + 1)))  # fmt: skip
        rate = None if first is None or last is None else (last[1] - first[1]) / (last[0] - first[0])
        rows.append({"library": client.library, "role": client.role, "rate": rate})
    for client, row in zip(clients, rows, strict=True):
        client.end()
        row["seen"] = client.seen
    return rows


def shown(system: str, rows: list[dict[str, Any]]) -> bool:
    """Print a line for each client. Whether all were within 5 % of the quota and saw throttle times."""
    held = True
    for row in rows:
        rate, seen = row["rate"], row["seen"]
        if rate is None:
            print(f"{system:8} {row['library']:11} {row['role']:8} did not run for the whole span")
            held = False
            continue
        off = rate / QUOTA - 1
        is_throttled = any(value > 0 for name, value in seen.items() if name.startswith("throttled"))
        held &= abs(off) <= WITHIN and is_throttled
        print(f"{system:8} {row['library']:11} {row['role']:8} {rate / 1e6:.3f} MB/s ({off:+.1%}), saw {seen}")
    return held


@contextmanager
def serving(system: str, jars: Path, folder: Path) -> Iterator[str]:
    """The bootstrap address of one broker of `system`."""
    if system == "kafka":
        with single_kafka(jars, folder) as bootstrap:
            yield bootstrap
    else:
        with EmbeddedCluster(brokers=1, settings={"log.dir.free.bytes.min": "0"}) as cluster:
            yield cluster.bootstrap


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.held_quotas", description=__doc__)
    parser.add_argument("--system", choices=("tidelog", "kafka"), action="append", help="instead of both")
    parser.add_argument("--out", type=Path, help="a file for the results as JSON")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    try:
        if shutil.which("ss") is None:
            raise MissingTool("ss (iproute2) is not installed, so the bytes of sockets cannot be counted here")
        jars, franz = kafka_jars(WORK), franz_go()
    except MissingTool as missing:
        print(f"held_quotas not run: {missing}")
        return 2
    results, held = {}, True
    for system in options.system or ("kafka", "tidelog"):
        with (
            tempfile.TemporaryDirectory(prefix="tidelog-quotas-") as name,
            serving(system, jars, Path(name)) as bootstrap,
        ):
            prepare(bootstrap, jars)
            results[system] = measured(Programs(jars, franz, Path(name), bootstrap), bootstrap)
        is_held = shown(system, results[system])
        held &= is_held or system == "kafka"
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
