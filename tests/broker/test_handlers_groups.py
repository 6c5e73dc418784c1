"""The group APIs in every version, from decoded request to encoded reply, over a shard on a partition in memory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from broker.coordination.groups.coordinator import OFFSETS_AT_ONCE
from broker.handlers.group_offsets import IDS_FROM, GroupOffsetHandlers
from broker.handlers.groups import PROTOCOLS_MAX, GroupHandlers
from common.errors import ErrorCode, ProtocolError
from common.pacing import SLICE_COST, Pacer
from kraft.records import PartitionRecord, RemoveTopicRecord, TopicRecord
from kraft.topic_names import GROUP_TOPIC
from tests.broker.broker_world import BrokerWorld, context, over_the_wire, reply_over_the_wire, versions_of
from wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

pytestmark = pytest.mark.virtual_time

TOPIC_ID = bytes(range(16))
_CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic


def identified(version: int, topic: str, topic_id: bytes = TOPIC_ID) -> dict[str, Any]:
    """How OffsetCommit and OffsetFetch of a version identify a topic; "none" does not exist."""
    if version < IDS_FROM:
        return {"name": topic}
    return {"topic_id": uuid.UUID(bytes=topic_id if topic == "t" else bytes(15) + b"\7")}


class Groups(BrokerWorld):
    """A broker that coordinates every group, and a topic "t"."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = GroupHandlers(self.coordinator)
        self.group_offsets = GroupOffsetHandlers(self.coordinator, lambda: self.image)
        self.replay(TopicRecord("t", TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (0,), (0,), 0))

    async def start(self) -> None:
        await self.internal_topics.ensure(GROUP_TOPIC)
        self.runtime.elected(self.offsets)
        async with asyncio.timeout(5):
            while not self.runtime.active(GROUP_TOPIC):  # noqa: ASYNC110  nothing tells
                await asyncio.sleep(0.001)

    async def ask(self, api: str, version: int, request: Any) -> Any:
        handlers: dict[str, Callable[..., Any]] = {
            "JoinGroup": self.groups.join_group,
            "SyncGroup": self.groups.sync_group,
            "Heartbeat": self.groups.heartbeat,
            "LeaveGroup": self.groups.leave_group,
            "DescribeGroups": self.groups.describe_groups,
            "ListGroups": self.groups.list_groups,
            "DeleteGroups": self.groups.delete_groups,
            "OffsetCommit": self.group_offsets.offset_commit,
            "OffsetFetch": self.group_offsets.offset_fetch,
            "OffsetDelete": self.group_offsets.offset_delete,
        }
        ctx = context(api, version)
        async with asyncio.timeout(10):
            return reply_over_the_wire(ctx, await handlers[api](ctx, over_the_wire(version, request)))

    async def join(self, version: int = 9, member_id: str = "", instance: str | None = None) -> Any:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"sub")
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[protocol],
        )
        return await self.ask("JoinGroup", version, request)

    async def sync(self, version: int, member_id: str, generation: int, assignments: dict[str, bytes]) -> Any:
        given = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=assignment)
            for member, assignment in assignments.items()
        ]
        request = SyncGroupRequest(
            group_id="g",
            generation_id=generation,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=given,
        )
        return await self.ask("SyncGroup", version, request)

    async def member(self, instance: str | None = None) -> tuple[str, int]:
        """The only member of the stable group "g": its id and generation."""
        first = await self.join(9, instance=instance)
        joined = first if instance is not None else await self.join(9, first.member_id)
        await self.sync(5, joined.member_id, joined.generation_id, {joined.member_id: b"all"})
        return joined.member_id, joined.generation_id

    async def commit(self, version: int, offset: int, member: str = "", generation: int = -1, topic: str = "t") -> int:
        partition = _CommitTopic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=2, committed_metadata="m"
        )
        asked = _CommitTopic(**identified(version, topic), partitions=[partition])
        request = OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=generation, member_id=member, topics=[asked]
        )
        response = await self.ask("OffsetCommit", version, request)
        return int(response.topics[0].partitions[0].error_code)


