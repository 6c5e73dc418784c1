"""A group with thousands of members comes into memory piece by piece, and is then what its record says."""

from __future__ import annotations

import random

import pytest

from broker.coordination.groups import taking_up
from broker.coordination.groups.classic_group import RESTORED_COST, ClassicGroup
from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.group_shard import RETENTION_TURN_S, GroupShard
from broker.coordination.groups.member import Member
from broker.coordination.groups.records import decode_group_value, encode_group_key, encode_group_value, offset_record
from broker.coordination.groups.values import (
    CommittedOffset,
    GroupMetadata,
    GroupState,
    MemberHeartbeat,
    MemberIdentity,
    MemberMetadata,
)
from broker.coordination.shard import CoordinatorRecord, Now
from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from tests.broker.group_driver import subscription
from tests.broker.test_groups_scale import new_shard
from tests.common.call_count import counted_calls

MEMBERS = 9_000  # about as many as fit a record
LONG, SHORT = "long", "short"
SESSION_MS = 10_000
TURN_CALLS_MAX = 30_000  # a turn's members cost 60 calls each to restore, all 9,000 would cost 500,000


def record(members: int, topics: int = 0) -> bytes:
    """Each member subscribes to that many topics of its own."""
    saved = tuple(
        MemberMetadata(f"m-{at:036d}", None, "m", "/10.0.0.1", SESSION_MS, SESSION_MS, subscribed(at, topics), b"")
        for at in range(members)
    )
    return encode_group_value(GroupMetadata("consumer", 3, "range", saved[0].member_id, 5, saved))


def subscribed(member: int, topics: int) -> bytes:
    return subscription([f"t-{member}-{at}" for at in range(topics)]) if topics else b""


def loaded(*groups: tuple[str, bytes]) -> tuple[GroupShard, Now]:
    shard, now = new_shard(), Now(100.0, 1_000_000, 0)
    for group_id, value in groups:
        shard.replay(encode_group_key(group_id), value)
    shard.loaded(now)
    return shard, now


def beat(shard: GroupShard, group_id: str, now: Now) -> ErrorCode:
    return shard.heartbeat(MemberHeartbeat(group_id, f"m-{0:036d}", None, 3), now).reply


def test_no_turn_restores_more_than_some_members_and_others_are_served() -> None:
    value = record(MEMBERS)
    assert len(value) > 600_000
    shard, now = loaded((LONG, value), (SHORT, record(3)))
    with counted_calls(of=Member.restored) as restored:
        with pytest.raises(ProtocolError) as refused:
            beat(shard, LONG, now)
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert beat(shard, SHORT, now) is ErrorCode.NONE
    steps = [restored.calls]
    (listed,) = [group for group in at_once(shard.list_groups()) if group.group_id == LONG]
    assert (listed.state, listed.protocol_type) == (GroupState.STABLE, "consumer")
    while LONG not in shard.groups:
        deadline = shard.next_deadline()
        assert deadline is not None
        now = now._replace(monotonic_s=max(now.monotonic_s, deadline))
        with counted_calls(of=Member.restored) as restored:
            assert shard.expire(now) == []
        steps.append(restored.calls)
    assert sum(steps) == MEMBERS + 3
    assert max(steps) <= taking_up.TURN_COST_MAX // RESTORED_COST
    assert beat(shard, LONG, now) is ErrorCode.NONE
    whole = ClassicGroup.restored(LONG, decode_group_value(value))
    assert shard.groups[LONG] == whole
    assert shard.groups[LONG].metadata() == decode_group_value(value)


