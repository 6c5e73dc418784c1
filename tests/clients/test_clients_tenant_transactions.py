"""A tenant changes cells, back and forth, while its producers of both protocols commit records and a group's offsets:
each transaction is whole or absent, and no client fails. Another tenant's producer of the same transactional id goes
on, too. If transactions keep a group's offsets for long, the tenant's groups wait, and for a while no transaction of
it begins."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.embedded import EmbeddedCluster
from bench.transaction_copies import Copies, OldCopies
from tests.clients.new_protocol_producer import GROUP, TRANSACTION, NewProtocolProducer
from tests.faults.raw_client import wait_until
from tidelog.admin.library_client import AdminClient as LibraryClient
from wire.messages import DescribeTenantsRequest, FindCoordinatorRequest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("failover")]

PATIENCE_S = 60.0
PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {"log.dir.free.bytes.min": "0", "group.initial.rebalance.delay.ms": "100"}
    with EmbeddedCluster(4, settings, controllers=1, cells=2) as running:
        yield running


def rows(cluster: EmbeddedCluster, *command: str) -> Any:
    return json.loads(cluster.command_of(*command, "--json"))


def coordinator_of(cluster: EmbeddedCluster, kind: int, key: str) -> int:
    """As an operator is told; -1 while there is none."""
    client = LibraryClient(bootstrap_servers=cluster.bootstrap)
    try:
        (found,) = client.send(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])).coordinators
    finally:
        client.close()
    return int(found.node_id)


class NewCopies(Copies):
    def __init__(
        self, bootstrap: str, topic: str, partitions: int, group: str, transactional_id: str, *, holds: bool = False
    ) -> None:
        super().__init__(topic, partitions, group, transactional_id, holds=holds)
        self.producer = NewProtocolProducer(bootstrap, self.transactional_id)

    def run(self) -> None:
        with closing(self.producer):
            super().run()

    def write(self, number: int) -> None:
        for index in range(PARTITIONS):
            self.producer.write(self.topic, index, f"{number}".encode())

    def send_offset(self, offset: int) -> None:
        self.producer.send_offset(self.group, self.topic, offset)

    def end(self, *, commit: bool) -> None:
        self.producer.end(commit=commit)


def values(cluster: EmbeddedCluster, topic: str) -> list[Counter[int]]:
    """What a reader of committed records finds in each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap, "group.id": f"reader-{topic}", "enable.partition.eof": True,
            "isolation.level": "read_committed", "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found = [Counter[int]() for _ in range(PARTITIONS)]
    ends: dict[int, None] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(ends) < PARTITIONS and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error():
            ends[message.partition() or 0] = None
        elif message is not None:
            found[message.partition() or 0][int(message.value() or b"")] += 1
    consumer.close()
    assert len(ends) == PARTITIONS
    return found


def check_whole(cluster: EmbeddedCluster, copies: Sequence[Copies]) -> None:
    """No producer has failed, and each transaction is whole, or absent if it was aborted."""
    assert [one.failure for one in copies] == [None] * len(copies)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for one in copies:
        expected = Counter(range(one.done))
        assert values(cluster, one.topic) == [expected] * PARTITIONS, "each transaction is whole, and once"
        asked = ConsumerGroupTopicPartitions(one.group, [TopicPartition(one.topic, 0)])
        committed = admin.list_consumer_group_offsets([asked], require_stable=True)[one.group].result(PATIENCE_S)
        assert [row.offset for row in committed.topic_partitions or []] == [one.done]


def check_coordinated_in(cluster: EmbeddedCluster, cell: Collection[int], copies: Sequence[Copies]) -> None:
    for one in copies:
        assert coordinator_of(cluster, GROUP, one.group) in cell, "brokers of its cell coordinate"
        assert coordinator_of(cluster, TRANSACTION, one.transactional_id) in cell


def until(holds: Callable[[], bool], copies: Sequence[Copies]) -> None:
    """Unless a producer fails meanwhile."""

    def may_end() -> bool:
        assert [one.failure for one in copies] == [None] * len(copies)
        return holds()

    wait_until(may_end, PATIENCE_S)


def wait_for_more(copies: Sequence[Copies]) -> None:
    before = [one.done for one in copies]
    until(
        lambda: all(one.done >= done + 3 for one, done in zip(copies, before, strict=True)),
        copies,
    )


def brokers_by_cell(cluster: EmbeddedCluster) -> dict[str, list[int]]:
    return {row["cell"]: [one["broker"] for one in row["brokers"]] for row in rows(cluster, "cells", "list")}


def started(cluster: EmbeddedCluster, name: str, cell: str, kinds: str, *, holds: bool = False) -> list[Copies]:
    """A new tenant's producers at work, of the `old` protocol, the `new` one, or both."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    tenant = rows(cluster, "tenants", "create", name, "--cell", cell)["id"]
    copies: list[Copies] = []
    for kind in kinds.split():
        topic = f"{tenant}_{kind}"
        admin.create_topics([NewTopic(topic, PARTITIONS, 2)])[topic].result(PATIENCE_S)
        names = topic, PARTITIONS, f"{tenant}_g-{kind}", f"{tenant}_t-{kind}"
        if kind == "old":
            copies.append(OldCopies({"bootstrap.servers": cluster.bootstrap}, *names, holds=holds))
        else:
            copies.append(NewCopies(cluster.bootstrap, *names, holds=holds))
    for one in copies:
        one.start()
    return copies


def end(copies: Sequence[Copies]) -> None:
    for one in copies:
        one.stop()
    for one in copies:
        one.join(PATIENCE_S)


def test_producers_go_on_while_their_tenant_changes_cells(cluster: EmbeddedCluster) -> None:
    cells = brokers_by_cell(cluster)
    first, second = cells
    copies = started(cluster, "demo", first, "old new") + started(cluster, "other", first, "old")
    try:
        for to in (second, first, second):
            row = rows(cluster, "tenants", "move", "demo", "--cell", to)
            assert (row["cell"], row["state"]) == (to, "active")
            check_coordinated_in(cluster, cells[to], copies[:2])
            wait_for_more(copies)
    finally:
        end(copies)
    check_whole(cluster, copies)


def test_transactions_that_keep_a_groups_offsets_wait_to_begin_until_all_have_ended(cluster: EmbeddedCluster) -> None:
    cells = brokers_by_cell(cluster)
    first, second = cells
    client = LibraryClient(bootstrap_servers=cluster.bootstrap)

    def tenant() -> Any:
        (row,) = client.send(DescribeTenantsRequest(tenants=["held"])).tenants
        return row

    old, new = copies = started(cluster, "held", first, "old new", holds=True)
    try:
        until(lambda: old.is_holding and new.is_holding, copies)  # transactions keep their offsets pending
        cluster.command_of("tenants", "move", "held", "--cell", second, "--no-wait")
        until(lambda: tenant().hand_over == "holding", copies)  # transactions are kept from beginning
        old.go_on()
        until(lambda: old.done > 0, copies)  # an ongoing transaction ends
        for _ in range(10):
            done = old.done
            assert done == 1 or tenant().hand_over != "holding", "its next one does not begin"
            time.sleep(0.05)  # what must not happen gets some time to happen
        new.go_on()
        until(lambda: tenant().state == "active", copies)  # the tenant has moved
        assert tenant().cell == second
        check_coordinated_in(cluster, cells[second], copies)
        wait_for_more(copies)
    finally:
        client.close()
        end(copies)
    check_whole(cluster, copies)