@pytest.fixture
async def groups() -> AsyncIterator[Groups]:
    world = Groups()
    await world.start()
    yield world
    await world.runtime.stop()


@pytest.mark.parametrize("version", versions_of("JoinGroup"))
async def test_join_sync_heartbeat_leave(groups: Groups, version: int) -> None:
    reply = await groups.join(version)
    if version >= 4:
        assert (reply.error_code, reply.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
        assert reply.protocol_name == (None if version >= 7 else "")
        reply = await groups.join(version, reply.member_id)
    assert (reply.error_code, reply.generation_id, reply.protocol_name) == (0, 1, "range")
    assert reply.leader == reply.member_id
    assert [(m.member_id, m.metadata) for m in reply.members] == [(reply.member_id, b"sub")]
    member_id = reply.member_id
    sync_version = min(version, 5)
    synced = await groups.sync(sync_version, member_id, 1, {member_id: b"all"})
    assert (synced.error_code, synced.assignment) == (0, b"all")
    if sync_version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    assert (await groups.ask("Heartbeat", min(version, 4), beat)).error_code == 0
    leave_version = min(version, 5)
    identity = LeaveGroupRequest.MemberIdentity(member_id=member_id)
    leave = LeaveGroupRequest(group_id="g", members=[identity])
    if leave_version < 3:
        leave = LeaveGroupRequest(group_id="g", member_id=member_id)
    left = await groups.ask("LeaveGroup", leave_version, leave)
    assert left.error_code == 0
    if leave_version >= 3:
        assert [(m.member_id, m.error_code) for m in left.members] == [(member_id, 0)]
    again = await groups.ask("Heartbeat", min(version, 4), beat)
    assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_two_members_share_a_generation(groups: Groups) -> None:
    first, second = [(await groups.join(9)).member_id for _ in range(2)]
    replies = await asyncio.gather(groups.join(9, first), groups.join(9, second))
    assert [reply.generation_id for reply in replies] == [1, 1]
    leader = replies[0].leader
    follower = second if leader == first else first
    waiting = asyncio.ensure_future(groups.sync(5, follower, 1, {}))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await groups.sync(5, leader, 1, {first: b"1", second: b"2"})
    assert (await waiting).assignment == (b"1" if follower == first else b"2")


async def test_a_member_lists_so_many_protocols_and_no_more(groups: Groups) -> None:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol
    request = JoinGroupRequest(
        group_id="many",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol(name=str(number), metadata=b"") for number in range(PROTOCOLS_MAX)],
    )
    for version in (3, 9):
        request.protocols.append(protocol(name="one more", metadata=b""))
        refused = await groups.ask("JoinGroup", version, request)
        assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        request.protocols.pop()
    assert (await groups.ask("JoinGroup", 9, request)).error_code == ErrorCode.MEMBER_ID_REQUIRED


async def test_sync_without_a_protocol_is_inconsistent(groups: Groups) -> None:
    member_id, generation = await groups.member()
    request = SyncGroupRequest(group_id="g", generation_id=generation, member_id=member_id, assignments=[])
    response = await groups.ask("SyncGroup", 5, request)
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (await groups.ask("SyncGroup", 4, request)).error_code == 0


async def test_a_static_member_that_returns_is_told_to_skip(groups: Groups) -> None:
    member_id, generation = await groups.member("i")
    reply = await groups.join(9, instance="i")
    assert (reply.error_code, reply.generation_id, reply.skip_assignment) == (0, generation, True)
    assert reply.member_id != member_id
    fenced = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id, group_instance_id="i")
    assert (await groups.ask("Heartbeat", 4, fenced)).error_code == ErrorCode.FENCED_INSTANCE_ID


