"""The tier as one broker lives with it: what it knows of the partitions that it leads, and who keeps that true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.partitions.partition import Partition

if TYPE_CHECKING:
    from tiering.partition_tier import PartitionTier


class TierService:
    """One per broker that has a tier; calls on the loop."""

    def __init__(self) -> None:
        self._views: dict[Partition, PartitionTier] = {}

    def view(self, partition: Partition) -> PartitionTier | None:
        """What the tier holds of a partition that this broker leads; None until its claim is answered.

        Meanwhile nothing below the local log may be served: the answer is a retriable error.
        """
        return self._views.get(partition)
