"""One partition of `__consumer_offsets`: the groups whose ids fall on it, and the offsets they committed.

Hard state is `committed` (each group's newest record) and `offsets`; `replay` alone changes it. Soft state is the
groups in memory with their parked requests and timers. A group id names one group of one type; classic groups are
the only type so far, records of other types are left alone.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping

from broker.coordination.deadlines import DeadlineQueue
from broker.coordination.groups.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.membership import STRING_BYTES_MAX, Memberships
from broker.coordination.groups.offsets import CommittedOffsets, TopicOffsets
from broker.coordination.groups.rebalance import Effects, Rebalances, TimerKey, TimerKind
from broker.coordination.groups.records import (
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    group_record,
    offset_record,
)
from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.groups.values import (
    NO_MEMBER,
    NO_TIME,
    CommitRequest,
    CommittedOffset,
    GroupDescription,
    GroupMetadata,
    GroupState,
    GroupType,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    ListedGroup,
    MemberIdentity,
    SyncReply,
    SyncRequest,
)
from broker.coordination.shard import Answer, CoordinatorRecord, Now, Parked, Ticket
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.settings import LONG_MAX
from kraft.image.key_ranges import Keeping
from kraft.image.tenants import local_name

TopicIdOf = Callable[[str], bytes | None]
KeepingOf = Callable[[str], Keeping]
RETENTION_TURN_S = 0.02


class GroupShard:
    """Implements `coordination.shard.Shard`. `topic_id_of` asks the metadata image, at retention time alone.

    `keeping_of` tells what this partition is to a group. One that is not served here has hard state at most: it was
    handed over to another range, or is being handed over, and none of its timers run.
    """

    def __init__(
        self,
        config: GroupConfig,
        rng: random.Random,
        topic_id_of: TopicIdOf,
        keeping_of: KeepingOf = lambda _: Keeping.SERVED,
    ) -> None:
        self.committed: ByTenant[GroupMetadata] = ByTenant()
        self.offsets = CommittedOffsets()
        self.groups: ByTenant[ClassicGroup] = ByTenant()
        self._config = config
        self._topic_id_of = topic_id_of
        self._keeping_of = keeping_of
        self._timers: DeadlineQueue[TimerKey] = DeadlineQueue()
        self._effects = Effects()
        self._rebalances = Rebalances(config, self._timers, self._effects)
        self._memberships = Memberships(config, self._rebalances, self._effects, rng)
        self._retention_round: deque[str] = deque()  # groups that this round has yet to look at
        self._is_loaded = False

    # shard -------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        decoded = decode_key(key)
        if isinstance(decoded, OffsetKey):
            committed = None if value is None else decode_offset_value(value)
            self.offsets.put(decoded.group_id, decoded.topic, decoded.partition, committed)
        elif decoded is not None:
            if value is not None:
                self.committed[decoded.group_id] = decode_group_value(value)
            else:
                self.committed.pop(decoded.group_id, None)
                self._forget(decoded.group_id)

    def loaded(self, now: Now) -> list[CoordinatorRecord]:
        """Every member has a whole session to find its new coordinator."""
        self._is_loaded = True
        for group_id in self.committed:
            self._take_up(group_id, now)
        self._timers.set(TimerKey(TimerKind.RETENTION), now.monotonic_s + self._retention_interval_s)
        return self._effects.take_records()

    def _take_up(self, group_id: str, now: Now) -> None:
        if self._keeping_of(group_id) is not Keeping.SERVED:
            return
        group = self.groups[group_id] = ClassicGroup.restored(group_id, self.committed[group_id])
        for member in group.members.values():
            self._rebalances.refresh_session(group, member, now)
        if len(group.members) > self._config.group_max_size:
            self._rebalances.prepare(group, now)

    def keeping_changed(self, prefix: str, now: Now) -> list[CoordinatorRecord]:
        """What this partition is to the groups whose ids begin so may have changed: they are taken up, or given up, and
        what is left over goes soon."""
        for group_id in self.groups.with_prefix(prefix):
            if self._keeping_of(group_id) is not Keeping.SERVED:
                self._rebalances.give_up(self.groups.pop(group_id))
        for group_id in self.committed.with_prefix(prefix):
            if group_id not in self.groups:
                self._take_up(group_id, now)
        if self._is_loaded:
            self._timers.set(TimerKey(TimerKind.RETENTION), now.monotonic_s + RETENTION_TURN_S)
        return self._effects.take_records()

    def next_deadline(self) -> float | None:
        return self._timers.first() if self._is_loaded else None

    def expire(self, now: Now) -> list[CoordinatorRecord]:
        for _ in range(self._config.expiries_per_turn_max):
            key = self._timers.pop_due(now.monotonic_s)
            if key is None:
                break
            if key.kind is TimerKind.RETENTION:
                self._expire_offsets(now)
                continue
            group = self.groups.get(key.group_id)
            if group is None:
                continue
            if key.kind is TimerKind.MEMBER:
                self._rebalances.member_over(group, key.member_id, now)
                self._forget_if_idle(group.group_id)
            elif key.kind is TimerKind.JOIN:
                self._rebalances.gathering_over(group, now)
            else:
                self._rebalances.sync_over(group, now)
        return self._effects.take_records()

    def take_answers(self) -> list[Answer]:
        return self._effects.take_answers()

    @property
    def _retention_interval_s(self) -> float:
        return self._config.offsets_retention_check_interval_ms / 1000

    # membership --------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, now: Now, ticket: Ticket) -> Decision[CoordinatorRecord, JoinReply | Parked]:
        self._memberships.check_join(request)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER:
                raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self.groups[request.group_id] = ClassicGroup(request.group_id)
        try:
            reply = self._memberships.join(group, request, ticket, now)
        finally:
            self._forget_if_idle(request.group_id)
        return Decision(reply, self._effects.take_records())

    def sync(self, request: SyncRequest, now: Now, ticket: Ticket) -> Decision[CoordinatorRecord, SyncReply | Parked]:
        group = self._group_of_member(request.group_id)
        reply = self._memberships.sync(group, request, ticket, now)
        return Decision(reply, self._effects.take_records())

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> Decision[CoordinatorRecord, ErrorCode]:
        return Decision(self._memberships.heartbeat(self._group_of_member(request.group_id), request, now))

    def leave(
        self, group_id: str, leaving: tuple[MemberIdentity, ...], now: Now
    ) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
        """Raises UNKNOWN_MEMBER_ID when there is no such group."""
        group = self._group_of_member(group_id)
        codes = self._memberships.leave(group, leaving, now)
        self._forget_if_idle(group_id)
        return Decision(codes, self._effects.take_records())

    def _group_of_member(self, group_id: str) -> ClassicGroup:
        if not local_name(group_id):
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        if group is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _forget_if_idle(self, group_id: str) -> None:
        """A group that never had a generation has no record either, so nothing else would end it."""
        group = self.groups.get(group_id)
        if group is not None and group.generation == 0:
            self._forget(group_id)

    def _forget(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is not None and group.state is GroupState.EMPTY and not group.members and not group.pending:
            del self.groups[group_id]

    # offsets -----------------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, now: Now) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
        """One code per offset, in order. Raises what concerns the whole request."""
        if len(request.group_id.encode()) > STRING_BYTES_MAX:
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
        self._check_committer(request, now)
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
        return Decision(tuple(codes), records)

    def _check_committer(self, request: CommitRequest, now: Now) -> None:
        """Members commit in their generation; anyone may commit for a group without members."""
        group = self.groups.get(request.group_id)
        by_member = request.generation >= 0 or request.member_id != NO_MEMBER or request.instance_id is not None
        if group is None:
            if request.generation >= 0:
                raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
            return
        if request.generation < 0 and group.state is GroupState.EMPTY:
            return
        if not by_member:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.validate_member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)
        if member.join_ticket is None:  # a commit shows that the member lives
            self._rebalances.refresh_session(group, member, now)

    def fetch_offset(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.offsets.get(group_id, topic, partition)

    def fetch_offsets(self, group_id: str) -> dict[str, TopicOffsets]:
        """A copy of all: topic → partition → offset."""
        return {topic: dict(partitions) for topic, partitions in self.offsets.of(group_id).items()}

    def delete_offsets(
        self, group_id: str, partitions: tuple[tuple[str, int], ...]
    ) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
        """One code per (topic, partition), in order. Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self.groups.get(group_id)
        if group is None and not self.offsets.has(group_id):
            raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group is not None and group.members and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise ProtocolError(ErrorCode.NON_EMPTY_GROUP)
        codes, records = [], []
        for topic, partition in partitions:
            if group is not None and group.members and group.is_subscribed_to(topic):
                codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            codes.append(ErrorCode.NONE)
            if self.offsets.get(group_id, topic, partition) is not None:
                records.append(offset_record(group_id, topic, partition, None))
        return Decision(tuple(codes), records)

    def delete_topics(self, deleted: Mapping[str, bytes]) -> Decision[CoordinatorRecord, None]:
        """These topics (name → id) are gone, and so are all offsets in them."""
        return Decision(None, self.offsets.topic_tombstones(deleted))

    def _expire_offsets(self, now: Now) -> None:
        """Look at some groups, and come back soon when there are more of them in this round."""
        if not self._retention_round:
            self._retention_round.extend(dict.fromkeys([*self.offsets.groups(), *self.committed]))
        for _ in range(min(len(self._retention_round), self._config.expiries_per_turn_max)):
            self._expire_offsets_of(self._retention_round.popleft(), now)
        pause_s = RETENTION_TURN_S if self._retention_round else self._retention_interval_s
        self._timers.set(TimerKey(TimerKind.RETENTION), now.monotonic_s + pause_s)

    def _expire_offsets_of(self, group_id: str, now: Now) -> None:
        """Offsets that are too old or of topics that are gone go, then a group with neither members nor offsets."""
        keeping = self._keeping_of(group_id)
        if keeping is Keeping.FOREIGN:
            self._effects.records.extend(self._tombstones(group_id))
        if keeping is not Keeping.SERVED:
            return
        group = self.groups.get(group_id)
        expired = self.offsets.expired(group_id, group, self._config.offsets_retention_ms, now.wall_ms)
        removed = {record.key: record for record in expired}
        removed.update((record.key, record) for record in self.offsets.orphans(group_id, self._topic_id_of))
        self._effects.records.extend(removed.values())
        left = sum(len(partitions) for partitions in self.offsets.of(group_id).values()) - len(removed)
        is_empty = group is not None and group.state is GroupState.EMPTY and not group.pending
        if not left and is_empty and group_id in self.committed:
            self._effects.records.append(group_record(group_id, None))

    # administration ----------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> GroupDescription:
        """State DEAD for a group that does not exist."""
        group = self.groups.get(group_id)
        if group is not None:
            return group.describe()
        state = GroupState.EMPTY if self.offsets.has(group_id) else GroupState.DEAD
        return GroupDescription(group_id, state, "", "", ())

    def list_groups(self, prefix: str = "") -> list[ListedGroup]:
        """Those whose ids begin with `prefix` and that are served here. A tenant's cost what the tenant has."""
        listed = []
        for group_id in dict.fromkeys([*self.groups.with_prefix(prefix), *self.offsets.groups(prefix)]):
            if self._keeping_of(group_id) is Keeping.SERVED:
                group = self.groups.get(group_id)
                listed.append(
                    ListedGroup(group_id, "", GroupState.EMPTY, GroupType.CLASSIC)
                    if group is None
                    else ListedGroup(group_id, group.protocol_type or "", group.state, group.type)
                )
        return listed

    def delete_group(self, group_id: str) -> Decision[CoordinatorRecord, ErrorCode]:
        group = self.groups.get(group_id)
        if group is None and not self.offsets.has(group_id):
            return Decision(ErrorCode.GROUP_ID_NOT_FOUND)
        if group is not None and (group.members or group.state is not GroupState.EMPTY):
            return Decision(ErrorCode.NON_EMPTY_GROUP)
        return Decision(ErrorCode.NONE, self._tombstones(group_id))

    def _tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """Of all that is durable of a group."""
        records = self.offsets.tombstones(group_id)
        if group_id in self.committed:
            records.append(group_record(group_id, None))
        return records

    def remove_groups(self, prefixes: tuple[str, ...], most: int, now: Now) -> Decision[CoordinatorRecord, int]:
        """Groups whose ids begin so go, whoever is in them; `most` at a time. How many there were before."""
        doomed = self.groups_with(prefixes)
        records: list[CoordinatorRecord] = []
        for group_id in doomed[:most]:
            group = self.groups.get(group_id)
            if group is not None and (group.members or group.pending):
                leaving = [MemberIdentity(member.member_id, None) for member in group.members.values()]
                leaving += [MemberIdentity(member_id, None) for member_id in group.pending]
                self._memberships.leave(group, tuple(leaving), now)
                records += self._effects.take_records()
                self._forget_if_idle(group_id)
            records += self.delete_group(group_id).records
        return Decision(len(doomed), records)

    # handing over ------------------------------------------------------------------------------------------

    def groups_with(self, prefixes: tuple[str, ...]) -> list[str]:
        """Groups of which anything is known here, and whose ids begin so."""
        known: dict[str, None] = {}
        for prefix in prefixes:
            ids = (self.offsets.groups(prefix), self.committed.with_prefix(prefix), self.groups.with_prefix(prefix))
            known.update(dict.fromkeys(group_id for some in ids for group_id in some))
        return list(known)

    def groups_to_export(self) -> list[str]:
        """Groups with offsets, but for what another partition keeps, or is to keep."""
        kept = (Keeping.SERVED, Keeping.LEAVING)
        return [group_id for group_id in self.offsets.groups() if self._keeping_of(group_id) in kept]

    def records_of(self, group_id: str) -> list[CoordinatorRecord]:
        """All that is durable of a group, as records that build it elsewhere."""
        records = [
            offset_record(group_id, topic, partition, committed)
            for topic, partitions in self.offsets.of(group_id).items()
            for partition, committed in partitions.items()
        ]
        metadata = self.committed.get(group_id)
        return records if metadata is None else [*records, group_record(group_id, metadata)]
