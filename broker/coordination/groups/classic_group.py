"""A classic group in memory: members, their votes for a protocol, and who waits. Rules only, no timers, no replies.

States (Apache Kafka's): EMPTY has no member. PREPARING_REBALANCE gathers JoinGroups of all members.
COMPLETING_REBALANCE waits for the leader's SyncGroup. STABLE has an assignment, and is the state that is durable.
Allowed ways: EMPTY | COMPLETING | STABLE -> PREPARING -> COMPLETING | EMPTY; COMPLETING -> STABLE.

All of it is soft but for what `GroupMetadata` holds: a coordinator that takes over goes on from the last generation
that was written, and members of a later one join again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.coordination.groups.subscriptions import subscribed_topics
from broker.coordination.groups.values import (
    GroupDescription,
    GroupMetadata,
    GroupState,
    GroupType,
    JoinedMember,
    JoinRequest,
    MemberDescription,
    MemberMetadata,
)
from broker.coordination.shard import Ticket
from common.errors import ErrorCode, ProtocolError
from common.invariants import check
from kraft.image.tenants import local_name, tenant_of

CONSUMER_PROTOCOL_TYPE = "consumer"
MEMBER_BYTES = 64  # of a member in a record: lengths, timeouts, and an assignment of one partition

_WAYS: dict[GroupState, tuple[GroupState, ...]] = {
    GroupState.PREPARING_REBALANCE: (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY),
    GroupState.COMPLETING_REBALANCE: (GroupState.PREPARING_REBALANCE,),
    GroupState.STABLE: (GroupState.COMPLETING_REBALANCE,),
    GroupState.EMPTY: (GroupState.PREPARING_REBALANCE,),
}


@dataclass(slots=True)
class Member:
    """`join_ticket` and `sync_ticket` are its parked requests. `is_new`: it has not yet got its id in a reply."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    is_new: bool = False

    @classmethod
    def joining(cls, request: JoinRequest, member_id: str) -> Member:
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocol_type,
            request.protocols,
            is_new=True,
        )

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def record_bytes(self) -> int:
        """About what it takes in the group's record: its longest subscription counts, and a short assignment."""
        names = len(self.member_id) + len(self.instance_id or "") + len(self.client_id) + len(self.client_host)
        return names + max((len(data) for _, data in self.protocols), default=0) + MEMBER_BYTES

    def metadata_for(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: dict[str, None]) -> str | None:
        """Its most preferred protocol among the candidates."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        return None


@dataclass(slots=True)
class ClassicGroup:
    """`pending` are members that were given an id and have not joined with it; `unsynced` those of this generation
    whose SyncGroup is still awaited. Dictionaries serve as ordered sets."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.EMPTY
    state_timestamp: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending: dict[str, None] = field(default_factory=dict)
    unsynced: dict[str, None] = field(default_factory=dict)
    unanswered: dict[str, None] = field(default_factory=dict)  # members of a large group whose answer is due
    new_member_added: bool = False
    initial_delay_left_ms: int = 0
    subscribed: frozenset[str] | None = None  # topics of the stable generation; None where it cannot be known
    joined_count: int = 0  # members whose JoinGroup is parked
    protocol_counts: dict[str, int] = field(default_factory=dict)  # how many members support each protocol
    record_bytes: int = 0  # that the members take in the group's record, with short assignments

    @property
    def type(self) -> GroupType:
        return GroupType.CLASSIC

    @classmethod
    def restored(cls, group_id: str, metadata: GroupMetadata) -> ClassicGroup:
        """The group as its newest record tells it."""
        group = cls(group_id)
        group.generation = metadata.generation
        group.protocol_type = metadata.protocol_type or None
        group.protocol = metadata.protocol
        group.leader_id = metadata.leader
        group.state_timestamp = metadata.state_timestamp
        group.add_restored(metadata, metadata.members)
        group.subscribed = group.compute_subscribed()
        return group

    def add_restored(self, metadata: GroupMetadata, members: tuple[MemberMetadata, ...]) -> None:
        """Some members of a record whose group is still being restored."""
        for saved in members:
            self.state = GroupState.STABLE
            self.add(
                Member(
                    saved.member_id,
                    saved.instance_id,
                    saved.client_id,
                    saved.client_host,
                    saved.session_timeout_ms,
                    saved.rebalance_timeout_ms,
                    metadata.protocol_type,
                    ((metadata.protocol or "", saved.subscription),),
                    saved.assignment,
                )
            )

    # membership --------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        if not self.members:
            self.protocol_type = member.protocol_type or self.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.record_bytes += member.record_bytes
        self._count_protocols(member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.pending.pop(member.member_id, None)

    def remove(self, member: Member) -> None:
        check(member.join_ticket is None, "a member is answered before it is removed")
        del self.members[member.member_id]
        self.record_bytes -= member.record_bytes
        self._count_protocols(member, -1)
        self.unsynced.pop(member.member_id, None)
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def replace_static(self, old: Member, member_id: str) -> Member:
        """The same member under a new id, as its holder came back; leadership and assignment go with it."""
        check(old.instance_id is not None, "only a static member is replaced")
        was_leader = self.leader_id == old.member_id
        replaced = {}
        for known_id, member in self.members.items():  # in place: its turn among the members stays
            replaced[member_id if known_id == old.member_id else known_id] = member
        self.members = replaced
        if old.member_id in self.unsynced:
            del self.unsynced[old.member_id]
            self.unsynced[member_id] = None
        self.record_bytes -= old.record_bytes
        old.member_id = member_id
        self.record_bytes += old.record_bytes
        self.static_members[old.instance_id or ""] = member_id
        if was_leader:
            self.leader_id = member_id
        return old

    def update(self, member: Member, request: JoinRequest) -> None:
        """A member that joins again may bring other protocols and timeouts."""
        self._count_protocols(member, -1)
        self.record_bytes -= member.record_bytes
        member.protocols = request.protocols
        member.client_id, member.client_host = request.client_id, request.client_host
        self.record_bytes += member.record_bytes
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms

    def _count_protocols(self, member: Member, step: int) -> None:
        for name in dict.fromkeys(name for name, _ in member.protocols):
            self.protocol_counts[name] = self.protocol_counts.get(name, 0) + step
            if not self.protocol_counts[name]:
                del self.protocol_counts[name]

    def park_join(self, member: Member, ticket: Ticket) -> Ticket | None:
        """Its JoinGroup waits; the ticket of an older one that it takes the place of."""
        replaced = member.join_ticket
        if replaced is None:
            self.joined_count += 1
        member.join_ticket = ticket
        return replaced

    def unpark_join(self, member: Member) -> Ticket | None:
        """Its JoinGroup is to be answered now; None when it has none."""
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is not None:
            self.joined_count -= 1
        return ticket

    def validate_member(self, member_id: str, instance_id: str | None) -> Member:
        """Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another member took over the instance id."""
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
            if holder != member_id:
                raise ProtocolError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def accepts(self, member_id: str, size_max: int) -> bool:
        """Whether a JoinGroup fits the size limit. While members gather, those that wait count: so the limit throws
        out whoever comes last, also after it was lowered."""
        if self.state is GroupState.EMPTY:
            return True
        member = self.members.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            already_waits = member is not None and member.join_ticket is not None
            return already_waits or self.joined_count < size_max
        return member is not None or len(self.members) < size_max

    # rebalance ---------------------------------------------------------------------------------------------

    def become(self, state: GroupState, now_ms: int) -> None:
        check(self.state in _WAYS[state], f"a group does not go from {self.state} to {state}")
        self.previous_state, self.state = self.state, state
        self.state_timestamp = now_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state is not GroupState.PREPARING_REBALANCE

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def waiting_to_join(self) -> Iterator[Member]:
        return (member for member in self.members.values() if member.join_ticket is not None)

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and self.joined_count == len(self.members)

    def elect_joined_leader(self) -> bool:
        """The leader stays if it joined again, else the first member that did; whether there is one."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.join_ticket is not None:
            return True
        for member in self.waiting_to_join():
            self.leader_id = member.member_id
            return True
        return False

    def next_generation(self, now_ms: int) -> None:
        """End the gathering: COMPLETING_REBALANCE with a protocol, or EMPTY."""
        self.generation += 1
        self.unsynced = {}
        if self.members:
            self.protocol = self.select_protocol()
            self.become(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.become(GroupState.EMPTY, now_ms)
        self.subscribed = self.compute_subscribed()
        self.new_member_added = False

    # protocols ---------------------------------------------------------------------------------------------

    def _candidates(self) -> dict[str, None]:
        """Protocols that all members support, in the order of the first member's preference."""
        first = next(iter(self.members.values()))
        return {name: None for name, _ in first.protocols if self.protocol_counts[name] == len(self.members)}

    def select_protocol(self) -> str:
        """The candidate with most first votes; among equals the one that the first member likes best."""
        candidates = self._candidates()
        votes = dict.fromkeys(candidates, 0)
        for member in self.members.values():
            vote = member.vote(candidates)
            if vote is not None:
                votes[vote] += 1
        check(votes, "members that joined have a protocol in common")
        return max(votes, key=lambda name: votes[name])

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether a member with these protocols may join."""
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        return protocol_type == self.protocol_type and any(
            self.protocol_counts.get(name, 0) == len(self.members) for name, _ in protocols
        )

    def compute_subscribed(self) -> frozenset[str] | None:
        if self.protocol_type is None:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol is None:
            return None
        return subscribed_topics(dict.fromkeys(member.metadata_for(self.protocol) for member in self.members.values()))

    def is_subscribed_to(self, topic: str) -> bool:
        """Where nothing is known of a consumer group's topics, it counts as subscribed to all of them.

        Members name topics as they know them: those of a tenant's group without the tenant's prefix.
        """
        if self.subscribed is not None:
            return (topic if tenant_of(self.group_id) is None else local_name(topic)) in self.subscribed
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    # values ------------------------------------------------------------------------------------------------

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """For the leader, which assigns."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(self.protocol))
            for member in self.members.values()
        )

    def metadata(self) -> GroupMetadata:
        """What the next record says: the generation with its assignment."""
        return GroupMetadata(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader_id,
            self.state_timestamp,
            tuple(
                MemberMetadata(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata_for(self.protocol),
                    member.assignment,
                )
                for member in self.members.values()
            ),
        )

    def describe(self) -> GroupDescription:
        """Metadata and assignments are shown of a stable group only."""
        stable = self.state is GroupState.STABLE
        members = tuple(
            MemberDescription(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata_for(self.protocol) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in self.members.values()
        )
        protocol = (self.protocol or "") if stable else ""
        return GroupDescription(self.group_id, self.state, self.protocol_type or "", protocol, members)
