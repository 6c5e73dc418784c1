"""Copying of closed segments to the object store, one after the other from the tier's end on.

The steps, after each of which the broker may crash: the segment is fsynced; COPY_STARTED is committed; the object is
written, under a key that no other leader uses; COPY_FINISHED is committed. Only then may local retention delete the
segment. A failed upload is retried as long as this broker leads: the object store may be down for hours without a new
entry in the tier's state or a second read of the segment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import Struct

from broker.tier.config import TierConfig
from broker.tier.led import Fenced, LedPartition, NotNow, Refusal, check_owned
from broker.tier.services import Guard, TierCalls
from common.checksum import crc32c
from common.identifiers import random_uuid
from common.ports import Ports
from common.token_bucket import TokenBucket
from object_store.errors import StoreError
from object_store.store import FileRange, ObjectStore
from storage.disk.log_flusher import FlushDepth
from storage.log.closed_segments import ClosedSegment, Contents, SegmentReader
from tiering.bucket.keys import TierRoot
from tiering.bucket.segment import (
    LEADER_EPOCHS,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    Section,
    SegmentState,
    TieredSegment,
)
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import FinishCopy, StartCopy, StartDelete

logger = logging.getLogger(__name__)

FINISHES_MAX = 10
BURST_S = 0.5  # of `copy_bytes_per_second` that an idle broker may save up


class CopyCounts(Struct):
    """Counts since the broker started. `failures`: failed attempts at a step of a copy."""

    segments: int = 0
    bytes: int = 0
    failures: int = 0
    refused_since_ms: int = 0  # wall clock; since when the store has rejected writes, 0 while it accepts them

    def copied(self, size: int) -> None:
        self.segments += 1
        self.bytes += size

    def failed(self) -> None:
        self.failures += 1

    def stored(self) -> None:
        self.refused_since_ms = 0

    def refused(self, now_ms: int) -> None:
        self.refused_since_ms = self.refused_since_ms or now_ms


class Overtaken(NotNow):
    """The segment need not be copied any more: normal, not a failure."""


class _Object(NamedTuple):
    body: list[bytes | FileRange]
    sections: dict[str, Section]
    size: int


def next_segment(led: LedPartition, tier: PartitionTier) -> ClosedSegment | None:
    """The next segment to copy: closed, committed, with all its transactions ended. Raises ProtocolError, and NotNow if
    the disk lacks bytes after the tier's end."""
    partition, log = led.partition, led.partition.log
    tier_end = tier.tier_end_offset
    if log.active.base_offset <= tier_end:
        return None
    closed = log.closed_segment_at(tier_end)
    while closed is not None and closed.end_offset <= tier.log_start_offset:  # local retention has not deleted it yet
        closed = log.closed_segment_at(closed.end_offset)
    if closed is None or closed.end_offset > min(partition.high_watermark, partition.last_stable_offset):
        return None
    if tier_end < closed.base_offset and tier.log_start_offset < closed.base_offset:
        raise NotNow(f"the tier ends at {tier_end} and this disk begins at {closed.base_offset}")
    return closed


