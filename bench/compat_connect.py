"""`python -m bench.compat_connect`: Apache Kafka's Connect and MirrorMaker 2, from published jars, while processes die.

Two distributed workers copy growing files into topics with exactly-once sources. Workers and brokers are killed in
turn, and workers are stopped until their tasks have moved: each topic is its file. Then MirrorMaker copies both ways
between two clusters (`bench.compat_mirrors`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench.committed_records import committed_values, has_open_transaction
from bench.compat_mirrors import mirrors
from bench.embedded import EmbeddedCluster, free_ports
from bench.java_programs import TIMEOUT_S, VERSIONS, Program, ended_after, expect, program_jars, until
from bench.peers import MissingTool
from bench.tenant_clients import QUIET

WORKERS, LINES_EACH_TURN = 2, 3_000
BOUNDARIES = ("poll", "interval")  # one connector each
ANSWER_S = 2.0  # a stopped worker answers nothing
ZOMBIE_S = 5.0  # for which a worker goes on that the others took for dead
OTHER_WORKER_FAILED = "ConnectRestException"
MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
SETTINGS = {"group.initial.rebalance.delay.ms": "500", "log.dir.free.bytes.min": "0"}


@dataclass(slots=True)
class Source:
    """A file that grows, and the topic that it is copied into."""

    name: str
    file: Path
    bootstrap: str
    ports: list[int]  # of all workers
    boundary: str  # of its transactions: `poll` or `interval`
    lines: int = 0

    def grow(self) -> None:
        with self.file.open("a") as file:
            file.writelines(f"line-{number}\n" for number in range(self.lines, self.lines + LINES_EACH_TURN))
        self.lines += LINES_EACH_TURN

    def copied(self) -> list[bytes]:
        """What readers of committed records see in the topic."""
        return committed_values(self.client, self.name, 1)[0]

    @property
    def client(self) -> dict[str, str | int | float | bool]:
        return {"bootstrap.servers": self.bootstrap, **QUIET}

    def wait_for(self, lines: int, when: str) -> None:
        """Until so many are copied."""

        def are_copied() -> bool:
            if len(self.copied()) >= lines:
                return True
            for port in self.ports:
                self._restart_failed_task(port, when)
            return False

        until(are_copied, f"{lines} lines of {self.name} are copied {when}")

    def wait_for_transaction(self, when: str) -> None:
        """Until one is open, or has been missed on a slow machine."""

        def is_begun() -> bool:
            return has_open_transaction(self.client, self.name) or len(self.copied()) >= self.lines

        until(is_begun, f"{self.name} goes on {when}")

    def _restart_failed_task(self, port: int, when: str) -> None:
        """As an operator does, if the failure is Connect's own: a task fails for good when a worker that it has asked
        to fence its predecessors dies. RuntimeError after other failures, which says whether a transaction is open."""
        for task in _ask(port, f"{self.name}/status").get("tasks", ()):
            trace = task.get("trace", "")
            if trace and OTHER_WORKER_FAILED not in trace:
                # A commit that came before its first batch leaves none open; one refused by mistake does.
                left = "a" if has_open_transaction(self.client, self.name) else "no"
                raise RuntimeError(f"the task of {self.name} failed {when}, with {left} transaction open: {trace}")
            if trace:
                _ask(port, f"{self.name}/tasks/{task['id']}/restart", "POST")

    def connect(self) -> None:
        """Make its connector."""
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(self.file),
            "topic": self.name,
            "exactly.once.support": "required",
            "batch.size": "50",
            "transaction.boundary": self.boundary,
            "transaction.boundary.interval.ms": "4000",
        }
        path = f"{self.name}/config"
        until(lambda: _ask(self.ports[0], path, "PUT", config), f"the connector {self.name} is made")


def _ask(port: int, path: str, method: str = "GET", body: object = None) -> dict[str, Any]:
    """What a worker answers; nothing if it cannot, or has nothing to say."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/connectors/{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S if body is None else TIMEOUT_S) as answer:
            found: dict[str, Any] = json.loads(answer.read() or "{}")
            return found
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}


def _worker_file(folder: Path, bootstrap: str, port: int) -> Path:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "connect",
        "exactly.once.source.support": "enabled",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "listeners": f"http://127.0.0.1:{port}",
        "offset.storage.topic": "connect-offsets",
        "offset.storage.partitions": "5",
        "config.storage.topic": "connect-configs",
        "status.storage.topic": "connect-status",
        "session.timeout.ms": "10000",
        "scheduled.rebalance.max.delay.ms": "2000",
        "worker.sync.timeout.ms": "60000",  # a task fails for good when its worker cannot read the config topic so long
        "plugin.discovery": "service_load",
    }
    path = folder / f"worker-{port}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


