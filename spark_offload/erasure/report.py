"""What an erasure says in the end. Keys are named by a salted hash and their line in the key file, never as they are.

The salt lives as long as the run, so guesses cannot be tried against a report; who has the key file tells the keys by
their lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_offload.running.job import Report

KEYS_LISTED_MAX = 10_000


@dataclass(slots=True)
class ErasedKey:
    line: int
    hash: str
    records: int


@dataclass(slots=True)
class PartitionErasure:
    """Offsets from `log_start_offset` to `end_offset` were searched; they held `records` before.

    `proven`: everything was read again after the last change; no record with one of the keys is left, and all others
    are unchanged byte for byte, at their offsets. `digest`: SHA-256 over them, "" if unknown. `local_until`: every
    replica has to drop local records below this offset; -1 for none.
    """

    partition: int
    log_start_offset: int
    end_offset: int
    segments: int = 0
    segments_rewritten: int = 0
    records: int = 0
    records_erased: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    local_until: int = -1
    digest: str = ""
    proven: bool = False


@dataclass(slots=True)
class HeldObject:
    """An object that still exists and may have records with the keys, although no reader of the topic sees it."""

    key: str
    bytes: int
    reason: str


@dataclass(slots=True, kw_only=True)
class ErasureReport(Report):
    """`keys_found` of `keys` were on a record; `key_counts` lists the first `KEYS_LISTED_MAX` of them by line."""

    topic: str = ""
    topic_id: str = ""
    keys: int = 0
    keys_found: int = 0
    records_erased: int = 0
    key_counts: list[ErasedKey] = field(default_factory=list)
    partitions: list[PartitionErasure] = field(default_factory=list)
    objects_gone: int = 0
    held: list[HeldObject] = field(default_factory=list)

    @property
    def proven(self) -> bool:
        return bool(self.partitions) and all(one.proven for one in self.partitions)

    @property
    def failed(self) -> bool:
        return bool(self.problems) or not self.proven

    def lines(self) -> list[str]:
        found = [
            f"{self.topic}: {self.keys_found:,} of {self.keys:,} keys found, {self.records_erased:,} records erased",
            *(_line(one) for one in self.partitions),
            f"{self.objects_gone:,} replaced objects are gone",
        ]
        found += [f"still there: {one.key} ({one.bytes:,} bytes): {one.reason}" for one in self.held]
        found += [problem.line() for problem in self.problems]
        if self.proven and not self.problems:
            found.append("proven: none of the keys is left, and all other records are what they were")
        else:
            found.append("NOT PROVEN")
        return found


def _line(one: PartitionErasure) -> str:
    words = (
        f"partition {one.partition}: offsets {one.log_start_offset} to {one.end_offset}, "
        f"{one.records_erased:,} of {one.records:,} records erased, "
        f"{one.segments_rewritten} of {one.segments} segments rewritten"
    )
    return f"{words}; {'proven' if one.proven else 'NOT PROVEN'}"
