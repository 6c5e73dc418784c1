"""An erasure's state of one partition, and its decision when the erasure is proven. No store and no Spark."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from spark_offload.erasure.leaders import Replacement
from spark_offload.erasure.report import PartitionErasure
from spark_offload.erasure.segment_tasks import Scanned, Thinned
from spark_offload.running.job import Problem
from tiering.bucket.keys import PartitionPath
from tiering.bucket.segment import TieredSegment
from tiering.manifests.manifest import Manifest

ALTERED, CHANGED_MEANWHILE, VANISHED = "altered", "changed-meanwhile", "vanished"


class Seen(NamedTuple):
    """A segment and the result of its last search."""

    segment: TieredSegment
    scan: Scanned


class PartitionWork:
    """One partition: `look_at` a manifest, report what was `seen`; then it has either ended, or `to_rewrite` has the
    next step.

    `_expected` has the digest of the records that each segment must have at the next search, by uuid, "" for one that
    could not be read; it is None before the first search.
    """

    def __init__(self, path: PartitionPath) -> None:
        self.path = path
        self.row = PartitionErasure(path.partition, 0, 0)
        self.problems: list[Problem] = []
        self.manifest: Manifest | None = None
        self.segments: list[TieredSegment] = []
        self.replacements: list[Replacement] = []
        self.replaced: list[str] = []
        self.is_open = True
        self._seen: list[Seen] = []
        self._expected: dict[str, str] | None = None
        self._found: dict[str, dict[bytes, int]] = {}
        self._local_noted = False
        self._refusal = ""

    @property
    def end_offset(self) -> int:
        return self.row.end_offset

    # what is there -------------------------------------------------------------------------------------------

    def look_at(self, manifest: Manifest | None, end_offset: int | None = None) -> None:
        """The segments of `manifest` below `end_offset`, or all. Without a manifest there are none."""
        if manifest is None:
            self.row.proven = True
            self.is_open = False
            return
        head = manifest.head
        self.manifest = manifest
        self.row.end_offset = head.end_offset if end_offset is None else end_offset
        self.row.log_start_offset = head.log_start_offset
        self.segments = [one for one in manifest.segments if one.base_offset < self.row.end_offset]
        self.row.segments = len(self.segments)
        self.row.bytes_after = sum(one.object_bytes for one in self.segments)

    def seen(self, found: list[Seen]) -> None:
        self._seen = found
        if self._expected is None:
            self.row.records = sum(one.scan.records for one in found)
            self.row.bytes_before = self.row.bytes_after
            self._expected = {one.segment.uuid: one.scan.digest for one in found}
        else:
            self._compare(self._expected)
        for one in found:
            if one.scan.problem is not None:
                self._note(one.scan.problem)

    def _compare(self, expected: dict[str, str]) -> None:
        """Check the segments against `_expected`. A segment from another job is a problem, because its content was not
        checked."""
        for segment, scan in self._seen:
            digest = expected.get(segment.uuid)
            if digest is None:
                reason = "another job put this segment there meanwhile; run the erasure again to prove it"
                self._note(self._problem(CHANGED_MEANWHILE, reason, segment.base_offset))
            elif scan.problem is None and digest and scan.digest != digest:
                reason = "records that were to stay are not what they were"
                self._note(self._problem(ALTERED, reason, segment.base_offset))
        start = self.row.log_start_offset
        covered = start
        for segment in self.segments:
            if segment.base_offset > covered:
                break
            covered = max(covered, segment.end_offset)
        if covered < self.row.end_offset and self.segments:
            self._note(self._problem(VANISHED, f"offsets from {covered} on are in no segment any more", covered))

    def found(self) -> dict[bytes, int]:
        """The number of records with the keys in the last search, by the key's digest."""
        counts = Counter[bytes]()
        for one in self._seen:
            counts.update(one.scan.found)
        return counts

    # what is to be done --------------------------------------------------------------------------------------

    def to_rewrite(self) -> list[Seen]:
        """Segments with one of the keys; or a small one without, when replicas have to drop local records.

        A segment that was rewritten before may lack records which the brokers' own disks still hold.
        """
        self.replacements = []
        wanted = [one for one in self._seen if one.scan.found]
        if not wanted and self._must_tell_replicas():
            sound = [one for one in self._seen if one.scan.problem is None]
            wanted = sorted(sound, key=lambda one: one.segment.object_bytes)[:1]
        return wanted

    def rewritten(self, seen: Seen, thinned: Thinned) -> None:
        if thinned.output is None:
            if thinned.problem is not None:
                self._note(thinned.problem)
            return
        self._found[seen.segment.uuid] = seen.scan.found
        if self._expected is not None:
            self._expected[thinned.output.uuid] = seen.scan.digest
        self.replacements.append(Replacement(seen.segment, thinned.output))

    def local_end(self) -> int:
        """Below this offset replicas may drop local records, because the tier has them in readable form."""
        unread = [one.segment.base_offset for one in self._seen if one.scan.problem is not None]
        return min([self.row.end_offset, *unread])

    def accepted(self, run: Sequence[Replacement]) -> dict[bytes, int]:
        """The number of records removed, by key."""
        counts = Counter[bytes]()
        for one in run:
            self.replaced.append(one.input.uuid)
            counts.update(self._found[one.input.uuid])
        self.row.segments_rewritten += len(run)
        self.row.records_erased += sum(counts.values())
        self.row.local_until = max(self.row.local_until, self.local_end())
        self._local_noted = True
        return counts

    def refused(self, reason: str) -> None:
        """Note that another change came first. As long as this run has not changed the partition, it starts over."""
        self._refusal = reason
        if not self.replaced:
            self._expected = None

    def give_up(self, what: str, reason: str) -> None:
        self._note(self._problem(what, reason))
        self.is_open = False

    # the end -------------------------------------------------------------------------------------------------

    def end_if_done(self) -> bool:
        """End the work if no key is found any more, and no replica needs notice or there is a problem."""
        if any(one.scan.found for one in self._seen) or (not self.problems and self._must_tell_replicas()):
            return False
        self.end()
        return True

    def end(self, still_there: str = "") -> None:
        self.is_open = False
        left = sum(self.found().values())
        if left:
            reason = f"{left} records with the keys are in the tier" + (f"; {self._refusal}" if self._refusal else "")
            self._note(self._problem(still_there, reason))
        self.row.proven = not self.problems
        if self.row.proven:
            digests = "".join(one.scan.digest for one in self._seen)
            self.row.digest = hashlib.sha256(digests.encode()).hexdigest()

    def _must_tell_replicas(self) -> bool:
        return not self._local_noted and any(segment.rewritten for segment in self.segments)

    def _problem(self, what: str, reason: str, offset: int = -1) -> Problem:
        return Problem(what, reason, self.path.topic, self.path.partition, offset)

    def _note(self, problem: Problem) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
