"""The compaction job: one Spark task for each partition of compacted topics, then a proposal to each one's leader.

A partition's leader exchanges the segments in one step or not at all. A change of the partition meanwhile, by
retention, another job or an earlier attempt of this one, wins, and this run's segments are swept away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from common.identifiers import random_uuid
from common.machine import MachineClock, machine_random
from object_store.blocking import BlockingStore
from object_store.errors import StoreError
from object_store.store import ObjectStore
from spark_offload.compaction.latest_keys import KEY_MEMORY_BYTES
from spark_offload.compaction.partition_task import (
    DAMAGED,
    STORE,
    PartitionOutcome,
    PartitionTask,
    Rewrite,
    compact_partition,
)
from spark_offload.compaction.policies import Policies, TopicPolicy, read_policies
from spark_offload.compaction.report import (
    FAILED,
    REFUSED,
    SWAPPED,
    UNCHANGED,
    UNDECIDED,
    CompactionReport,
    PartitionRow,
)
from spark_offload.options import OptionError
from spark_offload.reading.catalog import Catalog, PartitionContents
from spark_offload.rewriting.log_pieces import CHUNK_BYTES
from spark_offload.running.job import JobOptions, Problem, Progress, Stage
from spark_offload.running.task_runs import run_tasks
from tiering.bucket.keys import TierRoot
from tiering.jobs.proposal import Proposal, Verdict, submit, wait_for_verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_VERDICT = "no-verdict"
JOB = "tidelog spark compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions(JobOptions):
    """Without `topics`, all that are compacted. Milliseconds that are None are those of the topics' settings.

    `min_dirty_ratio`: partitions of which a smaller share of bytes was never compacted here are passed over.
    `assume_compacted`: also topics of which the exported metadata does not say so (brokers may have been started with
    another default). `verdict_s`: how long leaders may take to decide.
    """

    min_dirty_ratio: float = 0.0
    delete_retention_ms: int | None = None
    min_compaction_lag_ms: int | None = None
    assume_compacted: bool = False
    verdict_s: float = 300.0
    chunk_bytes: int = CHUNK_BYTES
    key_memory_bytes: int = KEY_MEMORY_BYTES


def run(
    spark: SparkSession, options: CompactionOptions, progress: Progress, planned: Plan | None = None
) -> CompactionReport:
    """`planned` by `make_plan`, or made here. Raises OptionError for a topic that is not compacted, StoreError."""
    clock = MachineClock()
    began = clock.monotonic()
    planned = planned or make_plan(options)
    with BlockingStore(options.tier) as store:
        stage = progress.stage("compacting", len(planned.tasks))
        outcomes = run_tasks(spark, compact_partition, planned.tasks, stage)
        stage = progress.stage("leaders exchange segments", sum(bool(one.rewrites) for one in outcomes))
        report = store.wait(lambda: Proposing(store.store, options, stage).settle(outcomes))
    report.problems[:0] = planned.problems
    report.seconds = round(clock.monotonic() - began, 3)
    return report


# before ----------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """`problems`: partitions whose manifests cannot be read."""

    tasks: list[PartitionTask]
    problems: list[Problem]


def make_plan(options: CompactionOptions) -> Plan:
    """Needs no session, so that invalid options are reported before there is one. Raises OptionError, StoreError."""
    with BlockingStore(options.tier) as store:
        return store.wait(lambda: plan(store.store, options))


async def plan(store: ObjectStore, options: CompactionOptions) -> Plan:
    """The largest partitions first. Raises OptionError, StoreError."""
    catalog = Catalog(store, options.reading(), passes_over_damage=True)
    contents = [one for one in await catalog.contents() if one.segments]
    problems = [Problem(DAMAGED, reason, path.topic, path.partition) for path, reason in catalog.damaged]
    if not contents:
        return Plan([], problems)
    policies = await read_policies(store, contents[0].root)
    chosen = [(one, policy) for one in contents if (policy := policy_of(policies, one, options)) is not None]
    chosen.sort(key=lambda both: -sum(segment.log_bytes for segment in both[0].segments))
    return Plan([_task(one, policy, options) for one, policy in chosen], problems)


def policy_of(policies: Policies, contents: PartitionContents, options: CompactionOptions) -> TopicPolicy | None:
    """None for a topic that is not compacted; OptionError if it was named."""
    path = contents.path
    known = policies.of(path.topic, path.topic_id)
    policy = known
    if options.assume_compacted:
        policy = replace(known or policies.default(), is_compacted=True)
    if policy is None or not policy.is_compacted:
        if path.topic not in options.topics:
            return None
        why = "no export of the cluster's metadata knows it" if known is None else "its cleanup.policy is delete"
        raise OptionError(f"topic {path.topic} is not compacted: {why}")
    if options.delete_retention_ms is not None:
        policy = replace(policy, delete_retention_ms=options.delete_retention_ms)
    if options.min_compaction_lag_ms is not None:
        policy = replace(policy, min_compaction_lag_ms=options.min_compaction_lag_ms)
    return policy


def _task(contents: PartitionContents, policy: TopicPolicy, options: CompactionOptions) -> PartitionTask:
    return PartitionTask(
        tier=options.tier,
        cluster_id=contents.root.cluster_id,
        path=contents.path,
        policy=policy,
        chunk_bytes=options.chunk_bytes,
        key_memory_bytes=options.key_memory_bytes,
        min_dirty_ratio=options.min_dirty_ratio,
    )


# after -----------------------------------------------------------------------------------------------------


class Proposing:
    """Proposes the tasks' segments to the leaders and collects their verdicts."""

    def __init__(self, store: ObjectStore, options: CompactionOptions, stage: Stage) -> None:
        self._store = store
        self._options = options
        self._stage = stage
        self._random = machine_random()
        self._clock = MachineClock()

    async def settle(self, outcomes: Sequence[PartitionOutcome]) -> CompactionReport:
        report = CompactionReport()
        for row, problems in await asyncio.gather(*(self._settle(one) for one in outcomes)):
            report.partitions.append(row)
            report.problems += problems
        report.partitions.sort(key=lambda row: (row.topic, row.partition))
        return report

    async def _settle(self, outcome: PartitionOutcome) -> tuple[PartitionRow, list[Problem]]:
        if outcome.problem is not None:
            return row_of(outcome, FAILED), [outcome.problem]
        if not outcome.rewrites:
            return row_of(outcome, UNCHANGED), []
        outcomes = await asyncio.gather(*(self._propose(outcome, one) for one in outcome.rewrites))
        self._stage.advance()
        problems = [problem for problem in outcomes if problem is not None]
        state = problems[0].what if problems else SWAPPED
        return row_of(outcome, {NO_VERDICT: UNDECIDED, STORE: FAILED}.get(state, state)), problems

    async def _propose(self, outcome: PartitionOutcome, rewrite: Rewrite) -> Problem | None:
        """Returns None if the leader accepts."""
        path, options = outcome.path, self._options
        root = TierRoot(outcome.cluster_id)
        proposal = Proposal(
            uuid=random_uuid(self._random).hex(),
            kind="compaction",
            topic=path.topic,
            topic_id=path.topic_id.hex(),
            tenant=path.tenant,
            partition=path.partition,
            created_ms=self._clock.wall_ms(),
            job=JOB,
            incarnation=outcome.incarnation,
            log_start_offset=outcome.log_start_offset,
            reaches_log_start=rewrite.deletes_go,
            inputs=[segment.id for segment in rewrite.inputs],
            outputs=rewrite.outputs,
        )
        first = rewrite.inputs[0].base_offset
        try:
            await submit(self._store, root, proposal)
            verdict: Verdict = await wait_for_verdict(self._store, root, proposal.uuid, options.verdict_s)
        except TimeoutError:
            reason = f"no leader decided on proposal {proposal.uuid} within {options.verdict_s:g} s; it may yet do so"
            return Problem(NO_VERDICT, reason, path.topic, path.partition, first)
        except (StoreError, ValueError) as error:
            return Problem(STORE, f"proposal {proposal.uuid}: {error}", path.topic, path.partition, first)
        if not verdict.accepted:
            reason = f"the leader refused proposal {proposal.uuid}: {verdict.reason}"
            return Problem(REFUSED, reason, path.topic, path.partition, first)
        return None


def row_of(outcome: PartitionOutcome, state: str) -> PartitionRow:
    counts = outcome.counts
    inputs = [segment for one in outcome.rewrites for segment in one.inputs]
    outputs = [segment for one in outcome.rewrites for segment in one.outputs]
    return PartitionRow(
        topic=outcome.path.topic,
        partition=outcome.path.partition,
        state=state,
        start=outcome.start,
        end=outcome.end,
        records=counts.records,
        keys=counts.keys,
        readings=counts.readings,
        superseded=counts.superseded,
        without_key=counts.without_key,
        tombstones_dropped=counts.tombstones_dropped,
        aborted_dropped=counts.aborted_dropped,
        bytes_read=counts.bytes * max(counts.readings, 1),
        segments_before=len(inputs),
        segments_after=len(outputs),
        bytes_before=sum(segment.log_bytes for segment in inputs),
        bytes_after=sum(segment.log_bytes for segment in outputs),
        milliseconds=counts.milliseconds,
    )
