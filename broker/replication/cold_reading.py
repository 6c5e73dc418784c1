"""Reads below the local log of a partition that this broker leads, from the tier.

Nothing blocks here: if data is not on this disk, the read returns a ticket, and the fetch or look-up retries when the
ticket is settled. Only leaders serve the tier, and only after the tier's shard has answered their claim.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

from broker.partitions.partition import Partition
from common.errors import ErrorCode, ProtocolError
from storage.segments.region import Region
from tiering.bucket.keys import SegmentKey, TierRoot
from tiering.bucket.segment import SegmentId, TieredSegment
from tiering.reading.downloads import Ticket
from tiering.reading.remote_index import DamagedObject, RemoteSegment
from tiering.reading.remote_reader import RemoteReader
from tiering.reading.remote_times import TimedRecord, first_at_or_after, latest
from tiering.shard.lineage import fits_from
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.tier_shard import PartitionId

logger = logging.getLogger(__name__)

LOOK_UPS = 0  # reader id of look-ups by time


class TierViews(Protocol):
    """Returns the tier's state of the partitions that this broker leads."""

    def view(self, partition: Partition) -> PartitionTier | None:
        """None until the claim is answered."""
        ...


class ColdRead(NamedTuple):
    """`region`: None if it did not fit. `aborted`: as in `FetchedRow`, None unless requested."""

    region: Region | None
    aborted: bytes | bytearray | None


class Damage(NamedTuple):
    """A segment that could not be read, and why."""

    segment: SegmentId
    reason: str


class ReadableTier:
    """One partition's tier at one moment, for one read. Implements `tiering.reading.remote_reader.TierView`."""

    __slots__ = ("_log_start", "_partition", "_root", "name", "tier")

    def __init__(self, root: TierRoot, partition: Partition, tier: PartitionTier) -> None:
        self._root = root
        self._partition = partition
        self._log_start = partition.log.log_start_offset
        self.tier = tier
        self.name = f"{partition.topic}-{partition.index}"

    def find(self, offset: int) -> RemoteSegment | None:
        """Raises OFFSET_OUT_OF_RANGE below the tier's log start, KAFKA_STORAGE_ERROR for a segment of another
        lineage."""
        if offset < self.tier.log_start_offset:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        segment = self.tier.find(offset)
        return None if segment is None else self.remote(segment)

    def find_aborting(self, offset: int) -> RemoteSegment | None:
        """Raises as `find`."""
        if offset < self.tier.log_start_offset:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        segment = self.tier.find_aborting(offset)
        return None if segment is None else self.remote(segment)

    def remote(self, segment: TieredSegment) -> RemoteSegment:
        key = self._root.segment_key(self.tier.path, segment.id)
        if not self._is_ours(segment):
            logger.error("a tiered segment is not of this partition's history", extra={"key": key})
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR)
        return RemoteSegment(key, segment)

    def _is_ours(self, segment: TieredSegment) -> bool:
        """Compares epochs from the log start on, because this broker has forgotten those below."""
        low = max(segment.base_offset, self._log_start)
        if low >= segment.end_offset:
            return True
        known = self._partition.log.leader_epochs.entries()
        return fits_from(segment.epochs, segment.end_offset, known, low)


