"""Making a leader's log fit what the tier says once its claim is answered, and where a log begins that the tier holds.

The tier's log start is the truth for all. A leader that was elected from the ISR has everything that is in the tier.
One that was not may end below the tier's end, or hold there what was never committed: it has lost what was committed,
and begins where the tier ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from broker.partitions.partition import Partition
from broker.partitions.ports import Following
from broker.tier.led import LedPartition, NotNow
from broker.tier.services import TierCalls
from common.checksum import crc32c
from object_store.errors import StoreError
from object_store.store import ObjectStore
from storage.audit.audit_trail import audited
from storage.log import tier_start
from storage.log.leader_epochs import LeaderEpochCache
from storage.producers.producer_snapshot import Snapshot, decode_snapshot, encode_snapshot
from tiering.bucket.keys import TierRoot
from tiering.bucket.segment import LEADER_EPOCHS, PRODUCER_SNAPSHOT, TieredSegment
from tiering.shard.lineage import fits_from
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import MoveLogStart

logger = logging.getLogger(__name__)


class TierEnd(NamedTuple):
    """What a log that begins at `offset` must know of all that lies before."""

    offset: int
    log_start_offset: int
    epochs: list[tuple[int, int]]
    producer_snapshot: bytes


async def read_end(store: ObjectStore, root: TierRoot, tier: PartitionTier) -> TierEnd:
    """Where the tier ends. Raises NotNow when the store does not answer or what it answers is damaged."""
    segment = tier.last()
    if segment is None:  # all of it was deleted: the log starts where the tier ended
        return TierEnd(tier.tier_end_offset, tier.tier_end_offset, [], encode_snapshot(Snapshot([], [])))
    if segment.end_offset != tier.tier_end_offset:
        raise NotNow(f"the tier's last segment does not end at {tier.tier_end_offset}")
    key = root.segment_key(tier.path, segment.id)
    snapshot = encode_snapshot(Snapshot([], []))
    if PRODUCER_SNAPSHOT in segment.sections:  # a restored topic's has none: under a new name producers start over
        snapshot = await _section(store, key, segment, PRODUCER_SNAPSHOT)
    epochs = await _section(store, key, segment, LEADER_EPOCHS)
    try:
        decode_snapshot(snapshot)
        entries = LeaderEpochCache.decode(epochs).entries()
    except ValueError as error:
        raise NotNow(f"a damaged section of {key}: {error}") from error
    return TierEnd(segment.end_offset, tier.log_start_offset, entries, snapshot)


async def _section(store: ObjectStore, key: str, segment: TieredSegment, name: str) -> bytes:
    section = segment.sections.get(name)
    if section is None:
        raise NotNow(f"{key} has no section {name}")
    try:
        data = await store.get(key, section.position, section.length)
    except StoreError as error:
        raise NotNow(str(error)) from error
    if len(data) != section.length or crc32c(data) != section.crc32c:
        raise NotNow(f"the section {name} of {key} is damaged")
    return data


async def begin_at_end(
    partition: Partition, end: TierEnd, still: Callable[[], bool], following: Following | None
) -> None:
    """Start over where the tier ends, unless `still` says that this is not wanted any more. Raises ProtocolError.

    No fetch tells a leader of the new place, or appends there, before it is durable, under any later leader; and an
    answer to the old place, which may be on its way, counts no more. So cancelling takes until no thread writes.
    """

    def begin() -> None:
        if not still():
            raise NotNow("the replica's role has changed")
        partition.start_from_tier(*end)

    if following is not None:
        following.pause(partition)
    try:
        await tier_start.begin(partition.log, begin)
    finally:
        if following is not None:
            following.resume(partition)


async def reconcile(led: LedPartition, calls: TierCalls) -> None:
    """Log start, leader epochs and high watermark of a leader whose log reaches the tier's end. Raises Fenced, NotNow,
    ProtocolError."""
    partition, log, tier = led.partition, led.partition.log, led.known
    _restore_epochs(partition, tier)
    first = next(tier.segments(), None)
    available = log.local_log_start_offset
    if first is not None:
        available = min(available, max(first.base_offset, tier.log_start_offset))
    # What neither the tier nor this disk holds is not served: history from before the topic was tiered.
    start = max(tier.log_start_offset, log.log_start_offset, available)
    if start > tier.log_start_offset:
        await led.change(
            calls, lambda view: MoveLogStart(led.leader_epoch, led.broker_epoch, start, "claim") if start else None
        )
    await audited(lambda: log.advance_log_start(min(start, log.log_end_offset), "the tier's log start"))
    led.announce_end()
    led.has_reconciled()


def _restore_epochs(partition: Partition, tier: PartitionTier) -> None:
    """A log that lost the checkpoint of its epochs knows those of its own batches alone."""
    log = partition.log
    first = log.leader_epochs.entries()
    if first and first[0][1] <= max(tier.log_start_offset, log.log_start_offset):
        return
    chain: dict[int, int] = {}
    for segment in tier.segments():
        for epoch, start_offset in segment.epochs:
            chain.setdefault(epoch, start_offset)
    if log.leader_epochs.restore(chain.items()):
        logger.info("leader epochs were restored from the tier", extra={"partition": repr(partition)})


def lost_committed(led: LedPartition) -> bool:
    """Whether this leader has lost records that were acknowledged: its log ends before the tier, or, where it was
    elected though it was not in sync, it went another way than the tier did."""
    log, tier = led.partition.log, led.known
    if log.log_end_offset < tier.tier_end_offset:
        return True
    last, known = tier.last(), log.leader_epochs.entries()
    if not led.held_back or last is None or not known:
        return False
    low = max(last.base_offset, tier.log_start_offset, log.log_start_offset, known[0][1])
    return low < last.end_offset and not fits_from(last.epochs, last.end_offset, known, low)
