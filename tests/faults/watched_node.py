"""What a node shows from outside while it is attacked: its memory, its log, how it serves others."""

from __future__ import annotations

import os
import shlex
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.embedded import EmbeddedCluster
from records.builder import build_batch
from records.record import Record
from tests.faults.raw_client import RawClient
from tidelog.cluster import control
from wire.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    ProduceRequest,
)

LOG_PATIENCE_S = 5.0
PAUSE_S = 0.01
MIB = 1 << 20


def rows(cluster: EmbeddedCluster) -> list[dict[str, Any]]:
    """As `tidelog ps --json`, without a process for it."""
    found: list[dict[str, Any]] = control.ask(cluster.data.resolve(), {"do": "ps"}, 10.0)["nodes"]
    return found


class WatchedNode:
    """One node of a running cluster."""

    def __init__(self, cluster: EmbeddedCluster, name: str = "broker-0") -> None:
        self.name = name
        self._cluster = cluster
        self.row: dict[str, Any] = {}
        self.follow()
        self._log = cluster.data / "logs" / f"{name}.log"
        self._log_from = self._log.stat().st_size

    def follow(self) -> None:
        """Watch the process that runs now."""
        self.row = next(row for row in rows(self._cluster) if row["node"] == self.name)

    @property
    def address(self) -> str:
        """Of the clients' listener."""
        return str(self.row["listeners"]["PLAINTEXT"])

    @property
    def internal_address(self) -> str:
        return str(self.row["listeners"]["INTERNAL"])

    @property
    def pid(self) -> int:
        return int(self.row["pid"])

    @property
    def is_same_process(self) -> bool:
        """Whether it has neither died nor been started again since it is watched."""
        return bool(WatchedNode(self._cluster, self.name).row["pid"] == self.pid)

    def connect(self, **options: Any) -> RawClient:
        return RawClient(self.address, **options)

    def processor_seconds(self) -> float:
        """What it has used in all its threads since it began."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        return _status_bytes(self.pid, "VmRSS")

    def peak_bytes(self) -> int:
        """The most that was ever resident since `forget_peak`."""
        return _status_bytes(self.pid, "VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def log_lines(self) -> list[dict[str, str]]:
        """What it has logged since it is watched, each line as its pairs."""
        with self._log.open() as log:
            log.seek(self._log_from)
            return [parse_line(line) for line in log.read().splitlines()]

    def lines_about(self, peer: str) -> list[dict[str, str]]:
        return [line for line in self.log_lines() if line.get("peer") == peer]

    def one_line_about(self, peer: str) -> dict[str, str]:
        """The only line about a peer; it may be written a moment after the connection ended."""
        deadline = time.monotonic() + LOG_PATIENCE_S
        while not (lines := self.lines_about(peer)) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        assert len(lines) == 1, lines
        return lines[0]

    def complaints(self) -> list[dict[str, str]]:
        """Lines that nobody but a defect explains: exceptions and everything from error on."""
        return [
            line
            for line in self.log_lines()
            if "exception" in line or line.get("level") in ("error", "critical") or "level" not in line
        ]


def parse_line(line: str) -> dict[str, str]:
    """A line of `tidelog.nodes.logs`; one of anything else has the single key `raw`."""
    if not line.startswith("time="):
        return {"raw": line}
    try:
        words = shlex.split(line)
    except ValueError:
        return {"raw": line}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(name)


def make_topic(
    client: RawClient, configs: dict[str, str] | None = None, *, replicas: int = -1, partitions: int = 1
) -> str:
    """A topic under a name of its own."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    topic = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            topic(
                name=name,
                num_partitions=partitions,
                replication_factor=replicas,
                assignments=[],
                configs=[topic.CreatableTopicConfig(name=n, value=v) for n, v in (configs or {}).items()],
            )
        ],
        timeout_ms=20_000,
        validate_only=False,
    )
    (answer,) = client.ask(request, 5).topics
    assert answer.error_code == 0, answer
    return name


def change_config(client: RawClient, topic: str, configs: dict[str, str]) -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    changes = [resource.AlterableConfig(name=n, config_operation=0, value=v) for n, v in configs.items()]
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=2, resource_name=topic, configs=changes)], validate_only=False
    )
    (answer,) = client.ask(request, 1).responses
    assert answer.error_code == 0, answer


def delete_topic(client: RawClient, topic: str) -> None:
    (answer,) = client.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=20_000), 5).responses
    assert answer.error_code == 0, answer


def produce_request(topic: str, batch: bytes | bytearray, acks: int = -1) -> Any:
    data = ProduceRequest.TopicProduceData
    part = data.PartitionProduceData(index=0, records=bytes(batch))
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[data(name=topic, partition_data=[part])],
    )


def produce(client: RawClient, topic: str, batch: bytes | bytearray) -> Any:
    """The answer for the one partition: error code, base offset, message."""
    (answer,) = client.ask(produce_request(topic, batch), 9).responses
    return answer.partition_responses[0]


def fetch_request(
    topic: str, *, offset: int = 0, bytes_max: int = 50 * MIB, replica: int = -1, wait_ms: int = 100
) -> Any:
    of = FetchRequest.FetchTopic
    part = of.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=bytes_max,
    )
    return FetchRequest(
        replica_id=replica,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[of(topic=topic, partitions=[part])],
        forgotten_topics_data=[],
        rack_id="",
    )


def some_batch(value: bytes = b"v" * 100, **options: Any) -> bytearray:
    return build_batch([Record(0, int(time.time() * 1_000), b"k", value)], **options)


class Bystander(threading.Thread):
    """A well-behaved client that produces and fetches all the time.

    `rounds` has one entry for each round: how many seconds of the processor the node spent on everybody meanwhile. That
    is what a round has to wait for when the node serves others first; unlike the time of day it does not depend on
    what else the machine does.
    """

    def __init__(self, node: WatchedNode, topic: str) -> None:
        super().__init__(daemon=True)
        self.rounds: list[float] = []
        self.failure: BaseException | None = None
        self._ends = threading.Event()
        self._client = node.connect()
        self._node = node
        self._topic = topic

    def run(self) -> None:
        try:
            while not self._ends.wait(PAUSE_S):
                began = self._node.processor_seconds()
                written = produce(self._client, self._topic, some_batch())
                assert written.error_code == 0, written
                read = self._client.ask(fetch_request(self._topic, offset=written.base_offset), 11)
                assert read.responses[0].partitions[0].records
                self.rounds.append(self._node.processor_seconds() - began)
        except BaseException as failure:  # told by `finish`, in the test's own thread
            self.failure = failure

    def finish(self) -> None:
        self._ends.set()
        self.join()
        self._client.close()
        if self.failure is not None:
            raise self.failure


@contextmanager
def bystander(node: WatchedNode, *, slowest_s: float = 2.0, rounds_min: int = 5) -> Iterator[Bystander]:
    """While the block attacks, somebody else works; it must come through, and no round may cost the node much."""
    with node.connect() as client:
        topic = make_topic(client)
    other = Bystander(node, topic)
    other.start()
    try:
        yield other
        while len(other.rounds) < rounds_min and other.is_alive():  # it ends by itself when it is not answered
            time.sleep(PAUSE_S)
    finally:
        other.finish()
    assert max(other.rounds) < slowest_s, sorted(other.rounds)[-5:]
