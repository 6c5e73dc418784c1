"""A group coordinator dies with a million offsets: `python -m bench.coordinator_failover [--groups N] [--rounds N]`.

`__consumer_offsets` has one partition with 10,000 groups of 100 offsets each. Its leader is killed while somebody else
produces to two brokers that stay, 200 records a second. Figures: when the first of a hundred groups is answered again,
when all of them are, with the offsets that they committed; and the producer's p99 before the blow and until then. Both
systems run in turn in one run, see `bench.peers`; without Java, Tidelog alone.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench.peers import KAFKA_VERSION, KafkaPeer, MissingTool, Peer, TidelogPeer, kafka_jars, resident_mb

WORK = Path(__file__).resolve().parent / "work"
OFFSETS_TOPIC, TOPIC, STEADY = "__consumer_offsets", "flights", "steady"
OFFSETS_EACH, SAMPLE = 100, 100
COMMITS_IN_FLIGHT = 64
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


def commit_all(admin: AdminClient, groups: int) -> None:
    """Each group commits all its offsets in one request."""
    waiting: deque[Future[Any]] = deque()
    for group in range(groups):
        offsets = [TopicPartition(TOPIC, index, offset_of(group, index)) for index in range(OFFSETS_EACH)]
        request = [ConsumerGroupTopicPartitions(name_of(group), offsets)]
        waiting.extend(admin.alter_consumer_group_offsets(request, request_timeout=30).values())
        if len(waiting) >= COMMITS_IN_FLIGHT:
            waiting.popleft().result(60)
    for one in waiting:
        one.result(60)


def is_served(admin: AdminClient, group: int) -> bool:
    """Whether the coordinator answers for the group; its last offset has to be the one that was committed."""
    last = OFFSETS_EACH - 1
    request = [ConsumerGroupTopicPartitions(name_of(group), [TopicPartition(TOPIC, last)])]
    try:
        (answer,) = admin.list_consumer_group_offsets(request, request_timeout=1.0).values()
        (found,) = answer.result(5).topic_partitions
    except (KafkaException, TimeoutError):
        return False
    if found.error is not None:
        return False
    if found.offset != offset_of(group, last):
        raise RuntimeError(f"{name_of(group)} is at {found.offset}, committed was {offset_of(group, last)}")
    return True


def measure(peer: Peer, groups: int) -> Figures:
    """One round on a cluster that has just been started."""
    admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, OFFSETS_EACH, 1)])[TOPIC].result(60)
    while not is_settled(admin):
        time.sleep(0.2)
    commit_all(admin, groups)
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
        first_s = until_served(admin, [0], blow)
        all_s = until_served(admin, list(range(0, groups, max(groups // SAMPLE, 1))), blow)
        end = blow + max(all_s, 2.0)
        time.sleep(max(0.0, end - time.monotonic()))
    finally:
        steady.finish()
    before, meanwhile = steady.p99_ms(blow - BEFORE_S, blow), steady.p99_ms(blow, end)
    return Figures(first_s, all_s, before, meanwhile, resident_mb(peer.pids()))


def is_settled(admin: AdminClient) -> bool:
    """Whether the group coordinator answers, and all of its replicas are in sync."""
    request = [ConsumerGroupTopicPartitions("first", [TopicPartition(TOPIC, 0, 1)])]
    try:
        for one in admin.alter_consumer_group_offsets(request, request_timeout=5).values():
            one.result(10)
    except (KafkaException, TimeoutError):
        return False
    topic = admin.list_topics(timeout=10).topics.get(OFFSETS_TOPIC)
    return topic is not None and len(topic.partitions[0].isrs) == 3


def until_served(admin: AdminClient, groups: list[int], blow: float) -> float:
    """Seconds from the blow until each of them has been answered."""
    waiting = deque(groups)
    while waiting:
        group = waiting.popleft()
        if not is_served(admin, group):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
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
