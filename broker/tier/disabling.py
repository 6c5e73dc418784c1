"""Emptying the tier of a topic after tiering was disabled; its logs then start on the brokers' disks.

When a replica's settings say that tiering was disabled, a new *generation* begins: the replica forgets what it knows of
the tier, so that local retention deletes nothing in reliance on it. It reports the generation to its leader, with the
offset below which its disk lacks records. When all replicas in the ISR and ELR have reported, the leader lets the shard
empty the tier in one record, and the log start becomes the lowest offset that all of them hold. Objects are deleted as
usual: after a manifest without them, and the delay. This works under any leader, and also if tiering is enabled again
meanwhile: copying begins once the tier is empty.
"""

from __future__ import annotations

import asyncio

from broker.partitions.partition import Partition
from broker.tier.deletion import Deleter
from broker.tier.led import LedPartition, NotNow
from broker.tier.services import TierServices
from storage.audit.audit_trail import audited
from tiering.manifests.manifest_writer import shows
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import Empty
from tiering.shard.tier_shard import DISABLED

PAUSE_S = 1.0  # between two checks of what is still to be published or deleted

Ended = tuple[int, int]  # leader epoch and generation


class Disabling:
    """The disabled tiers of all partitions that one broker leads."""

    def __init__(self, services: TierServices, deleter: Deleter) -> None:
        self._calls = services.calls
        self._manifests = services.manifests
        self._deleter = deleter
        self._ended: dict[Partition, Ended] = {}

    def concerns(self, partition: Partition) -> bool:
        """Whether the leader must still clean up the tier although the topic is not tiered any more. True once per
        leadership, if only to check that nothing is left."""
        return partition.tier_generation > 0 and not self.has_ended(partition)

    def has_ended(self, partition: Partition) -> bool:
        """Whether this leader has finished cleaning up the disabled tier."""
        return self._ended.get(partition) == (partition.leader_epoch, partition.tier_generation)

    def removed(self, partition: Partition) -> None:
        self._ended.pop(partition, None)

    def is_due(self, led: LedPartition, now: float) -> bool:
        return led.is_outdated or led.delete_at <= now or led.delete_at == float("inf")

    async def go_on(self, led: LedPartition) -> None:
        """Do one step. Raises Fenced, NotNow, ProtocolError."""
        loop = asyncio.get_running_loop()
        led.delete_by(loop.time() + PAUSE_S)
        if led.is_outdated:
            await self._empty(led)
            return
        await self._deleter.delete(led)
        partition, tier = led.partition, led.known
        if partition.log.config.remote_storage_enable:
            return
        head = self._manifests.published(tier.topic_id, tier.partition)
        is_left = bool(tier.deleting() or tier.copying())
        # an empty tier never had a manifest
        is_shown = (head is not None and shows(head, tier)) or not tier.tier_end_offset
        if not is_shown:
            self._manifests.changed(tier.topic_id, tier.partition)
        elif is_left:
            led.delete_by(loop.time() + max(self._deleter.next_s(led), PAUSE_S))
        else:
            self._ended[partition] = (led.leader_epoch, partition.tier_generation)

    async def _empty(self, led: LedPartition) -> None:
        """Empty the shard first, then move the log start here. Followers learn of the new log start and the tier's
        end."""
        partition, log = led.partition, led.partition.log

        def request(view: PartitionTier) -> Empty | None:
            if view.generation >= partition.tier_generation:
                return None
            start = max(held_from(partition), view.record.erased_end_offset)
            return Empty(led.leader_epoch, led.broker_epoch, partition.tier_generation, start)

        await led.change(self._calls, request)
        await audited(lambda: log.advance_log_start(min(led.known.log_start_offset, log.log_end_offset), DISABLED))
        led.announce_end()
        partition.log_start_moved()
        self._manifests.changed(led.known.topic_id, led.known.partition)


def held_from(partition: Partition) -> int:
    """The lowest offset from which all replicas in the maximal ISR and the ELR have the log on disk. Raises NotNow
    until all have reported.

    They keep it, because they have reported the new generation and so no longer rely on the tier. A replica that is
    down is waited for: it may lead again, and acknowledged records that it lacks would be nowhere once the tier is
    empty. No replica that lacks more than this leader joins the ISR meanwhile: see `Replica.admits`.
    """
    replicas, image = partition.replica_set, partition.image
    if replicas is None or image is None or image.partition_epoch != replicas.partition_epoch:
        raise NotNow("tiering was disabled: the ISR is not known from the metadata yet")
    lowest = partition.log.local_log_start_offset
    silent = []
    for node in sorted((replicas.maximal_isr | frozenset(image.elr)) - {partition.node_id}):
        follower = replicas.followers.get(node)
        if follower is None or follower.held.tier_generation < partition.tier_generation:
            silent.append(node)
        else:
            lowest = max(lowest, follower.held.lacks_below)
    if silent:
        raise NotNow(f"tiering was disabled: brokers {silent} of ISR or ELR have not reported what they hold yet")
    return lowest
