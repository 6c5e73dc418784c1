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
from common.ports import Clock
from kraft.controller.topic_names import INTERNAL_TOPICS
from records.events import Event
from tiering.exports import POSITIONS, Export, ReadyExport


class BrokerExports:
    """`exports` is asked once per interval."""

    def __init__(self, hosted: HostedPartitions, groups: GroupCoordinator, tier: TierService, clock: Clock) -> None:
        self._hosted = hosted
        self._groups = groups
        self._tier = tier
        self._clock = clock

    async def exports(self) -> list[Export]:
        found = await group_exports(self._groups)
        led = [partition for partition in self._hosted if partition.is_leader and _is_users(partition)]
        if led:
            mark = sum(partition.high_watermark + partition.leader_epoch + 1 for partition in led)
            position = self._clock.wall_ms()
            found.append(ReadyExport(POSITIONS, self._hosted.node_id, position, mark, lambda: self._positions(led)))
        return found

    def _positions(self, led: list[Partition]) -> Iterator[Event]:
        for partition in led:
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
            }


def _is_users(partition: Partition) -> bool:
    return partition.topic not in INTERNAL_TOPICS
