"""A classic group in memory: members, their votes for a protocol, and who waits. Rules only, no timers, no replies.

States (Apache Kafka's): EMPTY has no member. PREPARING_REBALANCE gathers JoinGroups of all members.
COMPLETING_REBALANCE waits for the leader's SyncGroup. STABLE has an assignment, and is the state that is durable.
Allowed ways: EMPTY | COMPLETING | STABLE -> PREPARING -> COMPLETING | EMPTY; COMPLETING -> STABLE.

All of it is soft but for what `GroupMetadata` holds: a coordinator that takes over goes on from the last generation
that was written, and members of a later one join again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from broker.coordination.groups.member import Member
from broker.coordination.groups.subscriptions import reading_topics
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
from common.pacing import Work, at_once
from kraft.image.tenants import local_name, tenant_of

CONSUMER_PROTOCOL_TYPE = "consumer"
RESTORED_AT_ONCE, RESTORED_COST = 100, 5  # members of a record, and what one costs
READ_AT_ONCE = 1_000  # of the members' subscriptions, about microseconds

_WAYS: dict[GroupState, tuple[GroupState, ...]] = {
    GroupState.PREPARING_REBALANCE: (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY),
    GroupState.COMPLETING_REBALANCE: (GroupState.PREPARING_REBALANCE,),
    GroupState.STABLE: (GroupState.COMPLETING_REBALANCE,),
    GroupState.EMPTY: (GroupState.PREPARING_REBALANCE,),
}


@dataclass(slots=True)
class ClassicGroup:
    """Its members, and the generation that they are in or gather for. Dictionaries serve as ordered sets."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.EMPTY
    state_timestamp: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # member id by instance id
    pending: dict[str, None] = field(default_factory=dict)  # ids that were given away and have not joined; no members
    unsynced: dict[str, None] = field(default_factory=dict)  # members of this generation whose SyncGroup is awaited
    unanswered: dict[str, None] = field(default_factory=dict)  # members of a large group whose answer is due
    unguarded: dict[str, None] = field(default_factory=dict, compare=False)  # restored members without a session yet
    reading: Work[None] | None = field(default=None, repr=False, compare=False)  # of subscriptions, until all are read
    new_member_added: bool = False  # since the initial delay began, or was extended
    initial_delay_left_ms: int = 0  # how much longer new members may extend the gathering; 0 but in the initial delay
    subscribed: frozenset[str] | None = None  # topics of the stable generation; None where it cannot be known
    joined_count: int = 0  # members whose JoinGroup is parked
    protocol_counts: dict[str, int] = field(default_factory=dict)  # how many members support each protocol
    record_bytes: int = 0  # that the members take in the group's record, with short assignments

    @property
    def type(self) -> GroupType:
        return GroupType.CLASSIC

    # restoring ---------------------------------------------------------------------------------------------

    @classmethod
    def restored(cls, group_id: str, metadata: GroupMetadata) -> ClassicGroup:
        """The group as its newest record has it."""
        group = cls._of(group_id, metadata)
        group._add_restored(metadata, metadata.members)
        at_once(group._read_subscribed())
        return group

    @classmethod
    def restoring(cls, group_id: str, head: GroupMetadata, members: Iterator[MemberMetadata]) -> Work[ClassicGroup]:
        """As `restored`, piece by piece, from a record whose members are decoded meanwhile."""
        group = cls._of(group_id, head)
        while some := tuple(islice(members, RESTORED_AT_ONCE)):
            group._add_restored(head, some)
            yield len(some) * RESTORED_COST
        yield from group._read_subscribed()
        return group

    @classmethod
    def _of(cls, group_id: str, head: GroupMetadata) -> ClassicGroup:
        return cls(
            group_id,
            state_timestamp=head.state_timestamp,
            generation=head.generation,
            protocol_type=head.protocol_type or None,
            protocol=head.protocol,
            leader_id=head.leader,
        )

    def _add_restored(self, head: GroupMetadata, members: Iterable[MemberMetadata]) -> None:
        for saved in members:
            self.state = GroupState.STABLE
            self.add(Member.restored(head, saved))

    # membership --------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        if self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY:
            self.new_member_added = True
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
        old.take_over(member_id)
        self.record_bytes += old.record_bytes
        self.static_members[old.instance_id or ""] = member_id
        if was_leader:
            self.leader_id = member_id
        return old

    def rejoin(self, member: Member, request: JoinRequest) -> None:
        """A member that joins again may bring other protocols and timeouts."""
        self._count_protocols(member, -1)
        self.record_bytes -= member.record_bytes
        member.rejoin(request)
        self.record_bytes += member.record_bytes
        self._count_protocols(member, 1)

    def await_pending(self, member_id: str) -> None:
        """The id was given away: its holder is to join with it."""
        self.pending[member_id] = None

    def drop_pending(self, member_id: str) -> bool:
        """Whether a member was awaited under this id; it is no longer."""
        if member_id not in self.pending:
            return False
        del self.pending[member_id]
        return True

    def _count_protocols(self, member: Member, step: int) -> None:
        for name in dict.fromkeys(name for name, _ in member.protocols):
            self.protocol_counts[name] = self.protocol_counts.get(name, 0) + step
            if not self.protocol_counts[name]:
                del self.protocol_counts[name]

    def park_join(self, member: Member, ticket: Ticket) -> Ticket | None:
        """Its JoinGroup waits; the ticket of an older one that it takes the place of."""
        replaced = member.park_join(ticket)
        if replaced is None:
            self.joined_count += 1
        return replaced

    def unpark_join(self, member: Member) -> Ticket | None:
        """Its JoinGroup is to be answered now; None when it has none."""
        ticket = member.unpark_join()
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
        out the latest joiners, also after it was lowered."""
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

    def begin_gathering(self, initial_delay_ms: int, now_ms: int) -> int:
        """All members are to join again: how many ms to wait for them. An empty group waits a little longer for members
        to come (KIP-134)."""
        self.become(GroupState.PREPARING_REBALANCE, now_ms)
        if self.previous_state is not GroupState.EMPTY:
            return self.gather_on()
        self.initial_delay_left_ms = max(self.rebalance_timeout_ms - initial_delay_ms, 0)
        return initial_delay_ms

    def extend_initial_delay(self, step_ms: int) -> int | None:
        """How many ms more to wait, since new members still come; None when the gathering is over."""
        left_ms = self.initial_delay_left_ms
        if self.previous_state is not GroupState.EMPTY or not self.new_member_added or not left_ms:
            return None
        self.new_member_added = False
        self.initial_delay_left_ms = max(left_ms - step_ms, 0)
        return min(step_ms, left_ms)

    def gather_on(self) -> int:
        """Wait for the members, beyond any initial delay: how many ms."""
        self.initial_delay_left_ms = 0
        return self.rebalance_timeout_ms

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
        leader = self.leader
        if leader is not None and leader.join_ticket is not None:
            return True
        for member in self.waiting_to_join():
            self.leader_id = member.member_id
            return True
        return False

    def next_generation(self, now_ms: int) -> None:
        """End the gathering: COMPLETING_REBALANCE with a protocol, or EMPTY."""
        self.generation += 1
        self.unsynced = dict.fromkeys(self.members)
        if self.members:
            self.protocol = self.select_protocol()
            self.become(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.become(GroupState.EMPTY, now_ms)
        self.reading = self._read_subscribed()
        self.read_on()
        self.new_member_added = False
        self.initial_delay_left_ms = 0

    def has_synced(self, member_id: str) -> bool:
        """That member's SyncGroup came; whether it was the last one."""
        self.unsynced.pop(member_id, None)
        return not self.unsynced

    def assign(self, assignments: dict[str, bytes]) -> None:
        """By member id; a member that is left out has nothing."""
        for member in self.members.values():
            member.assign(assignments.get(member.member_id, b""))

    # answering ---------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Member | None:
        return self.members.get(self.leader_id or "")

    def begin_guarding(self) -> None:
        """The group has come into memory: every member is to have a session."""
        self.unguarded = dict.fromkeys(self.members)

    def next_to_guard(self, limit: int) -> list[Member]:
        """Some of those whose session is to begin; it counts as begun. A member that waits for an answer needs none."""
        some = list(islice(self.unguarded, limit))
        for member_id in some:
            del self.unguarded[member_id]
        members = [self.members[member_id] for member_id in some if member_id in self.members]
        return [member for member in members if member.join_ticket is None and member.sync_ticket is None]

    def begin_answering(self) -> None:
        """The group has a new state, with which every member that waits is to be answered."""
        self.unanswered = dict.fromkeys(self.members)

    def next_to_answer(self, limit: int) -> list[Member]:
        """Some of those whose answer is due; it counts as given."""
        some = list(islice(self.unanswered, limit))
        for member_id in some:
            del self.unanswered[member_id]
        return [self.members[member_id] for member_id in some if member_id in self.members]

    def answers_first(self, member: Member) -> None:
        """Its answer is given out of turn."""
        self.unanswered.pop(member.member_id, None)

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

    def _read_subscribed(self) -> Work[None]:
        """Find what the present members subscribe to. Until all subscriptions are read, nothing is known."""
        self.subscribed = None
        if self.protocol_type is None:
            return
        if not self.members:
            self.subscribed = frozenset()
        elif self.protocol_type == CONSUMER_PROTOCOL_TYPE and self.protocol is not None:
            members = list(self.members.values())
            self.subscribed = yield from reading_topics(member.metadata_for(self.protocol) for member in members)

    def read_on(self) -> bool:
        """Read some more of the subscriptions; whether all of them are read."""
        cost = 0
        try:
            while self.reading is not None and cost < READ_AT_ONCE:
                cost += next(self.reading)
        except StopIteration:
            self.reading = None
        return self.reading is None

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