async def test_leaving_a_group_that_is_not_there(groups: Groups) -> None:
    identity = LeaveGroupRequest.MemberIdentity(member_id="m")
    new = await groups.ask("LeaveGroup", 5, LeaveGroupRequest(group_id="none", members=[identity]))
    assert (new.error_code, new.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    old = await groups.ask("LeaveGroup", 0, LeaveGroupRequest(group_id="none", member_id="m"))
    assert old.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    unnamed = await groups.ask("LeaveGroup", 5, LeaveGroupRequest(group_id="", members=[identity]))
    assert unnamed.error_code == ErrorCode.INVALID_GROUP_ID


# administration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of("DescribeGroups"))
async def test_describe_groups(groups: Groups, version: int) -> None:
    member_id, _ = await groups.member("i")
    request = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=True)
    found, missing = (await groups.ask("DescribeGroups", version, request)).groups
    assert (found.error_code, found.group_state, found.protocol_type, found.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    member = found.members[0]
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "client", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"sub", b"all")
    assert missing.group_state == "Dead"
    assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    if version >= 3:
        assert found.authorized_operations == {3, 6, 8, 10, 11}
    if version >= 4:
        assert member.group_instance_id == "i"


@pytest.mark.parametrize("version", versions_of("ListGroups"))
async def test_list_groups(groups: Groups, version: int) -> None:
    await groups.member()
    response = await groups.ask("ListGroups", version, ListGroupsRequest())
    assert [(group.group_id, group.protocol_type) for group in response.groups] == [("g", "consumer")]
    if version >= 4:
        assert response.groups[0].group_state == "Stable"
        for states, count in ((["STABLE"], 1), (["Empty"], 0)):
            response = await groups.ask("ListGroups", version, ListGroupsRequest(states_filter=states))
            assert len(response.groups) == count
    if version >= 5:
        for types, count in ((["Classic"], 1), (["consumer"], 0), (["nonsense"], 0)):
            response = await groups.ask("ListGroups", version, ListGroupsRequest(types_filter=types))
            assert len(response.groups) == count


NAMES = [f"{number:0>249}" for number in range(20_000)]


@pytest.mark.parametrize("request_", [ListGroupsRequest(states_filter=NAMES), ListGroupsRequest(types_filter=NAMES)])
async def test_a_long_filter_of_groups_is_read_in_slices(groups: Groups, request_: ListGroupsRequest) -> None:
    await groups.member()
    pacer = Pacer()
    asked = context("ListGroups", 5)
    asked.pacer = pacer
    response = await groups.groups.list_groups(asked, request_)
    assert response.groups == []
    assert pacer.slices >= len(NAMES) / SLICE_COST
    assert pacer.costliest <= SLICE_COST


@pytest.mark.parametrize("version", versions_of("DeleteGroups"))
async def test_delete_groups(groups: Groups, version: int) -> None:
    member_id, _ = await groups.member()
    request = DeleteGroupsRequest(groups_names=["g", "none"])
    response = await groups.ask("DeleteGroups", version, request)
    assert [(row.group_id, row.error_code) for row in response.results] == [
        ("g", ErrorCode.NON_EMPTY_GROUP),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    identity = LeaveGroupRequest.MemberIdentity(member_id=member_id)
    await groups.ask("LeaveGroup", 5, LeaveGroupRequest(group_id="g", members=[identity]))
    assert (await groups.ask("DeleteGroups", version, request)).results[0].error_code == 0
    assert (await groups.ask("ListGroups", 5, ListGroupsRequest())).groups == []


async def test_a_coordinator_that_loads_or_is_elsewhere_says_so() -> None:
    world = Groups()
    await world.internal_topics.ensure(GROUP_TOPIC)
    assert (await world.join(9)).error_code == ErrorCode.NOT_COORDINATOR
    assert await world.commit(9, 1) == ErrorCode.NOT_COORDINATOR
    world.runtime.elected(world.offsets)
    assert (await world.join(9)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    listed = await world.ask("ListGroups", 5, ListGroupsRequest())
    assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await world.runtime.stop()


# offsets --------------------------------------------------------------------------------------------------------


async def fetch(groups: Groups, version: int, *, everything: bool = False, group: str = "g", topic: str = "t") -> Any:
    """(group error, [(topic, partition, offset, error)])."""
    if version < 8:
        old_topic = OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 7])
        request = OffsetFetchRequest(group_id=group, topics=None if everything else [old_topic])
    else:
        group_class = OffsetFetchRequest.OffsetFetchRequestGroup
        new_topic = group_class.OffsetFetchRequestTopics(**identified(version, topic), partition_indexes=[0, 7])
        request = OffsetFetchRequest(
            groups=[group_class(group_id=group, topics=None if everything else [new_topic])], require_stable=True
        )
    response = await groups.ask("OffsetFetch", version, request)
    found = response if version < 8 else response.groups[0]
    names = {uuid.UUID(bytes=TOPIC_ID): "t"}
    rows = [
        (
            t.name if version < IDS_FROM else names.get(t.topic_id, "none"),
            p.partition_index,
            p.committed_offset,
            p.error_code,
        )
        for t in found.topics
        for p in t.partitions
    ]
    return found.error_code if version >= 2 else 0, rows


