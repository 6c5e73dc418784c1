"""Every record of a stretch of batches, decoded: whether it fits its batch, and where keys lie. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from common.errors import ProtocolError
from records.control import read_marker
from spark_offload.segments.arrow_columns import headers_column
from spark_offload.segments.batch_scan import BatchTable, Flags
from spark_offload.segments.payload import Payload, payloads
from spark_offload.segments.record_table import RecordTable, locate_in_parts, locate_records
from spark_offload.segments.sound_records import surely_sound
from spark_offload.segments.varints import DamagedRecords
from spark_offload.verification.checks import Check, Findings, Place
from spark_offload.verification.headers import Headers
from spark_offload.verification.log_walk import Stretch
from spark_offload.verification.producer_runs import UNKNOWN_KIND

GLANCE_BYTES = 2 << 20  # inflated, and looked at while it is in a core's second cache
STRETCHES_ALIKE = 15
_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
Glance = Callable[[Payload], Flags]
"""Which batches are certainly sound."""


class Decoded(NamedTuple):
    payload: Payload
    records: RecordTable


def sound(headers: Headers) -> Headers:
    """The batches that can be looked into."""
    good = headers.has_right_crc & headers.is_possible
    return headers if good.all() else headers.where(good)


def decode(
    stretch: Stretch, headers: Headers, inflated_bytes_max: int, place: Place, findings: Findings
) -> Iterator[Decoded]:
    """The records of `headers`, which are rows of the stretch that are sound. Damage is reported batch by batch, and
    the batches round it are decoded all the same."""
    if not len(headers):
        return
    table = headers.table(stretch.origin)
    done = 0
    try:
        for payload in payloads(stretch.view, table, inflated_bytes_max=inflated_bytes_max):
            for decoded in _in_parts(payload):
                done += len(decoded.payload.batches)
                yield decoded
        return
    except DamagedRecords:
        pass
    for row in range(done, len(headers)):
        yield from _one(stretch, table.where(slice(row, row + 1)), inflated_bytes_max, place, findings)


class RecordChecker:
    """As `decode`, for who needs the number of records alone: that most batches are sound is seen at a glance."""

    def __init__(
        self,
        inflated_bytes_max: int,
        place: Place,
        findings: Findings,
        glance: Glance = surely_sound,
    ) -> None:
        self._inflated_bytes_max, self._place, self._findings = inflated_bytes_max, place, findings
        self._glance = glance
        self._passing = 0  # stretches to do without a glance

    def check(self, stretch: Stretch, headers: Headers) -> int:
        """Of the records of `headers`, sound rows of the next stretch."""
        table, limit = headers.table(stretch.origin), self._inflated_bytes_max
        checked = done = 0
        doubtful: list[int] = []
        glances = not self._passing
        self._passing = max(0, self._passing - 1)
        try:
            for payload in payloads(stretch.view, table, inflated_bytes_max=limit, group_bytes=GLANCE_BYTES):
                doubted = ~self._glance(payload) if glances else np.ones(len(payload.batches), np.bool_)
                if glances and doubted.all():  # neighbours are alike
                    glances, self._passing = False, STRETCHES_ALIKE
                checked += int(payload.batches.count[~doubted].sum())
                rows, seen = np.flatnonzero(doubted), 0
                try:
                    for decoded in _in_parts(payload.where(doubted)):
                        seen += len(decoded.payload.batches)
                        checked += len(decoded.records)
                except DamagedRecords:
                    doubtful += (done + rows[seen:]).tolist()
                done += len(doubted)
        except DamagedRecords:
            doubtful += range(done, len(table))
        for row in doubtful:
            for decoded in _one(stretch, table.where(slice(row, row + 1)), limit, self._place, self._findings):
                checked += len(decoded.records)
        return checked


def _in_parts(payload: Payload) -> Iterator[Decoded]:
    """Raises DamagedRecords."""
    if len(payload.batches):
        for decoded in map(Decoded._make, locate_in_parts(payload)):
            _check_fields(decoded)
            yield decoded


def _one(
    stretch: Stretch, table: BatchTable, inflated_bytes_max: int, place: Place, findings: Findings
) -> Iterator[Decoded]:
    try:
        for payload in payloads(stretch.view, table, inflated_bytes_max=inflated_bytes_max):
            decoded = Decoded(payload, locate_records(payload))
            _check_fields(decoded)
            yield decoded
    except DamagedRecords as error:
        position = int(table.at[0]) + stretch.origin
        findings.fail(Check.RECORD, place, str(error), offset=int(table.base_offset[0]), position=position)


def _check_fields(decoded: Decoded) -> None:
    """What the place of a record does not tell. Raises DamagedRecords."""
    payload, records = decoded
    if len(records) and records.header_count.any():
        headers_column(payload.view, records, _HEADERS)
    batches = payload.batches
    own = ~batches.is_log_append_time & (batches.count > 0)
    if not own.any():
        return
    first = (np.cumsum(batches.count) - batches.count)[batches.count > 0]
    largest = np.maximum.reduceat(records.timestamp, first)
    wrong = own[batches.count > 0] & (largest != batches.max_timestamp[batches.count > 0])
    if wrong.any():
        raise DamagedRecords("the greatest timestamp of the records is not that of their batch")


def marker_kinds(stretch: Stretch, headers: Headers, place: Place, findings: Findings) -> dict[int, int]:
    """Kinds of the control batches among `headers` (sound rows of the stretch) by base offset."""
    control = headers.where(headers.is_control)
    kinds: dict[int, int] = {}
    places = zip(control.at.tolist(), control.end.tolist(), control.column("base_offset").tolist(), strict=True)
    for at, end, offset in places:
        try:
            marker = read_marker(stretch.view, at - stretch.origin, end - at)
        except (ProtocolError, ValueError) as error:
            findings.fail(Check.RECORD, place, f"a control batch: {error}", offset=offset, position=at)
            continue
        kinds[offset] = UNKNOWN_KIND if marker is None else int(marker.kind)
    return kinds
