"""What one Spark task does: compact one partition, from its manifest to new segments in the store.

It proposes nothing. Whatever goes wrong is in its outcome, with the partition's own segments left alone; objects that
it wrote before are unreferenced, and the sweeper removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from common.identifiers import random_uuid
from common.machine import MachineClock, machine_random
from object_store.errors import StoreError
from spark_offload.compaction.policies import TopicPolicy
from spark_offload.compaction.rewriting_run import RunRewriter, RunSettings
from spark_offload.compaction.runs import Run, plan_runs
from spark_offload.compaction.survey import Survey, survey
from spark_offload.compaction.transactions import Transactions
from spark_offload.reading.task import store_at
from spark_offload.rewriting.last_batches import LastBatches
from spark_offload.rewriting.log_pieces import DamagedObject, Piece, log_pieces, read_section
from spark_offload.rewriting.new_segment import NewSegment
from spark_offload.running.job import Problem
from spark_offload.segments.aborted import first_open_offset
from storage.indexes.transaction_index import AbortedTransaction, decode
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.bucket.segment import PRODUCER_SNAPSHOT, TRANSACTION_INDEX, TieredSegment, producers_section
from tiering.manifests.manifest import Manifest, read_manifest

if TYPE_CHECKING:
    from object_store.blocking import BlockingStore

DAMAGED, STORE, TOO_LARGE, NO_ROOM = "damaged", "store", "too-large", "no-room"


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """`chunk_bytes` are read and decoded at once, `key_memory_bytes` is what keys may take in one reading."""

    tier: str
    cluster_id: str
    path: PartitionPath
    policy: TopicPolicy
    chunk_bytes: int
    key_memory_bytes: int
    min_dirty_ratio: float


@dataclass(slots=True)
class Rewrite:
    """One run's segments, and their replacements."""

    inputs: list[TieredSegment]
    outputs: list[TieredSegment]
    deletes_go: bool


@dataclass(slots=True)
class Counts:
    """Of one partition; records that count are those of clients. `bytes` are of logs, without sections."""

    segments: int = 0
    bytes: int = 0
    records: int = 0
    keys: int = 0
    readings: int = 0
    superseded: int = 0
    without_key: int = 0
    tombstones_dropped: int = 0
    aborted_dropped: int = 0
    milliseconds: int = 0


@dataclass(slots=True)
class PartitionOutcome:
    """Offsets [start, end) were looked at. Without rewrites there was nothing to do, or there is a problem."""

    path: PartitionPath
    cluster_id: str = ""
    incarnation: int = 0
    log_start_offset: int = 0
    start: int = 0
    end: int = 0
    rewrites: list[Rewrite] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    problem: Problem | None = None


def compact_partition(task: PartitionTask) -> PartitionOutcome:
    """Runs in an executor."""
    outcome = PartitionOutcome(task.path, task.cluster_id)
    clock = MachineClock()
    began = clock.monotonic()
    try:
        PartitionCompaction(task, store_at(task.tier), outcome).run()
    except DamagedObject as error:
        outcome.problem = _problem(task, DAMAGED, error.reason, error.key, error.position)
    except StoreError as error:
        outcome.problem = _problem(task, STORE, str(error), error.key)
    except ValueError as error:  # an unreadable manifest, or a segment too large for its indexes
        outcome.problem = _problem(task, TOO_LARGE if outcome.counts.readings else DAMAGED, str(error))
    except OSError as error:
        outcome.problem = _problem(task, NO_ROOM, f"the executor cannot keep what it writes: {error}")
    if outcome.problem is not None:
        outcome.rewrites.clear()
    outcome.counts.milliseconds = round((clock.monotonic() - began) * 1000)
    return outcome


def _problem(task: PartitionTask, what: str, reason: str, key: str = "", position: int = -1) -> Problem:
    return Problem(what, reason, task.path.topic, task.path.partition, key=key, position=position)


