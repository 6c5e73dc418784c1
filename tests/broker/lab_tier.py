"""A tier for the brokers of a lab: closed segments copied by hand, local ones dropped, views as a claim would give."""

from __future__ import annotations

from dataclasses import replace

from broker.partitions.partition import Partition
from broker.replication.cold_reading import ColdReading
from common.checksum import crc32c
from object_store.store import FileRange, ObjectStore
from tests.broker.replication_lab import CLUSTER_ID, NOW_MS, LabBroker
from tests.tiering.tiered_log import GatedStore
from tiering.bucket.keys import TierRoot
from tiering.bucket.segment import (
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    Section,
    SegmentId,
    SegmentState,
    TieredSegment,
)
from tiering.reading.chunk_cache import CacheLimits
from tiering.reading.downloads import DownloadLimits
from tiering.reading.prefetch import PrefetchLimits
from tiering.reading.remote_index import IndexLimits
from tiering.reading.remote_reader import RemoteReader, RemoteReadLimits
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.tier_records import PartitionRecord, encode_segment, encode_value

CHUNK = 4_096
LIMITS = RemoteReadLimits(
    DownloadLimits(4, 1 << 20),
    CacheLimits(1 << 20, 16, 0),
    IndexLimits(1 << 20, CHUNK, 5.0),
    PrefetchLimits(2 * CHUNK, 64 * CHUNK, CHUNK),
)


class LabTier:
    """One broker's tier."""

    def __init__(self, broker: LabBroker, store: ObjectStore | None = None, limits: RemoteReadLimits = LIMITS) -> None:
        """`store` instead of `self.store`, which is in memory and does as it is told."""
        self.broker = broker
        self.store = GatedStore()
        self.objects: ObjectStore = store or self.store
        self.root = TierRoot(CLUSTER_ID)
        self.tiers: dict[Partition, PartitionTier] = {}
        self.claimed = True
        self.remote = RemoteReader(self.objects, broker.machinery.ports.disk, limits)
        self.set_wait(300)

    async def __aenter__(self) -> LabTier:
        await self.remote.open()
        self.broker.plane.fetch.reader.read_tier_through(ColdReading(self, self.root, self.remote))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.store.gate.set()
        await self.remote.stop()

    def set_wait(self, wait_ms: int) -> None:
        """How long a fetch waits for the store at most."""
        self.wait_ms = wait_ms
        self.broker.plane.fetch.wait_for_tier(wait_ms)

    def view(self, partition: Partition) -> PartitionTier | None:
        return self.tiers.get(partition) if self.claimed else None

    async def forget_chunks(self) -> None:
        """As if everything had been read out by others meanwhile."""
        await self.remote.cache.forget_all()

    def roll(self, partition: Partition) -> None:
        partition.log.roll(NOW_MS)

    async def copy(self, partition: Partition, keep: int = 1) -> PartitionTier:
        """Copy all closed segments, then drop all local ones but the last `keep`."""
        log = partition.log
        tier = self.tiers.setdefault(partition, PartitionTier(partition.topic_id, partition.index))
        tier.replay_partition(
            encode_value(PartitionRecord(partition.topic, "", 0, 0, 0, log_start_offset=log.log_start_offset))
        )
        while (closed := log.closed_segment_at(tier.tier_end_offset)) is not None:
            reader = log.read_closed(closed)
            for _ in reader.steps():
                pass
            contents = reader.contents
            body: list[bytes | FileRange] = [FileRange(reader.file, closed.position, closed.size)]
            size, sections = closed.size, {}
            for name, data in (
                (OFFSET_INDEX, contents.offset_index),
                (TIME_INDEX, contents.time_index),
                (TRANSACTION_INDEX, contents.transaction_index),
            ):
                if data or name != TRANSACTION_INDEX:
                    sections[name] = Section(size, len(data), crc32c(data))
                    body.append(data)
                    size += len(data)
            segment = TieredSegment(
                uuid=f"{(partition.index << 64) + closed.base_offset + 1:032x}",
                base_offset=closed.base_offset,
                end_offset=closed.end_offset,
                max_timestamp=contents.max_timestamp,
                log_bytes=closed.size,
                object_bytes=size,
                log_crc32c=contents.log_crc32c,
                sections=sections,
                epochs=closed.epochs,
                state=SegmentState.COPY_FINISHED,
                broker_id=0,
                leader_epoch=0,
                changed_ms=0,
                records=contents.records,
            )
            await self.objects.put(self.key(tier, segment.id), body)
            reader.close()
            tier.replay_segment(segment.id, encode_segment(segment, 0))
        partition.tier_reaches(tier.tier_end_offset)
        log.update_config(replace(log.config, remote_storage_enable=True, local_retention_bytes=0))
        if len(log.segments) > keep:
            bound = min(tier.tier_end_offset, log.segments[-keep].base_offset)
            await log.flush_closed()
            log.delete_old_segments(NOW_MS, partition.high_watermark, bound)
        return tier

    def key(self, tier: PartitionTier, segment: SegmentId) -> str:
        return self.root.segment_key(tier.path, segment)