class ColdReading:
    """One per broker with a tier."""

    def __init__(self, views: TierViews, root: TierRoot, remote: RemoteReader) -> None:
        self._views = views
        self._root = root
        self.remote = remote

    def tier(self, partition: Partition) -> ReadableTier:
        """Raises ProtocolError(OFFSET_NOT_AVAILABLE) until the tier's shard has answered this leader's claim."""
        tier = self._views.view(partition)
        if tier is None:
            raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE, "the tier has not been asked yet")
        return ReadableTier(self._root, partition, tier)

    def damage(self) -> dict[PartitionId, list[Damage]]:
        """Unreadable segments by partition, from the latest attempt at each, the newest failure last."""
        found: dict[PartitionId, list[Damage]] = {}
        for error in self.remote.downloads.errors():
            parsed = self._root.parse_key(error.key) if isinstance(error, DamagedObject) else None
            if isinstance(error, DamagedObject) and isinstance(parsed, SegmentKey):
                damage = Damage(parsed.segment, f"{error.part} of {error.key}: {error.reason}")
                found.setdefault((parsed.path.topic_id, parsed.path.partition), []).append(damage)
        return found

    def read(
        self, partition: Partition, offset: int, bytes_max: int, reader: int, *, stable: bool, at_least_one: bool
    ) -> ColdRead | Ticket:
        """Batches from `offset` on, which is below the local log, or a ticket to wait for.

        With `stable`, none from the last stable offset on, which lies below the local log where a leader begins at the
        tier's end within a transaction; and also the aborted transactions that overlap them. The caller releases the
        region. Raises ProtocolError: KAFKA_STORAGE_ERROR, OFFSET_NOT_AVAILABLE, OFFSET_OUT_OF_RANGE.
        """
        tier = self.tier(partition)
        until = partition.last_stable_offset if stable else partition.high_watermark
        found = self.remote.read(tier, offset, bytes_max, reader, until=until, at_least_one=at_least_one)
        if isinstance(found, Ticket):
            return found
        region, next_offset = found
        if region is None and next_offset > offset:
            return self._read_local(partition, next_offset, bytes_max, stable=stable, at_least_one=at_least_one)
        if region is None or not stable:
            return ColdRead(region, b"" if stable else None)
        try:
            aborted = self._aborted(tier, partition, offset, next_offset, reader)
        except BaseException:
            region.release()
            raise
        if isinstance(aborted, Ticket):
            region.release()
            return aborted
        return ColdRead(region, aborted)

    def _read_local(
        self, partition: Partition, offset: int, bytes_max: int, *, stable: bool, at_least_one: bool
    ) -> ColdRead:
        """Read from the local log, because the tier holds nothing more between the reader's offset and `offset`."""
        log = partition.log
        if offset < log.local_log_start_offset:
            extra = {"partition": str(partition), "offset": offset, "local_start": log.local_log_start_offset}
            logger.error("neither the tier nor the disk holds an offset", extra=extra)
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR)
        region = partition.read_committed(
            offset, bytes_max, stable=stable, at_least_one=at_least_one, only_in_memory=True
        )
        if region is None or not stable:
            return ColdRead(region, b"" if stable else None)
        try:
            return ColdRead(*log.aborted_in(offset, region, partition.last_stable_offset))
        except BaseException:
            region.release()
            raise

    def _aborted(
        self, tier: ReadableTier, partition: Partition, start: int, end: int, reader: int
    ) -> bytearray | Ticket:
        """Aborted transactions from the tier's indexes and, if transactions may end after the tier, from local ones."""
        found = self.remote.aborted(tier, start, end, reader)
        if isinstance(found, Ticket) or found.complete:
            return found if isinstance(found, Ticket) else found.rows
        log = partition.log
        return found.rows + log.aborted_rows(max(log.local_log_start_offset, found.until), end)

    # look-ups by time --------------------------------------------------------------------------------------

    async def find_timestamp(self, partition: Partition, timestamp: int, low: int, high: int) -> TimedRecord | None:
        """The first record at or after `timestamp` (ms), from offset `low` on, in segments that begin below `high`.

        Raises ProtocolError as `read`. The caller must bound it with a timeout.
        """
        tier = self.tier(partition)
        at = low
        while (segment := tier.tier.find_timestamp(timestamp, at)) is not None and segment.base_offset < high:
            found = await first_at_or_after(self.remote, tier.remote(segment), timestamp, low, LOOK_UPS)
            if found is not None:
                return found
            at = segment.end_offset
        return None

    async def find_max_timestamp(self, partition: Partition, least: int) -> TimedRecord | None:
        """The tier's first record with its largest timestamp, if that is at least `least` (ms)."""
        tier = self.tier(partition)
        best: TimedRecord | None = None
        least = max(least, 0)
        for segment in list(tier.tier.by_max_timestamp()):
            if segment.max_timestamp < least:
                break
            low = max(segment.base_offset, partition.log.log_start_offset)
            # Of equal timestamps the lowest offset wins; the best so far may be from a later segment.
            needed = least + 1 if best is not None and best.offset < low else least
            if segment.max_timestamp < needed:
                continue
            remote, greatest = tier.remote(segment), segment.max_timestamp
            found = await first_at_or_after(self.remote, remote, greatest, low, LOOK_UPS)
            if found is not None:
                return found
            found = await latest(self.remote, remote, needed, low, LOOK_UPS)
            if found is not None:
                best, least = found, found.timestamp
        return best
