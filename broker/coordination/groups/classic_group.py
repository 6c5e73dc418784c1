"""A classic group in memory: members, votes for a protocol, waiting requests. Only rules, no timers, no replies.

States (Apache Kafka's): EMPTY has no members. PREPARING_REBALANCE waits for JoinGroups of all members.
COMPLETING_REBALANCE waits for the leader's SyncGroup. STABLE has an assignment; only this state is durable.
Transitions: EMPTY | COMPLETING | STABLE -> PREPARING -> COMPLETING | EMPTY; COMPLETING -> STABLE.

Only the content of `GroupMetadata` is durable: a new coordinator continues from the last generation that was written,
and members of a later one join again.
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
RESTORED_AT_ONCE, RESTORED_COST = 100, 5  # members of a record per step; cost of one
READ_AT_ONCE = 1_000  # cost of subscriptions read per step, about microseconds

_WAYS: dict[GroupState, tuple[GroupState, ...]] = {
    GroupState.PREPARING_REBALANCE: (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY),
    GroupState.COMPLETING_REBALANCE: (GroupState.PREPARING_REBALANCE,),
    GroupState.STABLE: (GroupState.COMPLETING_REBALANCE,),
    GroupState.EMPTY: (GroupState.PREPARING_REBALANCE,),
}


@dataclass(slots=True)
class ClassicGroup:
    """The members, and their current or next generation. Dictionaries serve as ordered sets."""

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
    pending: dict[str, None] = field(default_factory=dict)  # assigned member ids that have not joined yet; not members
    unsynced: dict[str, None] = field(default_factory=dict)  # members of this generation whose SyncGroup is missing
    unanswered: dict[str, None] = field(default_factory=dict)  # members of a large group that are still to be answered
    # restored members whose session has not begun
    unguarded: dict[str, None] = field(default_factory=dict, compare=False)
    # reads the members' subscriptions until all are read
    reading: Work[None] | None = field(default=None, repr=False, compare=False)
    new_member_added: bool = False  # since the initial delay began or was extended
    initial_delay_left_ms: int = 0  # remaining time by which new members may extend the initial delay; else 0
    subscribed: frozenset[str] | None = None  # topics of the stable generation; None if unknown
    joined_count: int = 0  # members whose JoinGroup waits
    protocol_counts: dict[str, int] = field(default_factory=dict)  # how many members support each protocol
    record_bytes: int = 0  # size of the members in the group's record, with short assignments

    @property
    def type(self) -> GroupType:
        return GroupType.CLASSIC

    # restoring ---------------------------------------------------------------------------------------------

    @classmethod
    def restored(cls, group_id: str, metadata: GroupMetadata) -> ClassicGroup:
        """The group from its newest record."""
        group = cls._of(group_id, metadata)
        group._add_restored(metadata, metadata.members)
        at_once(group._read_subscribed())
        return group

    @classmethod
    def restoring(cls, group_id: str, head: GroupMetadata, members: Iterator[MemberMetadata]) -> Work[ClassicGroup]:
        """As `restored`, in slices, from a record whose members are decoded meanwhile."""
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
        """Replace a static member's id, because its client restarted; leadership and assignment stay."""
        check(old.instance_id is not None, "only a static member is replaced")
        was_leader = self.leader_id == old.member_id
        replaced = {}
        for known_id, member in self.members.items():  # in place, to keep the order of members
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
        """A member that joins again may change its protocols and timeouts."""
        self._count_protocols(member, -1)
        self.record_bytes -= member.record_bytes
        member.rejoin(request)
        self.record_bytes += member.record_bytes
        self._count_protocols(member, 1)

    def await_pending(self, member_id: str) -> None:
        """The id was assigned: its client must join with it."""
        self.pending[member_id] = None

    def drop_pending(self, member_id: str) -> bool:
        """Forget a pending id. Returns whether it was pending."""
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
        """Let the member's JoinGroup wait. Returns the ticket of an older one that it replaces."""
        replaced = member.park_join(ticket)
        if replaced is None:
            self.joined_count += 1
        return replaced

    def unpark_join(self, member: Member) -> Ticket | None:
        """The ticket of the member's JoinGroup, to be answered now; None if it has none."""
        ticket = member.unpark_join()
        if ticket is not None:
            self.joined_count -= 1
        return ticket

    def validate_member(self, member_id: str, instance_id: str | None) -> Member:
        """Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member took over the instance id."""
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
        """Whether a JoinGroup fits the size limit. During a rebalance only waiting members count, so the limit drops
        the latest to join, also after it was lowered."""
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
        """Start a rebalance. Returns how many ms to wait for members; an empty group waits a little longer
        (KIP-134)."""
        self.become(GroupState.PREPARING_REBALANCE, now_ms)
        if self.previous_state is not GroupState.EMPTY:
            return self.gather_on()
        self.initial_delay_left_ms = max(self.rebalance_timeout_ms - initial_delay_ms, 0)
        return initial_delay_ms

    def extend_initial_delay(self, step_ms: int) -> int | None:
        """How many ms longer to wait because new members still join; None if the wait is over."""
        left_ms = self.initial_delay_left_ms
        if self.previous_state is not GroupState.EMPTY or not self.new_member_added or not left_ms:
            return None
        self.new_member_added = False
        self.initial_delay_left_ms = max(left_ms - step_ms, 0)
        return min(step_ms, left_ms)

    def gather_on(self) -> int:
        """Wait for the members after any initial delay. Returns for how many ms."""
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
        """Keep the leader if it joined again, else elect the first member that joined. Returns whether there is one."""
        leader = self.leader
        if leader is not None and leader.join_ticket is not None:
            return True
        for member in self.waiting_to_join():
            self.leader_id = member.member_id
            return True
        return False

    def next_generation(self, now_ms: int) -> None:
        """End the wait for members: COMPLETING_REBALANCE with a protocol, or EMPTY."""
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
        """The member's SyncGroup arrived. Returns whether it was the last one."""
        self.unsynced.pop(member_id, None)
        return not self.unsynced

    def assign(self, assignments: dict[str, bytes]) -> None:
        """`assignments` by member id; a missing member gets an empty one."""
        for member in self.members.values():
            member.assign(assignments.get(member.member_id, b""))

    # answering ---------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Member | None:
        return self.members.get(self.leader_id or "")

    def begin_guarding(self) -> None:
        """The group was brought into memory: every member is to get a session."""
        self.unguarded = dict.fromkeys(self.members)

    def next_to_guard(self, limit: int) -> list[Member]:
        """Up to `limit` members whose session is to begin, and marks it as begun. Members with waiting requests need
        none."""
        some = list(islice(self.unguarded, limit))
        for member_id in some:
            del self.unguarded[member_id]
        members = [self.members[member_id] for member_id in some if member_id in self.members]
        return [member for member in members if member.join_ticket is None and member.sync_ticket is None]

    def begin_answering(self) -> None:
        """The group has a new state: every waiting member is to be answered."""
        self.unanswered = dict.fromkeys(self.members)

    def next_to_answer(self, limit: int) -> list[Member]:
        """Up to `limit` members to be answered, marked as answered."""
        some = list(islice(self.unanswered, limit))
        for member_id in some:
            del self.unanswered[member_id]
        return [self.members[member_id] for member_id in some if member_id in self.members]

    def answers_first(self, member: Member) -> None:
        """The member is answered out of turn."""
        self.unanswered.pop(member.member_id, None)

    # protocols ---------------------------------------------------------------------------------------------

    def _candidates(self) -> dict[str, None]:
        """Protocols that all members support, in the order of the first member's preference."""
        first = next(iter(self.members.values()))
        return {name: None for name, _ in first.protocols if self.protocol_counts[name] == len(self.members)}

    def select_protocol(self) -> str:
        """The candidate with most votes; among equals the one that the first member prefers."""
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
        """Find the topics that the current members subscribe to. Until all are read, nothing is known."""
        self.subscribed = None
        if self.protocol_type is None:
            return
        if not self.members:
            self.subscribed = frozenset()
        elif self.protocol_type == CONSUMER_PROTOCOL_TYPE and self.protocol is not None:
            members = list(self.members.values())
            self.subscribed = yield from reading_topics(member.metadata_for(self.protocol) for member in members)

    def read_on(self) -> bool:
        """Read more of the subscriptions. Returns whether all are read."""
        cost = 0
        try:
            while self.reading is not None and cost < READ_AT_ONCE:
                cost += next(self.reading)
        except StopIteration:
            self.reading = None
        return self.reading is None

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to `topic`. If the topics of a consumer group are unknown, it counts as
        subscribed to all.

        Members use their own names: those of a tenant's group have no prefix.
        """
        if self.subscribed is not None:
            return (topic if tenant_of(self.group_id) is None else local_name(topic)) in self.subscribed
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    # values ------------------------------------------------------------------------------------------------

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """For the leader, which computes the assignment."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(self.protocol))
            for member in self.members.values()
        )

    def metadata(self) -> GroupMetadata:
        """The content of the next record: the generation with its assignment."""
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
        """Only a stable group shows metadata and assignments."""
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
