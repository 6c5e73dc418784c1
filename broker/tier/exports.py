"""A broker's exports beside the tier itself: the positions of its partitions, and the groups' committed offsets.

The positions are only for the report of a rebuild: they show which acknowledged records were not in the tier.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.export import group_exports
from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from broker.tier.service import TierService
from common.pacing import Pacer, Work
from common.ports import Clock
from kraft.topic_names import INTERNAL_TOPICS
from records.events import Event
from tiering.exports.exports import POSITIONS, Export, ReadyExport, batched

LED_AT_ONCE = 200


class BrokerExports:
    """`exports` is called once per interval."""

    def __init__(
        self, hosted: HostedPartitions, groups: GroupCoordinator, tier: TierService, clock: Clock, pacer: Pacer
    ) -> None:
        self._hosted = hosted
        self._groups = groups
        self._tier = tier
        self._clock = clock
        self._pacer = pacer
        self._changes = -1
        self._mark = 0

    async def exports(self) -> list[Export]:
        found = await group_exports(self._groups)
        changes = self._hosted.position_changes
        if changes != self._changes:  # so an idle broker's cost does not depend on the number of partitions
            self._mark = await self._pacer.run(self._marked(), "exports", own=True)
            self._changes = changes
        if self._mark:
            node_id, mark = self._hosted.node_id, self._mark
            found.append(ReadyExport(POSITIONS, node_id, self._clock.wall_ms(), mark, self._positions))
        return found

    def _marked(self) -> Work[int]:
        """Changes when a position of a user's topic does; 0 if none is led. Internal topics cause no export."""
        mark = 0
        for led in batched(self._led(), LED_AT_ONCE):
            mark += sum(partition.high_watermark + partition.leader_epoch + 1 for partition in led)
            yield len(led)
        return mark

    def _led(self) -> Iterator[Partition]:
        return (partition for partition in list(self._hosted.led) if _is_users(partition) and partition.is_leader)

    def _positions(self) -> Iterator[Event]:
        for partition in self._led():
            view = self._tier.view(partition)
            yield {
                "event": "position",
                "topic": partition.topic,
                "topic_id": partition.topic_id.hex(),
                "partition": partition.index,
                "leader_epoch": partition.leader_epoch,
                "log_start_offset": partition.log.log_start_offset,
                "high_watermark": partition.high_watermark,
                "tier_end_offset": None if view is None else view.tier_end_offset,
                "tier_generation": None if view is None else view.generation,
            }


def _is_users(partition: Partition) -> bool:
    return partition.topic not in INTERNAL_TOPICS
