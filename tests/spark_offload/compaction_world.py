"""Random partitions for the tests of compaction, and what kafka-python makes of their bytes.

Nothing here knows how the product compacts: `survivors` walks the records one by one and keeps the last one of each
key, as Apache Kafka's documentation says it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st
from kafka.record import MemoryRecords

from records.batch import HEADER_BYTES, seal
from records.compression import Compression
from records.control import MarkerKind
from records.record import Record
from storage.indexes.transaction_index import AbortedTransaction
from storage.producers.producer_snapshot import Snapshot, SnapshotEntry
from tests.spark_offload.tier_builder import NOW, BuiltPartition, batch, marker
from tiering.bucket.segment import TieredSegment

HEADERS = ((), (("h", b"1"),), (("h", b""), ("i", None)))
KEYS = [b"a", b"b", b"c", b"", b"long" * 30, None]


class Step(NamedTuple):
    """One batch, or the end of a transaction. `producer` 0 is none, 1 and 2 are idempotent, 3 and 4 transactional."""

    kind: str  # batch, commit, abort, roll
    producer: int
    codec: Compression
    records: tuple[tuple[bytes | None, bytes | None, int, int], ...]  # key, value, headers, timestamp


_record = st.tuples(
    st.sampled_from(KEYS), st.sampled_from([b"", b"v", b"value" * 20, None]), st.integers(0, 2), st.integers(0, 5_000)
)
_step = st.builds(
    Step,
    st.sampled_from(["batch"] * 6 + ["commit", "abort", "roll"]),
    st.integers(0, 4),
    st.sampled_from(list(Compression)),
    st.lists(_record, min_size=1, max_size=6).map(tuple),
)
steps = st.lists(_step, min_size=1, max_size=40)


@dataclass
class World:
    """Writes steps into a partition's segments, with the sections that a broker would have written."""

    partition: BuiltPartition
    offset: int = 0
    batches: list[bytes] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)

    def write(self, wanted: list[Step], *, log_append_time: bool = False) -> None:
        for step in wanted:
            if step.kind == "roll":
                self.roll()
            elif step.kind == "batch":
                self._batch(step, log_append_time)
            else:
                self._end(step.kind, step.producer)
        self.roll()

    def _batch(self, step: Step, log_append_time: bool) -> None:
        records = [Record(0, NOW + at, key, value, HEADERS[which]) for key, value, which, at in step.records]
        fields: dict[str, Any] = {"leader_epoch": 0, "timestamp_type": 8 if log_append_time else 0}
        if step.producer:
            sequence = self.sequences.get(step.producer, 0)
            self.sequences[step.producer] = sequence + len(records)
            fields |= {"producer_id": step.producer, "producer_epoch": 0, "base_sequence": sequence}
            fields["transactional"] = step.producer > 2
            self.last[step.producer] = self.offset + len(records) - 1
            if step.producer > 2:
                self.open.setdefault(step.producer, self.offset)
        self.batches.append(batch(records, self.offset, step.codec, **fields))
        self.offset += len(records)

    def _end(self, kind: str, producer: int) -> None:
        if producer not in self.open:
            return
        first = self.open.pop(producer)
        if kind == "abort":
            stable = min(self.open.values(), default=self.offset)
            self.aborted.append(AbortedTransaction(producer, first, self.offset, stable))
        which = MarkerKind.ABORT if kind == "abort" else MarkerKind.COMMIT
        self.batches.append(marker(which, producer, self.offset))
        self.offset += 1

    def roll(self) -> None:
        if not self.batches:
            return
        entries = [
            SnapshotEntry(producer, 0, self.sequences[producer] - 1, last, 0, NOW, 0, self.open.get(producer, -1))
            for producer, last in sorted(self.last.items())
        ]
        self.partition.add(self.batches, aborted=self.aborted, snapshot=Snapshot(entries, []))
        self.batches, self.aborted = [], []

    def close(self) -> None:
        """End every open transaction, so that everything is decided."""
        for producer in sorted(self.open):
            self._end("commit" if producer == 3 else "abort", producer)
        self.roll()


class Seen(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Batch(NamedTuple):
    """A batch as kafka-python reads it, with its records. `end` is the offset after its last one."""

    base_offset: int
    end: int
    attributes: int
    producer: tuple[int, int, int]
    leader_epoch: int
    is_control: bool
    records: tuple[Seen, ...]


def log_of(partition: BuiltPartition, segment: TieredSegment) -> bytes:
    return partition.file_of(segment).read_bytes()[: segment.log_bytes]


def batches_of(data: bytes) -> list[Batch]:
    reader = MemoryRecords(data)
    found = []
    while (one := reader.next_batch()) is not None:
        assert one.validate_crc()
        records = tuple(
            Seen(record.offset, record.timestamp, record.key, record.value, tuple(map(tuple, record.headers)))
            for record in one
        )
        producer = (one.producer_id, one.producer_epoch, one.base_sequence)
        end = one.base_offset + one.last_offset_delta + 1
        found.append(
            Batch(one.base_offset, end, one.attributes, producer, one.leader_epoch, one.is_control_batch, records)
        )
    return found


def decided(batches: list[Batch]) -> tuple[list[Seen], set[int]]:
    """(records of clients that were not aborted, in order; offsets of aborted ones), told by the markers alone."""
    waiting: dict[int, list[Seen]] = {}
    kept: list[Seen] = []
    aborted: set[int] = set()
    for one in batches:
        if one.is_control:
            ended = waiting.pop(one.producer[0], [])
            if one.records and one.records[0].key is not None and one.records[0].key[2:4] == b"\0\0":
                aborted |= {record.offset for record in ended}
            else:
                kept += ended
        elif one.attributes & 16:
            waiting.setdefault(one.producer[0], []).extend(one.records)
        else:
            kept += one.records
    assert not any(waiting.values())
    return sorted(kept), aborted


def survivors(batches: list[Batch]) -> list[Seen]:
    """The last record of each key, deletes included."""
    latest = {record.key: record for record in decided(batches)[0] if record.key is not None}
    return sorted(latest.values())


def spoil_record(data: bytearray, at: int) -> None:
    """Make the first record of the batch at `at` longer than the batch, under a CRC that fits."""
    data[at + HEADER_BYTES] = 0x7E
    seal(data, at, int.from_bytes(data[at + 8 : at + 12], "big") + 12)
