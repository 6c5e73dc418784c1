"""Removes records from batches; the bytes of remaining records, and the fields of batches, are copied unchanged.

A batch keeps its base and last offset, its producer fields, its epoch and its codec, so offsets and sequence numbers do
not change. Unchanged batches are not even copied, but passed on by position. No record is encoded again, except for the
timestamps of batches that get a delete horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from msgspec.structs import replace

from records.batch import DELETE_HORIZON, HEADER_BYTES, NO_TIMESTAMP, BatchHeader, read_header
from records.builder import assemble, empty_batch
from records.compression import Compression, compress
from spark_offload.options import INFLATED_BYTES_MAX
from spark_offload.rewriting.horizons import with_base_timestamps
from spark_offload.segments.arrow_columns import binary_column
from spark_offload.segments.batch_scan import BatchTable, Flags
from spark_offload.segments.payload import Payload, payloads
from spark_offload.segments.record_table import RecordTable, locate_records
from spark_offload.segments.varints import Integers

NO_HORIZON = -1
LEVELS = {Compression.LZ4: 1}  # level 9, the default of topics, costs ten times as much for a few percent
Buffer = bytes | bytearray | memoryview


class Choice(NamedTuple):
    """The decision on the records of one payload.

    `keep` has a flag per record. `horizon_ms`, if given, has a number per batch: the delete horizon that a batch gets
    if any of its records stays, `NO_HORIZON` for no change.
    """

    keep: Flags
    horizon_ms: Integers | None = None


class Chooser(Protocol):
    """Called with a group of batches at a time, in order; keys are `arrow_columns.binary_column(payload.view,
    records.key_at, records.key_length)`, and `payload.batches.base_offset[records.batch]` leads to the batches."""

    def __call__(self, payload: Payload, records: RecordTable) -> Choice: ...


@dataclass(slots=True)
class BatchPlan:
    """The plan for each batch, by its row; rows that are not mentioned are passed on unchanged.

    `look`: the chooser decides, record by record. `gone`: all records are removed. `stay`: a batch without remaining
    records is kept as an empty one. `replaced`: these bytes instead.
    """

    look: Flags
    gone: Flags
    stay: Flags
    replaced: Mapping[int, Buffer] = field(default_factory=dict)

    @classmethod
    def of_data(cls, batches: BatchTable, stay: Flags) -> BatchPlan:
        """A plan that examines every batch with records of clients; control batches and empty ones are passed on."""
        none = np.zeros(len(batches), np.bool_)
        return cls(~batches.is_control & (batches.count > 0), none, stay)


@dataclass(slots=True)
class Rewritten:
    """`parts` are whole batches, one behind the other, and may lie in the bytes that were given; in a part several
    batches may follow each other. The counts are of batches and records. `dropped_end` is the header of the last batch
    if that was dropped, so that nothing tells of the last offsets."""

    parts: list[Buffer] = field(default_factory=list)
    dropped_end: bytes | None = None
    batches_changed: int = 0
    batches_dropped: int = 0
    records_dropped: int = 0

    @property
    def is_same(self) -> bool:
        return not self.batches_changed and not self.batches_dropped


def rewrite(
    view: memoryview,
    batches: BatchTable,
    plan: BatchPlan,
    choose: Chooser,
    *,
    inflated_bytes_max: int = INFLATED_BYTES_MAX,
) -> Rewritten:
    """The rest of `batches`, which `scan_batches` found in `view`, after `plan` and `choose`.

    Raises DamagedRecords for a batch that has to be examined and cannot be read.
    """
    left: dict[int, Buffer | None] = dict(plan.replaced)  # by row, only of what changes; None: dropped
    result = Rewritten()
    for row in np.flatnonzero(plan.gone).tolist():
        _drop(view, batches, plan, row, left, result)
    rows = np.flatnonzero(plan.look)
    if len(rows):
        done = 0
        chosen = batches if len(rows) == len(batches) else batches.where(plan.look)
        for payload in payloads(view, chosen, inflated_bytes_max=inflated_bytes_max):
            some = rows[done : done + len(payload.batches)]
            done += len(some)
            _look(view, batches, plan, payload, some, choose, left, result)
    result.batches_changed = sum(batch is not None for batch in left.values())
    result.batches_dropped = len(left) - result.batches_changed
    _assemble(view, batches, left, result)
    return result


def _look(
    view: memoryview,
    batches: BatchTable,
    plan: BatchPlan,
    payload: Payload,
    rows: Integers,
    choose: Chooser,
    left: dict[int, Buffer | None],
    result: Rewritten,
) -> None:
    records = locate_records(payload)
    keep, horizon_ms = choose(payload, records)
    count = payload.batches.count
    first = np.cumsum(count) - count
    kept = np.zeros(len(rows), np.int64)
    full = count > 0
    if full.any():
        kept[full] = np.add.reduceat(keep.astype(np.int64), first[full])
    for index in np.flatnonzero(kept == 0).tolist():
        _drop(view, batches, plan, int(rows[index]), left, result)
    marked = (horizon_ms != NO_HORIZON) & (kept > 0) if horizon_ms is not None else np.zeros(len(rows), np.bool_)
    thinned = (kept > 0) & (kept < count) & ~marked
    for chosen in (thinned, marked):
        if not chosen.any():
            continue
        stays = np.flatnonzero(np.repeat(chosen, count) & keep)
        at = _record_starts(payload, records, first)[stays]
        if chosen is marked and horizon_ms is not None:
            base_ms = np.repeat(horizon_ms, count)[stays]
            column = with_base_timestamps(payload, records, stays, base_ms)
        else:
            column = binary_column(payload.view, at, records.end[stays] - at)
        ends = np.cumsum(kept[chosen])
        bounds = np.frombuffer(column.buffers()[1], np.int32)[np.concatenate(([0], ends))].tolist()
        data = memoryview(column.buffers()[2])
        largest = np.maximum.reduceat(records.timestamp[stays], ends - kept[chosen]).tolist()
        for place, index in enumerate(np.flatnonzero(chosen).tolist()):
            row = int(rows[index])
            fields = read_header(view, int(batches.at[row]))
            if chosen is marked and horizon_ms is not None:
                attributes = fields.attributes | DELETE_HORIZON
                fields = replace(fields, attributes=attributes, base_timestamp=int(horizon_ms[index]))
            left[row] = _rebuilt(fields, int(kept[index]), largest[place], data[bounds[place] : bounds[place + 1]])
    result.records_dropped += int((count - kept)[kept > 0].sum())


def _record_starts(payload: Payload, records: RecordTable, first: Integers) -> Integers:
    """The start of each record, including its length: after the previous one in its batch."""
    starts = np.empty(len(records), np.int64)
    starts[1:] = records.end[:-1]
    full = payload.batches.count > 0
    starts[first[full]] = payload.start[full]
    return starts


def _drop(
    view: memoryview,
    batches: BatchTable,
    plan: BatchPlan,
    row: int,
    left: dict[int, Buffer | None],
    result: Rewritten,
) -> None:
    result.records_dropped += int(batches.count[row])
    if not plan.stay[row]:
        left[row] = None
    elif batches.count[row]:
        left[row] = empty_batch(read_header(view, int(batches.at[row])))


def _rebuilt(header: BatchHeader, count: int, largest_ms: int, records: memoryview) -> bytearray:
    codec = Compression(header.compression)
    if not header.is_log_append_time:
        header = replace(header, max_timestamp=max(largest_ms, NO_TIMESTAMP))
    body = bytes(records) if codec is Compression.NONE else compress(codec, records, LEVELS.get(codec))
    return assemble(replace(header, count=count), body)


def _assemble(view: memoryview, batches: BatchTable, left: dict[int, Buffer | None], result: Rewritten) -> None:
    """Each run of unchanged batches becomes one part."""
    position = 0
    parts = result.parts
    for row in sorted(left):
        at = int(batches.at[row])
        if at > position:
            parts.append(view[position:at])
        batch = left[row]
        if batch is not None:
            parts.append(batch)
        position = int(batches.end[row])
    end = int(batches.end[-1]) if len(batches) else 0
    if end > position:
        parts.append(view[position:end])
    if len(batches) and left.get(len(batches) - 1, b"") is None:
        at = int(batches.at[-1])
        result.dropped_end = bytes(view[at : at + HEADER_BYTES])
