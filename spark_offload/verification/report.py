"""What a verification says in the end: plain values, ready for JSON, tables and people. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spark_offload.running.job import Problem, Report, size_text
from spark_offload.verification.checks import WORDS, Findings
from spark_offload.verification.key_table import KeyTable

LINES_MAX = 50


@dataclass(frozen=True, slots=True)
class CheckReport:
    """`checked` things, counted in `unit`, of which `failed` were not as `proves` says."""

    name: str
    unit: str
    proves: str
    checked: int
    failed: int


@dataclass(slots=True)
class PartitionReport:
    """`covered` are the offsets that were seen in sound batches, as ranges; `log_start` to `end` is what should be.

    `rewritten` segments came from jobs; `bytes_before` is what those of them took whose originals are known, and
    `bytes_after` what they take now. `seconds` are those of the tasks, whichever ran at once.
    """

    topic: str
    topic_id: str
    partition: int
    log_start: int = 0
    end: int = 0
    manifest_version: int = 0
    segments: int = 0
    rewritten: int = 0
    object_bytes: int = 0
    log_bytes: int = 0
    batches: int = 0
    records: int = 0
    decoded: int = 0
    covered: list[tuple[int, int]] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    problems: int = 0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(slots=True)
class LedgerReport:
    """Of `writes` acknowledged ones. `explained`: compaction or erasure may have taken the record away."""

    writes: int = 0
    present: int = 0
    below_log_start: int = 0
    not_tiered: int = 0
    explained: int = 0
    lost: int = 0


@dataclass(slots=True, kw_only=True)
class VerifyReport(Report):
    """`failures` counts all problems, of which `problems` lists some of each kind and place. `keys` has the latest
    records of keys by topic id and partition, where they were asked for."""

    store: str = ""
    cluster_id: str = ""
    started_ms: int = 0
    seconds: float = 0.0
    deep: bool = False
    bytes_read: int = 0
    failures: int = 0
    checks: list[CheckReport] = field(default_factory=list)
    partitions: list[PartitionReport] = field(default_factory=list)
    notices: list[Problem] = field(default_factory=list)
    ledger: LedgerReport | None = None
    keys: dict[tuple[str, int], KeyTable] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Without the keys, which are a file of their own."""
        return {"failed": self.failed} | asdict(replace(self, keys={}))

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_read / self.seconds if self.seconds else 0.0

    def conclude(self, findings: Findings) -> None:
        """Take in what was found."""
        self.problems = sorted(findings.problems, key=lambda one: (one.topic, one.partition, one.offset, one.what))
        self.notices = list(findings.notices)
        self.failures = sum(findings.failed.values())
        self.checks = [
            CheckReport(check, unit, proves, findings.checked[check], findings.failed[check])
            for check, (unit, proves) in WORDS.items()
            if check in findings.checked or check in findings.failed
        ]
        for partition in self.partitions:
            own = (partition.topic, partition.partition)
            partition.problems = sum((one.topic, one.partition) == own for one in self.problems)

    def lines(self) -> list[str]:
        """What failed, then the totals."""
        found = [problem.line() for problem in self.problems[:LINES_MAX]]
        if self.failures > len(found):
            found.append(f"… and {self.failures - len(found)} more; see the report")
        kind = "every record" if self.deep else "every batch"
        found.append(
            f"{len(self.partitions)} partitions, {sum(one.segments for one in self.partitions)} segments, "
            f"{sum(one.records for one in self.partitions):,} records, {size_text(self.bytes_read)} in "
            f"{self.seconds:.1f} s: {kind} was looked at"
        )
        if self.ledger is not None:
            one = self.ledger
            found.append(
                f"{one.writes:,} acknowledged writes: {one.present:,} there, {one.below_log_start:,} below the log "
                f"start, {one.not_tiered:,} not tiered yet, {one.explained:,} compacted or erased, {one.lost:,} lost"
            )
        found.append(f"DAMAGED: {self.failures} things are not as they should be" if self.failed else "no damage")
        return found
