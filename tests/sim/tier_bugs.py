"""Mistakes of the tier to plant into the product; see `bugs.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.coordination.tier.client import TierClient
from broker.partitions.replica import Replica, Role
from broker.replication import cold_reading
from broker.replication.fetch_reading import FetchReader
from broker.tier import deletion, reconciling, service
from broker.tier.led import LedPartition
from broker.tier.service import TierService
from object_store.store import Body, ObjectInfo
from storage.disk.log_flusher import FlushDepth, LogFlusher
from storage.log import tier_start
from storage.log.log_config import LogConfig
from storage.log.log_shortening import LogShortening
from storage.producers.producer_snapshot import Snapshot, encode_snapshot
from storage.recovery.log_scan import LogScan
from tests.object_store.memory_store import MemoryStore
from tests.sim.bucket import BucketClient
from tiering.bucket.keys import MANIFEST
from tiering.bucket.segment import TieredSegment
from tiering.manifests import manifest, manifest_writer
from tiering.shard import lineage, swap_decision, tier_shard
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import Claim, FinishCopy, Refused, StartCopy, Swap

Replace = Callable[[Any, str, object], None]
MANIFESTS = f"/{MANIFEST}/"


def rebuild_without_abort_markers(replace: Replace) -> None:
    """Transactions whose end was on the old brokers alone stay open for ever."""

    async def forget(*_: Any, **__: Any) -> None: ...

    replace(service, "end_undecided", forget)


def delete_without_claim(replace: Replace) -> None:
    """Only the first leader of all claims; later ones take the state as it is, and shards let them delete."""
    right, check = TierClient.claim, tier_shard._check_claim

    async def claim(
        self: TierClient, topic_id: bytes, partition: int, claim: Claim, timeout_s: float | None = None
    ) -> PartitionTier | Refused:
        known = await self.describe(topic_id, partition)
        await asyncio.sleep(0.1)  # a leader that is refused again and again claims each time: most of the run otherwise
        return known if known.is_claimed else await right(self, topic_id, partition, claim, timeout_s)

    def check_claim(tier: PartitionTier, request: Any) -> None:
        if isinstance(request, (StartCopy, FinishCopy)):
            check(tier, request)

    replace(TierClient, "claim", claim)
    replace(tier_shard, "_check_claim", check_claim)


def ignore_lineage(replace: Replace) -> None:
    """A segment is copied behind any other, and read whatever its leader epochs."""
    for module in (tier_shard, lineage, reconciling, cold_reading):
        for name in ("follows", "fits", "fits_from"):
            if name in vars(module):
                replace(module, name, lambda *chains: True)


def delete_local_before_copied(replace: Replace) -> None:
    """Local retention stops at the high watermark, not at the tier's end."""
    right = LogShortening.drop_local_segments

    def drop(log: Any, now_ms: int, high_watermark: int, tier_end_offset: int) -> int:
        return right(log, now_ms, high_watermark, high_watermark)

    replace(LogShortening, "drop_local_segments", drop)