class PartitionCompaction:
    """One run over one partition."""

    def __init__(self, task: PartitionTask, store: BlockingStore, outcome: PartitionOutcome) -> None:
        self._task = task
        self._store = store
        self._root = TierRoot(task.cluster_id)
        self._outcome = outcome
        self._now_ms = MachineClock().wall_ms()
        self._random = machine_random()

    def run(self) -> None:
        """Fills the outcome. Raises DamagedObject, StoreError, ValueError, OSError."""
        task, outcome = self._task, self._outcome
        manifest = self._store.wait(lambda: read_manifest(self._store.store, self._root, task.path))
        if manifest is None or manifest.head.dropped_ms:
            return
        head = manifest.head
        outcome.incarnation, outcome.log_start_offset = head.incarnation, head.log_start_offset
        segments = self._compactable(manifest)
        if not segments or dirty_ratio(segments) < task.min_dirty_ratio:
            return
        outcome.start, outcome.end = max(segments[0].base_offset, head.log_start_offset), segments[-1].end_offset
        transactions = self._aborted(manifest.segments)
        found = survey(segments, self._read, Transactions(transactions), self._now_ms, task.key_memory_bytes)
        deletes_go = reaches_back(segments, head.log_start_offset)
        self._count(found, deletes_go=deletes_go)
        runs = plan_runs(found.notes, task.policy.segment_bytes, deletes_go=deletes_go)
        if runs:
            self._rewrite(runs, transactions)

    def _compactable(self, manifest: Manifest) -> list[TieredSegment]:
        """The segments from the log start on that are decided and old enough."""
        if not manifest.segments:
            return []
        last = manifest.segments[-1]
        try:
            open_from = first_open_offset(snapshot) if (snapshot := self._snapshot(last)) else None
        except ValueError as error:
            section = producers_section(last)
            raise DamagedObject(self._key(last), section.position if section else 0, str(error)) from error
        youngest_ms = self._now_ms - self._task.policy.min_compaction_lag_ms
        chosen: list[TieredSegment] = []
        for segment in manifest.segments:
            if open_from is not None and segment.end_offset > open_from:
                break
            if self._task.policy.min_compaction_lag_ms > 0 and segment.max_timestamp > youngest_ms:
                break
            chosen.append(segment)
        return chosen

    def _key(self, segment: TieredSegment) -> str:
        return self._root.segment_key(self._task.path, segment.id)

    def _read(self, segment: TieredSegment) -> Iterator[Piece]:
        return log_pieces(self._store, self._key(segment), segment, self._task.chunk_bytes)

    def _snapshot(self, segment: TieredSegment) -> bytes:
        section = producers_section(segment)
        return read_section(self._store, self._key(segment), PRODUCER_SNAPSHOT, section) if section else b""

    def _aborted(self, segments: Sequence[TieredSegment]) -> list[AbortedTransaction]:
        """Markers of transactions that began in what is compacted may lie in any later segment."""
        found: list[AbortedTransaction] = []
        for segment in segments:
            section = segment.sections.get(TRANSACTION_INDEX)
            if section is None:
                continue
            data = read_section(self._store, self._key(segment), TRANSACTION_INDEX, section)
            try:
                found += decode(data)
            except ValueError as error:
                raise DamagedObject(self._key(segment), section.position, str(error)) from error
        return found

    def _count(self, found: Survey, *, deletes_go: bool) -> None:
        counts = self._outcome.counts
        counts.keys, counts.readings, counts.segments = found.keys, found.readings, len(found.notes)
        for notes in found.notes:
            latest = int(notes.kept(deletes_go=False).sum())
            counts.bytes += notes.segment.log_bytes
            counts.records += notes.records
            counts.superseded += notes.records - latest - notes.records_without_key
            counts.without_key += notes.records_without_key
            counts.aborted_dropped += notes.records_aborted
            counts.tombstones_dropped += latest - int(notes.kept(deletes_go=deletes_go).sum())

    def _rewrite(self, runs: Sequence[Run], transactions: Sequence[AbortedTransaction]) -> None:
        policy = self._task.policy
        last = runs[-1].forecasts[-1].segment
        rewriter = RunRewriter(
            read=self._read,
            transactions=Transactions(transactions),
            lasts=LastBatches(self._snapshot(last)),
            settings=RunSettings(
                policy.segment_bytes, policy.index_interval_bytes, self._now_ms + policy.delete_retention_ms
            ),
            put=self._put,
        )
        for run in runs:
            inputs = [one.segment for one in run.forecasts]
            self._outcome.rewrites.append(Rewrite(inputs, rewriter.rewrite(run), run.deletes_go))

    def _put(self, output: NewSegment, transactions: list[bytes]) -> TieredSegment:
        uuid = random_uuid(self._random).hex()
        return output.put(self._store, self._root, self._task.path, uuid, transactions, self._now_ms)


def reaches_back(segments: Sequence[TieredSegment], log_start_offset: int) -> bool:
    """Whether they hold everything from the log start to their end: no hole in which an older value might live."""
    touching = all(after.base_offset == before.end_offset for before, after in pairwise(segments))
    return touching and segments[0].base_offset <= log_start_offset


def dirty_ratio(segments: Sequence[TieredSegment]) -> float:
    """The share of bytes that no job has rewritten yet."""
    dirty = sum(segment.log_bytes for segment in segments if not segment.rewritten)
    return dirty / sum(segment.log_bytes for segment in segments)
