"""A group coordinator dies with a million offsets: `python -m bench.coordinator_failover [--groups N] [--rounds N]`.

`__consumer_offsets` has one partition with 10,000 groups of 100 offsets each. Its leader is killed while somebody else
produces to two brokers that stay, 200 records a second. Figures: when the first of a hundred groups is answered again,
when all of them are, with the offsets that they committed; and the producer's p99 before the blow and until then. Both
systems run in turn in one run, see `bench.peers`; without Java, Tidelog alone. `--alone` kills and
starts the one broker of a cluster instead, which has to take the groups from its own disk.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import struct
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench.embedded import EmbeddedCluster
from bench.peers import (
    KAFKA_VERSION,
    KafkaPeer,
    MissingTool,
    Peer,
    TidelogPeer,
    cpu_seconds,
    kafka_jars,
    resident_mb,
)

WORK = Path(__file__).resolve().parent / "work"
OFFSETS_TOPIC, TOPIC, STEADY = "__consumer_offsets", "flights", "steady"
OFFSETS_EACH, SAMPLE = 100, 100
COMMITTERS = 8
BEFORE_S, DEADLINE_S = 5.0, 120.0
RATE_PAUSE_S = 0.005
SETTINGS = {"offsets.topic.num.partitions": "1"}


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds from the blow, milliseconds of the producer, megabytes of the brokers that stay."""

    first_s: float
    all_s: float
    p99_before_ms: float
    p99_meanwhile_ms: float
    memory_mb: float


