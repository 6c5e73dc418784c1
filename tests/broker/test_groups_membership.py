"""Stories of classic groups: what members are answered when they come, stay, fall silent and go."""

from __future__ import annotations

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.records import decode_group_value
from broker.coordination.groups.values import GroupState, JoinReply, MemberIdentity, SyncReply
from common.errors import ErrorCode
from tests.broker.group_driver import GROUP, RANGE, GroupDriver

QUICK = GroupConfig(group_initial_rebalance_delay_ms=0)


def test_a_dynamic_member_gets_its_id_first_and_then_joins() -> None:
    driver = GroupDriver()
    first = driver.replies[driver.join()]
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("client-")
    ticket = driver.join(first.member_id)
    driver.advance(2.9)
    assert ticket not in driver.replies  # group.initial.rebalance.delay.ms
    driver.advance(0.2)
    reply = driver.joined(ticket)
    assert (reply.generation, reply.leader, reply.protocol) == (1, first.member_id, "range")
    assert [member.member_id for member in reply.members] == [first.member_id]


def test_an_old_client_joins_without_knowing_its_id() -> None:
    driver = GroupDriver(QUICK)
    ticket = driver.join(known=False)
    driver.advance(0.01)
    assert driver.joined(ticket).member_id.startswith("client-")


def test_the_initial_delay_goes_on_while_members_come() -> None:
    driver = GroupDriver()
    ids = [driver.new_member_id() for _ in range(3)]
    first = driver.join(ids[0])
    driver.advance(2.0)
    second = driver.join(ids[1])
    driver.advance(2.0)  # 3 s have passed; a member came, so 3 s more
    assert first not in driver.replies
    driver.advance(2.1)
    assert driver.joined(first).generation == driver.joined(second).generation == 1
    assert len(driver.joined(first).members) == 2
    assert driver.joined(second).members == ()


def test_all_get_their_assignment_once_the_leader_gave_it() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(3)
    group = driver.shard.groups[GROUP]
    assert group.state is GroupState.STABLE
    assert {m.member_id: m.assignment for m in group.members.values()} == {i: i.encode() for i in ids}
    assert driver.synced(driver.sync(ids[1], generation)).assignment == ids[1].encode()
    assert driver.heartbeat(ids[1], generation) is ErrorCode.NONE


