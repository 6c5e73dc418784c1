"""One partition of `__consumer_offsets`: its groups, and the offsets that they committed.

Hard state is `committed` (each group's newest record, as bytes) and `offsets`; only `replay` changes it. Soft state is
the groups in memory with their waiting requests and timers. After a load a group is brought into memory on its first
request, or in turn. All groups are classic; records of other types are ignored.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice

from broker.coordination.groups.classic_group import ClassicGroup
from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.membership import GIVEN_UP_AT_ONCE, MEMBERS_AT_ONCE, Memberships
from broker.coordination.groups.offset_decisions import OFFSET_COST, OFFSETS_AT_ONCE, OffsetDecisions
from broker.coordination.groups.offset_store import Before, OffsetStore
from broker.coordination.groups.offsets import TopicOffsets
from broker.coordination.groups.rebalance import Effects, Rebalances, TimerKey, TimerKind
from broker.coordination.groups.records import GroupKey, decode_key, encode_group_key, group_record
from broker.coordination.groups.retention import Retention
from broker.coordination.groups.taking_up import TakingUp
from broker.coordination.groups.tenant_index import ByTenant, each_once
from broker.coordination.groups.values import (
    NO_MEMBER,
    UNSTABLE,
    CommitRequest,
    CommittedOffset,
    GroupDescription,
    GroupState,
    GroupType,
    JoinReply,
    JoinRequest,
    ListedGroup,
    MemberHeartbeat,
    MemberIdentity,
    PendingCommitRequest,
    SyncReply,
    SyncRequest,
)
from broker.coordination.packed_records import Run, pack_runs
from broker.coordination.shard import Answer, CoordinatorRecord, Now, Parked, Ticket, replay_each
from broker.deadlines import DeadlineQueue
from common.decision import Decision, ProducerStamp
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.key_ranges import Keeping
from kraft.image.tenants import local_name
from kraft.topic_names import NAME_CHARACTERS_MAX

TopicIdOf = Callable[[str], bytes | None]
KeepingOf = Callable[[str], Keeping]
RETENTION_TURN_S = 0.02
TAKE_UP_TURN_S = 0.002
NAMES_AT_ONCE = 200
GROUP_BYTES = 200  # memory of a group's entries beside its record
REMOVED_AT_ONCE = 1_000


class GroupShard:
    """Implements `coordination.shard.Shard`. `topic_id_of` reads the metadata image, for retention only.

    `keeping_of` returns whether this partition serves a group. A group that moves or has moved has no timers here.
    """

    def __init__(
        self,
        config: GroupConfig,
        rng: random.Random,
        topic_id_of: TopicIdOf,
        keeping_of: KeepingOf = lambda _: Keeping.SERVED,
    ) -> None:
        self.committed: ByTenant[bytes] = ByTenant()
        self._store = OffsetStore()
        self.offsets = self._store.counting
        self.pending = self._store.pending
        self.groups: ByTenant[ClassicGroup] = ByTenant()
        self._config = config
        self._topic_id_of = topic_id_of
        self._keeping_of = keeping_of
        self._timers: DeadlineQueue[TimerKey] = DeadlineQueue()
        self._effects = Effects()
        self._rebalances = Rebalances(config, self._timers, self._effects)
        self._memberships = Memberships(config, self._rebalances, self._effects, rng)
        self._retention = Retention(
            config, self._store, self.committed, group_of=self._group, topic_id_of=topic_id_of, keeping_of=keeping_of
        )
        self._decisions = OffsetDecisions(config, self._store, self.committed, self._rebalances, self._group)
        self._taking_up = TakingUp(self.committed, self._is_served, self._taken_up)
        self._maybe_moved: dict[str, None] = {}  # groups in memory that may be served elsewhere
        self._since: Now | None = None  # None while loading; when sessions of groups that are brought into memory begin

    # shard -------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        if self._store.replay(key, value):
            return
        decoded = decode_key(key)
        if decoded is None:
            return
        if value is not None:
            self.committed[decoded.group_id] = value
            if self._since is None:
                self._taking_up.add(decoded.group_id)
        else:
            self.committed.pop(decoded.group_id, None)
            self._taking_up.discard(decoded.group_id)
            self._forget(decoded.group_id)

    def replay_all(self, records: list[tuple[bytes, bytes | None]]) -> int:
        if self.pending:
            return replay_each(self, records)
        return self.offsets.put_all(records, self.replay)

    @property
    def has_pending(self) -> bool:
        return bool(self.pending)

    @property
    def pending_count(self) -> int:
        return self.pending.count

    def begin_batch(self, offset: int) -> None:
        self._store.begin_batch(offset)

    def replay_pending(self, producer: ProducerStamp, records: list[tuple[bytes, bytes | None]]) -> int:
        return self._store.replay_pending(producer, records)

    def ending_cost(self, producer: ProducerStamp) -> int:
        return self.pending.ending_cost(producer.producer_id)

    def end_transaction(self, producer: ProducerStamp, *, commit: bool) -> int:
        return self._store.end_transaction(producer, commit=commit)

    def before(self, record: CoordinatorRecord) -> Before | CoordinatorRecord:
        """What `record` is about to change: a place, or a group's record."""
        place = self._store.before(record)
        if place is not None:
            return place
        decoded = decode_key(record.key)
        return record._replace(value=None if decoded is None else self.committed.get(decoded.group_id))

    def before_pending(self, producer: ProducerStamp, record: CoordinatorRecord) -> Before | None:
        return self._store.before_pending(producer, record)

    def undo(self, before: list[Before | CoordinatorRecord | None], now: Now) -> None:
        """Members of a generation without a record join again."""
        for one in before:
            if one is None:
                continue
            if not isinstance(one, CoordinatorRecord):
                self._store.restore(one)
                continue
            self.replay(one.key, one.value)
            decoded = decode_key(one.key)
            if isinstance(decoded, GroupKey):
                group = self.groups.get(decoded.group_id)
                if group is not None:
                    self._rebalances.assignment_lost(group, now)
                elif one.value is not None:
                    self._taking_up.add(decoded.group_id)

    def pack(self) -> Iterator[tuple[bytes, int]]:
        yield from self._store.pack()
        for group_id in list(self.committed):
            value = self.committed.get(group_id)
            if value is not None:
                yield pack_runs(b"", [(encode_group_key(group_id), value)]), 1

    def unpack(self, run: Run) -> None:
        if run.begin:
            self._store.unpack(run)
            return
        for key, value in run.pairs:
            self.replay(key, value)

    def held_bytes(self) -> int:
        held = self.committed
        return self._store.held_bytes() + len(held) * GROUP_BYTES + held.all_id_bytes + sum(map(len, held.values()))

    def loaded(self, now: Now) -> list[CoordinatorRecord]:
        """Every member has a whole session to find its new coordinator."""
        self._since = now
        self._timers.set(TimerKey(TimerKind.TAKE_UP), now.monotonic_s)
        self._timers.set(TimerKey(TimerKind.RETENTION), now.monotonic_s + self._retention_interval_s)
        return self._effects.take_records()

    def _group(self, group_id: str) -> ClassicGroup | None:
        """The group, brought into memory; None if it has neither members nor a record. Raises
        COORDINATOR_LOAD_IN_PROGRESS for a large group that takes several turns."""
        if self._taking_up and self._since is not None:
            try:
                self._taking_up.take(group_id, self._since)
            except ProtocolError:
                self._timers.set(TimerKey(TimerKind.TAKE_UP), self._since.monotonic_s)
                raise
        return self.groups.get(group_id)

    def _is_served(self, group_id: str) -> bool:
        return self._keeping_of(group_id) is Keeping.SERVED

    def _taken_up(self, group: ClassicGroup, now: Now) -> None:
        self.groups[group.group_id] = group
        self._rebalances.begin_sessions(group, now)
        if len(group.members) > self._config.group_max_size:
            self._rebalances.prepare(group, now)

    def _take_up_some(self, now: Now) -> None:
        self._give_up_some()
        self._taking_up.turn(now)
        if self._taking_up or self._maybe_moved:
            self._timers.set(TimerKey(TimerKind.TAKE_UP), now.monotonic_s + TAKE_UP_TURN_S)

    def keeping_changed(self, prefix: str, now: Now) -> list[CoordinatorRecord]:
        """`keeping_of` may have changed for groups with this prefix: take them up or give them up. Leftovers are
        removed soon."""
        self._maybe_moved.update(dict.fromkeys(self.groups.with_prefix(prefix)))
        self._give_up_some()
        for group_id in self.committed.with_prefix(prefix):
            if group_id not in self.groups:
                self._taking_up.add(group_id)
        if self._since is not None:
            self._since = now
            self._timers.set(TimerKey(TimerKind.TAKE_UP), now.monotonic_s)
            self._expire_soon(now)
        return self._effects.take_records()

    def _give_up_some(self) -> None:
        """Give up some of the groups that may have moved. Until then no request and no timer reaches them."""
        left = GIVEN_UP_AT_ONCE
        while self._maybe_moved and left > 0:
            left -= self._give_up_if_moved(next(iter(self._maybe_moved)))

    def _give_up_if_moved(self, group_id: str) -> int:
        """Give up the group if it moved. Returns how many groups and members were looked at."""
        self._maybe_moved.pop(group_id, None)
        if group_id not in self.groups or self._is_served(group_id):
            return 1
        group = self.groups.pop(group_id)
        self._rebalances.give_up(group)
        return 1 + len(group.members)

    def _expire_soon(self, now: Now) -> None:
        self._retention.begin_again()
        self._timers.set(TimerKey(TimerKind.RETENTION), now.monotonic_s + RETENTION_TURN_S)

    def next_deadline(self) -> float | None:
        return self._timers.first() if self._since is not None else None

    def expire(self, now: Now) -> list[CoordinatorRecord]:
        for key in self._timers.take_due(now.monotonic_s, self._config.timers_per_turn_max):
            if key.kind is TimerKind.RETENTION:
                self._expire_offsets(now)
                break
            if key.kind is TimerKind.TAKE_UP:
                self._take_up_some(now)
                break
            if key.kind in (TimerKind.ANSWERS, TimerKind.SESSIONS):  # our own work, which members wait for
                self._group_timer(key, now)
                break
            if now.monotonic_s < now.spared_until_s:
                self._timers.set(key, now.spared_until_s)
                continue
            self._group_timer(key, now)
        return self._effects.take_records()

    def _group_timer(self, key: TimerKey, now: Now) -> None:
        if key.group_id in self._maybe_moved:
            self._give_up_if_moved(key.group_id)
        group = self.groups.get(key.group_id)
        if group is None:
            return
        if key.kind is TimerKind.MEMBER:
            self._rebalances.member_over(group, key.member_id, now)
            self._forget_if_idle(group.group_id)
        elif key.kind is TimerKind.JOIN:
            self._rebalances.gathering_over(group, now)
        elif key.kind is TimerKind.ANSWERS:
            self._rebalances.answer_some(group, now)
        elif key.kind is TimerKind.SESSIONS:
            self._rebalances.begin_some_sessions(group, now)
        else:
            self._rebalances.sync_over(group, now)

    def take_answers(self) -> list[Answer]:
        return self._effects.take_answers()

    @property
    def _retention_interval_s(self) -> float:
        return self._config.offsets_retention_check_interval_ms / 1000

    # membership --------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, now: Now, ticket: Ticket) -> Decision[CoordinatorRecord, JoinReply | Parked]:
        self._memberships.check_join(request)
        group = self._group(request.group_id)
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

    def heartbeat(self, request: MemberHeartbeat, now: Now) -> Decision[CoordinatorRecord, ErrorCode]:
        return Decision(self._memberships.heartbeat(self._group_of_member(request.group_id), request, now))

    def leave(
        self, group_id: str, leaving: tuple[MemberIdentity, ...], now: Now
    ) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
        """Raises UNKNOWN_MEMBER_ID if the group does not exist."""
        group = self._group_of_member(group_id)
        codes = self._memberships.leave(group, leaving, now)
        self._forget_if_idle(group_id)
        return Decision(codes, self._effects.take_records())

    def _group_of_member(self, group_id: str) -> ClassicGroup:
        if not local_name(group_id):
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
        group = self._group(group_id)
        if group is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _forget_if_idle(self, group_id: str) -> None:
        """Forget an empty group that never had a generation: without a record nothing else would remove it."""
        group = self.groups.get(group_id)
        if group is not None and group.generation == 0:
            self._forget(group_id)

    def _forget(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is not None and group.state is GroupState.EMPTY and not group.members and not group.pending:
            del self.groups[group_id]

    # offsets -----------------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, now: Now) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
        """See `OffsetDecisions`, here and below."""
        return self._decisions.commit(request, now)

    def commit_pending(
        self, request: PendingCommitRequest, now: Now
    ) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
        return self._decisions.commit_pending(request, now)

    def fetch_offset(
        self, group_id: str, topic: str, partition: int, *, stable: bool = False
    ) -> CommittedOffset | None:
        """None if nothing was committed; with `stable` UNSTABLE if an open transaction may change it. Clients may ask
        for names that no topic can have, and that fit into no key."""
        if len(topic) > NAME_CHARACTERS_MAX and len(local_name(topic)) > NAME_CHARACTERS_MAX:
            return None
        if stable and self._decisions.is_unstable(group_id, topic, partition):
            return UNSTABLE
        return self.offsets.get(group_id, topic, partition)

    def fetch_offsets(self, group_id: str, *, stable: bool = False) -> Work[dict[str, TopicOffsets]]:
        return self._decisions.fetch(group_id, stable=stable)

    def delete_offsets(
        self, group_id: str, partitions: tuple[tuple[str, int], ...]
    ) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
        return self._decisions.delete_offsets(group_id, partitions)

    def topics_deleted(self, now: Now) -> list[CoordinatorRecord]:
        """Topics were deleted from the image: remove their offsets soon."""
        if self._since is not None:
            self._expire_soon(now)
        return []

    def _expire_offsets(self, now: Now) -> None:
        """Check some offsets, and continue soon if there are more."""
        self._effects.record(*self._retention.step(now))
        pause_s = RETENTION_TURN_S if self._retention.is_under_way else self._retention_interval_s
        self._timers.set(TimerKey(TimerKind.RETENTION), now.monotonic_s + pause_s)

    # administration ----------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> GroupDescription:
        """State DEAD for a group that does not exist."""
        group = self._group(group_id)
        if group is not None:
            return group.describe()
        state = GroupState.EMPTY if self._store.has(group_id) else GroupState.DEAD
        return GroupDescription(group_id, state, "", "", ())

    def list_groups(self, prefix: str = "") -> Work[list[ListedGroup]]:
        """Groups with the prefix that are served here. The cost for a tenant depends on its own groups only."""
        listed: list[ListedGroup] = []
        for count, group_id in enumerate(self.names((prefix,)), 1):
            if group_id is not None and self._is_served(group_id):
                is_long = self._taking_up.is_long(group_id)
                group = None if is_long else self._group(group_id)
                if is_long:
                    listed += self._taking_up.listed(group_id)
                elif group is not None:
                    listed.append(ListedGroup(group_id, group.protocol_type or "", group.state, group.type))
                elif self._store.has(group_id):
                    listed.append(ListedGroup(group_id, "", GroupState.EMPTY, GroupType.CLASSIC))
            if count % NAMES_AT_ONCE == 0:
                yield NAMES_AT_ONCE * OFFSET_COST
        return listed

    def delete_group(self, group_id: str, most: int = OFFSETS_AT_ONCE) -> Decision[CoordinatorRecord, ErrorCode | None]:
        return self._decisions.delete_group(group_id, most)

    def remove_groups(self, prefixes: tuple[str, ...], most: int, now: Now) -> Decision[CoordinatorRecord, int]:
        """Remove at most `most` groups whose ids begin with `prefixes`, with or without members, and some offsets.
        Returns how many of these there were before."""
        doomed = list(islice((name for name in self.names(prefixes) if name is not None), most))
        records: list[CoordinatorRecord] = []
        members_left = MEMBERS_AT_ONCE
        for group_id in doomed:
            if records and self._taking_up.is_long(group_id):
                break
            group = self._group(group_id)
            if group is not None:
                members_left -= self._memberships.expel(group, members_left, now)
                records += self._effects.take_records()
                self._forget_if_idle(group_id)
            records += self._remove(group_id, REMOVED_AT_ONCE)
            if len(records) >= REMOVED_AT_ONCE or members_left <= 0:
                break
        return Decision(len(doomed), records)

    def _remove(self, group_id: str, most: int) -> list[CoordinatorRecord]:
        """Remove a group, even one that cannot be brought into memory."""
        decision = self.delete_group(group_id, most)
        if decision.reply is ErrorCode.GROUP_ID_NOT_FOUND and group_id in self.committed:
            return [group_record(group_id, None)]
        return decision.records

    # handing over ------------------------------------------------------------------------------------------

    def names(self, prefixes: tuple[str, ...]) -> Iterator[str | None]:
        """All known groups with these prefixes, as `each_once`. They may change meanwhile."""
        holders = (self.groups.with_prefix, self.offsets.groups, self.pending.groups, self.committed.with_prefix)
        return each_once(prefixes, *holders)

    def is_exported(self, group_id: str) -> bool:
        """False if another partition holds the group, or will."""
        return self._keeping_of(group_id) in (Keeping.SERVED, Keeping.LEAVING)

    def records_of(self, group_id: str) -> Work[list[CoordinatorRecord]]:
        """A group's durable state, as records that rebuild it elsewhere. Raises UNSTABLE_OFFSET_COMMIT while offsets
        are pending: their markers come here."""
        if self.pending.has(group_id):
            raise ProtocolError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "a transaction is open in the group")
        records: list[CoordinatorRecord] = []
        for count, place in enumerate(self.offsets.places(group_id), 1):
            record = self.offsets.record(group_id, place)
            if record.value is not None:
                records.append(record)
            if count % OFFSETS_AT_ONCE == 0:
                yield OFFSETS_AT_ONCE
        value = self.committed.get(group_id)
        if value is not None:
            records.append(CoordinatorRecord(encode_group_key(group_id), value))
        return records
