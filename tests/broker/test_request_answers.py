"""Short requests with long answers: no callback of the event loop makes more than a part of the answer."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from broker.coordination.groups.offsets import TopicOffsets
from broker.coordination.groups.values import CommittedOffset
from broker.gates.gating import free
from broker.handlers.group_offsets import MANY_GROUPS_FROM, GroupOffsetHandlers
from broker.requests.context import Handler, Route
from broker.requests.serving import RequestServing
from common.pacing import Pacer
from kraft.records import TopicRecord
from tests.broker.broker_world import BrokerWorld, context
from tests.broker.open_chain import open_chain
from tests.broker.test_request_hostile import CALLS_MAX
from tests.common.callback_calls import counted_callbacks
from wire.codec import decode_response
from wire.messages import OffsetFetchRequest

TOPICS, PARTITIONS = 1_000, 10
TOPIC_IDS = {f"topic-{number}": number.to_bytes(16) for number in range(1, TOPICS + 1)}


async def answered(api: str, version: int, request: Any, handler: Handler) -> Any:
    """The answer to a request, none of whose callbacks made many calls."""
    ctx = context(api, version)
    ctx.pacer = pacer = Pacer()
    route = Route(handler, free)
    with counted_callbacks() as counted:
        answer = RequestServing(open_chain(), pacer, 64 << 20).serve(ctx, request, route)
        parts = await answer if inspect.isawaitable(answer) else answer
        await pacer.rest()  # what is freed meanwhile
    assert counted.most.total() <= CALLS_MAX, counted.most.most_common(9)
    return decode_response(ctx.api_key, version, b"".join(parts)[4:])[1]


class Committed:
    """A coordinator of a group that has committed an offset for each partition."""

    async def fetch_all_offsets(self, group_id: str, *, stable: bool) -> dict[str, TopicOffsets]:
        offset = CommittedOffset(1, -1, "", 0)
        return {name: dict.fromkeys(range(PARTITIONS), offset) for name in TOPIC_IDS}


@pytest.mark.parametrize("version", [2, 7, 8, 9, 10])
async def test_all_offsets_of_a_group(version: int) -> None:
    world, coordinator = BrokerWorld(), Committed()
    world.replay(*(TopicRecord(name, topic_id) for name, topic_id in TOPIC_IDS.items()))
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    old = version < MANY_GROUPS_FROM
    request = OffsetFetchRequest(group_id="g", topics=None) if old else OffsetFetchRequest(groups=[group])
    handlers = GroupOffsetHandlers(coordinator, lambda: world.image)  # type: ignore[arg-type]
    answer = await answered("OffsetFetch", version, request, handlers.offset_fetch)
    topics = answer.topics if old else answer.groups[0].topics
    assert len(topics) == TOPICS
    assert {(row.committed_offset, row.error_code) for topic in topics for row in topic.partitions} == {(1, 0)}
    assert {tuple(row.partition_index for row in topic.partitions) for topic in topics} == {tuple(range(PARTITIONS))}
