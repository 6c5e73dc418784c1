"""`tidelog spark export`: new records of topics become one commit of a table, exactly once.

The table itself remembers which offsets it holds. A run exports what is readable and not among them, and its commit is
made only on top of a state that does not have these offsets. So a run that is killed at any point, or beaten by another
one, leaves nothing behind but unreferenced files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.machine import MachineClock, machine_random
from common.ports import Clock
from object_store.blocking import BlockingStore
from object_store.errors import StoreError
from object_store.store import ObjectStore
from spark_offload.export.offset_spans import Place, Spans, merged, place_of, without
from spark_offload.export.options import ExportOptions
from spark_offload.export.readable import Readable, around_damage, everything
from spark_offload.export.report import ExportReport, PartitionReport
from spark_offload.export.tables import Addition, Beaten, ExportTable, TableState, commit_addition
from spark_offload.export.tasks import ExportTask, SplitDone, TaskDone, covered, unreadable
from spark_offload.reading.catalog import Catalog, OffsetRange, PartitionContents
from spark_offload.reading.planning import Planner
from spark_offload.reading.splits import Split, packed
from spark_offload.running.job import Problem, Progress
from spark_offload.running.task_runs import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000


@dataclass(slots=True)
class PartitionPlan:
    """What one partition has for the table: of what is `wanted`, damage holds some back."""

    contents: PartitionContents
    place: Place
    wanted: Spans = ()
    held: Spans = ()
    gone: Spans = ()
    splits: list[Split] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def run(
    spark: SparkSession, options: ExportOptions, progress: Progress, table: ExportTable | None = None
) -> ExportReport:
    """One run; `table` as of `open_table`, or opened here, is closed in the end. Raises OptionError, TableMismatch,
    StoreError, and what a catalog raises when it does not answer."""
    options.check()
    table = table or open_table(options)
    try:
        return Export(spark, options, progress, table, MachineClock(), new_run_id()).run()
    finally:
        table.close()


def open_table(options: ExportOptions) -> ExportTable:
    # Not at the top: pyiceberg is not needed for Parquet, and takes a second to import.
    if options.to == "iceberg":
        from spark_offload.export.iceberg_table import IcebergTable, open_catalog  # noqa: PLC0415

        return IcebergTable(options.table_name, open_catalog(options))
    from spark_offload.export.parquet_table import ParquetTable  # noqa: PLC0415

    return ParquetTable(options.output)


def new_run_id() -> str:
    return f"{machine_random().getrandbits(64):016x}"


class Export:
    """The steps of a run, in order."""

    def __init__(
        self,
        spark: SparkSession,
        options: ExportOptions,
        progress: Progress,
        table: ExportTable,
        clock: Clock,
        run_id: str,
    ) -> None:
        self._spark = spark
        self._options = options
        self._progress = progress
        self._table = table
        self._clock = clock
        self._began_ms = clock.wall_ms()
        self._report = ExportReport(run=run_id, to=options.to, table=table.name)

    def run(self) -> ExportReport:
        columns = self._options.columns()
        began = self._clock.monotonic()
        self._table.prepare(columns.schema)
        state = self._table.state()
        plans = self._plan(state)
        tasks = [task for plan in plans for task in packed(plan.splits, self._options.task_bytes)]
        done = self._write(tasks)
        addition = self._summed(plans, list(zip(tasks, done, strict=True)))
        if addition.spans:
            self._commit(state, addition)
        if self._options.orphan_hours:
            self._report.swept = self._table.sweep(self._began_ms - self._options.orphan_hours * HOUR_MS)
        self._report.seconds = self._clock.monotonic() - began
        self._report.count()
        return self._report

    # the steps

    def _plan(self, state: TableState) -> list[PartitionPlan]:
        reading = self._options.reading({"isolation": "read_committed"})

        async def plan(store: ObjectStore) -> list[PartitionPlan]:
            catalog = Catalog(store, reading, passes_over_damage=True)
            found = await catalog.contents()
            for path, reason in catalog.damaged:
                self._report.problems.append(Problem("damaged", reason, path.topic, path.partition))
            planner = Planner(store, self._options.task_bytes, read_committed=True)
            return list(await asyncio.gather(*(planned(store, planner, one, state) for one in found)))

        with BlockingStore(reading.tier) as blocking:
            return blocking.wait(lambda: plan(blocking.store))

    def _write(self, tasks: Sequence[tuple[Split, ...]]) -> list[TaskDone]:
        if not tasks:
            return []
        work = ExportTask(
            self._options.reading(),
            self._options.values,
            self._options.include_headers,
            self._table.target(),
            self._report.run,
            self._options.file_bytes,
        )
        return run_tasks(self._spark, work, tasks, self._progress.stage("export", len(tasks), "tasks"))

    def _summed(self, plans: Sequence[PartitionPlan], done: Sequence[tuple[tuple[Split, ...], TaskDone]]) -> Addition:
        """Everything that was written as one commit, and the report's partitions."""
        of_partition: dict[tuple[str, int], list[tuple[tuple[Split, ...], TaskDone]]] = {}
        for splits, result in done:
            of_partition.setdefault((splits[0].topic, splits[0].partition), []).append((splits, result))
        spans: dict[Place, Spans] = {}
        for plan in plans:
            self._report.problems += plan.problems
            if not plan.wanted and not plan.gone:
                continue
            path = plan.contents.path
            tasks = of_partition.get((path.topic, path.partition), [])
            pairs = [pair for splits, result in tasks for pair in zip(splits, result.splits, strict=True)]
            known = {problem.key for problem in plan.problems}
            found = [one.problem for _, one in pairs if one.problem is not None]
            self._report.problems += [problem for problem in found if problem.key not in known]
            exported = covered(without(plan.wanted, plan.held), pairs)
            if exported:
                spans[plan.place] = exported
            self._report.partitions.append(_partition_report(plan, exported, pairs, [result for _, result in tasks]))
        return Addition(
            run=self._report.run,
            cluster_id=plans[0].contents.root.cluster_id if plans else "",
            committed_ms=self._clock.wall_ms(),
            spans=spans,
            files=[file for _, result in done for file in result.files],
            undecoded=sum(result.undecoded for _, result in done),
        )

    def _commit(self, state: TableState, addition: Addition) -> None:
        """The complete partition, or nothing and a problem."""
        took_ms = self._clock.wall_ms() - self._began_ms
        if self._options.orphan_hours and took_ms >= self._options.orphan_hours * HOUR_MS:
            self._lost("late", "the run took so long that another one may have removed its files")
            self._table.delete([file.path for file in addition.files])
            return
        try:
            self._report.version = commit_addition(self._table, state, addition)
        except Beaten as beaten:
            self._lost("beaten", str(beaten))

    def _lost(self, what: str, reason: str) -> None:
        self._report.problems.append(Problem(what, reason))
        for one in self._report.partitions:
            one.exported, one.missed = [], []


