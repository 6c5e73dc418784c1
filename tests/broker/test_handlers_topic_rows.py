"""Written rows of Metadata: shared by all who may see them, and never older than what they tell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.handlers.metadata import MetadataConfig, MetadataHandler
from broker.handlers.topic_rows import RowTable, TopicRows
from broker.requests.context import RequestContext, WrittenRows
from broker.security.authorizer import Authorizer, AuthorizerConfig
from common.errors import ErrorCode
from common.pacing import SLICE_COST, Pacer
from kraft.records import (
    AclOperation,
    AclPattern,
    AclPermission,
    AclRecord,
    AclResource,
    PartitionChangeRecord,
    RemoveTopicRecord,
)
from tests.broker.broker_world import BrokerWorld, context, reply_over_the_wire
from tests.common.call_count import counted_calls
from wire.messages import CreateTopicsRequest, MetadataRequest

pytestmark = pytest.mark.virtual_time

TOPICS, PARTITIONS = 40, 50
_Asked = MetadataRequest.MetadataRequestTopic


class Lab:
    def __init__(self, bytes_max: int = 1 << 20) -> None:
        self.world = BrokerWorld()
        self.doubted: set[int] = set()
        self.rows = TopicRows(bytes_max)
        self.handler = MetadataHandler(
            self.world.forwarder, self.world.internal_topics, MetadataConfig(0), self.doubted.__contains__, self.rows
        )
        self.pacer = Pacer()

    async def create(self, count: int = TOPICS, partitions: int = PARTITIONS) -> None:
        creatable = [
            CreateTopicsRequest.CreatableTopic(
                name=f"t{n}", num_partitions=partitions, replication_factor=2, assignments=[], configs=[]
            )
            for n in range(count)
        ]
        response = await self.world.forwarder.serve(context("CreateTopics", 7), CreateTopicsRequest(topics=creatable))
        assert not any(result.error_code for result in response.topics)

    def context(self, version: int = 12, listener: str = "PLAINTEXT") -> RequestContext:
        asked = context("Metadata", version, listener)
        asked.pacer = self.pacer
        return asked

    async def ask(self, topics: list[Any] | None = None, *, asked: RequestContext | None = None) -> WrittenRows:
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        return await self.handler.metadata(asked or self.context(), request)

    async def leaders(self, name: str, **of: Any) -> list[tuple[int, int]]:
        asked = self.context(**of)
        response = reply_over_the_wire(asked, await self.ask(asked=asked))
        topic = next(topic for topic in response.topics if topic.name == name)
        return [(row.error_code, row.leader_id) for row in topic.partitions]


async def test_many_who_ask_for_everything_share_one_answer() -> None:
    lab = Lab()
    await lab.create()
    answers = await asyncio.gather(*(lab.ask() for _ in range(100)))
    slices = lab.pacer.slices
    assert slices >= TOPICS * PARTITIONS * 5 / SLICE_COST  # one writing of all of them, in slices
    assert slices < 5 * TOPICS * PARTITIONS * 10 / SLICE_COST
    assert lab.pacer.costliest < 2 * SLICE_COST
    assert all(one.parts is answers[0].parts for one in answers)
    await lab.ask()
    assert lab.pacer.slices == slices


async def test_a_changed_topic_costs_its_own_size() -> None:
    lab = Lab()
    await lab.create()
    with counted_calls(of=RowTable.make) as first:
        await lab.ask()
    topic_id = lab.world.image.topics.by_name["t7"].topic_id
    lab.world.replay(PartitionChangeRecord(topic_id, 3, leader=-1))
    with counted_calls(of=RowTable.make) as again:
        assert (await lab.leaders("t7"))[3] == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert first.calls == TOPICS * again.calls > 0


async def test_rows_follow_brokers_doubts_and_listeners() -> None:
    lab = Lab()
    await lab.create(2, 6)
    leader = (await lab.leaders("t0"))[0][1]
    lab.doubted.add(leader)
    assert (await lab.leaders("t0"))[0] == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    lab.doubted.clear()
    assert (await lab.leaders("t0"))[0] == (0, leader)
    assert (await lab.leaders("t0", listener="OTHER"))[0] == (ErrorCode.LISTENER_NOT_FOUND, -1)
    assert (await lab.leaders("t0", listener="OTHER", version=5))[0] == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    lab.world.set_fenced(leader, True)
    assert (await lab.leaders("t0"))[0] == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


async def test_each_reader_is_shown_what_its_rights_are_now() -> None:
    lab = Lab()
    await lab.create(3, 1)
    authorizer = Authorizer(AuthorizerConfig())
    authorizer.acls = lab.world.image.acls

    async def shown() -> list[str]:
        asked = lab.context()
        asked.session.access = authorizer.access("User:alice", "host")
        return sorted(topic.name for topic in reply_over_the_wire(asked, await lab.ask(asked=asked)).topics)

    await lab.ask()
    assert await shown() == []
    lab.world.replay(
        AclRecord(
            bytes(16), AclResource.TOPIC, "t1", AclPattern.LITERAL, "User:alice", "*", AclOperation.READ,
            AclPermission.ALLOW,
        )
    )  # fmt: skip
    authorizer.acls = lab.world.image.acls
    assert await shown() == ["t1"]


async def test_a_topic_that_is_named_ten_thousand_times_is_answered_once() -> None:
    lab = Lab()
    await lab.create(1)
    answer = await lab.ask([_Asked(name="t0", topic_id=None)] * 10_000)
    assert answer.count == 1
    assert lab.pacer.costliest < 2 * SLICE_COST


async def test_written_rows_are_bounded() -> None:
    lab = Lab(bytes_max=60_000)
    await lab.create(20, 20)
    for version in range(14):
        await lab.ask(asked=lab.context(version))
    assert lab.rows.size < 3 * 60_000
    for version, is_kept in ((13, True), (0, False)):
        with counted_calls(of=RowTable.make) as written:
            await lab.ask(asked=lab.context(version))
        assert (written.calls == 0) is is_kept


async def test_deleted_topics_leave_the_table() -> None:
    lab = Lab()
    await lab.create(100, 1)
    await lab.ask()
    before = lab.rows.size
    for name in list(lab.world.image.topics.by_name)[:90]:
        topic_id = lab.world.image.topics.by_name[name].topic_id
        lab.world.replay(RemoveTopicRecord(topic_id))
    answer = await lab.ask()
    assert answer.count == 10
    assert lab.rows.size < before / 8
