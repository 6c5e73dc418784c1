"""Replays a partition's log into a new shard: a thread reads, slices of the loop decode and apply."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from broker.coordination.partition_access import ByteRegion, CoordinatedPartition
from broker.coordination.shard import ENDING_TURN_COST, Shard, TransactionalShard, transactional
from common.decision import ProducerStamp
from common.errors import ErrorCode, ProtocolError
from common.outlasting import outlast
from common.pacing import SLICE_COST, Pacer, Work
from records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
from records.control import MarkerKind, read_marker
from records.pairs import Pair, read_pairs
from records.record import inflate_records

WRITTEN_POLL_S = 0.01
BATCH_COST = 3
PENDING_COST = 4  # of a pending record
REMOVED_COST = 1  # of a pending record that a tombstone removes ...
REMOVING_AT_ONCE = 25  # ... which may be a hundred for each of so many tombstones
_BATCH = Struct(">qi4xb4xhi30xi")  # of a header: base offset, length, magic, attributes, last offset's delta, count

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Limits of the memory and the steps of one load."""

    chunk_bytes: int = 1 << 20
    inflated_bytes_max: int = 64 << 20
    records_at_once: int = 250


class Stretch(NamedTuple):
    """Progress of a replay: the log continues at `next_offset`. `compressed_at`: position in the chunk of a compressed
    batch that must be inflated next, else -1."""

    next_offset: int
    compressed_at: int
    unreadable: int


def replay_chunk(shard: Shard, data: bytes, at: int, offset: int, until: int, limits: LoadLimits) -> Work[Stretch]:
    """Apply the batches in `data` from `at` on, up to the first that is compressed, incomplete or reaches beyond
    `until`.

    Control batches, and what belongs to transactions, reach only shards that have transactions. Raises
    ProtocolError(CORRUPT_MESSAGE) if the bytes are not a batch.
    """
    with_transactions = transactional(shard)
    is_exact = with_transactions is not None and with_transactions.has_pending  # every batch's offset matters
    pairs: list[Pair] = []
    unreadable, size, cost = 0, len(data), 0
    while size - at >= HEADER_BYTES:
        base_offset, batch_length, magic, attributes, last_offset_delta, left = _BATCH.unpack_from(data, at)
        end = at + batch_length + PREFIX_BYTES
        if magic != MAGIC or end - at < HEADER_BYTES or last_offset_delta < 0:
            raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"no record batch at offset {offset}")
        next_offset = base_offset + last_offset_delta + 1
        if end > size or attributes & COMPRESSION_MASK or next_offset > until:
            break
        in_transaction = attributes & (TRANSACTIONAL | CONTROL) and with_transactions is not None
        if is_exact or in_transaction:
            unreadable += yield from _replay_plain(shard, pairs, cost)
            cost, pairs = 0, []
        if in_transaction and with_transactions is not None:
            unreadable += yield from _replay_transactional(with_transactions, data, at, end - at, limits)
            is_exact = with_transactions.has_pending
        elif not attributes & CONTROL:
            if is_exact and with_transactions is not None:
                with_transactions.begin_batch(base_offset)
            position = at + HEADER_BYTES
            while left > 0:
                some = min(left, limits.records_at_once)
                position = read_pairs(data, position, end, some, pairs)
                left -= some
                if len(pairs) >= limits.records_at_once:
                    unreadable += yield from _replay_plain(shard, pairs, cost)
                    cost, pairs = 0, []
        cost += BATCH_COST
        offset = next_offset
        at = end
    unreadable += yield from _replay_plain(shard, pairs, cost)
    return Stretch(offset, at if _is_wanted(data, at, until) else -1, unreadable)


def _replay_plain(shard: Shard, pairs: list[Pair], cost: int) -> Work[int]:
    """Apply records outside of transactions; `cost`: of the work before. Returns how many could not be read."""
    with_transactions = transactional(shard)
    if with_transactions is None or not with_transactions.has_pending:
        unreadable = shard.replay_all(pairs)
        yield cost + len(pairs)
        return unreadable
    unreadable = 0
    for at in range(0, len(pairs), REMOVING_AT_ONCE):
        some, pending = pairs[at : at + REMOVING_AT_ONCE], with_transactions.pending_count
        unreadable += shard.replay_all(some)
        cost += len(some) + (pending - with_transactions.pending_count) * REMOVED_COST
        yield cost
        cost = 0
    yield cost
    return unreadable