def overwrite_manifests(replace: Replace) -> None:
    """A deposed leader goes on publishing, and the store takes a version that is there already; it is fit otherwise."""
    right = MemoryStore.put

    async def put(self: MemoryStore, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        return await right(self, key, body, create_only=create_only and MANIFESTS not in key)

    async def bucket_put(self: BucketClient, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        return await bucket_right(self, key, body, create_only=create_only and MANIFESTS not in key)

    bucket_right = BucketClient.put
    replace(MemoryStore, "put", put)
    replace(BucketClient, "put", bucket_put)
    replace(manifest_writer.ManifestWriter, "_check", lambda self, head: None)


def delete_objects_before_manifest(replace: Replace) -> None:
    """Objects go as soon as their deletion has begun."""

    def due(self: deletion.Deleter, led: Any) -> list[Any]:
        return list(led.known.deleting())

    replace(deletion.Deleter, "_due", due)


def begin_without_producers(replace: Replace) -> None:
    """A replica that begins at the tier's end does not take over what is known of producers there."""
    right = tier_start.read_producers

    def read_producers(config: LogConfig, _: bytes, offset: int, now_ms: int) -> tier_start.TierProducers:
        return right(config, encode_snapshot(Snapshot([], [])), offset, now_ms)

    replace(tier_start, "read_producers", read_producers)


def swap_inputs_that_changed(replace: Replace) -> None:
    """A job's segments take the place of others that are not the partition's any more."""

    def inputs(tier: PartitionTier, request: Swap) -> list[TieredSegment]:
        return [known for wanted in request.inputs if (known := tier.get(wanted)) is not None]

    replace(swap_decision, "_inputs", inputs)


def delete_objects_with_the_swap(replace: Replace) -> None:
    """What a swap has replaced goes at once, though the manifest names it."""
    right = TierService.swapped

    async def swapped(self: TierService, led: LedPartition) -> None:
        await right(self, led)
        services, tier = self._services, led.known
        await services.store.delete([services.root.segment_key(tier.path, one.id) for one in tier.deleting()])

    replace(TierService, "swapped", swapped)


def deny_the_log_to_old_readers(replace: Replace) -> None:
    """A follower tells whoever takes it for the leader what is in range of its own disk."""
    replace(FetchReader, "_may_be_sent", lambda self, partition, call: True)
    replace(FetchReader, "_is_doubtful", lambda self, position, partition, call, client: False)


def flush_beside_the_flusher(replace: Replace) -> None:
    """A copy has its segment flushed in a thread of its own, whatever the directory's flusher does to the log."""

    async def flush(self: LogFlusher, log: Any, depth: FlushDepth) -> bool:
        job = log.plan_flush(depth)
        if job is not None:
            await asyncio.to_thread(job.run, self._disk, log, self._health.operations)
            log.flush_finished(job)
        return job is not None

    replace(LogFlusher, "flush", flush)


def take_a_loss_for_compaction(replace: Replace) -> None:
    """After a loss of power any gap between two segments of a compacted log, as the tier's state is, counts as one that
    compaction left."""
    replace(LogScan, "_is_hole", lambda self, segment, end_offset: segment.base_offset < end_offset)


def keep_the_old_tier_end(replace: Replace) -> None:
    """A follower goes by where the tier ended before it was emptied."""
    right = Replica.configure

    def configure(self: Replica, config: Any) -> None:
        known = self.tier_end_offset
        right(self, config)
        if self.role is Role.FOLLOWER:
            self.tier_end_offset = known

    replace(Replica, "configure", configure)


SWAP_BUGS = ("swap_inputs_that_changed", "delete_objects_with_the_swap")
TIER_BUGS: dict[str, Callable[[Replace], None]] = {
    plant.__name__: plant
    for plant in (
        delete_without_claim,
        ignore_lineage,
        delete_local_before_copied,
        overwrite_manifests,
        delete_objects_before_manifest,
        begin_without_producers,
        deny_the_log_to_old_readers,
        swap_inputs_that_changed,
        delete_objects_with_the_swap,
        flush_beside_the_flusher,
        take_a_loss_for_compaction,
        keep_the_old_tier_end,
    )
}


def leave_a_segment_out_of_each_page(replace: Replace) -> None:
    """The newest one of a page is in no manifest then."""
    encode = manifest.encode_page
    replace(manifest, "encode_page", lambda segments: encode(segments[:-1]))


PAGE_BUGS: dict[str, Callable[[Replace], None]] = {bug.__name__: bug for bug in (leave_a_segment_out_of_each_page,)}
"""Only runs with pages can find these."""

UNDECIDED_BUGS: dict[str, Callable[[Replace], None]] = {"rebuild_without_abort_markers": rebuild_without_abort_markers}
"""Found in a rebuilt cluster by `tests.sim.test_sim_rebuild`, and by `tests.broker.test_broker_tier_undecided`."""