async def planned(
    store: ObjectStore, planner: Planner, contents: PartitionContents, state: TableState
) -> PartitionPlan:
    """Damage in one partition is that partition's problem, and holds back no more of it than it must."""
    plan = PartitionPlan(contents, place_of(contents.root.cluster_id, contents.path))
    exported = state.exported.get(plan.place, ())
    try:
        try:
            await _fill(plan, planner, await everything(store, contents), exported)
        except (StoreError, ValueError):
            around = await around_damage(store, contents)
            if not around.problems:
                raise
            plan.problems += around.problems
            await _fill(plan, planner, around, exported)
    except (StoreError, ValueError) as error:
        plan.problems.append(unreadable(error, contents.path.topic, contents.path.partition))
        plan.held, plan.splits = plan.wanted, []
    return plan


async def _fill(plan: PartitionPlan, planner: Planner, found: Readable, exported: Spans) -> None:
    log_start = plan.contents.log_start
    readable = merged([(log_start, found.end)])
    # Never more than what is there: should segments between others be missing, they can still come.
    missing = without(readable, merged((one.base_offset, one.end_offset) for one in plan.contents.segments))
    plan.wanted = without(without(readable, missing), exported)
    plan.held = found.held
    plan.gone = without(((exported[0][0], log_start),), exported) if exported else ()
    due = without(plan.wanted, plan.held)
    plan.splits = await planner.plan(OffsetRange(found.contents, first, end) for first, end in due)


def _partition_report(
    plan: PartitionPlan, exported: Spans, pairs: Sequence[tuple[Split, SplitDone]], done: Sequence[TaskDone]
) -> PartitionReport:
    files = [file for result in done for file in result.files]
    return PartitionReport(
        topic=plan.contents.path.topic,
        partition=plan.contents.path.partition,
        exported=list(exported),
        missed=list(without(plan.wanted, exported)),
        gone=list(plan.gone),
        rows=sum(one.rows for _, one in pairs),
        undecoded=sum(result.undecoded for result in done),
        log_bytes=sum(split.high - split.low for split, _ in pairs),
        file_bytes=sum(file.bytes for file in files),
        files=len(files),
    )