@pytest.mark.parametrize("version", versions_of("OffsetFetch"))
async def test_offsets_are_fetched_as_they_were_committed(groups: Groups, version: int) -> None:
    assert await fetch(groups, version) == (0, [("t", 0, -1, 0), ("t", 7, -1, 0)])  # a group never heard of
    assert await groups.commit(max(version, 2), 42) == 0
    assert await fetch(groups, version) == (0, [("t", 0, 42, 0), ("t", 7, -1, 0)])
    if version >= 2:
        assert await fetch(groups, version, everything=True) == (0, [("t", 0, 42, 0)])
        assert await fetch(groups, version, everything=True, group="other") == (0, [])


@pytest.mark.parametrize("version", versions_of("OffsetCommit"))
async def test_offset_commit(groups: Groups, version: int) -> None:
    member_id, generation = await groups.member()
    assert await groups.commit(version, 5, member_id, generation) == 0
    assert await groups.commit(version, 6, member_id, generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert await groups.commit(version, 6, "stranger", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await fetch(groups, 9))[1][0] == ("t", 0, 5, 0)
    code = await groups.commit(version, 6, member_id, generation, "none")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < IDS_FROM else ErrorCode.UNKNOWN_TOPIC_ID
    assert code == unknown


async def test_topics_by_id_and_by_name_have_the_same_offsets(groups: Groups) -> None:
    """And an id that no topic has is answered beside one that exists, in the order of the request."""
    assert await groups.commit(10, 42) == 0
    assert await fetch(groups, 9) == await fetch(groups, 10) == (0, [("t", 0, 42, 0), ("t", 7, -1, 0)])
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert await fetch(groups, 10, topic="none") == (0, [("none", 0, -1, unknown), ("none", 7, -1, unknown)])
    row = _CommitTopic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=43, committed_leader_epoch=2, committed_metadata="m"
    )
    both = [_CommitTopic(**identified(10, name), partitions=[row]) for name in ("none", "t")]
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=both)
    answer = await groups.ask("OffsetCommit", 10, request)
    assert [topic.topic_id for topic in answer.topics] == [topic.topic_id for topic in both]
    assert [topic.partitions[0].error_code for topic in answer.topics] == [unknown, 0]
    assert (await fetch(groups, 9))[1][0] == ("t", 0, 43, 0)


@pytest.mark.parametrize("version", versions_of("OffsetCommit"))
async def test_partitions_that_do_not_exist_are_refused_beside_others(groups: Groups, version: int) -> None:
    rows = [
        _CommitTopic.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=42, committed_leader_epoch=2, committed_metadata="m"
        )
        for index in (99, 0, -1)
    ]
    asked = [_CommitTopic(**identified(version, "t"), partitions=rows)]
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=asked)
    answer = await groups.ask("OffsetCommit", version, request)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = [(row.partition_index, row.error_code) for row in answer.topics[0].partitions]
    assert codes == [(99, unknown), (0, 0), (-1, unknown)]
    assert (await fetch(groups, 9, everything=True)) == (0, [("t", 0, 42, 0)])


