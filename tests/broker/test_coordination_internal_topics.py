"""How many replicas an internal topic gets while brokers are still joining."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordination.internal_topics import InternalTopics, group_topic
from common.errors import ErrorCode, ProtocolError
from common.machine import MachineClock
from kraft.controller.topic_names import GROUP_TOPIC
from tests.broker.broker_world import BrokerWorld


@pytest.mark.parametrize(("exact", "alive", "asked"), [(True, 1, 3), (False, 1, 1), (False, 2, 2), (True, 3, 3)])
async def test_a_factor_that_was_set_is_asked_for_whoever_is_there(exact: bool, alive: int, asked: int) -> None:
    world = BrokerWorld()
    for broker in list(world.image.brokers)[alive:]:
        world.set_fenced(broker, True)
    requests: list[Any] = []

    async def create(request: Any, version: int) -> Any:
        requests.append(request)
        raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT)

    topics = InternalTopics([group_topic(exact=exact)], lambda: world.image, create, MachineClock())
    with pytest.raises(ProtocolError) as refused:
        await topics.ensure(GROUP_TOPIC)
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert requests[0].topics[0].replication_factor == asked
