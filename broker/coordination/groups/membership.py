"""Decides JoinGroup, SyncGroup, Heartbeat and LeaveGroup for classic groups in memory.

Errors and the order of checks are Apache Kafka's. A decision returns its reply, or PARKED if the reply comes at the end
of a rebalance. Source: KIP-345 (static members), KIP-394 (member id first), KIP-814 (skip assignment).
"""

from __future__ import annotations

import random
from itertools import chain, islice

from broker.coordination.groups.classic_group import ClassicGroup
from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.member import Member
from broker.coordination.groups.rebalance import Effects, Rebalances
from broker.coordination.groups.records import group_record
from broker.coordination.groups.values import (
    NO_MEMBER,
    GroupState,
    JoinReply,
    JoinRequest,
    MemberHeartbeat,
    MemberIdentity,
    SyncReply,
    SyncRequest,
)
from broker.coordination.shard import PARKED, Now, Parked, Ticket
from common.errors import ErrorCode, ProtocolError
from common.identifiers import random_uuid
from kraft.image.tenants import local_name

MEMBER_ID_EXAMPLE = "client-00000000-0000-0000-0000-000000000000"
STRING_BYTES_MAX = 32_000  # records have 16-bit string lengths; a member id is a name and a uuid
MEMBERS_AT_ONCE = 500  # members that leave in one step
GIVEN_UP_AT_ONCE = 200  # groups and members given up per step when their coordinator changes


