"""Short requests with long answers: no callback of the event loop makes more than a part of the answer."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from broker.coordination.groups.offsets import TopicOffsets
from broker.coordination.groups.values import CommittedOffset
from broker.gates.gating import free
from broker.handlers.group_offsets import MANY_GROUPS_FROM, GroupOffsetHandlers
from broker.handlers.log_dirs import DescribeLogDirs
from broker.requests.context import Handler, RequestContext, Route
from broker.requests.serving import RequestServing
from common.pacing import Pacer
from kraft.image.metadata import MetadataImage
from kraft.records import TopicRecord
from tests.broker.broker_world import BrokerWorld, context
from tests.broker.open_chain import open_chain
from tests.broker.test_request_hostile import CALLS_MAX
from tests.common.callback_calls import counted_callbacks
from wire.codec import decode_response
from wire.messages import DescribeLogDirsRequest, OffsetFetchRequest

TOPICS, PARTITIONS = 5_000, 2
TENANT = "lkc-aaaaaa"
TOPIC_IDS = {f"{TENANT}_topic-{number}": number.to_bytes(16) for number in range(1, TOPICS + 1)}


def image() -> MetadataImage:
    world = BrokerWorld()
    world.replay(*(TopicRecord(name, topic_id) for name, topic_id in TOPIC_IDS.items()))
    return world.image


async def answered(ctx: RequestContext, request: Any, handler: Handler) -> Any:
    """The answer to a request, none of whose callbacks made many calls."""
    ctx.pacer = pacer = Pacer()
    with counted_callbacks() as counted:
        answer = RequestServing(open_chain(), pacer, 64 << 20).serve(ctx, request, Route(handler, free))
        parts = await answer if inspect.isawaitable(answer) else answer
    assert counted.most.total() <= CALLS_MAX, counted.most.most_common(9)
    return decode_response(ctx.api_key, ctx.api_version, b"".join(parts)[4:])[1]


class Committed:
    """A coordinator of a group that has committed an offset for each partition."""

    async def fetch_all_offsets(self, group_id: str, *, stable: bool) -> dict[str, TopicOffsets]:
        offset = CommittedOffset(1, -1, "", 0)
        return {name: dict.fromkeys(range(PARTITIONS), offset) for name in TOPIC_IDS}


@pytest.mark.parametrize("version", [2, 7, 8, 10])
async def test_all_offsets_of_a_group(version: int) -> None:
    coordinator, known = Committed(), image()
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    old = version < MANY_GROUPS_FROM
    request = OffsetFetchRequest(group_id="g", topics=None) if old else OffsetFetchRequest(groups=[group])
    handlers = GroupOffsetHandlers(coordinator, lambda: known)  # type: ignore[arg-type]
    answer = await answered(context("OffsetFetch", version), request, handlers.offset_fetch)
    topics = answer.topics if old else answer.groups[0].topics
    assert len(topics) == TOPICS
    assert {(row.committed_offset, row.error_code) for topic in topics for row in topic.partitions} == {(1, 0)}
    assert {tuple(row.partition_index for row in topic.partitions) for topic in topics} == {tuple(range(PARTITIONS))}


class Hosted:
    """The replicas of a broker that has one of each partition."""

    offline = False

    def __init__(self) -> None:
        log = SimpleNamespace(size_bytes=10, log_end_offset=7)
        self.image = image()
        self.by_id, self.by_name = dict[bytes, dict[int, Any]](), dict[bytes, dict[int, Any]]()
        for name, topic_id in TOPIC_IDS.items():
            self.by_id[topic_id] = self.by_name[name.encode()] = {
                index: SimpleNamespace(topic=name, index=index, log=log, high_watermark=5)
                for index in range(PARTITIONS)
            }


@pytest.mark.parametrize("tenant", [None, TENANT])
async def test_all_replicas_of_a_broker(tenant: str | None) -> None:
    hosted: Any = Hosted()
    disk: Any = SimpleNamespace(free_bytes=lambda: 1)
    ctx = context("DescribeLogDirs", 4)
    ctx.session.belong_to("User:u", tenant, None)
    handler = DescribeLogDirs(hosted, disk, "/d").handle
    (result,) = (await answered(ctx, DescribeLogDirsRequest(topics=None), handler)).results
    assert [topic.name for topic in result.topics] == list(TOPIC_IDS)
    rows = {
        tuple((row.partition_index, row.partition_size, row.offset_lag) for row in one.partitions)
        for one in result.topics
    }
    assert rows == {tuple((index, 10, 2) for index in range(PARTITIONS))}
