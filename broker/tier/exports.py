"""What one broker exports beside the tier itself: how far its partitions reach, and the groups' committed offsets.

The first is for the report of a rebuild alone: it tells which records were acknowledged and are not in the tier.
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
    """`exports` is asked once per interval."""

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
        if changes != self._changes:  # idle, it costs the same however many partitions are led
            self._mark = await self._pacer.run(self._marked(), "exports", own=True)
            self._changes = changes
        if self._mark:
            node_id, mark = self._hosted.node_id, self._mark
            found.append(ReadyExport(POSITIONS, node_id, self._clock.wall_ms(), mark, self._positions))
        return found

    def _marked(self) -> Work[int]:
        """Differs when a position of a user's topic does; 0 when none is led. Internal topics cause no export."""
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