class Copier:
    """Shared by all partitions that a broker leads. Each call is its own task, at most `copies_max` at a time."""

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        config: TierConfig,
        store: ObjectStore,
        root: TierRoot,
        calls: TierCalls,
        guard: Guard,
    ) -> None:
        self._ports = ports
        self._node_id = node_id
        self._config = config
        self._store = store
        self._root = root
        self._calls = calls
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        rate = config.copy_bytes_per_second
        self._bandwidth = TokenBucket(rate, rate * BURST_S, self._loop.time()) if rate > 0 else None
        self.counts = CopyCounts()

    async def copy_next(self, led: LedPartition) -> bool:
        """Copy one segment; False if there is none to copy now. Raises Fenced, NotNow, ProtocolError (this disk)."""
        try:
            return await self._copy_next(led)
        except (Fenced, Overtaken):
            raise
        except Exception:
            self.count_failure(led)
            raise

    def count_failure(self, led: LedPartition) -> None:
        """Count a failed copy, unless this broker has lost the leadership or its claim."""
        if led.is_current and led.view is not None:
            self.counts.failed()

    async def _copy_next(self, led: LedPartition) -> bool:
        log = led.partition.log
        await self._drop_abandoned(led)
        closed = next_segment(led, led.known)
        if closed is None:
            return False
        generation = log.generation
        log.begin_copy(closed)  # before any wait: positions in `closed` are those of the file as it is now
        try:
            await check_owned(self._guard)
            await log.flush(closed.end_offset, FlushDepth.CLOSED)
            await self._copy_read(led, closed, generation)
        except FileNotFoundError as error:
            gone = "the segment has gone"
            raise (NotNow if closed.segment in log.segments else Overtaken)(gone) from error
        finally:
            log.end_copy(closed)
        return True

    async def _copy_read(self, led: LedPartition, closed: ClosedSegment, generation: int) -> None:
        """Read the segment and copy it, unless the log has been cut since it had this generation."""
        log = led.partition.log
        reader = log.read_closed(closed)
        try:
            await self._read(reader.steps())
            if log.generation != generation:
                raise Overtaken("the log was cut")
            await self._copy(led, closed, reader)
        finally:
            reader.close()

    async def _read(self, steps: Iterator[int]) -> None:
        """Read in a thread, step by step, because each step holds the interpreter only briefly."""
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(next, steps, None))
            try:
                done = await asyncio.shield(step)
            except asyncio.CancelledError:
                await asyncio.wait((step,))  # its file must not be closed meanwhile
                raise
            if done is None:
                return

    async def _copy(self, led: LedPartition, closed: ClosedSegment, reader: SegmentReader) -> None:
        object_ = _object(closed, reader)
        segment = self._described(led, closed, reader.contents, object_)
        started = msgspec.structs.replace(segment, state=SegmentState.COPY_STARTED)
        await led.change(self._calls, lambda _: StartCopy(*_epochs(led), started))
        key = self._root.segment_key(led.known.path, segment.id)
        await self._upload(led, key, object_, segment)
        await self._finish(led, FinishCopy(*_epochs(led), segment))
        self.counts.copied(object_.size)
        logger.info(
            "a segment is in the tier",
            extra={"partition": repr(led), "base_offset": closed.base_offset, "end_offset": closed.end_offset,
                   "bytes": object_.size},
        )  # fmt: skip

    async def _finish(self, led: LedPartition, request: FinishCopy) -> None:
        """Retry this request for a while rather than copy again what is in the store: the shard applies it once."""
        for failures in range(1, FINISHES_MAX):
            try:
                await led.change(self._calls, lambda _: request)
                return
            except Refusal:
                raise
            except NotNow as error:
                await self._pause(led, failures, str(error))
        await led.change(self._calls, lambda _: request)

    async def _upload(self, led: LedPartition, key: str, object_: _Object, segment: TieredSegment) -> None:
        """Upload until the store has it. The key stays the same, because a partly written object is never visible."""
        failures = 0
        while True:
            await asyncio.sleep(self._reserve(object_.size))
            if needless := _needless(led, segment):
                await led.change(self._calls, lambda _: StartDelete(*_epochs(led), [segment.id]))
                raise Overtaken(needless)
            try:
                await self._store.put(key, object_.body)
                self.counts.stored()
                return
            except StoreError as error:
                failures += 1
                self.counts.refused(self._ports.clock.wall_ms())
                await self._pause(led, failures, str(error))

    def _reserve(self, size: int) -> float:
        """Seconds to wait before these bytes may be copied, after all bytes reserved earlier."""
        if self._bandwidth is None:
            return 0.0
        self._bandwidth.spend(size, self._loop.time())
        return self._bandwidth.wait_s()

    async def _pause(self, led: LedPartition, failures: int, why: str) -> None:
        """Wait between two attempts. Raises Fenced if this broker no longer leads."""
        self.counts.failed()
        led.waits(why)
        if failures & (failures - 1) == 0:  # the first, second, fourth, …
            logger.warning("a copy waits", extra={"partition": repr(led), "failures": failures, "cause": why})
        await asyncio.sleep(self._config.backoff.jittered_s(failures, self._ports.random))
        if not led.is_current:
            raise Fenced

    async def _drop_abandoned(self, led: LedPartition) -> None:
        """Delete copies of this claim that no task works on any more."""
        while left := [segment.id for segment in led.known.copying()]:
            await led.change(self._calls, lambda _: StartDelete(*_epochs(led), left))

    def _described(
        self, led: LedPartition, closed: ClosedSegment, contents: Contents, object_: _Object
    ) -> TieredSegment:
        return TieredSegment(
            uuid=random_uuid(self._ports.random).hex(),
            base_offset=closed.base_offset,
            end_offset=closed.end_offset,
            max_timestamp=contents.max_timestamp,
            log_bytes=closed.size,
            object_bytes=object_.size,
            log_crc32c=contents.log_crc32c,
            sections=object_.sections,
            epochs=closed.epochs,
            state=SegmentState.COPY_FINISHED,
            broker_id=self._node_id,
            leader_epoch=led.leader_epoch,
            changed_ms=self._ports.clock.wall_ms(),
            has_transactions=contents.has_transactions,
            records=contents.records,
        )


def _needless(led: LedPartition, segment: TieredSegment) -> str:
    """Why the upload is no longer needed; empty if it is."""
    if led.known.log_start_offset >= segment.end_offset:
        return "the segment lies below the log's start by now"
    if led.is_outdated:
        return "tiering was disabled"
    return "" if led.copies else "copying was disabled"


def _epochs(led: LedPartition) -> tuple[int, int]:
    return led.leader_epoch, led.broker_epoch


def _object(closed: ClosedSegment, reader: SegmentReader) -> _Object:
    """The log's bytes, then the sections; the transaction index only if it has entries."""
    contents = reader.contents
    body: list[bytes | FileRange] = [FileRange(reader.file, closed.position, closed.size)]
    sections: dict[str, Section] = {}
    size = closed.size
    for name, data in (
        (OFFSET_INDEX, contents.offset_index),
        (TIME_INDEX, contents.time_index),
        (TRANSACTION_INDEX, contents.transaction_index),
        (PRODUCER_SNAPSHOT, contents.producer_snapshot),
        (LEADER_EPOCHS, contents.leader_epochs),
    ):
        if data or name != TRANSACTION_INDEX:
            sections[name] = Section(size, len(data), crc32c(data))
            body.append(data)
            size += len(data)
    return _Object(body, sections, size)
