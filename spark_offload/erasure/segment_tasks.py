"""The tasks of an erasure, one segment each: search it, or rewrite it without the keys' records."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.machine import MachineClock
from object_store.errors import StoreError
from spark_offload.erasure.key_digests import KeyDigests, KeyMatcher
from spark_offload.erasure.secrets_of_tasks import secret_of_this_task
from spark_offload.erasure.survivors import SegmentScan
from spark_offload.erasure.thinning import thin
from spark_offload.reading.task import attempt_id, store_at
from spark_offload.rewriting.log_pieces import DamagedObject, log_pieces, read_section
from spark_offload.rewriting.new_segment import NewSegment
from spark_offload.running.job import Problem
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.bucket.segment import TRANSACTION_INDEX, TieredSegment

if TYPE_CHECKING:
    from pyspark import Broadcast

    from object_store.blocking import BlockingStore

DAMAGED, UNREADABLE, UNWRITABLE = "damaged", "unreadable", "unwritable"
UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """One segment of one partition in the store `uri`."""

    uri: str
    cluster_id: str
    path: PartitionPath
    segment: TieredSegment

    @property
    def key(self) -> str:
        return TierRoot(self.cluster_id).segment_key(self.path, self.segment.id)


@dataclass(frozen=True, slots=True)
class Scanned:
    """`survivors` records stay, and `digest` is of them; `found` counts the others by the digest of their key."""

    uuid: str
    records: int = 0
    survivors: int = 0
    digest: str = ""
    found: dict[bytes, int] = field(default_factory=dict)
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Thinned:
    """`output` is in the store; None with a problem."""

    uuid: str
    output: TieredSegment | None = None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class ScanSegment:
    digests: Broadcast[bytes]

    def __call__(self, piece: SegmentPiece) -> Scanned:
        scan = SegmentScan(KeyMatcher(KeyDigests(self.digests.value), secret_of_this_task()))
        try:
            for part in log_pieces(store_at(piece.uri), piece.key, piece.segment):
                with part.located():
                    scan.feed(part.view, part.batches)
        except (DamagedObject, StoreError) as error:
            return Scanned(piece.segment.uuid, problem=problem_of(piece, error))
        survivors = scan.survivors
        return Scanned(piece.segment.uuid, scan.records, survivors.records, survivors.hexdigest(), scan.found)


@dataclass(frozen=True, slots=True)
class ThinSegment:
    """`seed` is random, of this run."""

    digests: Broadcast[bytes]
    seed: bytes

    def __call__(self, piece: SegmentPiece) -> Thinned:
        matcher = KeyMatcher(KeyDigests(self.digests.value), secret_of_this_task())
        new = NewSegment(piece.segment.base_offset)
        try:
            return Thinned(piece.segment.uuid, self._write(store_at(piece.uri), piece, matcher, new))
        except (DamagedObject, StoreError) as error:
            return Thinned(piece.segment.uuid, problem=problem_of(piece, error))
        except (ValueError, OSError) as error:  # too large for its indexes, or no space for the spool
            path, offset = piece.path, piece.segment.base_offset
            problem = Problem(UNWRITABLE, str(error), path.topic, path.partition, offset, piece.key)
            return Thinned(piece.segment.uuid, problem=problem)
        finally:
            new.close()

    def _write(self, store: BlockingStore, piece: SegmentPiece, matcher: KeyMatcher, new: NewSegment) -> TieredSegment:
        segment = piece.segment
        new.begin(segment)
        for part in log_pieces(store, piece.key, segment):
            with part.located():
                new.append(thin(part.view, part.batches, matcher))
        section = segment.sections.get(TRANSACTION_INDEX)
        aborted = read_section(store, piece.key, TRANSACTION_INDEX, section) if section is not None else b""
        uuid = attempt_uuid(self.seed, segment.uuid)
        root = TierRoot(piece.cluster_id)
        return new.put(store, root, piece.path, uuid, [aborted] if aborted else [], MachineClock().wall_ms())


def attempt_uuid(seed: bytes, segment: str) -> str:
    """A new one for each attempt, because Spark may run a task twice, and both write."""
    return hashlib.blake2b(f"{attempt_id()} {segment}".encode(), digest_size=UUID_BYTES, key=seed).hexdigest()


def problem_of(piece: SegmentPiece, error: DamagedObject | StoreError) -> Problem:
    path, key = piece.path, piece.key
    if isinstance(error, DamagedObject):
        offset = piece.segment.base_offset
        return Problem(DAMAGED, error.reason, path.topic, path.partition, offset, error.key, error.position)
    return Problem(UNREADABLE, str(error), path.topic, path.partition, piece.segment.base_offset, key)