def _replay_transactional(shard: TransactionalShard, data: bytes, at: int, size: int, limits: LoadLimits) -> Work[int]:
    """Apply an uncompressed batch of pending records, or a marker. Returns how many records could not be read."""
    header = read_header(data, at)
    if not header.attributes & CONTROL:
        begin, end = at + HEADER_BYTES, at + size
        return (yield from replay_records(shard, header, data, begin, end, limits))
    with memoryview(data) as view:
        marker = read_marker(view, at, size)
    if marker is not None:
        producer = ProducerStamp(header.producer_id, header.producer_epoch)
        cost = shard.ending_cost(producer)
        if cost >= ENDING_TURN_COST:
            yield SLICE_COST  # it ends in a slice of its own
        shard.begin_batch(header.base_offset)
        shard.end_transaction(producer, commit=marker.kind is MarkerKind.COMMIT)
        yield BATCH_COST + cost
    return 0


def _is_wanted(data: bytes, at: int, until: int) -> bool:
    """Whether a complete batch begins there that ends below `until`."""
    if len(data) - at < HEADER_BYTES:
        return False
    header = read_header(data, at)
    return header.size <= len(data) - at and header.next_offset <= until


def replay_records(
    shard: Shard, header: BatchHeader, data: bytes, position: int, end: int, limits: LoadLimits
) -> Work[int]:
    """Apply the records of one batch, which lie in `data` between `position` and `end`, not compressed. Returns how
    many could not be read."""
    count, unreadable = header.count, 0
    with_transactions = transactional(shard)
    if with_transactions is not None:
        with_transactions.begin_batch(header.base_offset)
    producer = ProducerStamp(header.producer_id, header.producer_epoch)
    is_pending = with_transactions is not None and header.attributes & TRANSACTIONAL
    while count > 0:
        pairs: list[Pair] = []
        some = min(count, limits.records_at_once)
        position = read_pairs(data, position, end, some, pairs)
        if is_pending and with_transactions is not None:
            unreadable += with_transactions.replay_pending(producer, pairs)
            yield BATCH_COST + len(pairs) * PENDING_COST
        else:
            unreadable += yield from _replay_plain(shard, pairs, BATCH_COST)
        count -= some
    return unreadable


async def load_shard(
    partition: CoordinatedPartition,
    shard: Shard,
    limits: LoadLimits,
    pacer: Pacer,
    begin: int | None = None,
    until: int | None = None,
) -> int:
    """Replay the log from `begin` (default: its start) until `until` (default: its end now). Returns the offset up to
    which `shard` reflects it.

    Uncommitted records are included, because their leader keeps them. Below `begin`, `shard` must have everything; it
    may also have some records above. Records that the shard cannot read are skipped, counted and logged. Raises
    ProtocolError if the log cannot be read or contains bytes that are not a batch.
    """
    unreadable = 0
    end = partition.log.log_end_offset if until is None else until
    offset = partition.log.log_start_offset if begin is None else begin
    while offset < end:
        region = await _region(partition, offset, limits.chunk_bytes)
        if region is None:
            await asyncio.sleep(WRITTEN_POLL_S)
            continue
        try:
            data = await outlast(asyncio.ensure_future(asyncio.to_thread(region.read)))
        finally:
            region.release()
        reached = await _replay(partition, shard, data, offset, end, limits, pacer)
        if reached.next_offset <= offset:
            if until is not None:
                return offset  # the next batch reaches beyond it
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "the log yields no batch")
        offset = reached.next_offset
        unreadable += reached.unreadable
    if unreadable:
        fields = {"topic": partition.topic, "partition": partition.index, "count": unreadable}
        _log.warning("unreadable records", extra=fields)
    return offset


async def _region(partition: CoordinatedPartition, offset: int, bytes_max: int) -> ByteRegion | None:
    """Batches from `offset` on. Threads first bring what the look-up reads, such as an index, into memory."""

    def read() -> ByteRegion | None:
        return partition.read_as_replica(offset, bytes_max, at_least_one=True, only_in_memory=True)

    return await partition.log.when_in_memory(read)


async def _replay(
    partition: CoordinatedPartition,
    shard: Shard,
    data: bytes,
    offset: int,
    until: int,
    limits: LoadLimits,
    pacer: Pacer,
) -> Stretch:
    """Apply a chunk of the log that begins at `offset`."""
    lane = (partition.topic, partition.index)
    at, unreadable = 0, 0
    while True:
        reached = await pacer.run(replay_chunk(shard, data, at, offset, until, limits), lane, own=True)
        offset = reached.next_offset
        unreadable += reached.unreadable
        at = reached.compressed_at
        if at < 0:
            return Stretch(offset, -1, unreadable)
        header = read_header(data, at)
        if not header.attributes & CONTROL:
            _, records = await asyncio.to_thread(_inflate, data, at, header.size, limits.inflated_bytes_max)
            work = replay_records(shard, header, records, 0, len(records), limits)
            unreadable += await pacer.run(work, lane, own=True)
        offset = header.next_offset
        at += header.size


def _inflate(data: bytes, at: int, size: int, inflated_bytes_max: int) -> tuple[object, bytes]:
    with memoryview(data) as view:
        return inflate_records(view, at, size, inflated_bytes_max=inflated_bytes_max)
