"""A member of a classic group: its JoinGroup data, its assignment, and its waiting requests."""

from __future__ import annotations

from msgspec import Struct

from broker.coordination.groups.values import GroupMetadata, JoinRequest, MemberMetadata
from broker.coordination.shard import Ticket

MEMBER_BYTES = 64  # of a member in a record: lengths, timeouts, and an assignment of one partition


class Member(Struct):
    """Changed only by its group, which counts what members have in common."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # name and metadata, in order of preference
    assignment: bytes = b""
    join_ticket: Ticket | None = None  # of its waiting JoinGroup
    sync_ticket: Ticket | None = None  # of its waiting SyncGroup
    is_new: bool = False  # no reply has given it its id yet

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

    @classmethod
    def restored(cls, group: GroupMetadata, saved: MemberMetadata) -> Member:
        """From the group's record, with only the chosen protocol."""
        return cls(
            saved.member_id,
            saved.instance_id,
            saved.client_id,
            saved.client_host,
            saved.session_timeout_ms,
            saved.rebalance_timeout_ms,
            group.protocol_type,
            ((group.protocol or "", saved.subscription),),
            saved.assignment,
        )

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_parked(self) -> bool:
        """Whether one of its requests waits here."""
        return self.join_ticket is not None or self.sync_ticket is not None

    @property
    def record_bytes(self) -> int:
        """Approximate size in the group's record, with its longest subscription and a short assignment."""
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

    def rejoin(self, request: JoinRequest) -> None:
        self.protocols = request.protocols
        self.client_id, self.client_host = request.client_id, request.client_host
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms

    def take_over(self, member_id: str) -> None:
        """The client with its instance id restarted: continue under a new member id."""
        self.member_id = member_id
        self.is_new = False

    def assign(self, assignment: bytes) -> None:
        self.assignment = assignment

    # parked requests ---------------------------------------------------------------------------------------

    def park_join(self, ticket: Ticket) -> Ticket | None:
        """Returns the ticket of an older JoinGroup that this one replaces."""
        replaced, self.join_ticket = self.join_ticket, ticket
        return replaced

    def unpark_join(self) -> Ticket | None:
        """The ticket of its JoinGroup, to be answered now; None if it has none."""
        ticket, self.join_ticket = self.join_ticket, None
        return ticket

    def got_id(self) -> None:
        """A reply to its JoinGroup is being sent."""
        self.is_new = False

    def park_sync(self, ticket: Ticket) -> Ticket | None:
        """Returns the ticket of an older SyncGroup that this one replaces."""
        replaced, self.sync_ticket = self.sync_ticket, ticket
        return replaced

    def unpark_sync(self) -> Ticket | None:
        """The ticket of its SyncGroup, to be answered now; None if it has none."""
        ticket, self.sync_ticket = self.sync_ticket, None
        return ticket
