"""Decides what clients ask of a group's offsets: commits, in transactions or outside, reads, and deletions.

Errors and the order of checks are Apache Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.coordination.groups.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.membership import STRING_BYTES_MAX
from broker.coordination.groups.offset_store import OffsetStore
from broker.coordination.groups.offsets import TopicOffsets, read_value, split_place
from broker.coordination.groups.rebalance import Rebalances
from broker.coordination.groups.records import encode_place, group_record, offset_record
from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.groups.values import (
    NO_MEMBER,
    NO_TIME,
    UNSTABLE,
    CommitRequest,
    CommittedOffset,
    GroupState,
    PendingCommitRequest,
)
from broker.coordination.shard import CoordinatorRecord, Now
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from common.settings import LONG_MAX
from kraft.image.tenants import local_name

OFFSETS_AT_ONCE = 200
OFFSET_COST = 4

Codes = tuple[ErrorCode, ...]


class OffsetDecisions:
    """`committed`: the groups' newest records; `group_of` brings a group into memory, as `GroupShard`."""

    def __init__(
        self,
        config: GroupConfig,
        store: OffsetStore,
        committed: ByTenant[bytes],
        rebalances: Rebalances,
        group_of: Callable[[str], ClassicGroup | None],
    ) -> None:
        self._config = config
        self._store = store
        self._committed = committed
        self._rebalances = rebalances
        self._group_of = group_of

    # commits -----------------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, now: Now) -> Decision[CoordinatorRecord, Codes]:
        """One code per offset, in order. Raises errors of the whole request."""
        if len(request.group_id.encode()) > STRING_BYTES_MAX:
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
        self._check_committer(request, now)
        return Decision(*self._records(request, now))

    def commit_pending(self, request: PendingCommitRequest, now: Now) -> Decision[CoordinatorRecord, Codes]:
        """As `commit`, in the open transaction of a producer. Raises TRANSACTION_ABORTABLE if that has too much here,
        or too many others have offsets of the same partitions: the client can abort and go on."""
        if not local_name(request.commit.group_id) or len(request.commit.group_id.encode()) > STRING_BYTES_MAX:
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
        self._check_transactional_committer(request.commit)
        self._check_transaction_size(request.commit, request.producer.producer_id)
        return Decision(*self._records(request.commit, now), producer=request.producer)

    def _records(self, request: CommitRequest, now: Now) -> tuple[Codes, list[CoordinatorRecord]]:
        expire_timestamp = min(now.wall_ms + request.retention_ms, LONG_MAX) if request.retention_ms >= 0 else NO_TIME
        codes: list[ErrorCode] = []
        records: list[CoordinatorRecord] = []
        for item in request.offsets:
            if len(item.metadata.encode()) > self._config.offset_metadata_max_bytes:
                codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            codes.append(ErrorCode.NONE)
            committed = CommittedOffset(
                item.offset, item.leader_epoch, item.metadata, now.wall_ms, expire_timestamp, item.topic_id
            )
            records.append(offset_record(request.group_id, item.topic, item.partition, committed))
        return tuple(codes), records

    def _check_committer(self, request: CommitRequest, now: Now) -> None:
        """Members commit in their generation; any client may commit for a group without members."""
        group = self._group_of(request.group_id)
        if group is None:
            self._check_without_members(request, ErrorCode.GROUP_ID_NOT_FOUND)
            return
        if request.generation < 0 and group.state is GroupState.EMPTY:
            return
        if not _is_by_member(request):
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.validate_member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)
        if member.join_ticket is None:  # a commit shows that the member is alive
            self._rebalances.refresh_session(group, member, now)

    def _check_transactional_committer(self, request: CommitRequest) -> None:
        """A producer that names no member is let through, because old ones cannot; a rebalance does not matter either,
        and no session is extended: the producer sends this, not the member."""
        group = self._group_of(request.group_id)
        if group is None:
            self._check_without_members(request, ErrorCode.ILLEGAL_GENERATION)
            return
        if (request.generation < 0 and group.state is GroupState.EMPTY) or not _is_by_member(request):
            return
        group.validate_member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)

    def _check_without_members(self, request: CommitRequest, unknown: ErrorCode) -> None:
        """A group that never had members exists if it has offsets, pending ones too. `unknown`: for any other."""
        if request.generation >= 0:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID if self._store.has(request.group_id) else unknown)

    def _check_transaction_size(self, request: CommitRequest, producer_id: int) -> None:
        config, pending = self._config, self._store.pending
        if pending.producers(request.group_id) >= config.pending_producers_max:
            self._check_sharers(request, producer_id)
        groups, offsets = pending.size_of(producer_id)
        has_room = offsets + len(request.offsets) <= config.transaction_offsets_max
        if has_room and groups < config.transaction_groups_max:
            return
        held = pending.places_of(producer_id, request.group_id)
        new = {encode_place(item.topic, item.partition) for item in request.offsets} - held
        has_room = offsets + len(new) <= config.transaction_offsets_max
        if new and not (has_room and (held or groups < config.transaction_groups_max)):
            raise ProtocolError(ErrorCode.TRANSACTION_ABORTABLE, "too many offsets or groups in one transaction")

    def _check_sharers(self, request: CommitRequest, producer_id: int) -> None:
        most = self._config.pending_producers_max
        for item in request.offsets:
            place = encode_place(item.topic, item.partition)
            if self._store.pending.is_full(request.group_id, place, producer_id, most):
                raise ProtocolError(
                    ErrorCode.TRANSACTION_ABORTABLE, "too many transactions have offsets of a partition"
                )

    # reads -------------------------------------------------------------------------------------------------

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may change the offset."""
        return self._store.pending.has(group_id) and self._store.pending.holds(group_id, encode_place(topic, partition))

    def fetch(self, group_id: str, *, stable: bool) -> Work[dict[str, TopicOffsets]]:
        """All offsets that count as of now: topic → partition → offset; with `stable` UNSTABLE in place of those that
        an open transaction may change."""
        found: dict[str, TopicOffsets] = {}
        for count, (place, value) in enumerate(self._store.counting.items(group_id), 1):
            topic, partition = split_place(place)
            committed = read_value(value)
            if committed is not None:
                unstable = stable and self.is_unstable(group_id, topic, partition)
                found.setdefault(topic, {})[partition] = UNSTABLE if unstable else committed
            if count % OFFSETS_AT_ONCE == 0:
                yield OFFSETS_AT_ONCE * OFFSET_COST
        return found

    # deletions ---------------------------------------------------------------------------------------------

    def delete_offsets(
        self, group_id: str, partitions: tuple[tuple[str, int], ...]
    ) -> Decision[CoordinatorRecord, Codes]:
        """One code per (topic, partition), in order; none for the last ones if what is pending at the others is much
        already: call again for them. Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self._group_of(group_id)
        if group is None and not self._store.has(group_id):
            raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group is not None and group.members and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise ProtocolError(ErrorCode.NON_EMPTY_GROUP)
        codes, records = list[ErrorCode](), list[CoordinatorRecord]()
        weight = 0
        for topic, partition in partitions:
            if weight >= OFFSETS_AT_ONCE:
                break
            if group is not None and group.members and group.is_subscribed_to(topic):
                codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            codes.append(ErrorCode.NONE)
            place = encode_place(topic, partition)
            if self._store.holds(group_id, place):
                weight += self._store.weight(group_id, place)
                records.append(offset_record(group_id, topic, partition, None))
        return Decision(tuple(codes), records)

    def delete_group(self, group_id: str, most: int = OFFSETS_AT_ONCE) -> Decision[CoordinatorRecord, ErrorCode | None]:
        """Remove at most `most` offsets, pending ones too, and with the last of them the group. None: there are more,
        call again."""
        group = self._group_of(group_id)
        if group is None and not self._store.has(group_id):
            return Decision(ErrorCode.GROUP_ID_NOT_FOUND)
        if group is not None and (group.members or group.state is not GroupState.EMPTY):
            return Decision(ErrorCode.NON_EMPTY_GROUP)
        records, are_all = self._store.tombstones(group_id, most)
        if not are_all:
            return Decision(None, records)
        if group_id in self._committed:
            records.append(group_record(group_id, None))
        return Decision(ErrorCode.NONE, records)


def _is_by_member(request: CommitRequest) -> bool:
    return request.generation >= 0 or request.member_id != NO_MEMBER or request.instance_id is not None