class Workers:
    """Distributed workers of one group."""

    def __init__(self, jars: Path, folder: Path, bootstrap: str, ports: list[int]) -> None:
        self._jars = jars
        self._folder = folder
        self._files = [_worker_file(folder, bootstrap, port) for port in ports]
        self.programs = [self._begun(number) for number in range(WORKERS)]

    def _begun(self, number: int) -> Program:
        return Program(self._jars, self._folder / f"worker-{number}.out", MAIN, str(self._files[number]))

    def kill(self, number: int) -> None:
        """SIGKILL, and start it again."""
        self.programs[number].kill()
        self.programs[number] = self._begun(number)

    def hang(self, number: int, sources: list[Source]) -> None:
        """Stop it until the other copies everything, and let it go on as a zombie, which must write nothing. Then
        kill it, because a worker that was away may keep tasks that failed meanwhile, and nothing would run them."""
        self.programs[number].stop()
        try:
            for source in sources:
                source.wait_for(source.lines, "without a stopped worker")
        finally:
            self.programs[number].resume()
        time.sleep(ZOMBIE_S)
        self.kill(number)


def connect_sources(cluster: EmbeddedCluster, jars: Path, folder: Path, faults: int, rng: random.Random) -> str:
    first = free_ports(WORKERS)
    ports = list(range(first, first + WORKERS))
    sources = [
        Source(f"lines-by-{boundary}", folder / f"{boundary}.txt", cluster.bootstrap, ports, boundary)
        for boundary in BOUNDARIES
    ]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    for made in admin.create_topics([NewTopic(source.name, 1, 3) for source in sources]).values():
        made.result(TIMEOUT_S)
    for source in sources:
        source.file.unlink(missing_ok=True)
        source.grow()
    workers = Workers(jars, folder, cluster.bootstrap, ports)
    with ended_after(workers.programs):
        for source in sources:
            source.connect()
        for turn in range(faults):
            _copy_more(sources, f"in turn {turn + 1}")
            if turn % 3 == 0:
                workers.kill(rng.randrange(WORKERS))
            elif turn % 3 == 1:
                broker = f"broker-{rng.randrange(3)}"
                cluster.kill(broker)
                cluster.command("start", broker)
            else:
                workers.hang(rng.randrange(WORKERS), sources)
        _copy_more(sources, "after the last fault")
        for source in sources:
            source.wait_for(source.lines, "at last")
        for source in sources:
            found, expected = source.copied(), [f"line-{number}".encode() for number in range(source.lines)]
            expect(found == expected, f"{source.name} is its file: {len(found)} lines of {len(expected)}")
    return f"{sum(source.lines for source in sources)} lines, each once and in order"


def _copy_more(sources: list[Source], when: str) -> None:
    """Let each file grow, and wait until new lines are on their way: the next fault comes amid a transaction."""
    for source in sources:
        before = source.lines
        source.grow()
        if source.boundary == "interval":
            source.wait_for_transaction(when)
        else:
            source.wait_for(before + 1, when)


def run(jars: Path, version: str, folder: Path, options: argparse.Namespace) -> None:
    faults = 6 if options.long else 2
    rng = random.Random(options.seed)
    steps = {
        "connect": lambda cluster, place: connect_sources(cluster, jars, place, faults, rng),
        "mirrors": lambda cluster, place: mirrors(cluster, jars, place, faults, rng),
    }
    for name in options.only or steps:
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with EmbeddedCluster(settings=SETTINGS) as cluster:
            said = steps[name](cluster, place)
        print(f"ok: {name} in {time.monotonic() - began:.0f} s, Apache Kafka {version}: {said}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", action="append", choices=VERSIONS, help=f"of the programs; {VERSIONS[0]} by default")
    parser.add_argument("--only", action="append", choices=("connect", "mirrors"), help="a step")
    parser.add_argument("--long", action="store_true", help=f"with {', '.join(VERSIONS)}, and more faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the programs' output")
    options = parser.parse_args()
    for version in options.kafka or (VERSIONS if options.long else VERSIONS[:1]):
        try:
            jars = program_jars(version)
        except MissingTool as missing:
            print(f"not run: {missing}")
            return 0 if os.environ.get("CI") else 2
        with tempfile.TemporaryDirectory(prefix="tidelog-connect-") as made:
            run(jars, version, options.keep / version if options.keep else Path(made), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
