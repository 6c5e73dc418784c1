"""Requests and replies between the group shard and its callers: plain values, independent of wire versions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from common.decision import ProducerStamp
from common.errors import ErrorCode
from common.identifiers import ZERO_UUID
from wire.messages import SyncGroupRequest

NO_GENERATION = -1
NO_MEMBER = ""
NO_OFFSET = -1
NO_EPOCH = -1
NO_TIME = -1


class GroupType(StrEnum):
    """The types of groups, in Kafka's spelling. A group id belongs to one group of one type."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class GroupState(StrEnum):
    """A classic group's state, in Kafka's spelling. DEAD describes a group that does not exist."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class JoinRequest(NamedTuple):
    """`protocols` as (name, metadata) in order of preference. `knows_member_ids`: a member without an id gets
    one first (version 4 on); `skips_assignment`: the client understands skip_assignment (version 9 on)."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    knows_member_ids: bool = True
    skips_assignment: bool = True


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinReply(NamedTuple):
    """`members` is set only for the leader."""

    error: ErrorCode
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncRequest(NamedTuple):
    """`protocol_type` and `protocol` are None before version 5. Only the leader sends `assignments`."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Sequence[SyncGroupRequest.SyncGroupRequestAssignment] = ()


class SyncReply(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class MemberHeartbeat(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int


class MemberIdentity(NamedTuple):
    """An empty `member_id` with an instance id means the member with that instance id."""

    member_id: str
    instance_id: str | None


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    group_id: str
    state: GroupState
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: GroupState
    type: GroupType


class CommittedOffset(NamedTuple):
    """`expire_timestamp`: only for an old client that sent a retention time. Times in ms, -1 for none."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_TIME
    topic_id: bytes = ZERO_UUID


UNSTABLE = CommittedOffset(NO_OFFSET, NO_EPOCH, "unstable", NO_TIME)
"""Stands for an offset that an open transaction may change. Compared by identity."""


class OffsetToCommit(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: bytes = ZERO_UUID


class CommitRequest(NamedTuple):
    """`retention_ms` -1: use the broker's setting."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int = -1


class PendingCommitRequest(NamedTuple):
    """A commit in the open transaction of `producer`."""

    commit: CommitRequest
    producer: ProducerStamp


class MemberMetadata(NamedTuple):
    """A member as of its generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A classic group as in its newest record: the durable part of its state."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[MemberMetadata, ...] = ()
