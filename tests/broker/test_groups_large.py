"""Groups of thousands of members, and thousands of groups: answered in turns, listed in slices, bounded."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.group_shard import NAMES_AT_ONCE
from broker.coordination.groups.membership import MEMBERS_AT_ONCE
from broker.coordination.groups.rebalance import ANSWERS_AT_ONCE, ANSWERS_TURN_S
from broker.coordination.groups.records import group_record, offset_record
from broker.coordination.groups.tenant_index import each_once
from broker.coordination.groups.values import (
    CommittedOffset,
    GroupMetadata,
    GroupState,
    JoinReply,
    MemberIdentity,
    MemberMetadata,
)
from common.errors import ErrorCode
from common.pacing import SLICE_COST
from kraft.topic_names import GROUP_TOPIC
from tests.broker.broker_world import BrokerWorld
from tests.broker.group_driver import GROUP, GroupDriver, subscription
from tests.broker.test_groups_scale import batch_of, new_shard
from tests.common.call_count import counted_calls

QUICK = GroupConfig(group_initial_rebalance_delay_ms=0)
MEMBERS = 450


class CountingDriver(GroupDriver):
    """`most` is the largest number of requests that were answered by one step."""

    most = 0

    def collect(self) -> None:
        before = len(self.replies)
        super().collect()
        self.most = max(self.most, len(self.replies) - before)


def joining(count: int) -> tuple[CountingDriver, list[str], list[int]]:
    driver = CountingDriver(QUICK)
    ids = [driver.new_member_id() for _ in range(count)]
    tickets = [driver.join(member_id) for member_id in ids]
    driver.advance(5.0)
    return driver, ids, tickets


def test_members_of_a_large_group_are_answered_in_turns() -> None:
    driver, ids, tickets = joining(MEMBERS)
    assert all(driver.joined(ticket).generation == 1 for ticket in tickets)
    leader = driver.joined(tickets[0]).leader
    syncs = {member_id: driver.sync(member_id, 1) for member_id in ids if member_id != leader}
    syncs[leader] = driver.sync(leader, 1, {member_id: member_id.encode() for member_id in ids})
    assert driver.replies[syncs[leader]].assignment == leader.encode()
    driver.advance(1.0)
    assert all(driver.synced(syncs[member_id]).assignment == member_id.encode() for member_id in ids)
    assert driver.most <= ANSWERS_AT_ONCE + 1


def test_members_are_answered_also_while_the_time_of_a_stall_is_given_back() -> None:
    driver = CountingDriver(QUICK)
    ids = [driver.new_member_id() for _ in range(MEMBERS)]
    tickets = [driver.join(member_id) for member_id in ids]
    driver.advance(0.0)
    answered = len(driver.replies)
    driver.now_s += ANSWERS_TURN_S
    stalled = driver.now._replace(spared_until_s=driver.now_s + 20.0)
    driver.append(driver.shard.expire(stalled))
    driver.collect()
    assert len(driver.replies) == answered + ANSWERS_AT_ONCE
    driver.advance(1.0)
    assert all(driver.joined(ticket).generation == 1 for ticket in tickets)


def test_a_rebalance_of_a_large_group_while_members_sync_refuses_them_in_turns() -> None:
    driver, ids, tickets = joining(MEMBERS)
    leader = driver.joined(tickets[0]).leader
    syncs = [driver.sync(member_id, 1) for member_id in ids if member_id != leader]
    driver.most = 0
    driver.leave(leader)
    driver.advance(1.0)
    assert {driver.replies[ticket].error for ticket in syncs} == {ErrorCode.REBALANCE_IN_PROGRESS}
    assert driver.most <= ANSWERS_AT_ONCE + 1
    again = [driver.join(member_id) for member_id in ids if member_id != leader]
    driver.advance(1.0)
    assert all(driver.joined(ticket).generation == 2 for ticket in again)
    assert driver.shard.describe(GROUP).state is GroupState.COMPLETING_REBALANCE


def test_the_subscriptions_of_a_generation_are_read_in_turns() -> None:
    members, topics = 20, 2_000
    driver, most = GroupDriver(QUICK), 0
    for member in range(members):
        topics_of = subscription([f"t-{member}-{at}" for at in range(topics)])
        driver.join(driver.new_member_id(), protocols=(("range", topics_of),))
    driver.advance(0.0)
    group = driver.shard.groups[GROUP]
    assert group.state is GroupState.COMPLETING_REBALANCE
    assert group.subscribed is None
    assert group.is_subscribed_to("unknown yet"), "nothing expires meanwhile"
    while group.reading is not None:
        with counted_calls() as count:
            driver.advance(ANSWERS_TURN_S)
        most = max(most, count.calls)
    assert 0 < most < members * topics / 2
    assert group.subscribed is not None
    assert len(group.subscribed) == members * topics
    assert not group.is_subscribed_to("unknown yet")


def test_a_member_that_the_groups_record_has_no_room_for_is_refused_alone() -> None:
    driver = GroupDriver(GroupConfig(group_initial_rebalance_delay_ms=0, group_record_bytes_max=1_500))
    tickets = [driver.join(driver.new_member_id()) for _ in range(8)]
    driver.advance(1.0)
    assert [driver.joined(ticket).error for ticket in tickets] == [ErrorCode.NONE] * 8
    while (reply := driver.replies.get(driver.join())) and reply.error is ErrorCode.MEMBER_ID_REQUIRED:
        ticket = driver.join(reply.member_id)
        if ticket in driver.replies:
            reply = driver.replies[ticket]
            break
    assert isinstance(reply, JoinReply)
    assert reply.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert 8 <= len(driver.shard.groups[GROUP].members) <= 12


@pytest.mark.parametrize("kind", ["offsets", "records"])
def test_many_groups_are_listed_in_slices(kind: str) -> None:
    shard = new_shard()
    metadata = GroupMetadata("consumer", 1, None, None, 5, ())
    for number in range(5_000):
        if kind == "offsets":
            shard.replay(*offset_record(f"g{number}", "t", 0, CommittedOffset(1, 1, "", 5, -1, bytes(16))))
        else:
            shard.replay(*group_record(f"g{number}", metadata))
    work, walked = shard.list_groups(), list[int]()
    while len(walked) < 1 + 5_000 // NAMES_AT_ONCE:
        with counted_calls(of=each_once) as names:
            assert next(work, 0) <= SLICE_COST
        walked.append(names.calls)
    assert sum(walked) >= 5_000
    assert max(walked) <= 2 * NAMES_AT_ONCE


def test_a_large_group_is_removed_and_left_in_steps() -> None:
    """However many members there are, each step lets some of them go."""
    driver, _ids, _ = joining(3 * MEMBERS_AT_ONCE)
    shard, steps, most = driver.shard, 0, 0
    while True:
        before = len(shard.groups[GROUP].members) if GROUP in shard.groups else 0
        decision = shard.remove_groups(("",), 10, driver.now)
        driver.append(decision.records)
        if not decision.reply:
            break
        steps += 1
        most = max(most, before - (len(shard.groups[GROUP].members) if GROUP in shard.groups else 0))
    assert most == MEMBERS_AT_ONCE
    assert 3 <= steps <= 4
    assert not shard.committed


async def test_a_request_in_which_many_leave_is_decided_in_parts() -> None:
    count = 2 * MEMBERS_AT_ONCE + 10
    ids = [f"m-{number}" for number in range(count)]
    saved = tuple(MemberMetadata(one, None, "c", "/h", 60_000, 60_000, b"", b"") for one in ids)
    world = BrokerWorld()
    await world.internal_topics.ensure(GROUP_TOPIC)
    record = group_record(GROUP, GroupMetadata("consumer", 1, "range", ids[0], 5, saved))
    world.offsets.append_records(batch_of([record]), 1, 0)
    world.runtime.elected(world.offsets)
    while not world.runtime.active(GROUP_TOPIC):  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    leaving = asyncio.ensure_future(
        world.coordinator.leave(GROUP, tuple(MemberIdentity(one, None) for one in [*ids, "nobody"]))
    )
    looks: list[asyncio.Future[int]] = []
    while not leaving.done():
        await asyncio.sleep(0)
        members = world.coordinator.read_shard(0, lambda shard, _: len(shard.groups[GROUP].members))
        looks.append(asyncio.ensure_future(members))
    assert leaving.result() == (ErrorCode.NONE,) * count + (ErrorCode.UNKNOWN_MEMBER_ID,)
    sizes = await asyncio.gather(*looks)
    steps = [before - after for before, after in itertools.pairwise([count, *sizes, 0])]
    assert 0 < max(steps) <= MEMBERS_AT_ONCE
