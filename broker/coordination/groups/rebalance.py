"""Rebalances of classic groups: waiting for members, election, assignment, expiry.

Nothing here waits: each call gets the time, replies are answers to tickets, durable changes are records. The rules are
Apache Kafka's (KIP-62 rebalance timeout, KIP-134 initial delay, KIP-345 static members).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct, field

from broker.coordination.groups.classic_group import ClassicGroup
from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.member import Member
from broker.coordination.groups.records import encode_group_key, encode_group_value, group_record
from broker.coordination.groups.values import GroupState, JoinReply, SyncReply
from broker.coordination.shard import Answer, CoordinatorRecord, Now, Ticket
from broker.deadlines import DeadlineQueue
from common.errors import ErrorCode

ANSWERS_AT_ONCE = 100
ANSWERS_TURN_S = 0.002
SESSIONS_AT_ONCE = 500


class TimerKind(IntEnum):
    MEMBER = 0  # a session, or a pending member's time to join
    JOIN = 1  # the end of the wait for members to join
    SYNC = 2  # the end of the wait for every SyncGroup
    RETENTION = 3  # the next check of expired offsets
    TAKE_UP = 4  # groups of a loaded log that are not in memory yet
    ANSWERS = 5  # members of a large group that are still to be answered, or whose subscriptions are still to be read
    SESSIONS = 6  # members of a large group that was brought into memory, whose sessions have not begun


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class Effects(Struct):
    """Results of a step so far, in order."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def record(self, *records: CoordinatorRecord) -> None:
        self.records.extend(records)

    def answer(self, ticket: Ticket | None, reply: object) -> None:
        if ticket is not None:
            self.answers.append(Answer(ticket, reply))

    def take_records(self) -> list[CoordinatorRecord]:
        records, self.records = self.records, []
        return records

    def take_answers(self) -> list[Answer]:
        answers, self.answers = self.answers, []
        return answers


