"""A partition in a bucket with everything a broker writes beside it, and ways to spoil one thing at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from common.checksum import crc32c
from records.audit_event import AuditEvent, to_fields
from records.batch import iterate_batches, read_header
from records.builder import build_batch
from records.compression import Compression
from records.control import MarkerKind, read_marker
from records.events import EventsHeader, encode_events
from records.record import Record
from spark_offload.running.job import Progress, SilentProgress, Stage
from spark_offload.verification.job import Executors, VerifyOptions, verify
from spark_offload.verification.report import VerifyReport
from storage.indexes import transaction_index
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import TimeIndex
from storage.indexes.transaction_index import AbortedTransaction
from storage.log.leader_epochs import LeaderEpochCache
from storage.producers.producer_state import ProducerStates
from tests.records.control_batches import build_control_batch
from tiering.bucket.keys import PartitionPath, TierRoot
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
from tiering.exports.audit_reading import AuditKey, audit_key
from tiering.exports.exports import METADATA, ExportKey, export_key
from tiering.manifests.manifest import ManifestHead, encode_head

NOW = 1_700_000_000_000
INTERVAL_BYTES = 400
T = TypeVar("T")
R = TypeVar("R")

SECTION_NAMES = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, PRODUCER_SNAPSHOT, LEADER_EPOCHS)


def run_here(work: Callable[[T], R], pieces: Sequence[T], stage: Stage, /) -> list[R]:
    """In place of Spark."""
    found = []
    for piece in pieces:
        found.append(work(piece))
        stage.advance()
    return found


def verify_here(tier: VerifiedTier, ask: Any = None, notes: Progress | None = None, **options: Any) -> VerifyReport:
    chosen = VerifyOptions(tier=tier.root.as_uri(), **options)
    return verify(Executors(run_here, 2), chosen, notes or SilentProgress(), ask)


def checks_of(report: VerifyReport) -> set[str]:
    return {problem.what for problem in report.problems}


def records_at(offset: int, count: int, key: str = "k") -> list[Record]:
    return [
        Record(0, NOW + at, f"{key}{at % 7}".encode(), f"v{at}".encode(), (("h", b"x"),) if at % 3 == 0 else ())
        for at in range(offset, offset + count)
    ]


@dataclass
class Written:
    """A segment's parts, from which its object is put together anew after each change."""

    segment: TieredSegment
    log: bytes
    sections: dict[str, bytes]


