"""Tiering was disabled for a topic: its partitions' leaders have the tier emptied, and the logs begin on the disks.

Replicas forget what they know of the tier as soon as their settings say that it was disabled, which is a new
*generation*: from then on local retention takes nothing to the tier's care. Each reports that to its leader, with the
offset below which its disk lacks records. When all have that are in sync or may lead from the ELR, the leader has the
shard empty the tier in one record, and the log begins where all of them hold it. Objects go as any others do: after a
manifest without them, and the delay. It is the same under any leader, and also when tiering was enabled again
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

PAUSE_S = 1.0  # between two looks at what is still to be published or deleted

Ended = tuple[int, int]  # leader epoch and generation


class Disabling:
    """Of all partitions that one broker leads."""

    def __init__(self, services: TierServices, deleter: Deleter) -> None:
        self._calls = services.calls
        self._manifests = services.manifests
        self._deleter = deleter
        self._ended: dict[Partition, Ended] = {}

    def concerns(self, partition: Partition) -> bool:
        """Whether its leader has to look after the tier though the topic is not tiered any more: once per leadership,
        if only to see that nothing is left."""
        return partition.tier_generation > 0 and not self.has_ended(partition)

    def has_ended(self, partition: Partition) -> bool:
        """Whether this leader has left nothing of a disabled tier."""
        return self._ended.get(partition) == (partition.leader_epoch, partition.tier_generation)

    def removed(self, partition: Partition) -> None:
        self._ended.pop(partition, None)

    def is_due(self, led: LedPartition, now: float) -> bool:
        return led.is_outdated or led.delete_at <= now or led.delete_at == float("inf")

    async def go_on(self, led: LedPartition) -> None:
        """One step. Raises Fenced, NotNow, ProtocolError."""
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
        is_shown = (head is not None and shows(head, tier)) or not tier.tier_end_offset  # then it never held anything
        if not is_shown:
            self._manifests.changed(tier.topic_id, tier.partition)
        elif is_left:
            led.delete_by(loop.time() + max(self._deleter.next_s(led), PAUSE_S))
        else:
            self._ended[partition] = (led.leader_epoch, partition.tier_generation)

    async def _empty(self, led: LedPartition) -> None:
        """The shard first, then the log here; followers hear of its start and of the new tier's end."""
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
    """The offset from which on every replica that is or may be in sync, or may lead from the ELR, has the log on its
    disk; it keeps it there, for it has said that it has forgotten the tier of before. Raises NotNow until all have.

    One that is down is waited for: it may lead again, and what it lacks would then be nowhere once the tier is empty,
    though it was acknowledged and lies behind the log's start.
    No other replica joins the ISR that lacks more than this leader does: see `Replica.admits`.
    """
    replicas, image = partition.replica_set, partition.image
    if replicas is None or image is None or image.partition_epoch != replicas.partition_epoch:
        raise NotNow("tiering was disabled: the metadata has yet to say which replicas are in sync")
    lowest = partition.log.local_log_start_offset
    silent = []
    for node in sorted((replicas.maximal_isr | frozenset(image.elr)) - {partition.node_id}):
        follower = replicas.followers.get(node)
        if follower is None or follower.held.tier_generation < partition.tier_generation:
            silent.append(node)
        else:
            lowest = max(lowest, follower.held.lacks_below)
    if silent:
        raise NotNow(f"tiering was disabled: brokers {silent}, of ISR or ELR, have yet to report what they hold")
    return lowest
