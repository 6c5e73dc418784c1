"""A cluster on a disk that fills up: `python -m tests.faults.full_disk all|one|near DIR`.

`all`: DIR is a small file system. `one` and `near`: DIR/cluster/broker-1 is one. Run by `test_faults_disk.py` in a
private mount namespace, so that nothing stays mounted whatever happens.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from bench.embedded import EmbeddedCluster
from common.errors import ErrorCode
from records.batch import iterate_batches
from tests.faults.raw_client import RawClient, wait_until
from tests.faults.watched_node import (
    MIB,
    WatchedNode,
    delete_topic,
    fetch_request,
    make_topic,
    produce_request,
    rows,
    some_batch,
)
from wire.messages import MetadataRequest

DISK_BYTES_MAX = 1 << 30
FREE_MIN = 48 * MIB
ATTEMPTS = 20
VALUE_BYTES = 512 << 10
LAG_MAX_S = 120
FULL_TIMES = 8  # about as many seconds
SETTINGS = {
    "log.dir.free.bytes.min": str(FREE_MIN),
    "log.segment.bytes": str(2 * MIB),
    "log.segment.delete.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}

NEAR_SETTINGS = {"leader.imbalance.check.interval.seconds": "1", "replica.lag.time.max.ms": str(LAG_MAX_S * 1000)}


class Writer:
    """Numbered records to one partition, and which of them were acknowledged by all replicas."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        with WatchedNode(cluster).connect() as client:
            self.topic = make_topic(client)
        self.acknowledged: list[int] = []
        self.throttled = 0
        self.refusals: list[tuple[int, str]] = []
        self._number = 0

    def leader(self) -> RawClient:
        """A connection to the broker that leads now. Raises OSError when there is none."""
        leader = self.leader_id()
        if leader < 0:
            raise ConnectionError("nobody leads")
        return WatchedNode(self._cluster, f"broker-{leader}").connect()

    def leader_id(self) -> int:
        return int(self._partition().leader_id)

    def is_whole(self, replicas: int) -> bool:
        """Whether so many replicas are in sync."""
        return len(self._partition().isr_nodes) == replicas

    def _partition(self) -> Any:
        """As the first broker that answers tells it."""
        for row in rows(self._cluster):
            if row["role"] == "broker" and row["state"] == "running":
                with RawClient(row["listeners"]["PLAINTEXT"]) as client:
                    asked = [MetadataRequest.MetadataRequestTopic(name=self.topic)]
                    (topic,) = client.ask(MetadataRequest(topics=asked), 4).topics
                if topic.partitions:
                    return topic.partitions[0]
        raise ConnectionError("no broker tells")

    def write(self, client: RawClient) -> bool:
        """One record; whether it was acknowledged."""
        self._number += 1
        batch = some_batch(self._number.to_bytes(8, "big") + bytes(VALUE_BYTES))
        answer = client.ask(produce_request(self.topic, batch), 9)
        self.throttled += answer.throttle_time_ms > 0
        (part,) = answer.responses[0].partition_responses
        if part.error_code:
            self.refusals.append((part.error_code, part.error_message or ""))
            return False
        self.acknowledged.append(self._number)
        return True

    def writes_again(self, times: int = 1) -> bool:
        try:
            with self.leader() as client:
                return all(self.write(client) for _ in range(times))
        except (OSError, EOFError):
            return False

    def missing(self, client: RawClient) -> set[int]:
        """Acknowledged records that a reader does not find."""
        found: set[int] = set()
        offset = 0
        while len(found) < len(self.acknowledged):
            (part,) = client.ask(fetch_request(self.topic, offset=offset), 11).responses[0].partitions
            assert not part.error_code, part
            if not part.records:
                break
            view = memoryview(part.records)
            for at, header in iterate_batches(view, 0, len(view)):
                found.add(int.from_bytes(view[at + 61 :][:40].tobytes().partition(b"k")[2][3:11], "big"))
                offset = header.next_offset
        return set(self.acknowledged) - found


def main(kind: str, disk: Path) -> None:
    small = disk if kind == "all" else disk / "cluster" / "broker-1"
    if shutil.disk_usage(small).total > DISK_BYTES_MAX:
        raise SystemExit(f"{small} is no small file system, and would be filled")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the cluster is stopped, too
    settings = SETTINGS | (NEAR_SETTINGS if kind == "near" else {})
    with EmbeddedCluster(data=disk / "cluster", settings=settings) as cluster:
        if kind == "all":
            near_full(cluster)
            full(cluster, disk)
        elif kind == "near":
            near_full_for_one(cluster)
        else:
            full_for_one(cluster)


def fill(path: Path, leave: int = 0) -> None:
    """Take every byte but so many."""
    with path.open("wb", buffering=0) as file:
        for size in (MIB, 1):
            with contextlib.suppress(OSError):
                while (not leave or shutil.disk_usage(path).free > leave) and file.write(bytes(size)):
                    pass


