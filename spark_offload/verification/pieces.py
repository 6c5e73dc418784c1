"""What one Spark task checks: a segment, or a part of a large one; and what it hands back. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from spark_offload.segments.sections import OffsetEntries, TimeEntries
from spark_offload.verification.checks import Findings, Place
from spark_offload.verification.ledger import NO_WRITES, Writes
from spark_offload.verification.producer_runs import Producers
from spark_offload.verification.sections import AbortedEntry
from storage.producers.producer_snapshot import SnapshotEntry
from tiering.bucket.segment import TieredSegment

UNKNOWN = -1
Present = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The input of every task of a run. `deep`: every record is decoded."""

    tier: str
    deep: bool
    chunk_bytes: int
    inflated_batch_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Part `number` of `parts` of one segment. `row` is the segment's number within the run.

    The object holds `object_bytes`, whatever the manifest says. `gaps`: compaction may have taken records out.
    """

    row: int
    topic: str
    partition: int
    key: str
    segment: TieredSegment
    object_bytes: int
    number: int = 0
    parts: int = 1
    gaps: bool = False
    writes: Writes = NO_WRITES

    @property
    def place(self) -> Place:
        return Place(self.topic, self.partition, self.key)

    @property
    def bytes(self) -> int:
        """About what is read for it."""
        return self.segment.log_bytes // self.parts

    def part(self, number: int) -> Piece:
        return replace(self, number=number)

    def with_writes(self, writes: Writes) -> Piece:
        return replace(self, writes=writes)

    def cut(self, number: int) -> int:
        """Where part `number` begins, before that is aligned to a batch."""
        return self.segment.log_bytes * number // self.parts


@dataclass(slots=True)
class Sections:
    """What lies behind a segment's log; None for what is absent or damaged."""

    offsets: OffsetEntries | None = None
    times: TimeEntries | None = None
    aborted: list[AbortedEntry] | None = None
    producers: list[SnapshotEntry] | None = None
    epochs: list[tuple[int, int]] | None = None


@dataclass(slots=True)
class PieceResult:
    """`is_whole`: all bytes were batches. Offsets are those of the first batch and behind the last, -1 for no batch;
    `crc` is of the bytes [begin, end) of the object. `spans` are offsets that were seen, as ranges; `present` says of
    each of the piece's writes whether it was. `seconds` are those of its task's process."""

    row: int
    number: int
    is_whole: bool = False
    begin: int = 0
    end: int = 0
    crc: int = 0
    first_offset: int = UNKNOWN
    next_offset: int = UNKNOWN
    batches: int = 0
    records: int = 0
    decoded: int = 0
    max_timestamp: int = UNKNOWN
    has_transactions: bool = False
    spans: list[tuple[int, int]] = field(default_factory=list)
    producers: Producers = field(default_factory=lambda: Producers([], [], []))
    sections: Sections | None = None
    present: Present | None = None
    findings: Findings = field(default_factory=Findings)
    seconds: float = 0.0
