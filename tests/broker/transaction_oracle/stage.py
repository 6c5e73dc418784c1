"""Furnishing a system: its internal topics, topics of both brokers, and ids whose epochs are nearly used up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from broker.coordination.shard import CoordinatorRecord
from broker.coordination.transactions.records import encode_key, encode_value
from broker.coordination.transactions.values import Transaction
from common.errors import known_error
from tests.broker.gate_oracle.things import message
from tests.broker.transaction_oracle.asking import TOPICS
from tests.broker.transaction_oracle.client import Caller
from tests.broker.transaction_oracle.states import GONE, NEARLY_LAST_EPOCH, PARTITIONS, POLL_S, USED_EPOCH

IDS = tuple(f"used {number}" for number in range(2_000))
USED_IDS = tuple(f"used up {number}" for number in range(400))
FIRST_PRODUCER_ID = 1 << 32  # of those; neither system has given it
NOW_MS = time.time_ns() // 1_000_000
SETTLING_S = 90


def planted() -> list[CoordinatorRecord]:
    """The records of ids whose producers have asked for epochs before."""
    found = []
    epochs = dict.fromkeys(IDS, USED_EPOCH) | dict.fromkeys(USED_IDS, NEARLY_LAST_EPOCH)
    for producer_id, (name, epoch) in enumerate(epochs.items(), FIRST_PRODUCER_ID):
        transaction = Transaction(producer_id, epoch, 60_000, updated_ms=NOW_MS, previous_id=producer_id)
        found.append(CoordinatorRecord(encode_key(name), encode_value(transaction, flexible=True)))
    return found


async def until(done: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SETTLING_S):
        while not await done():  # noqa: ASYNC110  another process has no event for it
            await asyncio.sleep(POLL_S)


async def have_coordinators(wire: Caller) -> None:
    """Coordinators of transactions and groups serve."""

    async def found(kind: int) -> bool:
        told = await wire.call(message("FindCoordinator", key_type=kind, coordinator_keys=["x"]), 4)
        return not told.coordinators[0].error_code

    async def serves() -> bool:
        asked = message(
            "InitProducerId", transactional_id="first", transaction_timeout_ms=1_000, producer_id=-1, producer_epoch=-1
        )
        return not (await wire.call(asked, 5)).error_code

    await until(lambda: found(0))
    await until(lambda: found(1))
    await until(serves)


async def create_topics(wire: Caller) -> None:
    """Broker 1 leads `GONE`, broker 0 all others."""
    topics = []
    for name in (*TOPICS, GONE[0]):
        leader, partitions = (1, 1) if name == GONE[0] else (0, PARTITIONS)
        assignments = [{"partition_index": index, "broker_ids": [leader]} for index in range(partitions)]
        topics.append({"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assignments,
                       "configs": []})  # fmt: skip
    made = await wire.call(message("CreateTopics", topics=topics, timeout_ms=60_000, validate_only=False), 7)
    codes = {known_error(topic.error_code).name for topic in made.topics}
    assert codes == {"NONE"}, codes
    await until(lambda: are_led(wire, leaders={0, 1}))


async def are_led(wire: Caller, *, leaders: set[int]) -> bool:
    """The leaders of all topics are these; -1 for none."""
    names = [{"name": name} for name in (*TOPICS, GONE[0])]
    asked = message(
        "Metadata", topics=names, allow_auto_topic_creation=False, include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )  # fmt: skip
    told = await wire.call(asked, 12)
    led = [partition.leader_id for topic in told.topics for partition in topic.partitions]
    return set(led) == leaders and len(led) == 1 + PARTITIONS * len(TOPICS)