@dataclass
class VerifiedTier:
    """`add` takes batches in order; `publish` writes all of it. Damage is done in between, or to files after it."""

    root: Path
    topic: str = "flights"
    number: int = 0
    topic_id: bytes = bytes(15) + b"\x01"
    tier: TierRoot = field(default_factory=lambda: TierRoot("cluster-one"))
    written: list[Written] = field(default_factory=list)
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)
    producers: ProducerStates = field(default_factory=lambda: ProducerStates(86_400_000, 10_000))
    log_start: int = 0
    version: int = 1

    # making --------------------------------------------------------------------------------------------------

    @property
    def path(self) -> PartitionPath:
        return PartitionPath(self.topic, self.topic_id, self.number)

    @property
    def end(self) -> int:
        return self.written[-1].segment.end_offset if self.written else 0

    def key(self, at: int) -> str:
        return self.tier.segment_key(self.path, self.written[at].segment.id)

    def file(self, at: int) -> Path:
        return self.root / self.key(at)

    def add(self, batches: Iterable[bytes], **fields: Any) -> Written:
        """One more segment."""
        log = b"".join(batches)
        view = memoryview(log)
        headers = list(iterate_batches(view, 0, len(log)))
        base = headers[0][1].base_offset
        aborted: list[AbortedTransaction] = []
        for at, header in headers:
            if header.leader_epoch != self.epochs.latest_epoch:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            marker = read_marker(view, at, header.size) if header.is_control else None
            done = self.producers.update(header, marker)
            if done is not None and done.aborted:
                aborted.append(
                    AbortedTransaction(done.producer_id, done.first_offset, done.last_offset, done.last_stable_offset)
                )
        end = headers[-1][1].next_offset
        sections = indexes(log, base)
        if aborted:
            sections[TRANSACTION_INDEX] = b"".join(transaction_index.encode(one) for one in aborted)
        sections[PRODUCER_SNAPSHOT] = self.producers.snapshot()
        sections[LEADER_EPOCHS] = self.epochs.encode()
        values: dict[str, Any] = {
            "uuid": f"{len(self.written) + 1:032x}",
            "base_offset": base,
            "end_offset": end,
            "max_timestamp": max(header.max_timestamp for _, header in headers),
            "log_bytes": len(log),
            "epochs": self.epochs.chain(base, end),
            "state": SegmentState.COPY_FINISHED,
            "broker_id": 1,
            "leader_epoch": max(self.epochs.latest_epoch, 0),
            "changed_ms": NOW + end,
            "has_transactions": any(header.is_transactional for _, header in headers),
            "records": sum(header.count for _, header in headers),
        }
        self.written.append(Written(TieredSegment(**values | fields), log, sections))
        self.put_together(len(self.written) - 1)
        return self.written[-1]

    def put_together(self, at: int, **fields: Any) -> None:
        """The entry of segment `at` as it must be for its bytes, but for `fields`."""
        one = self.written[at]
        size, sections = len(one.log), {}
        for name in SECTION_NAMES:
            if name in one.sections:
                body = one.sections[name]
                sections[name] = Section(size, len(body), crc32c(body))
                size += len(body)
        values: dict[str, Any] = {
            "log_bytes": len(one.log),
            "object_bytes": size,
            "log_crc32c": crc32c(one.log),
            "sections": sections,
        }
        one.segment = msgspec.structs.replace(one.segment, **values | fields)

    def body(self, at: int) -> bytes:
        one = self.written[at]
        return one.log + b"".join(one.sections[name] for name in SECTION_NAMES if name in one.sections)

    def publish(self, **fields: Any) -> None:
        for at in range(len(self.written)):
            self.write(self.key(at), self.body(at))
        self.publish_manifest(**fields)
        self.write(self.tier.cluster_file, self.cluster_file())

    def publish_manifest(self, **fields: Any) -> None:
        values: dict[str, Any] = {
            "cluster_id": self.tier.cluster_id,
            "incarnation": 1,
            "topic": self.topic,
            "topic_id": self.topic_id.hex(),
            "partition": self.number,
            "tenant": "",
            "version": self.version,
            "leader_epoch": 3,
            "broker_id": 1,
            "broker_epoch": 1,
            "tier_state_offset": 100,
            "published_ms": NOW,
            "log_start_offset": self.log_start,
            "end_offset": self.end,
            "segments": [one.segment for one in self.written if one.segment.end_offset > self.log_start],
        }
        head = ManifestHead(**values | fields)
        self.write(self.tier.manifest_key(self.path, head.version), encode_head(head))

    def cluster_file(self) -> bytes:
        return msgspec.json.encode(
            {
                "format": 1,
                "cluster_id": self.tier.cluster_id,
                "incarnation": 1,
                "created_ms": NOW,
                "changed_ms": NOW,
            }
        )

    def write(self, key: str, data: bytes, age_s: int = 0) -> Path:
        target = self.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        if age_s:
            when = target.stat().st_mtime - age_s
            os.utime(target, (when, when))
        return target

    def export(self, kind: str, events: Sequence[dict[str, Any]], created_ms: int = NOW) -> None:
        key = ExportKey(kind, 1, 0, 7)
        header = EventsHeader(
            kind=kind, cluster_id=self.tier.cluster_id, incarnation=1, scope=0, position=7, created_ms=created_ms
        )
        self.write(export_key(self.tier, key), encode_events(header, events))

    def audit(self, source: str, events: Sequence[AuditEvent], first: int = 0) -> None:
        """One file of the audit, with positions from `first` on."""
        end = first + len(events)
        header = EventsHeader(
            kind="audit", cluster_id=self.tier.cluster_id, incarnation=1, scope=0, position=end, created_ms=NOW
        )
        body = encode_events(header, [to_fields(event) for event in events])
        self.write(audit_key(self.tier, AuditKey(source, 1, 0, first, end)), body)

    def set_config(self, **settings: str) -> None:
        events = [
            {
                "event": "config",
                "resource_type": "topic",
                "resource_name": self.topic,
                "name": name.replace("_", "."),
                "value": value,
            }
            for name, value in settings.items()
        ]
        self.export(METADATA, events)

    # spoiling ------------------------------------------------------------------------------------------------

    def spoil_log(self, at: int, change: Callable[[bytearray], None], **fields: Any) -> None:
        """Change the log of segment `at`; the entry is then right for it but for `fields`."""
        log = bytearray(self.written[at].log)
        change(log)
        self.written[at].log = bytes(log)
        self.put_together(at, **fields)

    def spoil_section(self, at: int, name: str, change: Callable[[bytearray], None]) -> None:
        body = bytearray(self.written[at].sections[name])
        change(body)
        self.written[at].sections[name] = bytes(body)
        self.put_together(at)

    def batch_at(self, at: int, number: int) -> tuple[int, int]:
        """(position, size) of a batch of segment `at`."""
        log = memoryview(self.written[at].log)
        position, header = list(iterate_batches(log, 0, len(log)))[number]
        return position, header.size