def near_full_for_one(cluster: EmbeddedCluster) -> None:
    """It hands its leaderships over while it lives, the two others commit without it; with room it has them back."""
    nodes = [WatchedNode(cluster, f"broker-{number}") for number in range(3)]
    writers = [Writer(cluster) for _ in range(2)]
    wait_until(partial(_one_more_is_led_by, 1, cluster, writers))  # a broker that comes late has none of the first
    crowded = writers[-1]
    for writer in writers:
        wait_until(partial(writer.is_whole, 3))
        assert writer.writes_again(5)
    hog = cluster.data / "broker-1" / "hog"
    fill(hog, FREE_MIN // 2)
    with nodes[1].connect() as client:
        wait_until(lambda: not crowded.write(client))
    code, why = crowded.refusals[0]
    assert code == ErrorCode.KAFKA_STORAGE_ERROR, (code, why)
    wait_until(partial(crowded.writes_again, 5), LAG_MAX_S / 2)  # before a follower would count as lagging
    for writer in writers:
        wait_until(partial(writer.writes_again, 5))
        assert writer.leader_id() != 1
        assert writer.is_whole(2)
    hog.unlink()
    for writer in writers:
        wait_until(partial(writer.is_whole, 3))
    wait_until(lambda: crowded.leader_id() == 1)
    for writer in writers:
        wait_until(partial(writer.writes_again, 5))
        with writer.leader() as client:
            assert not writer.missing(client)
    assert all(node.is_same_process for node in nodes)
    print("near full for one: ok", flush=True)


def _one_more_is_led_by(broker: int, cluster: EmbeddedCluster, writers: list[Writer]) -> bool:
    writers.append(Writer(cluster))
    return writers[-1].leader_id() == broker


def full_for_one(cluster: EmbeddedCluster) -> None:
    """It lives on: leadership moves and the two others go on, also with topics that are made meanwhile, whose replicas
    it has once there is room; and it knows what has changed, although its copy of the metadata had none either."""
    nodes = [WatchedNode(cluster, f"broker-{number}") for number in range(3)]
    writers = [Writer(cluster) for _ in range(3)]  # one of them is led by broker-1
    hog = cluster.data / "broker-1" / "hog"
    fill(hog)
    with nodes[0].connect() as client:
        make_topic(client, partitions=100)  # more than fits into what the copy of the metadata has of its last page
    for writer in writers:
        wait_until(partial(writer.writes_again, 5))
    wait_until(lambda: _told(nodes[1], "the metadata's local copy waits for room", FULL_TIMES))
    made = Writer(cluster)
    wait_until(partial(made.writes_again, 5))
    assert all(node.is_same_process for node in nodes)
    hog.unlink()
    for writer in [*writers, made]:
        wait_until(partial(writer.is_whole, 3), 60)
        assert writer.writes_again(5)
        with writer.leader() as client:
            assert not writer.missing(client)
    assert all(node.is_same_process for node in nodes)
    print("full for one: ok", flush=True)


def _told(node: WatchedNode, event: str, times: int) -> bool:
    """Whether it has met so many such events: the lines are ever more seldom."""
    return any(line.get("event") == event and int(line.get("times", 0)) >= times for line in node.log_lines())


def near_full(cluster: EmbeddedCluster) -> None:
    """Producers are slowed, then refused with a reason; readers and deletions go on, and what they free is used."""
    processes = {row["node"]: row["pid"] for row in rows(cluster)}
    ballast, writer = Writer(cluster), Writer(cluster)
    with ballast.leader() as client, writer.leader() as other:
        assert writer.write(other)
        while ballast.write(client):
            pass
        assert ballast.throttled > 2, "not slowed before it was refused"
        code, why = ballast.refusals[0]
        assert code == ErrorCode.KAFKA_STORAGE_ERROR, code
        assert "full" in why, why
        assert not ballast.missing(client)
        wait_until(lambda: not writer.write(other))
        assert not writer.missing(other)
        delete_topic(other, ballast.topic)
        wait_until(lambda: writer.write(other))
        assert not writer.missing(other)
    assert {row["node"]: row["pid"] for row in rows(cluster)} == processes, "a node has died of it"
    print("near full: ok", flush=True)


def full(cluster: EmbeddedCluster, disk: Path) -> None:
    """Somebody else takes the last byte: nodes may end, and come back by themselves with all that they had."""
    writer = Writer(cluster)
    with writer.leader() as client:
        for _ in range(10):
            assert writer.write(client)
    hog = disk / "hog"
    fill(hog)
    for _ in range(ATTEMPTS):
        with contextlib.suppress(OSError, EOFError, AssertionError), writer.leader() as client:
            client.socket.settimeout(1)
            writer.write(client)
            make_topic(client)  # so that the controllers have something to write, too
    hog.unlink()

    wait_until(writer.writes_again, 60)
    with writer.leader() as client:
        lost = writer.missing(client)
        assert not lost, lost
    wait_until(lambda: all(row["state"] == "running" for row in rows(cluster)), 60)
    print("full: ok", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
