"""Expiry of committed offsets: a walk over the groups of a shard, some offsets at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
PENDING_COST = 1  # of an offset more, in a group with pending ones


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
        self._groups: Iterator[str | None] | None = None  # those still to be checked; None between two rounds
        self._group: str | None = None  # that is being checked
        self._places: Iterator[bytes | None] | None = None  # those of it that are still to be checked
        self._again = False

    @property
    def is_under_way(self) -> bool:
        return self._groups is not None or self._again

    def begin_again(self) -> None:
        """Something has changed: start another round right after this one."""
        self._again = True

    def step(self, now: Now) -> list[CoordinatorRecord]:
        """Check some offsets. Returns tombstones of expired ones, and of groups with neither members nor offsets."""
        if self._groups is None:
            self._again = False
            self._groups = self._offsets.groups_in_steps(self._committed)
        records: list[CoordinatorRecord] = []
        left = self._config.expiries_per_turn_max
        while left > 0:
            if self._group is None:
                try:
                    self._group = next(self._groups)
                except StopIteration:
                    self._groups = None
                    break
                if self._group is None:
                    left -= PASSED_COST
                    continue
            try:
                left -= GROUP_COST + self._expire(self._group, left, now, records)
            except ProtocolError:  # the group is being brought into memory: the next step tries again
                break
        return records

    def _expire(self, group_id: str, most: int, now: Now, records: list[CoordinatorRecord]) -> int:
        """Add tombstones of the group's offsets to `records`. Returns how many offsets were looked at."""
        keeping = self._keeping_of(group_id)
        if keeping is Keeping.SERVED:
            self._group_of(group_id)  # raises before anything counts as checked
        if self._places is None:
            self._places = self._offsets.places_in_steps(group_id)
        some, cost, is_last = self._next_places(group_id, self._places, most)
        if keeping is Keeping.SERVED:
            removed = self._expired(group_id, some, now)
            records += removed
            has_others = self._offsets.pending.has(group_id) or len(removed) < self._offsets.counting.count(group_id)
            if is_last and not has_others and self._is_idle(group_id):
                records.append(group_record(group_id, None))
        elif keeping is Keeping.FOREIGN:
            records += [tombstone(group_id, place) for place in some if self._offsets.holds(group_id, place)]
            if is_last and group_id in self._committed:
                records.append(group_record(group_id, None))
        if is_last:
            self._group = self._places = None
        return cost

    def _next_places(self, group_id: str, places: Iterator[bytes | None], most: int) -> tuple[list[bytes], int, bool]:
        """The next ones with at most `most` offsets, what they cost, and whether they are the last."""
        some, cost = list[bytes](), 0
        pending_cost = PENDING_COST if self._offsets.pending.has(group_id) else 0
        for place in places:
            if place is None:
                cost += PASSED_COST
            else:
                some.append(place)
                cost += self._offsets.weight(group_id, place) + pending_cost
            if cost >= most:
                return some, cost, False
        return some, cost, True

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
            is_pending = self._offsets.pending.holds(group_id, place)
            if committed is None and not is_pending:
                continue
            topic = split_place(place)[0]
            known = topics.get(topic)
            if known is None:
                is_kept = rule.keeps or (group is not None and bool(group.members) and group.is_subscribed_to(topic))
                known = topics[topic] = (self._topic_id_of(topic), is_kept)
            topic_id, is_kept = known
            is_orphan = _is_orphan(committed, topic_id)
            if is_orphan and is_pending:
                is_orphan = self._is_pending_orphaned(group_id, place, topic_id)
            if not is_orphan and (committed is None or is_pending or is_kept):
                continue
            if committed is None or is_orphan or is_over(committed, rule, retention_ms, now.wall_ms):
                records.append(tombstone(group_id, place))
        return records

    def _is_pending_orphaned(self, group_id: str, place: bytes, topic_id: bytes | None) -> bool:
        """Whether all that is pending there is for another topic than the one that has its name now."""
        if topic_id is None:
            return True
        values = self._offsets.pending.values(group_id, place)
        return all(_is_orphan(read_value(value), topic_id) for value in values)


def _is_orphan(committed: CommittedOffset | None, topic_id: bytes | None) -> bool:
    """Whether its topic, which has `topic_id` now, is not the one that it was committed for. True if it cannot be
    read."""
    return committed is None or topic_id is None or committed.topic_id not in (ZERO_UUID, topic_id)
