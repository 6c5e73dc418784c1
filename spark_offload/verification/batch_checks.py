"""What the headers of a run of batches must be, each alone and one after the other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from records.batch import CODEC_MAX, COMPRESSION_MASK, MAGIC, NO_PRODUCER_ID, NO_TIMESTAMP
from spark_offload.segments.batch_scan import Flags
from spark_offload.segments.varints import Integers
from spark_offload.verification.checks import Check, Findings, Place
from spark_offload.verification.headers import Headers

_KNOWN_ATTRIBUTES = 0x7F


class Expected(NamedTuple):
    """What a segment's entry promises of its batches: offsets [base_offset, end_offset), `epochs` as (epoch, start),
    nothing newer than `max_timestamp`. `gaps`: offsets may be missing, for compaction takes records out."""

    base_offset: int
    end_offset: int
    epochs: Sequence[tuple[int, int]]
    max_timestamp: int
    gaps: bool


def check_batches(headers: Headers, expected: Expected, place: Place, findings: Findings) -> None:
    """`headers` are consecutive batches of the segment, but for what could not be read between them."""
    check = _BatchChecks(headers, expected, place, findings)
    check.alone()
    check.counts()
    check.offsets()
    check.timestamps()
    check.epochs()


class _BatchChecks:
    def __init__(self, headers: Headers, expected: Expected, place: Place, findings: Findings) -> None:
        self._headers = headers
        self._expected = expected
        self._place = place
        self._findings = findings
        self._base = headers.column("base_offset")
        self._last = headers.last_offset

    def _fail(self, check: Check, wrong: Flags, reason: str) -> None:
        """One problem for the first wrong batch, which counts the others."""
        rows = np.flatnonzero(wrong)
        if not len(rows):
            return
        row = int(rows[0])
        values = {name: int(self._headers.column(name)[row]) for name in self._headers.fields.dtype.names or ()}
        at = int(self._headers.at[row])
        text = reason.format(**values, last_offset=int(self._last[row]), at=at)
        more = f"; so are {len(rows) - 1} more batches here" if len(rows) > 1 else ""
        offset = max(values["base_offset"], -1)
        self._findings.fail(check, self._place, text + more, offset=offset, position=at, more=len(rows) - 1)

    def alone(self) -> None:
        headers = self._headers
        self._findings.checks(Check.BATCH_CRC, len(headers))
        self._findings.checks(Check.BATCH_HEADER, len(headers))
        self._fail(Check.BATCH_CRC, ~headers.has_right_crc, "the batch's CRC-32C is wrong")
        magic, attributes = headers.column("magic"), headers.column("attributes")
        self._fail(Check.BATCH_HEADER, magic != MAGIC, "message format {magic}, not 2")
        unknown = (attributes & ~_KNOWN_ATTRIBUTES) != 0
        unknown |= (attributes & COMPRESSION_MASK) > CODEC_MAX
        self._fail(Check.BATCH_HEADER, unknown, "attributes {attributes} have no meaning")
        producer, epoch, sequence = (headers.column(f) for f in ("producer_id", "producer_epoch", "base_sequence"))
        control = headers.is_control
        has_producer = producer > NO_PRODUCER_ID
        wrong = (producer < NO_PRODUCER_ID) | (has_producer & (epoch < 0))
        wrong |= has_producer & ~control & (sequence < 0)
        wrong |= (headers.is_transactional | control) & ~has_producer
        words = "producer {producer_id}, epoch {producer_epoch}, sequence {base_sequence} do not fit its attributes"
        self._fail(Check.BATCH_HEADER, wrong, words)

    def counts(self) -> None:
        headers = self._headers
        count, delta = headers.column("count"), headers.column("last_offset_delta")
        self._findings.checks(Check.BATCH_COUNT, len(headers))
        impossible = (count < 0) | (delta < 0) | (count > delta + 1)
        words = "{count} records in offsets {base_offset} to {last_offset}"
        self._fail(Check.BATCH_COUNT, impossible, words)
        if not self._expected.gaps:
            self._fail(Check.BATCH_COUNT, ~impossible & (count != delta + 1), words)

    def offsets(self) -> None:
        base, last, expected = self._base, self._last, self._expected
        self._findings.checks(Check.OFFSETS, len(base))
        outside = (base < expected.base_offset) | (last >= expected.end_offset) | (last < base)
        words = f"offsets {{base_offset}} to {{last_offset}} lie outside [{expected.base_offset}, "
        self._fail(Check.OFFSETS, outside, words + f"{expected.end_offset})")
        before = np.concatenate(([expected.base_offset - 1], last[:-1]))
        self._fail(Check.OFFSETS, ~outside & (base <= before), "offset {base_offset} comes again")
        if not expected.gaps:
            gap = ~outside & (base > before + 1)
            gap[:1] = False  # the first one's neighbour is another piece's
            self._fail(Check.OFFSETS, gap, "offsets before {base_offset} are missing")

    def timestamps(self) -> None:
        headers, limit = self._headers, self._expected.max_timestamp
        base, largest = headers.column("base_timestamp"), headers.column("max_timestamp")
        self._findings.checks(Check.TIMESTAMP, len(headers))
        wrong = (largest < NO_TIMESTAMP) | ((base < NO_TIMESTAMP) & ~headers.has_horizon)
        wrong |= (largest < base) & ~headers.has_horizon & ~headers.is_log_append_time & (headers.column("count") > 0)
        dense = headers.column("count") == headers.column("last_offset_delta") + 1
        wrong &= dense | (largest < NO_TIMESTAMP)  # of what compaction left the first record may be gone
        self._fail(Check.TIMESTAMP, wrong, "timestamps from {base_timestamp} to {max_timestamp}")
        words = f"timestamp {{max_timestamp}}, and the segment's greatest is said to be {limit}"
        self._fail(Check.TIMESTAMP, ~wrong & (largest > limit), words)

    def epochs(self) -> None:
        carried = self._headers.column("leader_epoch")
        self._findings.checks(Check.LEADER_EPOCH, len(carried))
        if not self._expected.epochs:
            return
        chain = np.array(self._expected.epochs, np.int64)
        in_force = np.searchsorted(chain[:, 1], self._base, side="right") - 1
        right: Integers = chain[np.maximum(in_force, 0), 0]
        self._fail(Check.LEADER_EPOCH, carried != right, "leader epoch {leader_epoch} was not in force there")
        self._fail(
            Check.LEADER_EPOCH,
            np.concatenate((np.zeros(min(len(carried), 1), np.bool_), carried[1:] < carried[:-1])),
            "leader epoch {leader_epoch} after a later one",
        )
