"""Expiry of committed offsets: a walk over the groups of a shard, some offsets at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from broker.coordination.groups.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.offset_store import OffsetStore
from broker.coordination.groups.offsets import read_value, split_place, tombstone
from broker.coordination.groups.records import group_record
from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.groups.values import NO_TIME, CommittedOffset, GroupState
from broker.coordination.shard import CoordinatorRecord, Now
from common.errors import ProtocolError
from common.identifiers import ZERO_UUID
from kraft.image.key_ranges import Keeping

GROUP_COST, PASSED_COST = 4, 1  # of a group besides its offsets, and of one that is passed over, in offsets


class Rule(NamedTuple):
    """How a group's offsets expire now. `keeps`: none expires. `emptied_at`: wall time in ms when the last member left;
    None if the time runs from each commit."""

    keeps: bool
    emptied_at: int | None


def rule_of(group: ClassicGroup | None) -> Rule:
    """The time runs from each commit for groups that only commit, and for topics without a subscriber in a stable group
    (KIP-496); from when the last member left for groups that had members (KIP-211)."""
    if group is None or group.protocol_type is None:
        return Rule(False, None)
    if group.state is GroupState.EMPTY:
        return Rule(False, group.state_timestamp if group.state_timestamp != NO_TIME else None)
    return Rule(group.state is not GroupState.STABLE or group.protocol_type != CONSUMER_PROTOCOL_TYPE, None)


def is_over(committed: CommittedOffset, rule: Rule, retention_ms: int, now_ms: int) -> bool:
    """Whether the offset has expired, if no member subscribes to its topic."""
    if committed.expire_timestamp != NO_TIME:
        return now_ms >= committed.expire_timestamp
    since = committed.commit_timestamp if rule.emptied_at is None else max(rule.emptied_at, committed.commit_timestamp)
    return now_ms - since >= retention_ms


class Retention:
    """One round at a time. Each step uses the current state, and its records are replayed before the next."""

    def __init__(
        self,
        config: GroupConfig,
        offsets: OffsetStore,
        committed: ByTenant[bytes],
        group_of: Callable[[str], ClassicGroup | None],
        topic_id_of: Callable[[str], bytes | None],
        keeping_of: Callable[[str], Keeping],
    ) -> None:
        self._config = config
        self._offsets = offsets
        self._committed = committed
        self._group_of = group_of
        self._topic_id_of = topic_id_of
        self._keeping_of = keeping_of
        self._groups: deque[str] = deque()  # groups still to be checked in this round; the first is being checked
        self._without: deque[str] = deque()  # checked after them: groups that have a record, but no offsets
        self._places: list[bytes] | None = None  # of the first group
        self._at = 0
        self._again = False

    @property
    def is_under_way(self) -> bool:
        return bool(self._groups or self._without) or self._again

    def begin_again(self) -> None:
        """Something has changed: start another round right after this one."""
        self._again = True

    def step(self, now: Now) -> list[CoordinatorRecord]:
        """Check some offsets. Returns tombstones of expired ones, and of groups with neither members nor offsets."""
        if not self._groups and not self._without:
            self._again = False
            self._groups.extend(self._offsets.groups())
            self._without.extend(self._committed)
        records: list[CoordinatorRecord] = []
        left = self._config.expiries_per_turn_max
        while left > 0 and (self._groups or self._without):
            if not self._groups:
                left -= self._pass_over()
                continue
            try:
                left -= GROUP_COST + self._expire(self._groups[0], left, now, records)
            except ProtocolError:  # the group is being brought into memory: the next step tries again
                break
        return records

    def _pass_over(self) -> int:
        """Have the next group without offsets checked. Those with offsets were checked before."""
        group_id = self._without.popleft()
        if not self._offsets.has(group_id):
            self._groups.append(group_id)
        return PASSED_COST

    def _expire(self, group_id: str, most: int, now: Now, records: list[CoordinatorRecord]) -> int:
        """Add tombstones of the group's offsets to `records`. Returns how many offsets were checked."""
        keeping = self._keeping_of(group_id)
        if keeping is Keeping.SERVED:
            self._group_of(group_id)  # raises before anything counts as checked
        if self._places is None:
            self._places, self._at = self._offsets.places(group_id), 0
        some = self._places[self._at : self._at + most]
        self._at += len(some)
        is_last = self._at >= len(self._places)
        if keeping is Keeping.SERVED:
            removed = self._expired(group_id, some, now)
            records += removed
            is_last_offset = is_last and len(removed) == self._offsets.count(group_id)
            if is_last_offset and not self._offsets.pending.has(group_id) and self._is_idle(group_id):
                records.append(group_record(group_id, None))
        elif keeping is Keeping.FOREIGN:
            records += [tombstone(group_id, place) for place in some if self._offsets.holds(group_id, place)]
            if is_last and group_id in self._committed:
                records.append(group_record(group_id, None))
        if is_last:
            self._groups.popleft()
            self._places = None
        return len(some)

    def _is_idle(self, group_id: str) -> bool:
        group = self._group_of(group_id)
        is_empty = group is not None and group.state is GroupState.EMPTY and not group.pending
        return is_empty and group_id in self._committed

    def _expired(self, group_id: str, places: list[bytes], now: Now) -> list[CoordinatorRecord]:
        """Tombstones of offsets that have expired, or whose topic was deleted, even if another has its name now. While
        an offset is pending, its place does not expire."""
        group = self._group_of(group_id)
        rule = rule_of(group)
        retention_ms = self._config.offsets_retention_ms
        topics: dict[str, tuple[bytes | None, bool]] = {}
        records = []
        for place in places:
            committed = self._offsets.counting.at(group_id, place)
            pending = self._offsets.pending.values(group_id, place)
            if committed is None and not pending:
                continue
            topic = split_place(place)[0]
            known = topics.get(topic)
            if known is None:
                is_kept = rule.keeps or (group is not None and bool(group.members) and group.is_subscribed_to(topic))
                known = topics[topic] = (self._topic_id_of(topic), is_kept)
            topic_id, is_kept = known
            is_orphan = _is_orphan(committed, topic_id) and all(
                _is_orphan(read_value(value), topic_id) for value in pending
            )
            if not is_orphan and (committed is None or pending or is_kept):
                continue
            if committed is None or is_orphan or is_over(committed, rule, retention_ms, now.wall_ms):
                records.append(tombstone(group_id, place))
        return records


def _is_orphan(committed: CommittedOffset | None, topic_id: bytes | None) -> bool:
    """Whether its topic, which has `topic_id` now, is not the one that it was committed for. True if it cannot be
    read."""
    return committed is None or topic_id is None or committed.topic_id not in (ZERO_UUID, topic_id)