@pytest.mark.parametrize("version", versions_of("OffsetCommit"))
async def test_a_member_commits_for_no_group(groups: Groups, version: int) -> None:
    code = await groups.commit(version, 42, "member", 0)
    assert code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION)


async def test_a_topic_that_does_not_exist_has_no_id_to_be_answered_with(groups: Groups) -> None:
    assert await groups.commit(10, 42) == 0
    groups.replay(RemoveTopicRecord(TOPIC_ID))
    assert await fetch(groups, 9, everything=True) == (0, [("t", 0, 42, 0)])
    assert await fetch(groups, 10, everything=True) == (0, [])


@pytest.mark.parametrize("version", versions_of("OffsetCommit"))
async def test_an_offset_of_an_earlier_topic_of_that_name_does_not_count(groups: Groups, version: int) -> None:
    assert await groups.commit(version, 42) == 0
    other = bytes(reversed(TOPIC_ID))
    groups.replay(RemoveTopicRecord(TOPIC_ID), TopicRecord("t", other), PartitionRecord(other, 0, (0,), (0,), 0))
    assert (await fetch(groups, 9))[1][0] == ("t", 0, -1, 0)
    assert await fetch(groups, 9, everything=True) == (0, [])


async def test_deleted_topics_lose_their_offsets(groups: Groups) -> None:
    assert await groups.commit(9, 42) == 0
    end = groups.offsets.log.log_end_offset
    groups.replay(RemoveTopicRecord(TOPIC_ID))
    groups.coordinator.topics_deleted()
    async with asyncio.timeout(5):
        while groups.offsets.log.log_end_offset == end:  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.005)
    assert await fetch(groups, 9, everything=True) == (0, [])


async def test_reads_of_offsets_need_the_followers_word(groups: Groups) -> None:
    assert await groups.commit(9, 42) == 0
    groups.offsets.fresh = False
    for version in (1, 7, 8):
        code, rows = await fetch(groups, version)
        assert ErrorCode.COORDINATOR_NOT_AVAILABLE in (code, *(row[3] for row in rows))
        assert all(row[2] == -1 for row in rows)


async def test_offset_delete(groups: Groups) -> None:
    def request(*topics: str) -> Any:
        topic_class = OffsetDeleteRequest.OffsetDeleteRequestTopic
        partition = topic_class.OffsetDeleteRequestPartition(partition_index=0)
        return OffsetDeleteRequest(
            group_id="g", topics=[topic_class(name=name, partitions=[partition]) for name in topics]
        )

    assert (await groups.ask("OffsetDelete", 0, request("t"))).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    await groups.commit(9, 42)
    response = await groups.ask("OffsetDelete", 0, request("t", "none"))
    assert [topic.partitions[0].error_code for topic in response.topics] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (await fetch(groups, 9))[1][0] == ("t", 0, -1, 0)


@pytest.mark.parametrize("version", [version for version in versions_of("OffsetFetch") if version < IDS_FROM])
async def test_nothing_was_committed_for_a_name_that_no_topic_can_have(groups: Groups, version: int) -> None:
    """Requests have room for names that fit into no key."""
    assert await groups.commit(9, 42) == 0
    for name in ("x" * 32_767, "ä" * 16_000):
        assert await fetch(groups, version, topic=name) == (0, [(name, 0, -1, 0), (name, 7, -1, 0)])


async def test_a_group_that_goes_with_the_first_offsets_of_a_request_is_there_for_the_others(groups: Groups) -> None:
    """Many offsets are removed some at a time."""
    assert await groups.commit(9, 42) == 0
    asked = tuple(("t", index) for index in range(2 * OFFSETS_AT_ONCE + 1))
    assert await groups.coordinator.delete_offsets("g", asked) == (ErrorCode.NONE,) * len(asked)
    with pytest.raises(ProtocolError) as caught:
        await groups.coordinator.delete_offsets("g", asked)
    assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND
