"""The verification as a job: looks at the bucket, has every segment read in Spark tasks, joins what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from common.machine import MachineClock
from object_store.blocking import BlockingStore
from spark_offload.options import INFLATED_BYTES_MAX
from spark_offload.running.job import JobOptions, Problem, Progress, Stage
from spark_offload.running.task_runs import run_tasks
from spark_offload.verification.audit_checks import check_against_audit, check_trail, explained_by
from spark_offload.verification.bucket import BucketFound, PartitionFound, look
from spark_offload.verification.checks import Check, Findings, Place
from spark_offload.verification.comparing import (
    KeyTables,
    PlaceName,
    WrittenFound,
    compare_keys,
    judge_writes,
    key_piece,
    latest_of_partition,
    sort_writes,
    swap_pieces,
)
from spark_offload.verification.key_table import KeyTable
from spark_offload.verification.ledger import Ledger
from spark_offload.verification.outcome import keep_outcome, with_totals
from spark_offload.verification.partition_checks import check_extra, check_partition
from spark_offload.verification.partition_walk import PartitionWalk
from spark_offload.verification.piece_task import check_pieces
from spark_offload.verification.pieces import Piece, PieceResult, TaskOptions
from spark_offload.verification.producer_walk import EXPIRATION_MS
from spark_offload.verification.report import LedgerReport, PartitionReport, VerifyReport
from spark_offload.verification.swap_task import check_swap
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.bucket.segment import SegmentId
from tiering.bucket.verified import Run
from tiering.manifests.manifest import DamagedManifest, read_newest_head

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

SPLIT_BYTES = 256 << 20
CHUNK_BYTES = 4 << 20
TASK_BYTES_MIN, TASK_BYTES_MAX = 64 << 20, 1 << 30
TASKS_PER_CORE = 4
EXPIRATION_SETTING = "producer.id.expiration.ms"

AskBrokers = Callable[[PartitionPath], Iterable[Problem]]
"""Where brokers can be reached: what they say of a partition that is at odds with the bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(JobOptions):
    """`deep`: every record is decoded. `ledger`: acknowledged writes that have to be there. `keep_keys`: the report
    has the latest record of each key; `known_keys` are those of an earlier run, which must not have got lost.
    `record`: the outcome is kept in the tier, with the program's `version`."""

    deep: bool = False
    ledger: Ledger | None = None
    keep_keys: bool = False
    known_keys: KeyTables | None = None
    split_bytes: int = SPLIT_BYTES
    chunk_bytes: int = CHUNK_BYTES
    inflated_batch_bytes: int = INFLATED_BYTES_MAX
    record: bool = True
    version: str = ""

    def chosen(self, began_ms: int, ended_ms: int, *, asks_brokers: bool) -> Run:
        """A run with these options, that has counted nothing yet."""
        compared = {"ledger": self.ledger is not None, "keys": self.known_keys is not None, "brokers": asks_brokers}
        return Run(
            began_ms=began_ms,
            ended_ms=ended_ms,
            deep=self.deep,
            compared=tuple(name for name, is_compared in compared.items() if is_compared),
            partitions=self.partitions,
            topics=tuple(sorted(self.topics)),
            topic_count=len(self.topics),
            topic_id=self.topic_id,
            tenant=self.tenant,
            version=self.version,
        )


class RunTasks(Protocol):
    """`spark_offload.running.task_runs.run_tasks`, of one session."""

    def __call__(self, work: Callable[[T], R], pieces: Sequence[T], stage: Stage, /) -> list[R]: ...


class Executors(NamedTuple):
    """What carries out tasks, and how many at a time."""

    run: RunTasks
    cores: int


def run(
    spark: SparkSession,
    options: VerifyOptions,
    progress: Progress,
    ask_brokers: AskBrokers | None = None,
    bucket: BucketFound | None = None,
) -> VerifyReport:
    """`bucket` as of `look_at_bucket`, or looked at here. Raises OptionError for what cannot be meant, StoreError when
    the store does not answer."""
    executors = Executors(partial(run_tasks, spark), spark.sparkContext.defaultParallelism)
    return verify(executors, options, progress, ask_brokers, bucket)


def look_at_bucket(options: VerifyOptions) -> BucketFound:
    """Needs no session, so that invalid options are reported before there is one. Raises OptionError, StoreError."""
    reading = options.reading()
    now_ms = MachineClock().wall_ms()
    with BlockingStore(options.tier) as store:
        return store.wait(lambda: look(store.store, reading, now_ms))


def verify(
    executors: Executors,
    options: VerifyOptions,
    progress: Progress,
    ask_brokers: AskBrokers | None = None,
    bucket: BucketFound | None = None,
) -> VerifyReport:
    """As `run`, on whatever carries out the tasks."""
    clock = MachineClock()
    began = clock.monotonic()
    bucket = bucket or look_at_bucket(options)
    with BlockingStore(options.tier) as store:
        verification = Verification(bucket, options)
        verification.look_at_partitions()
        pieces = verification.pieces(executors.cores)
        settings = TaskOptions(options.tier, options.deep, options.chunk_bytes, options.inflated_batch_bytes)
        total = sum(piece.bytes for task in pieces for piece in task)
        stage = _Bytes(progress.stage("verify", total, "bytes"), total, len(pieces))
        results = executors.run(partial(check_pieces, settings), pieces, stage)
        verification.join([result for task in results for result in task])
        verification.compare(executors, settings, progress)
        verification.forget_what_went(store)
        if ask_brokers is not None:
            verification.ask(ask_brokers, progress)
        report = verification.report
        report.store, report.bytes_read = store.name, total
    report.seconds, report.started_ms = clock.monotonic() - began, bucket.looked_ms
    report.conclude(verification.findings)
    if options.record:
        run = options.chosen(bucket.looked_ms, clock.wall_ms(), asks_brokers=ask_brokers is not None)
        trouble = keep_outcome(options.tier, with_totals(run, report), report)
        if trouble:
            progress.note(f"the outcome is not kept in the tier, where the cluster could show it: {trouble}")
    return report


class _Bytes:
    """Progress by completed tasks, in bytes."""

    def __init__(self, stage: Stage, total: int, tasks: int) -> None:
        self._stage, self._total, self._tasks = stage, total, tasks
        self._done = self._shown = 0

    def advance(self, by: int = 1) -> None:
        self._done += by
        now = self._total * self._done // max(self._tasks, 1)
        self._stage.advance(now - self._shown)
        self._shown = now


class Verification:
    """One run, in the driver."""

    def __init__(self, bucket: BucketFound, options: VerifyOptions) -> None:
        self.bucket = bucket
        self.findings = Findings()
        self.report = VerifyReport(cluster_id=bucket.root.cluster_id, deep=options.deep)
        self._options = options
        self._now_ms = bucket.looked_ms  # what is younger is not in it
        self._chosen = [one for one in bucket.partitions if _is_verified(one, by_id=bool(options.topic_id))]
        self._writes: dict[str, WrittenFound] = {}
        self._pieces: list[list[Piece]] = []  # any one of each segment, by partition

    def look_at_partitions(self) -> None:
        """What needs no segment to be read."""
        explained, audit = _explained(self.bucket), self.bucket.audit
        check_trail(audit, self.findings)
        for text in self.bucket.trouble:
            self.findings.notices.append(Problem(Check.COMPACTION, text))
        for partition in self._chosen:
            check_partition(self.bucket.root, partition, self._now_ms, self.findings)
            settings = self.bucket.settings.get(partition.path.topic, {})
            check_against_audit(audit, partition, settings, self.bucket.began_ms, self._now_ms, self.findings)
            own = explained.get((partition.path.topic_id, partition.path.partition), set())
            own |= explained_by(audit, partition)
            check_extra(self.bucket.root, partition, own, self._now_ms, self.findings)
            self.report.partitions.append(_began(partition))

    # the segments --------------------------------------------------------------------------------------------

    def pieces(self, cores: int) -> list[list[Piece]]:
        """The work of each task: neighbours go together, until they are enough."""
        row = 0
        every: list[Piece] = []
        for partition in self._chosen:
            first: list[Piece] = []
            for piece in self._of_partition(partition, row):
                row = piece.row + 1
                every.append(piece)
                if piece.number == 0:
                    first.append(piece)
            self._pieces.append(first)
        total = sum(piece.bytes for piece in every)
        target = max(TASK_BYTES_MIN, min(TASK_BYTES_MAX, total // max(cores * TASKS_PER_CORE, 1)))
        return _grouped(every, target)

    def _of_partition(self, partition: PartitionFound, row: int) -> Iterable[Piece]:
        manifest, path, root = partition.found.manifest, partition.path, self.bucket.root
        if manifest is None:
            return
        ledger = self._options.ledger
        for segment in manifest.segments:
            info = partition.objects.get(segment.id)
            if info is None:
                continue
            parts = max(1, -(-segment.log_bytes // self._options.split_bytes))
            base = Piece(
                row,
                path.topic,
                path.partition,
                root.segment_key(path, segment.id),
                segment,
                info.size,
                parts=parts,
                gaps=segment.rewritten or self.bucket.is_compacted(path.topic),
            )
            if ledger is not None:
                writes = ledger.of(path.topic, path.partition).between(segment.base_offset, segment.end_offset)
                base = base.with_writes(writes)
            yield from (base.part(number) for number in range(parts))
            row += 1

    def join(self, results: Sequence[PieceResult]) -> None:
        """What the tasks found, segment by segment."""
        by_row: dict[int, list[PieceResult]] = {}
        for result in results:
            by_row.setdefault(result.row, []).append(result)
        for parts in by_row.values():
            parts.sort(key=lambda result: result.number)
        expiration = self.bucket.cluster_settings.get(EXPIRATION_SETTING, "")
        expiration_ms = int(expiration) if expiration.isdecimal() else EXPIRATION_MS
        for pieces, report in zip(self._pieces, self.report.partitions, strict=True):
            PartitionWalk(pieces, by_row, expiration_ms).run(report, self.findings)
            self._sort_writes(report, pieces, by_row)

    def _sort_writes(
        self, report: PartitionReport, pieces: Sequence[Piece], results: Mapping[int, Sequence[PieceResult]]
    ) -> None:
        ledger = self._options.ledger
        if ledger is None:
            return
        counts = self.report.ledger = self.report.ledger or LedgerReport()
        writes = ledger.of(report.topic, report.partition)
        self.findings.checks(Check.LEDGER, len(writes.offset))
        self._writes[report.name] = sort_writes(writes, report, pieces, results, counts)

    # across segments -----------------------------------------------------------------------------------------

    def compare(self, executors: Executors, settings: TaskOptions, progress: Progress) -> None:
        """Rewritings beside what they replaced, keys beside an earlier run, writes that compaction may have taken."""
        swaps = [
            piece
            for partition, report in zip(self._chosen, self.report.partitions, strict=True)
            for piece in swap_pieces(self.bucket, partition, report)
        ]
        if swaps:
            stage = progress.stage("compare rewritings", len(swaps), "rewritings")
            for findings in executors.run(partial(check_swap, settings), swaps, stage):
                self.findings.take(findings)
        self._compare_keys(executors, settings, progress)

    def _compare_keys(self, executors: Executors, settings: TaskOptions, progress: Progress) -> None:
        known = self._options.known_keys
        every = self._options.keep_keys or known is not None
        wanted = [
            partition
            for partition, report in zip(self._chosen, self.report.partitions, strict=True)
            if every or (report.name in self._writes and len(self._writes[report.name].missing.offset))
        ]
        work = [key_piece(self.bucket.root, partition) for partition in wanted]
        tables: dict[PlaceName, KeyTable] = {}
        if work:
            stage = progress.stage("latest values", len(work))
            for piece, table in zip(
                work, executors.run(partial(latest_of_partition, settings), work, stage), strict=True
            ):
                if table is not None:
                    tables[piece.topic_id, piece.partition] = table
        self.report.keys = tables if self._options.keep_keys else {}
        erased = {(one.proposal.topic_id, one.proposal.partition) for one in self.bucket.proposals if one.is_erasure}
        for report in self.report.partitions:
            name, place = (report.topic_id, report.partition), Place(report.topic, report.partition)
            table = tables.get(name)
            if known is not None and table is not None and name in known:
                is_erased = name in erased
                compare_keys(known[name], table, report.log_start, place, self.findings, is_erased=is_erased)
            found, ledger, counts = self._writes.get(report.name), self._options.ledger, self.report.ledger
            if found is not None and ledger is not None and counts is not None:
                writes = ledger.of(report.topic, report.partition)
                judge_writes(found, writes, table, counts, place, self.findings, is_erased=name in erased)

    def forget_what_went(self, store: BlockingStore) -> None:
        """Objects that retention or a job removed while the run was reading are no damage."""
        suspects = {one.key: one for one in self.findings.problems if one.what == Check.OBJECT_MISSING}
        if not suspects:
            return
        gone: dict[str, None] = {}
        for partition in self._chosen:
            manifest = partition.found.manifest
            keys = {} if manifest is None else {
                self.bucket.root.segment_key(partition.path, segment.id): segment.id for segment in manifest.segments
            }  # fmt: skip
            if not any(key in suspects for key in keys):
                continue
            named = _named_now(store, self.bucket.root, partition.path)
            gone |= {key: None for key, identity in keys.items() if named is not None and identity not in named}
        dropped = [one for one in self.findings.problems if one.key in gone]
        for one in dropped:
            self.findings.problems.remove(one)
            self.findings.failed[one.what] -= 1
            self.findings.notices.append(one)
        self.findings.failed = +self.findings.failed  # without those of which none is left

    def ask(self, brokers: AskBrokers, progress: Progress) -> None:
        """Compare with `__tier_state` as the brokers have it."""
        stage = progress.stage("ask brokers", len(self._chosen))
        for partition in self._chosen:
            self.findings.checks(Check.TIER_STATE)
            for problem in brokers(partition.path):
                self.findings.add(problem)
            stage.advance()


def _is_verified(partition: PartitionFound, *, by_id: bool) -> bool:
    """Deleted topics only when they are named by their id, as everywhere; not once their objects are gone."""
    return not partition.found.is_emptied and (by_id or not partition.found.is_dropped)


def _began(partition: PartitionFound) -> PartitionReport:
    path, manifest = partition.path, partition.found.manifest
    report = PartitionReport(path.topic, path.topic_id.hex(), path.partition)
    if manifest is not None:
        report.log_start, report.end = manifest.head.log_start_offset, manifest.head.end_offset
        report.manifest_version, report.segments = manifest.head.version, len(manifest.segments)
        report.rewritten = sum(segment.rewritten for segment in manifest.segments)
        report.object_bytes = sum(segment.object_bytes for segment in manifest.segments)
        report.log_bytes = sum(segment.log_bytes for segment in manifest.segments)
    return report


def _grouped(pieces: Sequence[Piece], target: int) -> list[list[Piece]]:
    tasks: list[list[Piece]] = []
    size = target
    for piece in pieces:
        if size + piece.bytes > target:
            tasks.append([])
            size = 0
        tasks[-1].append(piece)
        size += piece.bytes
    return tasks


def _explained(bucket: BucketFound) -> dict[tuple[bytes, int], set[SegmentId]]:
    """Segments that proposals name: inputs wait to be deleted, outputs to be decided on or swept."""
    found: dict[tuple[bytes, int], set[SegmentId]] = {}
    for proposal, _ in bucket.proposals:
        named = found.setdefault((bytes.fromhex(proposal.topic_id), proposal.partition), set())
        named.update(proposal.inputs)
        named.update(output.id for output in proposal.outputs)
    return found


def _named_now(store: BlockingStore, root: TierRoot, path: PartitionPath) -> set[SegmentId] | None:
    """By the head of the newest manifest; None when it cannot be read, or has pages besides."""
    try:
        head = store.wait(lambda: read_newest_head(store.store, root, path))
    except DamagedManifest:
        return None
    if head is None or head.pages:
        return None
    return {segment.id for segment in head.segments if segment.end_offset > head.log_start_offset}