class Memberships:
    """`rng` generates the random part of member ids."""

    def __init__(self, config: GroupConfig, rebalances: Rebalances, effects: Effects, rng: random.Random) -> None:
        self._config = config
        self._rebalances = rebalances
        self._effects = effects
        self._rng = rng

    # JoinGroup ---------------------------------------------------------------------------------------------

    def check_join(self, request: JoinRequest) -> None:
        """Raises for a request that no group accepts: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INVALID_REQUEST."""
        if not local_name(request.group_id):
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
        config = self._config
        timeout_ms = request.session_timeout_ms
        if not config.group_min_session_timeout_ms <= timeout_ms <= config.group_max_session_timeout_ms:
            raise ProtocolError(ErrorCode.INVALID_SESSION_TIMEOUT)
        strings = [request.group_id, request.client_id, request.instance_id or "", request.protocol_type]
        strings.extend(name for name, _ in request.protocols)
        if any(len(text.encode()) > STRING_BYTES_MAX for text in strings) or request.instance_id == "":
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "a name is empty or too long")

    def join(self, group: ClassicGroup, request: JoinRequest, ticket: Ticket, now: Now) -> JoinReply | Parked:
        if not group.accepts(request.member_id, self._config.group_max_size):
            member = group.members.get(request.member_id)
            if member is not None:
                self._rebalances.drop_member(group, member)
                self._rebalances.members_left(group, now)
            return JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if request.member_id not in group.members and self._is_too_much(group, request):
            return JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id)
        if not group.supports(request.protocol_type, request.protocols):
            return JoinReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        if request.member_id == NO_MEMBER:
            return self._join_new(group, request, ticket, now)
        return self._join_known(group, request, ticket, now)

    def _is_too_much(self, group: ClassicGroup, request: JoinRequest) -> bool:
        """Whether one more member would make the group's record too large to write. A static member may replace one."""
        if not group.members or request.instance_id in group.static_members:
            return False
        member = Member.joining(request, request.member_id or MEMBER_ID_EXAMPLE)
        return group.record_bytes + member.record_bytes > self._config.group_record_bytes_max

    def _join_new(self, group: ClassicGroup, request: JoinRequest, ticket: Ticket, now: Now) -> JoinReply | Parked:
        prefix = request.client_id if request.instance_id is None else request.instance_id
        member_id = f"{prefix}-{_uuid_text(random_uuid(self._rng))}"
        if request.instance_id is not None:
            holder = group.static_members.get(request.instance_id)
            if holder is not None:
                return self._take_over(group, group.members[holder], member_id, request, ticket, now)
        elif request.knows_member_ids:
            self._rebalances.await_pending(group, member_id, request.session_timeout_ms, now)
            return JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        self._rebalances.add_member(group, Member.joining(request, member_id), ticket, now)
        return PARKED

    def _take_over(
        self, group: ClassicGroup, old: Member, member_id: str, request: JoinRequest, ticket: Ticket, now: Now
    ) -> JoinReply | Parked:
        """A static member rejoined without its id: it gets a new one, and the old one is fenced.

        In a stable group with an unchanged protocol this needs no rebalance. The group would ignore an assignment from
        the member, so a client that supports it gets skip_assignment, and an older one gets the old member id as the
        leader's.
        """
        leader_before = group.leader_id or ""
        self._rebalances.refuse_parked(group, old, ErrorCode.FENCED_INSTANCE_ID)
        self._rebalances.end_session(group, old.member_id)
        member = group.replace_static(old, member_id)
        group.rejoin(member, request)
        self._rebalances.refresh_session(group, member, now)
        if group.state is not GroupState.STABLE or group.select_protocol() != group.protocol:
            self._rebalances.join_again(group, member, ticket, now)
            return PARKED
        self._effects.record(group_record(group.group_id, group.metadata()))
        reply = self._rebalances.joined(group, member)
        if request.skips_assignment:
            return reply._replace(skip_assignment=group.leader_id == member_id)
        return reply._replace(leader=leader_before, members=())

    def _join_known(self, group: ClassicGroup, request: JoinRequest, ticket: Ticket, now: Now) -> JoinReply | Parked:
        if request.member_id in group.pending:
            if request.instance_id is not None:
                # ids assigned before joining belong to dynamic members
                raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
            self._rebalances.add_member(group, Member.joining(request, request.member_id), ticket, now)
            return PARKED
        member = group.validate_member(request.member_id, request.instance_id)
        unchanged = member.protocols == request.protocols
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            return self._rebalances.joined(group, member)  # it did not receive the first reply
        if group.state is GroupState.STABLE and unchanged and group.leader_id != member.member_id:
            return self._rebalances.joined(group, member)  # a follower that only needs to sync again
        group.rejoin(member, request)
        self._rebalances.join_again(group, member, ticket, now)
        return PARKED

    # SyncGroup ---------------------------------------------------------------------------------------------

    def sync(self, group: ClassicGroup, request: SyncRequest, ticket: Ticket, now: Now) -> SyncReply | Parked:
        member = group.validate_member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        if request.protocol_type not in (None, group.protocol_type) or request.protocol not in (None, group.protocol):
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._rebalances.synced(group, member.member_id)
        if group.state is GroupState.STABLE:
            self._rebalances.refresh_session(group, member, now)
            return self._rebalances.assigned(group, member)
        self._rebalances.park_sync(group, member, ticket)
        if group.leader_id == member.member_id:
            assignments = {row.member_id: row.assignment for row in request.assignments}
            self._rebalances.assign(group, assignments, now)
        return PARKED

    # Heartbeat ---------------------------------------------------------------------------------------------

    def heartbeat(self, group: ClassicGroup, request: MemberHeartbeat, now: Now) -> ErrorCode:
        member = group.validate_member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        self._rebalances.refresh_session(group, member, now)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # LeaveGroup --------------------------------------------------------------------------------------------

    def leave(self, group: ClassicGroup, leaving: tuple[MemberIdentity, ...], now: Now) -> tuple[ErrorCode, ...]:
        """One code per identity, in order. The group rebalances once, after all have left."""
        before = len(group.members)
        codes = tuple(self._leave_one(group, identity) for identity in leaving)
        if len(group.members) < before:
            self._rebalances.members_left(group, now)
        else:
            self._rebalances.maybe_complete(group, now)  # pending members may have left
        return codes

    def expel(self, group: ClassicGroup, most: int, now: Now) -> int:
        """Remove at most `most` members and pending members. Returns how many."""
        some = list(islice(chain(group.members, group.pending), most))
        if some:
            self.leave(group, tuple(MemberIdentity(member_id, None) for member_id in some), now)
        return len(some)

    def _leave_one(self, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
        if group.drop_pending(identity.member_id):
            self._rebalances.end_session(group, identity.member_id)
            return ErrorCode.NONE
        member_id = identity.member_id
        if member_id == NO_MEMBER and identity.instance_id is not None:
            member_id = group.static_members.get(identity.instance_id, NO_MEMBER)
        try:
            member = group.validate_member(member_id, identity.instance_id)
        except ProtocolError as error:
            return error.code
        self._rebalances.drop_member(group, member)
        return ErrorCode.NONE


def _uuid_text(value: bytes) -> str:
    """The usual form, 8-4-4-4-12 hexadecimal digits, that member ids end in."""
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
