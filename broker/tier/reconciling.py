"""Makes a leader's log match the tier after its claim, and starts logs at the tier's end.

The tier's log start is authoritative. A leader elected from the ISR has everything that is in the tier. Any other
leader may end below the tier's end, or hold uncommitted records there: it has lost committed records, and starts over
at the tier's end.
"""

from __future__ import annotations

import asyncio
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
from storage.producers.producer_snapshot import NO_OFFSET, Snapshot, decode_snapshot, encode_snapshot
from tiering.bucket.keys import TierRoot
from tiering.bucket.segment import (
    LEADER_EPOCHS,
    OPEN_TRANSACTIONS,
    PRODUCER_SNAPSHOT,
    TieredSegment,
    producers_section,
)
from tiering.shard.lineage import fits_from
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import MoveLogStart

logger = logging.getLogger(__name__)


class TierEnd(NamedTuple):
    """What a log that starts at `offset` needs to know of everything before."""

    offset: int
    log_start_offset: int
    epochs: list[tuple[int, int]]
    producer_snapshot: bytes


async def read_end(store: ObjectStore, root: TierRoot, tier: PartitionTier) -> TierEnd:
    """The tier's end. Raises NotNow if the store does not answer or its data is damaged."""
    segment = tier.last()
    if segment is None:  # everything was deleted: the log starts at the tier's end
        return TierEnd(tier.tier_end_offset, tier.tier_end_offset, [], encode_snapshot(Snapshot([], [])))
    if segment.end_offset != tier.tier_end_offset:
        raise NotNow(f"the tier's last segment does not end at {tier.tier_end_offset}")
    key = root.segment_key(tier.path, segment.id)
    snapshot, section = encode_snapshot(Snapshot([], [])), producers_section(segment)
    is_restored = section is not None and PRODUCER_SNAPSHOT not in segment.sections
    if section is not None:
        snapshot = await _section(store, key, segment, OPEN_TRANSACTIONS if is_restored else PRODUCER_SNAPSHOT)
    epochs = await _section(store, key, segment, LEADER_EPOCHS)
    try:
        if is_restored:
            snapshot = await asyncio.to_thread(_open_alone, snapshot)
        entries = LeaderEpochCache.decode(epochs).entries()
    except ValueError as error:
        raise NotNow(f"a damaged section of {key}: {error}") from error
    return TierEnd(segment.end_offset, tier.log_start_offset, entries, snapshot)


def _open_alone(snapshot: bytes) -> bytes:
    """In a restored topic producers start over; only their open transactions count."""
    opened = [entry for entry in decode_snapshot(snapshot).entries if entry.transaction_start != NO_OFFSET]
    left = [entry._replace(last_sequence=-1, last_offset=NO_OFFSET, offset_delta=0) for entry in opened]
    return encode_snapshot(Snapshot(left, []))


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
    """Start the log over at the tier's end, unless `still()` is False by then. Raises ProtocolError, NotNow.

    Replication is paused meanwhile: no fetch may acknowledge the new offset, and none may append there, before it is
    durable; and responses to fetches at the old offset are ignored. So a cancelled call ends only when no thread
    writes.
    """

    def begin() -> None:
        if not still():
            raise NotNow("the replica's state has changed")
        partition.start_from_tier(end.offset, end.log_start_offset, end.epochs, producers.states)

    log = partition.log
    given = (log.config, end.producer_snapshot, end.offset, log.context.clock.wall_ms())
    try:
        producers = await asyncio.to_thread(tier_start.read_producers, *given)
    except ValueError as error:
        raise NotNow(f"a damaged snapshot of producers at the tier's end: {error}") from error
    if following is not None:
        following.pause(partition)
    try:
        await tier_start.begin(log, producers.snapshot, begin)
    finally:
        if following is not None:
            following.resume(partition)


async def reconcile(led: LedPartition, calls: TierCalls) -> None:
    """Set log start, leader epochs and high watermark of a leader whose log reaches the tier's end. Raises Fenced,
    NotNow, ProtocolError."""
    partition, log, tier = led.partition, led.partition.log, led.known
    _restore_epochs(partition, tier)
    first = next(tier.segments(), None)
    available = log.local_log_start_offset
    if first is not None:
        available = min(available, max(first.base_offset, tier.log_start_offset))
    # Offsets that neither the tier nor this disk holds are not served: they are from before the topic was tiered.
    start = max(tier.log_start_offset, log.log_start_offset, available)
    if start > tier.log_start_offset:
        await led.change(
            calls, lambda view: MoveLogStart(led.leader_epoch, led.broker_epoch, start, "claim") if start else None
        )
    await audited(lambda: log.advance_log_start(min(start, log.log_end_offset), "the tier's log start"))
    led.announce_end()
    led.has_reconciled()


def _restore_epochs(partition: Partition, tier: PartitionTier) -> None:
    """Restore epochs from the tier: a log without its epoch checkpoint knows only the epochs of its own batches."""
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
    """Whether this leader has lost acknowledged records: its log ends before the tier, or it was elected out of sync
    and its history differs from the tier's."""
    log, tier = led.partition.log, led.known
    if log.log_end_offset < tier.tier_end_offset:
        return True
    last, known = tier.last(), log.leader_epochs.entries()
    if not led.held_back or last is None or not known:
        return False
    low = max(last.base_offset, tier.log_start_offset, log.log_start_offset, known[0][1])
    return low < last.end_offset and not fits_from(last.epochs, last.end_offset, known, low)