def test_a_newcomer_makes_all_join_again() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(2)
    newcomer = driver.join(driver.new_member_id())
    assert driver.heartbeat(ids[0], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.replies[driver.sync(ids[0], generation)] is ErrorCode.REBALANCE_IN_PROGRESS
    tickets = [driver.join(member_id) for member_id in ids]
    assert [driver.joined(t).generation for t in [*tickets, newcomer]] == [generation + 1] * 3
    assert driver.joined(tickets[0]).leader == ids[0]


def test_who_does_not_join_again_in_time_is_out() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(2, session_ms=30_000, rebalance_ms=5_000)
    ticket = driver.join(driver.new_member_id(), rebalance_ms=5_000, session_ms=30_000)
    again = driver.join(ids[0], rebalance_ms=5_000, session_ms=30_000)
    driver.advance(4.9)
    assert ticket not in driver.replies
    driver.advance(0.2)
    assert {m.member_id for m in driver.joined(again).members} == {ids[0], driver.joined(ticket).member_id}
    assert driver.heartbeat(ids[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_expired_and_the_others_rebalance() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(2, session_ms=10_000)
    for _ in range(3):
        driver.advance(4.0)
        driver.heartbeat(ids[0], generation)
    assert driver.shard.groups[GROUP].state is GroupState.PREPARING_REBALANCE
    assert list(driver.shard.groups[GROUP].members) == [ids[0]]
    assert len(driver.joined(driver.join(ids[0])).members) == 1


def test_a_leader_that_never_syncs_is_put_out_and_the_others_are_told() -> None:
    driver = GroupDriver(QUICK)
    ids = [driver.new_member_id(rebalance_ms=5_000) for _ in range(2)]
    tickets = [driver.join(member_id, rebalance_ms=5_000) for member_id in ids]
    driver.advance(0.01)
    generation = driver.joined(tickets[0]).generation
    leader = driver.joined(tickets[0]).leader
    follower = next(member_id for member_id in ids if member_id != leader)
    waiting = driver.sync(follower, generation)
    driver.heartbeat(leader, generation)
    driver.advance(5.1)
    assert driver.replies[waiting] == SyncReply(ErrorCode.REBALANCE_IN_PROGRESS)
    assert leader not in driver.shard.groups[GROUP].members


def test_a_pending_id_expires() -> None:
    driver = GroupDriver(QUICK)
    member_id = driver.new_member_id(session_ms=6_000)
    driver.advance(6.1)
    assert driver.replies[driver.join(member_id)] is ErrorCode.UNKNOWN_MEMBER_ID
    assert GROUP not in driver.shard.groups  # nothing of it is kept


def test_unknown_members_and_wrong_generations_are_told_so() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(1)
    assert driver.heartbeat("nobody", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(ids[0], generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert driver.replies[driver.sync(ids[0], generation - 1)] is ErrorCode.ILLEGAL_GENERATION
    assert driver.replies[driver.join("nobody")] is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.replies[driver.join("x", group="none")] is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave("nobody") == (ErrorCode.UNKNOWN_MEMBER_ID,)
    assert driver.leave("x", group="none") is ErrorCode.UNKNOWN_MEMBER_ID


def test_what_no_group_accepts() -> None:
    driver = GroupDriver(QUICK)
    assert driver.replies[driver.join(group="")] is ErrorCode.INVALID_GROUP_ID
    assert driver.replies[driver.join(session_ms=5_999)] is ErrorCode.INVALID_SESSION_TIMEOUT
    assert driver.replies[driver.join(session_ms=1_800_001)] is ErrorCode.INVALID_SESSION_TIMEOUT
    assert driver.replies[driver.join(protocols=())].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.replies[driver.join(instance="x" * 33_000)] is ErrorCode.INVALID_REQUEST
    driver.stable_group(1)
    other = driver.join(protocols=(("sticky", b""),))
    assert driver.replies[other].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = driver.join(protocol_type="connect")
    assert driver.replies[other].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_is_one_that_all_support_and_most_prefer() -> None:
    driver = GroupDriver(QUICK)
    preferences = (("range", "sticky", "roundrobin"), ("sticky", "range"), ("sticky", "range", "other"))
    tickets = [
        driver.join(known=False, protocols=tuple((name, name.encode()) for name in names)) for names in preferences
    ]
    driver.advance(0.01)
    assert {driver.joined(ticket).protocol for ticket in tickets} == {"sticky"}
    assert driver.joined(tickets[0]).members[1].metadata == b"sticky"


def test_a_follower_that_joins_again_unchanged_disturbs_nobody() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(2)
    reply = driver.joined(driver.join(ids[1]))
    assert (reply.generation, reply.members) == (generation, ())
    driver.join(ids[0])  # the leader, though, may have seen new partitions
    assert driver.shard.groups[GROUP].state is GroupState.PREPARING_REBALANCE


def test_the_size_limit_turns_the_last_ones_away() -> None:
    driver = GroupDriver(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))
    generation, _ = driver.stable_group(2)
    assert driver.replies[driver.join()] == JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert driver.shard.groups[GROUP].generation == generation


def test_members_leave_and_the_group_is_empty_but_remembered() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(2)
    assert driver.leave(*ids) == (ErrorCode.NONE, ErrorCode.NONE)
    group = driver.shard.groups[GROUP]
    assert (group.state, group.generation) == (GroupState.EMPTY, generation + 1)
    assert decode_group_value(driver.shard.committed[GROUP]).members == ()
    assert driver.shard.describe(GROUP).state is GroupState.EMPTY


def test_an_assignment_too_large_to_write_is_refused_and_the_group_goes_on() -> None:
    driver = GroupDriver(GroupConfig(group_initial_rebalance_delay_ms=0, group_record_bytes_max=2_000))
    ticket = driver.join(known=False)
    driver.advance(1)
    reply = driver.joined(ticket)
    sync = driver.sync(reply.member_id, reply.generation, {reply.member_id: bytes(3_000)})
    assert driver.replies[sync] == SyncReply(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert driver.shard.groups[GROUP].state is GroupState.PREPARING_REBALANCE
    assert not driver.log


# static members -------------------------------------------------------------------------------------------------


def static_pair(driver: GroupDriver) -> tuple[int, dict[str, str]]:
    """A stable group of the instances "a" (the leader) and "b"."""
    tickets = {name: driver.join(instance=name) for name in ("a", "b")}
    driver.advance(0.01)
    ids = {name: driver.joined(ticket).member_id for name, ticket in tickets.items()}
    generation = driver.joined(tickets["a"]).generation
    driver.sync(ids["b"], generation, instance="b")
    driver.sync(ids["a"], generation, {ids["a"]: b"for a", ids["b"]: b"for b"}, instance="a")
    return generation, ids


def test_a_static_member_that_restarts_costs_no_rebalance() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = static_pair(driver)
    reply = driver.joined(driver.join(instance="b"))
    assert reply.member_id not in ids.values()
    assert (reply.generation, reply.leader, reply.skip_assignment) == (generation, ids["a"], False)
    assert driver.synced(driver.sync(reply.member_id, generation, instance="b")).assignment == b"for b"
    assert driver.heartbeat(ids["b"], generation, instance="b") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.replies[driver.join(ids["b"], instance="b")] is ErrorCode.FENCED_INSTANCE_ID
    assert driver.commit({("t", 0): 1}, ids["b"], generation, instance="b") is ErrorCode.FENCED_INSTANCE_ID
    saved = {
        member.instance_id: member.member_id for member in decode_group_value(driver.shard.committed[GROUP]).members
    }
    assert saved == {"a": ids["a"], "b": reply.member_id}


def test_a_static_leader_that_restarts_is_told_not_to_assign() -> None:
    driver = GroupDriver(QUICK)
    generation, _ = static_pair(driver)
    new = driver.joined(driver.join(instance="a"))
    assert (new.skip_assignment, new.leader, new.generation) == (True, new.member_id, generation)
    assert len(new.members) == 2
    old_style = driver.joined(driver.join(instance="a", skips=False))
    assert (old_style.skip_assignment, old_style.leader, old_style.members) == (False, new.member_id, ())


def test_a_static_member_that_restarts_with_another_protocol_makes_all_join() -> None:
    driver = GroupDriver(QUICK)
    both = (*RANGE, ("sticky", b"s"))
    tickets = [driver.join(instance=name, protocols=both) for name in ("a", "b")]
    driver.advance(0.01)
    ids = [driver.joined(ticket).member_id for ticket in tickets]
    driver.sync(ids[0], 1, {}, instance="a")
    waiting = driver.join(instance="b", protocols=(("sticky", b"s"),))
    assert waiting not in driver.replies
    assert driver.joined(driver.join(ids[0], instance="a", protocols=both)).protocol == "sticky"
    assert driver.joined(waiting).generation == 2


def test_a_parked_request_of_a_replaced_static_member_is_fenced() -> None:
    driver = GroupDriver()
    first = driver.join(instance="a")
    second = driver.join(instance="a")
    assert driver.replies[first] == JoinReply(ErrorCode.FENCED_INSTANCE_ID)
    driver.advance(10)
    assert len(driver.joined(second).members) == 1


def test_static_members_leave_by_name() -> None:
    driver = GroupDriver(QUICK)
    _, ids = static_pair(driver)
    codes = driver.leave(MemberIdentity("", "b"), MemberIdentity("wrong", "a"), MemberIdentity("", "c"))
    assert codes == (ErrorCode.NONE, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID)
    assert list(driver.shard.groups[GROUP].members) == [ids["a"]]


def test_static_members_survive_a_rebalance_that_they_miss() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = static_pair(driver)
    ticket = driver.join(instance="c", rebalance_ms=60_000)
    driver.join(ids["a"], instance="a")
    for _ in range(13):  # heartbeats keep b's session, yet it does not join
        driver.advance(5.0)
        driver.heartbeat(ids["b"], generation, instance="b")
    assert {member.instance_id for member in driver.shard.groups[GROUP].members.values()} == {"a", "b", "c"}
    assert driver.joined(ticket).generation == generation + 1


# failover -------------------------------------------------------------------------------------------------------


def test_a_new_coordinator_goes_on_from_the_last_assignment() -> None:
    before = GroupDriver(QUICK)
    generation, ids = before.stable_group(2)
    after = GroupDriver(QUICK, before.log)
    assert after.shard.committed == before.shard.committed
    assert after.heartbeat(ids[0], generation) is ErrorCode.NONE
    assert after.synced(after.sync(ids[1], generation)).assignment == ids[1].encode()
    assert after.joined(after.join(ids[1])).generation == generation  # its protocols are remembered
    after.advance(10.1)
    assert after.shard.groups[GROUP].state is GroupState.EMPTY  # nobody came back


def test_a_generation_that_was_never_assigned_does_not_survive() -> None:
    before = GroupDriver(QUICK)
    generation, ids = before.stable_group(1)
    before.joined(before.join(ids[0]))  # generation + 1, unsynced
    after = GroupDriver(QUICK, before.log)
    assert after.heartbeat(ids[0], generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert after.heartbeat(ids[0], generation) is ErrorCode.NONE
