"""What is compared across segments once they are read: rewritings, acknowledged writes, keys of an earlier run. Pure,
but for `latest_of_partition`, which is a Spark task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from object_store.errors import StoreError
from spark_offload.reading.task import store_at
from spark_offload.segments.aborted import AbortedRanges
from spark_offload.segments.batch_scan import Flags
from spark_offload.verification.bucket import BucketFound, PartitionFound
from spark_offload.verification.checks import Check, Findings, Place
from spark_offload.verification.key_table import NO_KEYS, KeyTable, LatestKeys
from spark_offload.verification.ledger import NO_KEY, Writes
from spark_offload.verification.pieces import Piece, PieceResult, TaskOptions
from spark_offload.verification.record_reading import RecordReader, Source, Unreadable
from spark_offload.verification.report import LedgerReport, PartitionReport
from spark_offload.verification.swap_task import SwapPiece, sources_before
from tiering.bucket.keys import TierRoot
from tiering.bucket.segment import TRANSACTION_INDEX, TieredSegment

PlaceName = tuple[str, int]
"""Topic id in hexadecimal, partition."""
KeyTables = Mapping[PlaceName, KeyTable]


class KeysError(ValueError):
    """A file that does not hold the keys of an earlier run."""


# rewritings --------------------------------------------------------------------------------------------------


def swap_pieces(bucket: BucketFound, partition: PartitionFound, report: PartitionReport) -> list[SwapPiece]:
    """Rewritings whose new segments are the partition's now, and whose old ones are still there. Their sizes are noted
    in `report`."""
    manifest = partition.found.manifest
    if manifest is None:
        return []
    named = {segment.id: segment for segment in manifest.segments}
    found = []
    for proposal, _ in bucket.proposals:
        if (bytes.fromhex(proposal.topic_id), proposal.partition) != (partition.path.topic_id, report.partition):
            continue
        infos = [partition.objects.get(identity) for identity in proposal.inputs]
        outputs = [named[output.id] for output in proposal.outputs if output.id in named]
        if len(outputs) != len(proposal.outputs) or not all(infos):
            continue
        end = outputs[-1].end_offset
        inputs = [
            (identity.base_offset, info.key, info.size)
            for identity, info in zip(proposal.inputs, infos, strict=True)
            if info is not None
        ]
        report.bytes_before += sum(size for _, _, size in inputs)
        report.bytes_after += sum(segment.object_bytes for segment in outputs)
        later = [segment for segment in manifest.segments if segment.base_offset >= end]
        found.append(
            SwapPiece(
                topic=partition.path.topic,
                partition=report.partition,
                proposal=proposal.uuid,
                kind=proposal.kind,
                reaches_log_start=proposal.reaches_log_start,
                inputs=tuple(sources_before(inputs, end)),
                outputs=tuple(_sources(bucket.root, partition, outputs)),
                later=tuple(_sources(bucket.root, partition, later)),
                indexed=_indexed(bucket.root, partition, manifest.segments),
            )
        )
    return found


def _sources(root: TierRoot, partition: PartitionFound, segments: Iterable[TieredSegment]) -> list[Source]:
    return [Source(root.segment_key(partition.path, one.id), one.end_offset, one.log_bytes) for one in segments]


def _indexed(
    root: TierRoot, partition: PartitionFound, segments: Iterable[TieredSegment]
) -> tuple[tuple[str, TieredSegment], ...]:
    return tuple(
        (root.segment_key(partition.path, one.id), one) for one in segments if TRANSACTION_INDEX in one.sections
    )


# keys --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyPiece:
    """A whole partition, of which the latest record of each key is wanted."""

    topic_id: str
    partition: int
    sources: tuple[Source, ...]
    indexed: tuple[tuple[str, TieredSegment], ...]


def key_piece(root: TierRoot, partition: PartitionFound) -> KeyPiece:
    manifest = partition.found.manifest
    segments = () if manifest is None else manifest.segments
    there = [segment for segment in segments if segment.id in partition.objects]
    sources = tuple(_sources(root, partition, there))
    return KeyPiece(partition.path.topic_id.hex(), partition.path.partition, sources, _indexed(root, partition, there))


def latest_of_partition(settings: TaskOptions, piece: KeyPiece) -> KeyTable | None:
    """What a Spark task does; None when a segment cannot be read, which is reported by who checks it."""
    reader = RecordReader(store_at(settings.tier), settings.chunk_bytes, settings.inflated_batch_bytes)
    aborted = AbortedRanges(one for key, segment in piece.indexed for one in reader.aborted_in_index(key, segment))
    keys = LatestKeys()
    try:
        for source in piece.sources:
            for decoded, counts in reader.records(source, aborted):
                keys.add(decoded, counts)
    except (Unreadable, StoreError):
        return None
    return keys.table()


def compare_keys(
    before: KeyTable, now: KeyTable, log_start: int, place: Place, findings: Findings, *, is_erased: bool
) -> None:
    """No key has an older value than in an earlier run, and none was lost but by a tombstone, retention or erasure."""
    findings.checks(Check.KEYS, before.rows)
    rows, there = now.rows_of(before.key_hash)
    if now.rows:
        older = there & (now.offset[rows] < before.offset)
        altered = there & (now.offset[rows] == before.offset) & (now.crc[rows] != before.crc)
    else:
        older = altered = there
    lost: Flags = ~there & ~before.is_tombstone & (before.offset >= log_start)
    if is_erased:
        lost = lost & False
    for wrong, words in (
        (older, "an older value took the place of its latest one"),
        (altered, "its latest value changed"),
        (lost, "its latest value is gone, and there is no later one"),
    ):
        bad = np.flatnonzero(wrong)
        if len(bad):
            row = int(bad[0])
            more = f"; so it is with {len(bad) - 1} more keys" if len(bad) > 1 else ""
            text = f"the key with the hash {int(before.key_hash[row]):016x}: {words}{more}"
            findings.fail(Check.KEYS, place, text, offset=int(before.offset[row]), more=len(bad) - 1)


_KEYS = pa.schema(
    [
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("key_hash", pa.uint64()),
        ("offset", pa.int64()),
        ("crc32c", pa.int64()),
        ("tombstone", pa.bool_()),
    ]
)


def keys_file(tables: KeyTables) -> bytes:
    """Parquet, for a later run to compare with."""
    sink = pa.BufferOutputStream()
    with pyarrow.parquet.ParquetWriter(sink, _KEYS) as writer:
        for (topic_id, partition), table in sorted(tables.items()):
            columns = [
                pa.repeat(pa.scalar(topic_id, pa.string()), table.rows),
                pa.array(np.full(table.rows, partition, np.int32)),
                pa.array(table.key_hash),
                pa.array(table.offset),
                pa.array(table.crc),
                pa.array(table.is_tombstone),
            ]
            writer.write_table(pa.table(columns, schema=_KEYS))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_keys(data: bytes, name: str) -> dict[PlaceName, KeyTable]:
    """Raises KeysError, which names the file."""
    try:
        table = pyarrow.parquet.read_table(pa.BufferReader(data), schema=_KEYS)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise KeysError(f"{name}: {error}") from error
    if any(column.null_count for column in table.columns):
        raise KeysError(f"{name}: a row that lacks something")
    found: dict[PlaceName, KeyTable] = {}
    topic_ids = table["topic_id"]
    partitions = table["partition"].to_numpy()
    table = table.drop_columns(["topic_id", "partition"])
    numbers = pc.index_in(topic_ids, pc.unique(topic_ids)).to_numpy()
    order = np.lexsort((partitions, numbers))
    other = (np.diff(numbers[order]) != 0) | (np.diff(partitions[order]) != 0)
    for rows in np.split(order, np.flatnonzero(other) + 1) if len(order) else ():
        place = (topic_ids[int(rows[0])].as_py(), int(partitions[rows[0]]))
        part = table.take(pa.array(rows))
        keys = LatestKeys()
        keys.merge(
            KeyTable(
                part["key_hash"].to_numpy().astype(np.uint64),
                part["offset"].to_numpy().astype(np.int64),
                part["crc32c"].to_numpy().astype(np.int64),
                part["tombstone"].to_numpy().astype(np.bool_),
            )
        )
        found[place] = keys.table()
    return found


# acknowledged writes -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class WrittenFound:
    """Acknowledged writes of one partition after its pieces were read: `missing` are in segments where compaction may
    have taken them, `lost` in others."""

    missing: Writes
    lost: Writes


def sort_writes(
    writes: Writes,
    report: PartitionReport,
    pieces: Sequence[Piece],
    results: Mapping[int, Sequence[PieceResult]],
    ledger: LedgerReport,
) -> WrittenFound:
    """Counts what is clear into `ledger`; the rest is returned."""
    ledger.writes += len(writes.offset)
    ledger.below_log_start += int((writes.offset < report.log_start).sum())
    ledger.not_tiered += int((writes.offset >= max(report.end, report.log_start)).sum())
    due = (writes.offset >= report.log_start) & (writes.offset < report.end)
    present = np.zeros(len(writes.offset), np.bool_)
    sparse = np.zeros(len(writes.offset), np.bool_)
    for piece in pieces:
        low, high = np.searchsorted(writes.offset, (piece.segment.base_offset, piece.segment.end_offset)).tolist()
        flags = [result.present for result in results[piece.row] if result.present is not None]
        if flags:
            present[low:high] |= reduce(np.logical_or, flags)
        sparse[low:high] |= piece.gaps
    ledger.present += int((due & present).sum())
    missing = due & ~present
    return WrittenFound(writes.at(missing & sparse), writes.at(missing & ~sparse))


def judge_writes(
    found: WrittenFound,
    writes: Writes,
    keys: KeyTable | None,
    ledger: LedgerReport,
    place: Place,
    findings: Findings,
    *,
    is_erased: bool,
) -> None:
    """A write that compaction took has a later one of its key, in the tier or a tombstone in the ledger."""
    missing = found.missing
    table = keys if keys is not None else NO_KEYS
    rows, there = table.rows_of(missing.key_hash)
    explained: Flags = there & (table.offset[rows] > missing.offset) if table.rows else there
    deleted = writes.key_hash[writes.is_tombstone]
    explained = explained | (missing.key_hash == NO_KEY) | missing.is_tombstone
    explained = explained | np.isin(missing.key_hash, deleted) | is_erased
    ledger.explained += int(explained.sum())
    for lost in (missing.at(~explained), found.lost):
        count = len(lost.offset)
        ledger.lost += count
        if count:
            more = f"; so are {count - 1} more" if count > 1 else ""
            text = f"an acknowledged write is not there{more}"
            findings.fail(Check.LEDGER, place, text, offset=int(lost.offset[0]), more=count - 1)