def indexes(log: bytes, base: int) -> dict[str, bytes]:
    offsets, times = OffsetIndex(base), TimeIndex(base)
    offset_bytes, time_bytes = bytearray(), bytearray()
    since, largest, largest_at = 0, -1, base
    for position, header in iterate_batches(memoryview(log), 0, len(log), verify_crc=False):
        if header.max_timestamp > largest:
            largest, largest_at = header.max_timestamp, header.last_offset
        if since > INTERVAL_BYTES:
            offset_bytes += offsets.append(header.last_offset, position)
            time_bytes += times.append(largest, largest_at) or b""
            since = 0
        since += header.size
    time_bytes += times.append(largest, largest_at) or b"" if largest >= 0 else b""
    return {OFFSET_INDEX: bytes(offset_bytes), TIME_INDEX: bytes(time_bytes)}


class Writer:
    """Batches of one partition: idempotent, plain and transactional ones, under consecutive offsets."""

    def __init__(self) -> None:
        self.offset = 0
        self.epoch = 0
        self.sequences: dict[int, int] = {}

    def plain(self, count: int = 5, codec: Compression = Compression.NONE, **fields: Any) -> bytes:
        data = build_batch(
            records_at(self.offset, count),
            base_offset=self.offset,
            leader_epoch=self.epoch,
            compression=codec,
            **fields,
        )
        self.offset += count
        return bytes(data)

    def by(self, producer_id: int, count: int = 5, codec: Compression = Compression.NONE, **fields: Any) -> bytes:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + count
        values: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        return self.plain(count, codec, **values | fields)

    def marker(self, producer_id: int, kind: MarkerKind) -> bytes:
        data = build_control_batch(
            kind,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=NOW + self.offset,
            base_offset=self.offset,
            leader_epoch=self.epoch,
        )
        self.offset += 1
        return bytes(data)


CODECS = tuple(Compression)


def history(tier: VerifiedTier, segments: int = 4, small: int = 0) -> Writer:
    """Segments with two idempotent producers, transactions that end both ways (some in the next segment), all codecs
    and a new leader epoch in each second segment; at the end of each as many small batches."""
    writer = Writer()
    for number in range(segments):
        writer.epoch = number // 2
        batches = [writer.by(1 + n % 2, 3 + n % 3, CODECS[(number + n) % len(CODECS)]) for n in range(12)]
        batches.append(writer.by(7, 4, transactional=True))
        batches.append(writer.plain())
        if number % 2:
            batches.append(writer.marker(7, MarkerKind.ABORT if number % 4 == 1 else MarkerKind.COMMIT))
        batches += [writer.by(8, 2, transactional=True), writer.plain(2), writer.marker(8, MarkerKind.ABORT)]
        batches += [writer.plain(4, CODECS[n % len(CODECS)]) for n in range(6)]
        batches += [writer.plain(1) for _ in range(small)]
        tier.add(batches)
    return writer


def header_of(tier: VerifiedTier, at: int, number: int) -> Any:
    position, _ = tier.batch_at(at, number)
    return read_header(tier.written[at].log, position)
