"""Tiers made in a directory: real segment objects with their sections, and the manifests that name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.checksum import crc32c
from records.batch import iterate_batches
from records.builder import build_batch
from records.compression import Compression
from records.control import MarkerKind
from records.record import Record
from storage.indexes import transaction_index
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import TimeIndex
from storage.indexes.transaction_index import AbortedTransaction
from storage.producers.producer_snapshot import Snapshot, SnapshotEntry, encode_snapshot
from tests.records.control_batches import build_control_batch
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.bucket.segment import (
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    Section,
    SegmentState,
    TieredSegment,
)
from tiering.manifests.manifest import ManifestHead, encode_head

NOW = 1_700_000_000_000


def batch(records: Sequence[Record], base_offset: int, codec: Compression = Compression.NONE, **fields: Any) -> bytes:
    return bytes(build_batch(records, base_offset=base_offset, compression=codec, **fields))


def transactional(producer_id: int, base_offset: int, values: Sequence[bytes]) -> bytes:
    records = [Record(0, NOW + base_offset, b"%d" % producer_id, value) for value in values]
    return batch(records, base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def marker(kind: MarkerKind, producer_id: int, base_offset: int) -> bytes:
    return bytes(
        build_control_batch(
            kind,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=NOW + base_offset,
            base_offset=base_offset,
        )
    )


def plain_batches(first: int, count: int, per_batch: int = 10, codec: Compression = Compression.NONE) -> list[bytes]:
    """Records whose every field is told by their offset: `k<offset mod 7>`, `v<offset>`, NOW + offset."""
    batches = []
    for base in range(first, first + count, per_batch):
        offsets = range(base, min(base + per_batch, first + count))
        records = [Record(0, NOW + offset, b"k%d" % (offset % 7), b"v%d" % offset) for offset in offsets]
        batches.append(batch(records, base, codec))
    return batches


@dataclass
class BuiltPartition:
    """Segments are added in order and published by `publish`."""

    root: Path
    tier: TierRoot
    path: PartitionPath
    log_start: int = 0
    segments: list[TieredSegment] = field(default_factory=list)
    versions: int = 0

    def add(
        self,
        batches: Iterable[bytes],
        *,
        aborted: Sequence[AbortedTransaction] = (),
        open_transactions: Sequence[tuple[int, int]] = (),
        index_interval_bytes: int = 200,
        snapshot: Snapshot | None = None,
    ) -> TieredSegment:
        """One more segment; `open_transactions` are (producer id, first offset) as of its end, where no `snapshot` of
        its producers tells of them."""
        log = b"".join(batches)
        sections, end_offset, max_timestamp, count = _indexes(log, index_interval_bytes)
        if aborted:
            sections[TRANSACTION_INDEX] = b"".join(transaction_index.encode(one) for one in aborted)
        producers = [SnapshotEntry(number, 0, 0, start, 0, NOW, 0, start) for number, start in open_transactions]
        sections[PRODUCER_SNAPSHOT] = encode_snapshot(
            snapshot or Snapshot(producers, [(one.producer_id, 0, 0, 0, NOW) for one in producers])
        )
        base_offset = next(iterate_batches(memoryview(log), 0, len(log)))[1].base_offset
        places: dict[str, Section] = {}
        body = bytearray(log)
        for name, data in sections.items():
            places[name] = Section(len(body), len(data), crc32c(data))
            body += data
        segment = TieredSegment(
            uuid=f"{len(self.segments) + 1:032x}",
            base_offset=base_offset,
            end_offset=end_offset,
            max_timestamp=max_timestamp,
            log_bytes=len(log),
            object_bytes=len(body),
            log_crc32c=crc32c(log),
            sections=places,
            epochs=[(0, 0)],
            state=SegmentState.COPY_FINISHED,
            broker_id=0,
            leader_epoch=0,
            changed_ms=NOW,
            has_transactions=bool(aborted),
            records=count,
        )
        self.write(self.tier.segment_key(self.path, segment.id), bytes(body))
        self.segments.append(segment)
        return segment

    def publish(self, *, end_offset: int | None = None, dropped_ms: int = 0) -> None:
        """The next version of the manifest, of all segments from the log start on."""
        self.versions += 1
        last = self.segments[-1].end_offset if self.segments else 0
        head = ManifestHead(
            cluster_id=self.tier.cluster_id,
            incarnation=1,
            topic=self.path.topic,
            topic_id=self.path.topic_id.hex(),
            partition=self.path.partition,
            tenant=self.path.tenant,
            version=self.versions,
            leader_epoch=0,
            broker_id=0,
            broker_epoch=0,
            tier_state_offset=0,
            published_ms=NOW,
            log_start_offset=self.log_start,
            end_offset=last if end_offset is None else end_offset,
            dropped_ms=dropped_ms,
            segments=self.segments,
        )
        self.write(self.tier.manifest_key(self.path, self.versions), encode_head(head))

    def write(self, key: str, data: bytes) -> None:
        target = self.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def file_of(self, segment: TieredSegment) -> Path:
        return self.root / self.tier.segment_key(self.path, segment.id)


def _indexes(log: bytes, interval_bytes: int) -> tuple[dict[str, bytes], int, int, int]:
    """(sections, end offset, largest timestamp, records), with indexes as a broker writes them."""
    headers = list(iterate_batches(memoryview(log), 0, len(log)))
    base_offset = headers[0][1].base_offset
    offsets, times = OffsetIndex(base_offset), TimeIndex(base_offset)
    offset_bytes, time_bytes = bytearray(), bytearray()
    since, largest, largest_at = 0, -1, base_offset
    for position, header in headers:
        if header.max_timestamp > largest:
            largest, largest_at = header.max_timestamp, header.last_offset
        if since > interval_bytes:
            offset_bytes += offsets.append(header.last_offset, position)
            time_bytes += times.append(largest, largest_at) or b""
            since = 0
        since += header.size
    time_bytes += times.append(largest, largest_at) or b"" if largest >= 0 else b""
    sections = {OFFSET_INDEX: bytes(offset_bytes), TIME_INDEX: bytes(time_bytes)}
    return sections, headers[-1][1].next_offset, largest, sum(header.count for _, header in headers)


class TierBuilder:
    """A tier under `root`, with one cluster unless more are asked for."""

    def __init__(self, root: Path, cluster_id: str = "cluster-one") -> None:
        self.root = root
        self.tier = TierRoot(cluster_id)
        cluster_file = root / self.tier.cluster_file
        cluster_file.parent.mkdir(parents=True, exist_ok=True)
        cluster_file.write_text("{}")

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    def partition(self, topic: str, number: int = 0, *, topic_id: int = 1, tenant: str = "") -> BuiltPartition:
        path = PartitionPath(topic, topic_id.to_bytes(16, "big"), number, tenant)
        return BuiltPartition(self.root, self.tier, path)
