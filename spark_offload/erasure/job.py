"""The erasure job: have everything tiered, look, rewrite, propose, look again until nothing is found, and say so.

Each look reads every record of the topic below the ends that the leaders named. The first one notes a digest of what
has to stay, segment by segment; the one after a change compares. What others changed meanwhile is searched again, a
few times over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from object_store.blocking import BlockingStore
from object_store.store import ObjectStore
from spark_offload.erasure.key_digests import ErasureKeys
from spark_offload.erasure.leaders import Leaders, Replacement, Waits
from spark_offload.erasure.partition_work import PartitionWork, Seen
from spark_offload.erasure.report import KEYS_LISTED_MAX, ErasedKey, ErasureReport
from spark_offload.erasure.secrets_of_tasks import secret_for_tasks
from spark_offload.erasure.segment_tasks import DAMAGED, Scanned, ScanSegment, SegmentPiece, Thinned, ThinSegment
from spark_offload.options import OptionError
from spark_offload.reading.catalog import Catalog, chosen_root
from spark_offload.running.job import JobOptions, Progress
from spark_offload.running.task_runs import run_tasks
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.exports.exports import METADATA, newest_exports
from tiering.manifests.manifest import DamagedManifest

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

ROUNDS_MAX = 4
NO_ANSWER, REFUSED, NO_VERDICT, NOT_PUBLISHED, STILL_THERE = (
    "no-answer",
    "refused",
    "no-verdict",
    "not-published",
    "still-there",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureOptions(JobOptions):
    """`seed`: 16 random bytes. `prove_only`: change nothing, ask no leader, look for the keys in what is tiered."""

    keys: ErasureKeys
    seed: bytes = field(repr=False)
    prove_only: bool = False
    waits: Waits = field(default_factory=Waits)


def run(spark: SparkSession, options: ErasureOptions, progress: Progress) -> ErasureReport:
    """Raises OptionError unless one topic is chosen that is in the tier, StoreError."""
    with BlockingStore(options.tier) as store:
        root = store.wait(lambda: chosen_root(store.store, options.cluster_id))
        paths = store.wait(lambda: _all_partitions(store.store, root, options))
        return Erasure(spark, options, progress, Leaders(store, root, options.seed, options.waits)).run(paths)


async def _all_partitions(store: ObjectStore, root: TierRoot, options: ErasureOptions) -> list[PartitionPath]:
    """Those of the topic that have something in the tier, readable or not, and those that the metadata knows beside."""
    wanted = options.reading()
    catalog = Catalog(store, wanted, passes_over_damage=True)
    there = [one.path for one in await catalog.contents()] + [path for path, _ in catalog.damaged]
    if not there and options.topics:
        names = ", ".join(map(repr, options.topics))
        raise OptionError(
            f"{store.name}, cluster {root.cluster_id}, holds nothing of topic {names} in these partitions"
        )
    if len({path.topic_id for path in there}) != 1:
        raise OptionError("an erasure takes one topic")
    first, numbers = there[0], {path.partition for path in there}
    for export in await newest_exports(store, root, METADATA):
        for event in export.events:
            if event.get("event") == "partition" and event.get("topic_id") == first.topic_id.hex():
                numbers.add(int(event["partition"]))
    return [first._replace(partition=number) for number in sorted(numbers) if wanted.wants_partition(number)]


@contextmanager
def _unreadable_manifest_of(work: PartitionWork) -> Iterator[None]:
    """Record a problem of one partition; the others continue."""
    try:
        yield
    except DamagedManifest as error:
        work.give_up(DAMAGED, str(error))


class Erasure:
    """One run."""

    def __init__(self, spark: SparkSession, options: ErasureOptions, progress: Progress, leaders: Leaders) -> None:
        self._spark = spark
        self._options = options
        self._progress = progress
        self._leaders = leaders
        self._report = ErasureReport(keys=len(options.keys))
        self._found = Counter[bytes]()
        self._replaced: list[str] = []

    def run(self, paths: Sequence[PartitionPath]) -> ErasureReport:
        report = self._report
        report.topic, report.topic_id = paths[0].topic, paths[0].topic_id.hex()
        works = [PartitionWork(path) for path in paths]
        self._begin(works)
        keys = self._options.keys
        context = self._spark.sparkContext
        digests = context.broadcast(keys.digests.packed)
        try:
            with secret_for_tasks(context, keys.secret):
                self._rounds(works, digests)
        finally:
            digests.destroy()
        self._end(works)
        return report

    # the beginning -------------------------------------------------------------------------------------------

    def _begin(self, works: list[PartitionWork]) -> None:
        """Wait until all current records are in the tier, and note its end."""
        if self._options.prove_only:
            for work in works:
                with _unreadable_manifest_of(work):
                    work.look_at(self._leaders.manifest(work.path))
            return
        stage = self._progress.stage("leaders tier what they hold", len(works))
        request = self._leaders.request([work.path for work in works])
        waits = self._leaders.waits
        deadline = self._leaders.deadline(waits.ready_s)
        for work in works:
            end = self._leaders.ready_end(request, work.path.partition, deadline)
            if end is None:
                reason = f"not everything is tiered within {waits.ready_s:g} s: no leader, or a transaction is open"
                work.give_up(NO_ANSWER, reason)
            elif end == 0:
                work.look_at(None)
            else:
                self._look_at(work, end, ())
            stage.advance()

    def _look_at(self, work: PartitionWork, end: int, without: Sequence[str]) -> None:
        waits = self._leaders.waits
        with _unreadable_manifest_of(work):
            manifest = self._leaders.manifest_with(work.path, end, without, self._leaders.deadline(waits.manifest_s))
            if manifest is None:
                work.give_up(NOT_PUBLISHED, f"no manifest tells of the last change within {waits.manifest_s:g} s")
            else:
                work.look_at(manifest, end)

    # looking and changing ------------------------------------------------------------------------------------

    def _rounds(self, works: list[PartitionWork], digests: Broadcast[bytes]) -> None:
        open_works = [work for work in works if work.is_open]
        for number in range(ROUNDS_MAX):
            self._look(open_works, digests, number)
            if self._options.prove_only:
                for work in open_works:
                    self._found.update(work.found())
                    work.end(still_there=STILL_THERE)
                return
            open_works = [work for work in open_works if not work.end_if_done()]
            if not open_works:
                return
            if number + 1 < ROUNDS_MAX:
                self._change(open_works, digests)
                open_works = [work for work in open_works if work.is_open]
        for work in open_works:
            work.end(still_there=STILL_THERE)

    def _look(self, works: list[PartitionWork], digests: Broadcast[bytes], number: int) -> None:
        title = "reading every record" if number == 0 else "reading every record again"
        pieces = [piece for work in works for piece in self._pieces(work)]
        stage = self._progress.stage(title, len(pieces), "segments")
        scans: list[Scanned] = run_tasks(self._spark, ScanSegment(digests), pieces, stage)
        at = 0
        for work in works:
            count = len(work.segments)
            work.seen([Seen(*both) for both in zip(work.segments, scans[at : at + count], strict=True)])
            at += count

    def _pieces(self, work: PartitionWork) -> list[SegmentPiece]:
        cluster_id = self._leaders.root.cluster_id
        return [SegmentPiece(self._options.tier, cluster_id, work.path, one) for one in work.segments]

    def _change(self, works: list[PartitionWork], digests: Broadcast[bytes]) -> None:
        """Rewrite, propose, and record the leaders' verdicts."""
        cluster_id = self._leaders.root.cluster_id
        chosen = [(work, one) for work in works for one in work.to_rewrite()]
        pieces = [SegmentPiece(self._options.tier, cluster_id, work.path, one.segment) for work, one in chosen]
        stage = self._progress.stage("rewriting segments", len(pieces), "segments")
        written: list[Thinned] = run_tasks(self._spark, ThinSegment(digests, self._options.seed), pieces, stage)
        for (work, one), thinned in zip(chosen, written, strict=True):
            work.rewritten(one, thinned)
        stage = self._progress.stage("leaders exchange segments", len(works))
        proposed = [(work, uuid, run) for work in works for uuid, run in self._propose(work)]
        deadline = self._leaders.deadline(self._leaders.waits.verdict_s)
        for work, uuid, run in proposed:
            self._take_verdict(work, uuid, run, deadline)
        for work in works:
            if work.is_open:
                self._look_at(work, work.end_offset, work.replaced)
            stage.advance()

    def _propose(self, work: PartitionWork) -> list[tuple[str, list[Replacement]]]:
        if work.manifest is None or not work.replacements:
            return []
        return self._leaders.propose(work.path, work.manifest, work.replacements, work.local_end())

    def _take_verdict(self, work: PartitionWork, uuid: str, run: list[Replacement], deadline: float) -> None:
        verdict = self._leaders.verdict(uuid, deadline)
        if verdict is None:
            within = f"{self._leaders.waits.verdict_s:g} s"
            reason = f"no leader decided on proposal {uuid} within {within}; it may yet do so"
            work.give_up(NO_VERDICT, reason)
        elif not verdict.accepted:
            self._progress.note(f"{work.path.topic}-{work.path.partition}: refused: {verdict.reason}")
            work.refused(verdict.reason)
        else:
            root: TierRoot = self._leaders.root
            self._replaced += [root.segment_key(work.path, one.input.id) for one in run]
            self._found.update(work.accepted(run))

    # the end -------------------------------------------------------------------------------------------------

    def _end(self, works: list[PartitionWork]) -> None:
        report, keys = self._report, self._options.keys
        report.partitions = [work.row for work in works]
        report.problems = [problem for work in works for problem in work.problems]
        report.records_erased = sum(row.records_erased for row in report.partitions)
        report.keys_found = len(self._found)
        counts = [ErasedKey(keys.line_of(digest), digest.hex(), count) for digest, count in self._found.items()]
        report.key_counts = sorted(counts, key=lambda one: one.line)[:KEYS_LISTED_MAX]
        stage = self._progress.stage("replaced objects go", len(self._replaced), "objects")
        deadline = self._leaders.deadline(self._leaders.waits.gone_s)
        left = self._leaders.wait_gone(self._replaced, deadline)
        report.objects_gone = len(self._replaced) - len(left)
        stage.advance(report.objects_gone)
        report.held = self._leaders.held([work.path for work in works], [work.end_offset for work in works])
