"""Whatever members do, and in whatever order: the invariants of classic groups, and replay equality."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.records import decode_group_value
from broker.coordination.groups.values import GroupState, JoinReply, JoinRequest, MemberIdentity, SyncReply
from common.errors import ErrorCode
from tests.broker.group_driver import GROUP, GroupDriver

CONFIG = GroupConfig(group_initial_rebalance_delay_ms=500, group_max_size=4, new_member_join_timeout_ms=60_000)
PROTOCOLS = (
    (("range", b"1"),),
    (("range", b"2"), ("sticky", b"2")),
    (("sticky", b"3"), ("range", b"3")),
)
INSTANCES = st.sampled_from([None, None, None, "a", "b"])


class Groups(RuleBasedStateMachine):
    """Clients know only what they were answered; some of what they send is stale or wrong on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = GroupDriver(CONFIG)
        self.seen: dict[str, None] = {}
        self.generation = 0
        self.epochs = 0

    def learn(self) -> None:
        for reply in self.driver.replies.values():
            if isinstance(reply, JoinReply) and reply.member_id:
                self.seen[reply.member_id] = None

    def some_member(self, pick: int) -> str:
        self.learn()
        known = [*self.seen, "stranger"]
        return known[pick % len(known)]

    @rule(instance=INSTANCES, protocols=st.sampled_from(PROTOCOLS), known=st.booleans(), skips=st.booleans())
    def join_first(self, instance: str | None, protocols: object, known: bool, skips: bool) -> None:
        self.driver.join(instance=instance, protocols=protocols, known=known, skips=skips, rebalance_ms=20_000)  # type: ignore[arg-type]

    @rule(pick=st.integers(0, 30), instance=INSTANCES, protocols=st.sampled_from(PROTOCOLS))
    def join_known(self, pick: int, instance: str | None, protocols: object) -> None:
        self.driver.join(self.some_member(pick), instance=instance, protocols=protocols, rebalance_ms=20_000)  # type: ignore[arg-type]

    @rule()
    def all_join(self) -> None:
        group = self.driver.shard.groups.get(GROUP)
        members = [] if group is None else [*group.members.values()]
        for member in members:
            if member.join_ticket is None and group is not None and member.member_id in group.members:
                self.driver.join(member.member_id, instance=member.instance_id, protocols=member.protocols)

    @rule(pick=st.integers(0, 30), off=st.sampled_from([0, 0, 0, 1, -1]))
    def sync(self, pick: int, off: int) -> None:
        group = self.driver.shard.groups.get(GROUP)
        generation = 0 if group is None else group.generation
        member_id = self.some_member(pick)
        self.driver.sync(member_id, generation + off, {member_id: b"x"})

    @rule()
    def all_sync(self) -> None:
        group = self.driver.shard.groups.get(GROUP)
        for member_id in [] if group is None else list(group.members):
            assert group is not None
            self.driver.sync(member_id, group.generation, {m: m.encode() for m in group.members})

    @rule(pick=st.integers(0, 30), off=st.sampled_from([0, 0, 1]))
    def heartbeat(self, pick: int, off: int) -> None:
        group = self.driver.shard.groups.get(GROUP)
        self.driver.heartbeat(self.some_member(pick), (0 if group is None else group.generation) + off)

    @rule(pick=st.integers(0, 30), by_name=st.booleans())
    def leave(self, pick: int, by_name: bool) -> None:
        self.driver.leave(MemberIdentity("", "a") if by_name else MemberIdentity(self.some_member(pick), None))

    @rule(pick=st.integers(0, 30), offset=st.integers(0, 9), simple=st.booleans())
    def commit(self, pick: int, offset: int, simple: bool) -> None:
        group = self.driver.shard.groups.get(GROUP)
        if simple or group is None:
            self.driver.commit({("t", offset): offset})
        else:
            self.driver.commit({("t", offset): offset}, self.some_member(pick), group.generation)

    @rule(seconds=st.sampled_from([0.1, 0.6, 3.0, 9.0, 11.0, 21.0, 61.0]))
    def pass_time(self, seconds: float) -> None:
        self.driver.advance(seconds)

    @precondition(lambda self: self.epochs < 3)
    @rule()
    def fail_over(self) -> None:
        """Another coordinator takes over from the log; parked requests of the old one are the clients' loss."""
        self.epochs += 1
        self.learn()
        old = self.driver
        self.driver = GroupDriver(CONFIG, old.log)
        self.driver.now_s = old.now_s
        committed = self.driver.shard.committed.get(GROUP)
        self.generation = 0 if committed is None else decode_group_value(committed).generation

    # invariants ----------------------------------------------------------------------------------------------

    @invariant()
    def the_generation_never_falls(self) -> None:
        group = self.driver.shard.groups.get(GROUP)
        if group is None:
            self.generation = 0  # forgotten: nobody was in it, no record tells of it
            return
        assert group.generation >= self.generation
        self.generation = group.generation

    @invariant()
    def a_generation_has_one_leader(self) -> None:
        leaders: dict[int, set[str]] = {}
        claimed: dict[int, set[str]] = {}
        for reply in self.driver.replies.values():
            if isinstance(reply, JoinReply) and reply.error is ErrorCode.NONE and reply.members:
                if not reply.skip_assignment:
                    claimed.setdefault(reply.generation, set()).add(reply.member_id)
                leaders.setdefault(reply.generation, set()).add(reply.leader)
        group = self.driver.shard.groups.get(GROUP)
        if group is not None and group.members and group.state is not GroupState.PREPARING_REBALANCE:
            assert group.leader_id in group.members
        assert all(len(members) == 1 for members in claimed.values())

    @invariant()
    def whoever_waits_is_a_member_and_is_not_forgotten(self) -> None:
        driver = self.driver
        waiting = set(driver.asked) - set(driver.replies)
        parked: set[int] = set()
        for group in driver.shard.groups.values():
            for member in group.members.values():
                parked.update(ticket for ticket in (member.join_ticket, member.sync_ticket) if ticket is not None)
        assert waiting == parked
        if waiting:
            assert driver.shard.next_deadline() is not None

    @invariant()
    def the_books_are_right(self) -> None:
        for group in self.driver.shard.groups.values():
            members = group.members.values()
            assert group.joined_count == sum(1 for member in members if member.join_ticket is not None)
            names: dict[str, int] = {}
            for member in members:
                for name, _ in member.protocols:
                    names[name] = names.get(name, 0) + 1
            assert group.protocol_counts == names
            statics = {m.instance_id: m.member_id for m in members if m.instance_id is not None}
            assert group.static_members == statics
            assert set(group.unsynced) <= set(group.members)
            assert not set(group.pending) & set(group.members)
            if group.state is GroupState.STABLE:
                committed = decode_group_value(self.driver.shard.committed[group.group_id])
                assert group.generation == committed.generation
            if group.state is GroupState.EMPTY:
                assert not group.members

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        fresh = GroupShard(CONFIG, random.Random(0), lambda _: None)
        for record in self.driver.log:
            fresh.replay(record.key, record.value)
        assert fresh.committed == self.driver.shard.committed
        assert fresh.offsets.items(GROUP) == self.driver.shard.offsets.items(GROUP)

    def teardown(self) -> None:
        """Left alone, everybody gets an answer: nothing waits for ever."""
        self.driver.advance(200.0)
        driver = self.driver
        assert set(driver.asked) == set(driver.replies)
        for ticket, request in driver.asked.items():
            reply = driver.replies[ticket]
            if isinstance(request, JoinRequest) and isinstance(reply, JoinReply) and reply.error is ErrorCode.NONE:
                assert reply.member_id
                assert reply.protocol
            assert reply is not None
            if isinstance(reply, SyncReply):
                assert reply.error is not ErrorCode.NONE or reply.protocol
        group = driver.shard.groups.get(GROUP)
        assert group is None or group.state in (GroupState.EMPTY, GroupState.STABLE)


TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
