"""How many replicas an internal topic gets while brokers are still joining."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from broker.coordination.internal_topics import (
    BROKERS_AWAITED_S,
    RETRY_PAUSE_S,
    InternalTopics,
    audit_topic,
    group_topic,
)
from common.errors import ErrorCode, ProtocolError
from common.machine import MachineClock
from kraft.records import PartitionRecord, TopicRecord
from kraft.topic_names import AUDIT_TOPIC, GROUP_TOPIC
from tests.broker.broker_world import BrokerWorld
from tests.tiering.tier_world import WorldClock
from tests.virtual_time import LoopClock
from wire.messages import CreateTopicsResponse

pytestmark = pytest.mark.virtual_time

TOPIC_ID = bytes(15) + b"\1"


@pytest.mark.parametrize(("exact", "alive", "asked"), [(True, 1, 3), (False, 1, 1), (False, 2, 2), (True, 3, 3)])
async def test_a_factor_that_was_set_is_asked_for_whoever_is_there(exact: bool, alive: int, asked: int) -> None:
    world = BrokerWorld()
    for broker in list(world.image.brokers)[alive:]:
        world.set_fenced(broker, True)
    requests: list[Any] = []

    async def create(request: Any) -> Any:
        requests.append(request)
        raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT)

    topics = InternalTopics([group_topic(exact=exact)], lambda: world.image, create, MachineClock())
    with pytest.raises(ProtocolError) as refused:
        await topics.ensure(GROUP_TOPIC)
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert requests[0].topics[0].replication_factor == asked


async def test_a_rebuilt_clusters_topics_wait_for_the_brokers_that_are_named_and_not_for_ever() -> None:
    world = BrokerWorld()
    world.replay(TopicRecord("flights", TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (0, 1, 2), (0,), 0))
    world.image = replace(world.image, incarnation=2)
    _, *others = world.image.brokers
    for broker in others:
        world.set_fenced(broker, True)
    asked: list[int] = []

    async def create(request: Any) -> Any:
        asked.append(request.topics[0].replication_factor)
        raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT)

    clock = WorldClock()
    topics = InternalTopics([group_topic(), audit_topic()], lambda: world.image, create, clock)

    async def ensured(name: str) -> list[int]:
        asked.clear()
        with pytest.raises(ProtocolError, match="COORDINATOR_NOT_AVAILABLE"):
            await topics.ensure(name)
        clock.now_s += RETRY_PAUSE_S
        return list(asked)

    assert await ensured(GROUP_TOPIC) == []
    world.set_fenced(others[0], False)
    assert await ensured(GROUP_TOPIC) == []
    world.set_fenced(others[1], False)
    assert await ensured(GROUP_TOPIC) == [3]
    world.set_fenced(others[1], True)
    assert await ensured(AUDIT_TOPIC) == []
    clock.now_s += BROKERS_AWAITED_S
    assert await ensured(AUDIT_TOPIC) == [2]


async def test_a_topic_that_another_request_creates_is_waited_for() -> None:
    world = BrokerWorld()
    asked: list[Any] = []

    async def create(request: Any) -> Any:
        asked.append(request)
        await asyncio.sleep(1)
        world.replay(TopicRecord(GROUP_TOPIC, TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (0,), (0,), 0))
        return CreateTopicsResponse(topics=[])

    topics = InternalTopics([group_topic()], lambda: world.image, create, LoopClock())
    await asyncio.gather(topics.ensure(GROUP_TOPIC), topics.ensure_within(GROUP_TOPIC, 5))
    assert len(asked) == 1


async def test_a_topic_is_waited_for_so_long_and_no_longer() -> None:
    async def create(request: Any) -> Any:
        raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT)

    world = BrokerWorld()
    topics = InternalTopics([group_topic()], lambda: world.image, create, LoopClock())
    begun_s = LoopClock().monotonic()
    with pytest.raises(ProtocolError, match="COORDINATOR_NOT_AVAILABLE"):
        await topics.ensure_within(GROUP_TOPIC, 5)
    assert LoopClock().monotonic() - begun_s == pytest.approx(5, abs=0.1)