class Steady:
    """Numbered records to one partition; when each was sent, and how long it took."""

    def __init__(self, bootstrap: str) -> None:
        self.latencies: list[tuple[float, float]] = []
        self._sent: dict[int, float] = {}
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._sent[number] = time.monotonic()
            self._producer.produce(STEADY, str(number).encode(), on_delivery=self._delivered)
            number += 1
            self._producer.poll(RATE_PAUSE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        sent = self._sent.pop(int(message.value() or b"0"))
        self.latencies.append((sent, time.monotonic() - sent if error is None else DEADLINE_S))

    def p99_ms(self, begin: float, end: float) -> float:
        taken = sorted(took for sent, took in self.latencies if begin <= sent < end)
        return taken[int(len(taken) * 0.99)] * 1_000 if taken else 0.0

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(30)


def offset_of(group: int, partition: int) -> int:
    return group * 1_000 + partition + 1


def name_of(group: int) -> str:
    return f"group-{group:06d}"


def commit_all(bootstrap: str, groups: int) -> None:
    """Each group commits all its offsets in one request."""

    def commit_share(first: int) -> None:
        asker = Asker(bootstrap)
        for group in range(first, groups, COMMITTERS):
            while not asker.commit(group):
                time.sleep(0.05)

    with ThreadPoolExecutor(COMMITTERS) as pool:
        list(pool.map(commit_share, range(COMMITTERS)))


class Asker:
    """Commits and reads offsets by sockets of its own: librdkafka's admin client may abort when a broker dies."""

    def __init__(self, bootstrap: str) -> None:
        self._addresses = [(host, int(port)) for host, port in (one.split(":") for one in bootstrap.split(","))]
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        self._known: tuple[str, int] | None = None

    def is_served(self, group: int) -> bool:
        """Whether the coordinator answers for the group; its last offset has to be the one that was committed."""
        for address in self._addresses:
            try:
                found = self._offset(self._coordinator(address, group), group)
            except OSError:
                continue
            if found is not None and found != offset_of(group, OFFSETS_EACH - 1):
                raise RuntimeError(f"{name_of(group)} is at {found}, which was not committed last")
            return found is not None
        return False

    def commit(self, group: int) -> bool:
        """Commit all offsets of the group; whether the coordinator took them. OffsetCommit, version 2."""
        offsets = b"".join(struct.pack(">iqh", n, offset_of(group, n), 0) for n in range(OFFSETS_EACH))
        topic = struct.pack(">i", 1) + _text(TOPIC) + struct.pack(">i", OFFSETS_EACH) + offsets
        body = _text(name_of(group)) + struct.pack(">i", -1) + _text("") + struct.pack(">q", -1) + topic
        try:
            self._known = self._known or self._coordinator(self._addresses[0], group)
            answer = self._call(self._known, 8, 2, body)
        except OSError:
            self._known = None
            return False
        codes = struct.iter_unpack(">ih", answer[4 + 2 + len(TOPIC) + 4 :])
        return all(code == 0 for _, code in codes)

    def _coordinator(self, address: tuple[str, int], group: int) -> tuple[str, int]:
        """FindCoordinator, version 1. Raises OSError."""
        answer = self._call(address, 10, 1, _text(name_of(group)) + b"\0")
        error, message_size = struct.unpack_from(">4xhh", answer)
        if error:
            raise ConnectionError(f"no coordinator: {error}")
        at = 8 + max(message_size, 0) + 4
        (size,) = struct.unpack_from(">h", answer, at)
        (port,) = struct.unpack_from(">i", answer, at + 2 + size)
        return answer[at + 2 : at + 2 + size].decode(), port

    def _offset(self, address: tuple[str, int], group: int) -> int | None:
        """OffsetFetch, version 2; None while the coordinator refuses. Raises OSError."""
        wanted = struct.pack(">i", 1) + _text(TOPIC) + struct.pack(">ii", 1, OFFSETS_EACH - 1)
        answer = self._call(address, 9, 2, _text(name_of(group)) + wanted)
        if struct.unpack_from(">h", answer, len(answer) - 2)[0]:
            return None
        at = 4 + 2 + len(TOPIC) + 4 + 4  # one topic, one partition
        offset, metadata_size = struct.unpack_from(">qh", answer, at)
        (error,) = struct.unpack_from(">h", answer, at + 10 + max(metadata_size, 0))
        return None if error else int(offset)

    def _call(self, address: tuple[str, int], api: int, version: int, body: bytes) -> bytes:
        held = self._sockets.pop(address, None) or socket.create_connection(address, 1.0)
        held.settimeout(2.0)
        frame = struct.pack(">hhi", api, version, 0) + _text("bench") + body
        held.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", _exactly(held, 4))
        answer = _exactly(held, size)
        self._sockets[address] = held
        return answer[4:]


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _exactly(held: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = held.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def measure(peer: Peer, groups: int) -> Figures:
    """One round on a cluster that has just been started."""
    admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, OFFSETS_EACH, 1)])[TOPIC].result(60)
    asker = Asker(peer.bootstrap)
    while not is_settled(admin, asker):
        time.sleep(0.2)
    commit_all(peer.bootstrap, groups)
    leader = admin.list_topics(timeout=10).topics[OFFSETS_TOPIC].partitions[0].leader
    others = [broker for broker in range(3) if broker != leader]
    admin.create_topics([NewTopic(STEADY, 1, replica_assignment=[others], config={"min.insync.replicas": "1"})])[
        STEADY
    ].result(60)
    steady = Steady(peer.bootstrap)
    try:
        time.sleep(1.0 + BEFORE_S)
        blow = time.monotonic()
        peer.kill(leader)
        first_s = until_served(asker, [0], blow)
        all_s = until_served(asker, list(range(0, groups, max(groups // SAMPLE, 1))), blow)
        end = blow + max(all_s, 2.0)
        time.sleep(max(0.0, end - time.monotonic()))
    finally:
        steady.finish()
    before, meanwhile = steady.p99_ms(blow - BEFORE_S, blow), steady.p99_ms(blow, end)
    return Figures(first_s, all_s, before, meanwhile, resident_mb(peer.pids()))


def is_settled(admin: AdminClient, asker: Asker) -> bool:
    """Whether the group coordinator takes commits, and all of its replicas are in sync."""
    if not asker.commit(0):
        return False
    topic = admin.list_topics(timeout=10).topics.get(OFFSETS_TOPIC)
    return topic is not None and len(topic.partitions[0].isrs) == 3


def until_served(asker: Asker, groups: list[int], blow: float) -> float:
    """Seconds from the blow until each of them has been answered."""
    waiting = deque(groups)
    while waiting:
        group = waiting.popleft()
        if not asker.is_served(group):
            waiting.append(group)
            time.sleep(0.02)
        if time.monotonic() - blow > DEADLINE_S:
            raise TimeoutError(f"{len(waiting)} groups are not served")
    return time.monotonic() - blow


def peers() -> list[Peer]:
    """Tidelog, and Apache Kafka where it can be run."""
    found: list[Peer] = [TidelogPeer(WORK, SETTINGS)]
    try:
        found.append(KafkaPeer(WORK, kafka_jars(WORK), SETTINGS))
    except MissingTool as missing:
        Console(stderr=True).print(str(missing))
    return found


def show(results: dict[str, list[Figures]], groups: int) -> None:
    table = Table(title=f"coordinator killed: {groups * OFFSETS_EACH:,} offsets, {groups:,} groups, one partition")
    table.add_column("")
    for name in results:
        table.add_column(f"kafka {KAFKA_VERSION}" if name == "kafka" else name, justify="right")
    for field, text in (
        ("first_s", "first group served, s"),
        ("all_s", "all groups served, s"),
        ("p99_before_ms", "produce p99 of others before, ms"),
        ("p99_meanwhile_ms", "produce p99 of others meanwhile, ms"),
        ("memory_mb", "memory of the nodes that stay, MB"),
    ):
        medians = [statistics.median(getattr(one, field) for one in rounds) for rounds in results.values()]
        table.add_row(text, *(f"{median:.2f}" for median in medians))
    Console().print(table)


def measure_alone(groups: int) -> str:
    """A broker alone: seconds from its start by command, which waits until it is ready, until its groups are served."""
    with EmbeddedCluster(1, SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, OFFSETS_EACH, 1)])[TOPIC].result(60)
        asker = Asker(cluster.bootstrap)
        while not asker.commit(0):
            time.sleep(0.2)
        commit_all(cluster.bootstrap, groups)
        cluster.command("kill", "broker-0")
        blow = time.monotonic()
        cluster.command("start", "broker-0")
        asker = Asker(cluster.bootstrap)
        first_s = until_served(asker, [0], blow)
        all_s = until_served(asker, list(range(0, groups, max(groups // SAMPLE, 1))), blow)
        cpu_s = cpu_seconds([node["pid"] for node in cluster.nodes() if node["node"] == "broker-0"])
    return f"a broker alone, killed and started: first group {first_s:.2f} s, all {all_s:.2f} s, its CPU {cpu_s:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", action="store_true", help="a single broker, without followers to take over")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.alone:
        Console().print(measure_alone(arguments.groups))
        return
    WORK.mkdir(exist_ok=True)
    results: dict[str, list[Figures]] = {}
    for number in range(arguments.rounds):
        systems = peers()
        for peer in systems if number % 2 else reversed(systems):
            peer.start()
            try:
                results.setdefault(peer.name, []).append(measure(peer, arguments.groups))
            finally:
                peer.stop()
    show(results, arguments.groups)


if __name__ == "__main__":
    main()