class Rebalances:
    """Works on the groups that it is given; `timers` and `effects` belong to the shard."""

    def __init__(self, config: GroupConfig, timers: DeadlineQueue[TimerKey], effects: Effects) -> None:
        self._config = config
        self._timers = timers
        self._effects = effects

    # members -----------------------------------------------------------------------------------------------

    def refresh_session(self, group: ClassicGroup, member: Member, now: Now) -> None:
        deadline = now.monotonic_s + member.session_timeout_ms / 1000
        self._timers.set(TimerKey(TimerKind.MEMBER, group.group_id, member.member_id), deadline)

    def begin_sessions(self, group: ClassicGroup, now: Now) -> None:
        """Begin the sessions of a group brought into memory. A large group's begin in turns, so some members get a
        little longer."""
        group.begin_guarding()
        self.begin_some_sessions(group, now)

    def begin_some_sessions(self, group: ClassicGroup, now: Now) -> None:
        for member in group.next_to_guard(SESSIONS_AT_ONCE):
            self.refresh_session(group, member, now)
        if group.unguarded:
            self._timers.set(TimerKey(TimerKind.SESSIONS, group.group_id), now.monotonic_s + ANSWERS_TURN_S)

    def end_session(self, group: ClassicGroup, member_id: str) -> None:
        self._timers.cancel(TimerKey(TimerKind.MEMBER, group.group_id, member_id))

    def give_up(self, group: ClassicGroup) -> None:
        """Another coordinator takes over the group: end its timers, and redirect waiting members."""
        for member in group.members.values():
            self.refuse_parked(group, member, ErrorCode.NOT_COORDINATOR)
        for member_id in [*group.members, *group.pending]:
            self.end_session(group, member_id)
        for kind in (TimerKind.JOIN, TimerKind.SYNC):
            self._timers.cancel(TimerKey(kind, group.group_id))

    def await_pending(self, group: ClassicGroup, member_id: str, timeout_ms: int, now: Now) -> None:
        """An id was assigned: its client must join with it within `timeout_ms`."""
        group.await_pending(member_id)
        deadline = now.monotonic_s + timeout_ms / 1000
        self._timers.set(TimerKey(TimerKind.MEMBER, group.group_id, member_id), deadline)

    def add_member(self, group: ClassicGroup, member: Member, ticket: Ticket, now: Now) -> None:
        """A new member joins. It waits at most `new_member_join_timeout_ms`, because it cannot send heartbeats yet."""
        group.add(member)
        self.end_session(group, member.member_id)  # it was pending
        self._park_join(group, member, ticket)
        deadline = now.monotonic_s + self._config.new_member_join_timeout_ms / 1000
        self._timers.set(TimerKey(TimerKind.MEMBER, group.group_id, member.member_id), deadline)
        self.rebalance_or_complete(group, now)

    def join_again(self, group: ClassicGroup, member: Member, ticket: Ticket, now: Now) -> None:
        """A known member's JoinGroup waits until all have joined."""
        self._park_join(group, member, ticket)
        self.end_session(group, member.member_id)  # a member with a waiting request is alive
        self.rebalance_or_complete(group, now)

    def _park_join(self, group: ClassicGroup, member: Member, ticket: Ticket) -> None:
        replaced = group.park_join(member, ticket)
        self._effects.answer(replaced, JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    def park_sync(self, group: ClassicGroup, member: Member, ticket: Ticket) -> None:
        self._effects.answer(member.park_sync(ticket), SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        self.end_session(group, member.member_id)

    def drop_member(self, group: ClassicGroup, member: Member, error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """Remove a member and answer its waiting requests; the caller then lets the group react."""
        self.refuse_parked(group, member, error)
        self.end_session(group, member.member_id)
        group.remove(member)

    def refuse_parked(self, group: ClassicGroup, member: Member, error: ErrorCode) -> None:
        self._effects.answer(group.unpark_join(member), JoinReply(error))
        self._effects.answer(member.unpark_sync(), SyncReply(error))

    def members_left(self, group: ClassicGroup, now: Now) -> None:
        """Members or pending members have left: start a rebalance, or end the wait for them."""
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group, now)
        else:
            self.maybe_complete(group, now)

    # gathering ---------------------------------------------------------------------------------------------

    def rebalance_or_complete(self, group: ClassicGroup, now: Now) -> None:
        if group.can_rebalance:
            self.prepare(group, now)
        else:
            self.maybe_complete(group, now)

    def prepare(self, group: ClassicGroup, now: Now) -> None:
        """Ask all members to join again."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._refuse_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))
        wait_ms = group.begin_gathering(self._config.group_initial_rebalance_delay_ms, now.wall_ms)
        if not self.maybe_complete(group, now):
            self._gather_for(group, wait_ms, now)

    def _gather_for(self, group: ClassicGroup, delay_ms: int, now: Now) -> None:
        self._timers.set(TimerKey(TimerKind.JOIN, group.group_id), now.monotonic_s + delay_ms / 1000)

    def maybe_complete(self, group: ClassicGroup, now: Now) -> bool:
        """End the wait early if all members have joined, except during the initial delay. Returns whether it ended."""
        if (
            group.state is not GroupState.PREPARING_REBALANCE
            or group.previous_state is GroupState.EMPTY
            or not group.has_all_joined
        ):
            return False
        self.complete_join(group, now)
        return True

    def gathering_over(self, group: ClassicGroup, now: Now) -> None:
        """The time to join has passed; while new members still join, the initial delay continues."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        more_ms = group.extend_initial_delay(self._config.group_initial_rebalance_delay_ms)
        if more_ms is not None:
            self._gather_for(group, more_ms, now)
        else:
            self.complete_join(group, now)

    def complete_join(self, group: ClassicGroup, now: Now) -> None:
        """Begin the next generation with the members that joined. Static members stay even if they did not join
        (KIP-345)."""
        self._timers.cancel(TimerKey(TimerKind.JOIN, group.group_id))
        for member in list(group.members.values()):
            if member.join_ticket is None and not member.is_static:
                self.drop_member(group, member)
            elif member.sync_ticket is not None:  # in a large group, not answered yet
                self._answer_sync(member, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        if group.members and not group.elect_joined_leader():
            # only static members, and none joined: their sessions decide
            self._gather_for(group, group.gather_on(), now)
            return
        group.next_generation(now.wall_ms)
        if group.state is GroupState.EMPTY:
            self._effects.record(group_record(group.group_id, group.metadata()))
            return
        self._answer_all(group, now)
        deadline = now.monotonic_s + group.rebalance_timeout_ms / 1000
        self._timers.set(TimerKey(TimerKind.SYNC, group.group_id), deadline)

    def joined(self, group: ClassicGroup, member: Member) -> JoinReply:
        """The current generation, for one member."""
        return JoinReply(
            ErrorCode.NONE,
            member.member_id,
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader_id or "",
            group.joined_members() if group.leader_id == member.member_id else (),
        )

    # answering ---------------------------------------------------------------------------------------------

    def _answer_all(self, group: ClassicGroup, now: Now) -> None:
        """Answer the members that wait for the group's new state; in a large group the leader first, the others in
        turns."""
        group.begin_answering()
        leader = group.leader
        if leader is not None and len(group.members) > ANSWERS_AT_ONCE:
            self._answer(group, leader, now)
        self.answer_some(group, now)

    def answer_some(self, group: ClassicGroup, now: Now) -> None:
        for member in group.next_to_answer(ANSWERS_AT_ONCE):
            self._answer(group, member, now)
        self._answer_rest_later(group, now)

    def _answer_rest_later(self, group: ClassicGroup, now: Now) -> None:
        is_read = group.read_on()
        if group.unanswered or not is_read:
            self._timers.set(TimerKey(TimerKind.ANSWERS, group.group_id), now.monotonic_s + ANSWERS_TURN_S)

    def _answer(self, group: ClassicGroup, member: Member, now: Now) -> None:
        """Answer one member. During a rebalance its JoinGroup keeps waiting; a static member that did not join gets a
        new session."""
        gathers = group.state is GroupState.PREPARING_REBALANCE
        begins = group.state is GroupState.COMPLETING_REBALANCE
        if begins or (member.join_ticket is not None and not gathers):
            self._effects.answer(group.unpark_join(member), self.joined(group, member))
            member.got_id()
            self.refresh_session(group, member, now)
        if member.sync_ticket is not None and not begins:
            refusal = SyncReply(ErrorCode.REBALANCE_IN_PROGRESS)
            self._answer_sync(member, refusal if gathers else self.assigned(group, member))
            self.refresh_session(group, member, now)

    def _answer_sync(self, member: Member, reply: SyncReply) -> None:
        self._effects.answer(member.unpark_sync(), reply)

    # handing out -------------------------------------------------------------------------------------------

    def synced(self, group: ClassicGroup, member_id: str) -> None:
        """The member's SyncGroup arrived; after the last one the wait for SyncGroups ends."""
        if group.has_synced(member_id):
            self._timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))

    def assign(self, group: ClassicGroup, assignments: dict[str, bytes], now: Now) -> None:
        """The leader's assignment makes the group stable; waiting members get it when it is durable."""
        group.assign(assignments)
        value = encode_group_value(group.metadata()._replace(state_timestamp=now.wall_ms))
        if len(value) > self._config.group_record_bytes_max:
            self._refuse_syncs(group, ErrorCode.UNKNOWN_SERVER_ERROR, now)
            self.prepare(group, now)
            return
        group.become(GroupState.STABLE, now.wall_ms)
        self._effects.record(CoordinatorRecord(encode_group_key(group.group_id), value))
        self._answer_all(group, now)

    def assignment_lost(self, group: ClassicGroup, now: Now) -> None:
        """The assignment could not be written: start another rebalance."""
        if group.state is GroupState.STABLE:
            self._refuse_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now)
            self.prepare(group, now)

    def assigned(self, group: ClassicGroup, member: Member) -> SyncReply:
        return SyncReply(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)

    def _refuse_syncs(self, group: ClassicGroup, error: ErrorCode, now: Now) -> None:
        """This generation gets no assignment; waiting members have a whole session to join again."""
        group.assign({})
        group.begin_answering()
        first = group.next_to_answer(ANSWERS_AT_ONCE)
        leader = group.leader
        if leader is not None:
            group.answers_first(leader)
            first.append(leader)
        for member in first:
            if member.sync_ticket is not None:
                self._answer_sync(member, SyncReply(error))
                self.refresh_session(group, member, now)
        self._answer_rest_later(group, now)

    # expiry ------------------------------------------------------------------------------------------------

    def sync_over(self, group: ClassicGroup, now: Now) -> None:
        """Remove members that joined but never sent a SyncGroup."""
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.unsynced:
            return
        for member_id in list(group.unsynced):
            self.drop_member(group, group.members[member_id])
        self.prepare(group, now)

    def member_over(self, group: ClassicGroup, member_id: str, now: Now) -> None:
        """A session expired, or a pending member did not join. A member with a waiting request is alive, unless it
        never got its id: then this answer lets it retry."""
        if group.drop_pending(member_id):
            self.maybe_complete(group, now)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        if member.is_parked and not member.is_new:
            return
        self.drop_member(group, member)
        self.members_left(group, now)