@pytest.mark.parametrize(("members", "topics"), [(MEMBERS, 1), (10, 8_000)])
def test_no_turn_does_much_of_a_group_with_many_members_or_topics(members: int, topics: int) -> None:
    shard, now = loaded((LONG, record(members, topics)))
    most = 0
    while LONG not in shard.groups or shard.groups[LONG].unguarded:
        deadline = shard.next_deadline()
        assert deadline is not None
        now = now._replace(monotonic_s=max(now.monotonic_s, deadline))
        with counted_calls() as count:
            shard.expire(now)
        most = max(most, count.calls)
    assert most <= TURN_CALLS_MAX
    group = shard.groups[LONG]
    assert group.subscribed is not None
    assert len(group.subscribed) == members * topics
    assert group.is_subscribed_to(f"t-{members - 1}-{topics - 1}")


def test_a_request_before_its_members_session_begins_is_answered() -> None:
    shard, now = loaded((LONG, record(MEMBERS)))
    while LONG not in shard.groups:
        now = now._replace(monotonic_s=now.monotonic_s + 0.01)
        shard.expire(now)
    late = f"m-{MEMBERS - 1:036d}"
    assert late in shard.groups[LONG].unguarded
    assert shard.heartbeat(MemberHeartbeat(LONG, late, None, 3), now).reply is ErrorCode.NONE
    shard.leave(LONG, (MemberIdentity(late, None),), now)
    for _ in range(100):
        now = now._replace(monotonic_s=now.monotonic_s + 0.01)
        shard.expire(now)
    assert len(shard.groups[LONG].members) == MEMBERS - 1
    assert not shard.groups[LONG].unguarded


def test_every_member_has_a_session_from_then_on() -> None:
    shard, now = loaded((LONG, record(MEMBERS)))
    while LONG not in shard.groups or shard.groups[LONG].unguarded:
        now = now._replace(monotonic_s=now.monotonic_s + 0.01)
        shard.expire(now)
    now = now._replace(monotonic_s=now.monotonic_s + SESSION_MS / 1000 + 1)
    beaten = now._replace(monotonic_s=now.monotonic_s - 2)
    assert beat(shard, LONG, beaten) is ErrorCode.NONE
    for _ in range(MEMBERS):
        shard.expire(now)
        if len(shard.groups[LONG].members) == 1:
            break
    assert list(shard.groups[LONG].members) == [f"m-{0:036d}"]


def test_a_group_that_is_deleted_or_handed_over_meanwhile_is_not_brought_back() -> None:
    shard, now = loaded((LONG, record(MEMBERS)))
    shard.expire(now)
    shard.replay(encode_group_key(LONG), None)
    for _ in range(100):
        now = now._replace(monotonic_s=now.monotonic_s + 0.01)
        shard.expire(now)
    assert list(shard.groups) == []
    assert at_once(shard.list_groups()) == []


def test_a_long_record_that_cannot_be_read_is_passed_over() -> None:
    shard, now = loaded((LONG, record(MEMBERS)[:-50]), (SHORT, record(3)))
    with pytest.raises(ProtocolError):
        beat(shard, LONG, now)
    for _ in range(100):
        now = now._replace(monotonic_s=now.monotonic_s + 0.01)
        shard.expire(now)
    assert list(shard.groups) == [SHORT]
    with pytest.raises(ProtocolError) as refused:
        beat(shard, LONG, now)
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_retention_waits_for_the_group_and_passes_over_none_of_its_offsets() -> None:
    """Of a topic that the group may subscribe to, and is gone."""
    shard = GroupShard(GroupConfig(), random.Random(1), lambda _: None)
    shard.replay(encode_group_key(LONG), record(MEMBERS))
    shard.replay(*offset_record(LONG, "gone", 0, CommittedOffset(1, 1, "", 5, -1, bytes(16))))
    now = Now(100.0, 1_000_000, 0)
    shard.loaded(now)
    shard.topics_deleted(now)
    records: list[CoordinatorRecord] = []
    for turn in range(200):
        if turn == 10:  # several turns of retention came while the group was on its way
            assert now.monotonic_s > 100.0 + 2 * RETENTION_TURN_S
            assert LONG not in shard.groups
        now = now._replace(monotonic_s=now.monotonic_s + 0.01)
        records += shard.expire(now)
    assert records == [offset_record(LONG, "gone", 0, None)]
