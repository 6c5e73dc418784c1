"""Brings groups into memory from their records: in turns, requested groups first.

A record may hold 9,000 members, which are decoded in slices. Meanwhile requests for that group are answered with
COORDINATOR_LOAD_IN_PROGRESS, so clients retry; other groups are served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.coordination.groups.classic_group import ClassicGroup
from broker.coordination.groups.records import UnreadableRecord, decode_group_value, read_group_value
from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.groups.values import GroupState, GroupType, ListedGroup
from broker.coordination.shard import Now
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work

_log = logging.getLogger(__name__)

TURN_COST_MAX = 2_000  # of one turn, in about microseconds
GROUP_COST = 30  # of a group, plus a little for each byte of its record
BYTES_PER_UNIT = 8
BYTES_AT_ONCE = 64 << 10  # size of a record that is decoded in one go: some 600 members, about 3 ms


class TakingUp:
    """The groups with a record that are not in memory yet. `taken` is called with each one that is."""

    def __init__(
        self, committed: ByTenant[bytes], is_served: Callable[[str], bool], taken: Callable[[ClassicGroup, Now], None]
    ) -> None:
        self._committed = committed
        self._is_served = is_served
        self._taken = taken
        self._left: dict[str, None] = {}
        self._begun: dict[str, Work[ClassicGroup]] = {}  # groups whose decoding has begun

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, group_id: str) -> None:
        self._left[group_id] = None
        self._begun.pop(group_id, None)

    def discard(self, group_id: str) -> None:
        self._left.pop(group_id, None)
        self._begun.pop(group_id, None)

    def take(self, group_id: str, now: Now) -> None:
        """Bring a group into memory. Raises COORDINATOR_LOAD_IN_PROGRESS if that takes several turns, which the caller
        must give."""
        if group_id not in self._left:
            return
        if self.is_long(group_id) and self._is_served(group_id):
            self._begin(group_id)
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the group has many members")
        self._take(group_id, now)

    def is_long(self, group_id: str) -> bool:
        """Whether it is not in memory and takes more than one turn."""
        return group_id in self._left and len(self._committed.get(group_id, b"")) > BYTES_AT_ONCE

    def listed(self, group_id: str) -> list[ListedGroup]:
        """The list entry of a large group that is not in memory; empty if its record cannot be read."""
        try:
            head, members = read_group_value(self._committed[group_id])
            state = GroupState.EMPTY if next(members, None) is None else GroupState.STABLE
        except UnreadableRecord:
            return []
        return [ListedGroup(group_id, head.protocol_type, state, GroupType.CLASSIC)]

    def turn(self, now: Now) -> None:
        """Bring in some groups, or a part of a large one."""
        cost = 0
        while self._left and cost < TURN_COST_MAX:
            group_id = next(iter(self._begun), None) or next(iter(self._left))
            if not self.is_long(group_id) or not self._is_served(group_id):
                cost += GROUP_COST + len(self._committed.get(group_id, b"")) // BYTES_PER_UNIT
                self._take(group_id, now)
                continue
            try:
                cost += next(self._begin(group_id))
            except StopIteration as end:
                self.discard(group_id)
                self._taken(end.value, now)
                return
            except UnreadableRecord as error:
                self._unreadable(group_id, error)

    def _begin(self, group_id: str) -> Work[ClassicGroup]:
        work = self._begun.get(group_id)
        if work is None:
            work = self._begun[group_id] = _restoring(group_id, self._committed[group_id])
        return work

    def _take(self, group_id: str, now: Now) -> None:
        self.discard(group_id)
        value = self._committed.get(group_id)
        if value is None or not self._is_served(group_id):
            return
        try:
            metadata = decode_group_value(value)
        except UnreadableRecord as error:
            self._unreadable(group_id, error)
            return
        self._taken(ClassicGroup.restored(group_id, metadata), now)

    def _unreadable(self, group_id: str, error: UnreadableRecord) -> None:
        self.discard(group_id)
        _log.warning("a group's record cannot be read", extra={"group": group_id, "error": str(error)})


def _restoring(group_id: str, value: bytes) -> Work[ClassicGroup]:
    """Raises UnreadableRecord."""
    head, members = read_group_value(value)
    return (yield from ClassicGroup.restoring(group_id, head, members))
