"""What is checked, by name, and the collection of what was found: the words of every report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from spark_offload.running.job import Problem

PROBLEMS_PER_CHECK_MAX = 20
"""Of one check at one place in one piece of work; further ones are counted. A destroyed object must not drown the
report, nor hide another one."""


class Check(StrEnum):
    """One thing that is proven; its text stands in reports."""

    MANIFEST = "manifest"
    MANIFEST_STALE = "manifest_stale"
    COVERAGE = "coverage"
    LINEAGE = "lineage"
    TIER_STATE = "tier_state"
    OBJECT_MISSING = "object_missing"
    OBJECT_SIZE = "object_size"
    OBJECT_EXTRA = "object_extra"
    OBJECT_UNREADABLE = "object_unreadable"
    LOG_CHECKSUM = "log_checksum"
    SECTION = "section"
    BATCH_CRC = "batch_crc"
    BATCH_HEADER = "batch_header"
    BATCH_COUNT = "batch_count"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"
    LEADER_EPOCH = "leader_epoch"
    OFFSET_INDEX = "offset_index"
    TIME_INDEX = "time_index"
    TRANSACTION_INDEX = "transaction_index"
    SEQUENCE = "sequence"
    PRODUCER_SNAPSHOT = "producer_snapshot"
    RECORD = "record"
    LOG_START = "log_start"
    AUDIT = "audit"
    COMPACTION = "compaction"
    KEYS = "keys"
    LEDGER = "ledger"


WORDS: Mapping[Check, tuple[str, str]] = {
    Check.MANIFEST: ("partitions", "the newest manifest can be read, with its pages, and says nothing impossible"),
    Check.MANIFEST_STALE: ("partitions", "the manifest is as new as what brokers and audit say of the partition"),
    Check.COVERAGE: ("partitions", "every offset from the log start to the tier's end lies in exactly one segment"),
    Check.LINEAGE: ("segments", "leader epochs form one history from the first segment to the last"),
    Check.TIER_STATE: ("partitions", "the manifest names the segments that the tier's state has, and no others"),
    Check.OBJECT_MISSING: ("segments", "the object of each segment is there"),
    Check.OBJECT_SIZE: ("segments", "each object has the size that the manifest gives"),
    Check.OBJECT_EXTRA: ("objects", "every object belongs to something"),
    Check.OBJECT_UNREADABLE: ("segments", "the store hands every object out, and its bytes are record batches"),
    Check.LOG_CHECKSUM: ("segments", "the log's bytes have the CRC-32C of the manifest"),
    Check.SECTION: ("sections", "indexes and snapshots have their CRC-32C and their form"),
    Check.BATCH_CRC: ("batches", "the batch's own CRC-32C is right"),
    Check.BATCH_HEADER: ("batches", "message format, attributes and producer fields are possible"),
    Check.BATCH_COUNT: ("batches", "the batch, and the segment as a whole, hold as many records as is said"),
    Check.OFFSETS: ("batches", "offsets follow each other without gap or overlap, but for what compaction removed"),
    Check.TIMESTAMP: ("batches", "timestamps are possible, and the greatest one of the segment is right"),
    Check.LEADER_EPOCH: ("batches", "the batch carries the leader epoch that was in force at its offset"),
    Check.OFFSET_INDEX: ("entries", "each entry points at the batch that ends with its offset"),
    Check.TIME_INDEX: ("entries", "no record up to an entry's offset is newer than the entry, and one is as new"),
    Check.TRANSACTION_INDEX: ("transactions", "the aborted transactions of the log are those of the index"),
    Check.SEQUENCE: ("producers", "the producers' sequences go on without gap or repetition"),
    Check.PRODUCER_SNAPSHOT: ("snapshots", "the snapshot says of every producer what the log says"),
    Check.RECORD: ("records", "every record can be decoded, and fits its batch"),
    Check.LOG_START: ("partitions", "whenever the log start moved, the audit says why"),
    Check.AUDIT: ("audits", "the audit can be read and has no hole"),
    Check.COMPACTION: ("rewritings", "rewriting segments changed no record and lost no key's latest value"),
    Check.KEYS: ("keys", "the latest value of each key is that of the run before, or a newer one"),
    Check.LEDGER: ("writes", "every acknowledged write is there with its key"),
}
"""What is counted, and the sentence that holds when nothing failed."""


@dataclass(slots=True)
class Findings:
    """Collected by one piece of work; small enough to be handed back to the driver."""

    problems: list[Problem] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    notices: list[Problem] = field(default_factory=list)
    _listed: dict[tuple[str, str, int, str], int] = field(default_factory=dict)

    def checks(self, check: Check, count: int = 1) -> None:
        """`count` more things were looked at."""
        self.checked[check] += count

    def fail(
        self, check: Check, place: Place, reason: str, *, offset: int = -1, position: int = -1, more: int = 0
    ) -> None:
        """One that is not as it should be; `more` of the same kind are counted with it."""
        self.add(place.problem(check, reason, offset, position), more)

    def add(self, problem: Problem, more: int = 0) -> None:
        """Record `problem`, as `fail` does with one that it creates."""
        self.failed[problem.what] += 1 + more
        place = (problem.what, problem.topic, problem.partition, problem.key)
        listed = self._listed[place] = self._listed.get(place, 0) + 1
        if listed <= PROBLEMS_PER_CHECK_MAX:
            self.problems.append(problem)

    def notice(self, check: Check, place: Place, reason: str) -> None:
        """Something that is no damage, and worth knowing."""
        self.notices.append(place.problem(check, reason))

    def take(self, other: Findings) -> None:
        """Add what another piece of work found."""
        self.problems += other.problems
        self.notices += other.notices
        self.failed.update(other.failed)
        self.checked.update(other.checked)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a finding is: the partition, and the object if it is about one."""

    topic: str
    partition: int
    key: str = ""

    def problem(self, check: Check, reason: str, offset: int = -1, position: int = -1) -> Problem:
        return Problem(check, reason, self.topic, self.partition, offset, self.key, position)
