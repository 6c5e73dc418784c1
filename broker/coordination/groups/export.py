"""Committed offsets as events for the object store: one export per partition of `__consumer_offsets`.

A shard may hold hundreds of thousands of offsets, so they are read a few groups at a time. The offsets of one group are
consistent; different groups are read at different times. A group that commits meanwhile is exported again next time.
"""

from __future__ import annotations

from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.offsets import read_value, split_place
from broker.coordination.groups.values import CommittedOffset
from broker.coordination.shard import Now
from common.errors import ProtocolError
from common.pacing import Work
from records.events import Event, EventsWriter
from tiering.exports.exports import GROUPS, Export, NotExported, batched

GROUPS_AT_ONCE = 100
OFFSETS_AT_ONCE = 200
OFFSET_COST, GROUP_COST = 6, 2


async def group_exports(groups: GroupCoordinator) -> list[Export]:
    """The exports of the shards that serve here now."""
    found: list[Export] = []
    for index in groups.hosted():
        try:
            position = await groups.read_shard(index, lambda _, now: now.next_offset)
        except ProtocolError:
            continue
        if position > 0:
            found.append(_GroupsExport(groups, index, position))
    return found


class _GroupsExport:
    kind = GROUPS

    def __init__(self, groups: GroupCoordinator, index: int, position: int) -> None:
        self.scope = index
        self.position = self.mark = position  # the shard's position in its partition; it rises with each change
        self._groups = groups

    async def fill(self, writer: EventsWriter) -> None:
        try:
            names = await self._groups.read_shard(self.scope, lambda shard, _: shard.offsets.groups())
            for some in batched(names, GROUPS_AT_ONCE):

                def query(shard: GroupShard, _: Now, some: list[str] = some) -> Work[list[Event]]:
                    return _offsets_of(shard, some)

                events = await self._groups.read_shard_slowly(self.scope, query)
                for part in batched(events, OFFSETS_AT_ONCE):
                    writer.add(part)
                    await self._groups.rest()
        except ProtocolError as error:
            raise NotExported(str(error)) from error


def _offsets_of(shard: GroupShard, groups: list[str]) -> Work[list[Event]]:
    """As work; each group's offsets are read at one moment."""
    events: list[Event] = []
    for group in groups:
        items = shard.offsets.items(group) if shard.is_exported(group) else []
        for some in batched(items, OFFSETS_AT_ONCE):
            for place, value in some:
                committed = read_value(value)
                if committed is not None:
                    events.append(_event(group, *split_place(place), committed))
            yield len(some) * OFFSET_COST
        yield GROUP_COST
    return events


def _event(group: str, topic: str, partition: int, committed: CommittedOffset) -> Event:
    return {
        "event": "offset",
        "group": group,
        "topic": topic,
        "topic_id": committed.topic_id.hex(),
        "partition": partition,
        "offset": committed.offset,
        "leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "commit_ms": committed.commit_timestamp,
    }
