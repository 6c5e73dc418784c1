"""Where the records of a payload lie, field by field: the shared ground of every job over segments.

The i-th record's length is read in all batches at once; when few batches have an i-th record, plain Python walks the
rest from length to length, and every other field is then read over all records at once. Each position is checked
before anything is made of it, so bytes that lie end in DamagedRecords and never in memory outside the payload.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_offload.batch_scan import bytes_of
from spark_offload.payload import Payload
from spark_offload.varints import VARINT_BYTES_MAX, Bytes, DamagedRecords, Integers, read_varints

ACROSS_MIN = 192  # batches; below, a step over all of them costs more than the same records one by one


@dataclass(slots=True)
class RecordTable:
    """One row per record; positions are those of the payload's bytes. A null key or value has the length -1.

    `start` is the position after the record's own length. `timestamp` is in ms, -1 for none.
    """

    start: Integers
    end: Integers
    offset: Integers
    timestamp: Integers
    key_at: Integers
    key_length: Integers
    value_at: Integers
    value_length: Integers
    headers_at: Integers
    header_count: Integers
    batch: Integers  # row of the payload's batches

    def __len__(self) -> int:
        return len(self.start)


def locate_records(payload: Payload) -> RecordTable:
    """All records of `payload`; DamagedRecords when any of them is not what a writer makes."""
    data = bytes_of(payload.view)
    try:
        return _locate(data, payload)
    except IndexError as error:
        raise DamagedRecords("a record that leaves its batch") from error


def _locate(data: Bytes, payload: Payload) -> RecordTable:
    batches = payload.batches
    count = batches.count
    start, end = _spans(data, payload)
    batch = np.repeat(np.arange(len(count)), count)
    limit = payload.end[batch]
    last = np.cumsum(count)[count > 0] - 1
    if not ((end > start) & (end <= limit)).all() or (end[last] != payload.end[count > 0]).any():
        raise DamagedRecords("record lengths that do not fill their batch")
    timestamp_delta, at = read_varints(data, start + 1)
    offset_delta, at = read_varints(data, at)
    key_length, key_at = read_varints(data, at)
    if not ((key_at <= end) & (key_length >= -1) & (key_length <= end - key_at)).all():
        raise DamagedRecords("a key that leaves its record")
    value_length, value_at = read_varints(data, key_at + np.maximum(key_length, 0))
    if not ((value_at <= end) & (value_length >= -1) & (value_length <= end - value_at)).all():
        raise DamagedRecords("a value that leaves its record")
    header_count, headers_at = read_varints(data, value_at + np.maximum(value_length, 0))
    if not ((headers_at <= end) & (header_count >= 0) & (header_count <= (end - headers_at) >> 1)).all():
        raise DamagedRecords("headers that leave their record")
    if ((header_count == 0) & (headers_at != end)).any():
        raise DamagedRecords("bytes after a record's last field")
    _check_offsets(offset_delta, batch, batches.last_offset_delta)
    timestamp = batches.base_timestamp[batch] + timestamp_delta
    if (fixed := batches.is_log_append_time).any():
        timestamp = np.where(fixed[batch], batches.max_timestamp[batch], timestamp)
    return RecordTable(
        start=start,
        end=end,
        offset=batches.base_offset[batch] + offset_delta,
        timestamp=timestamp,
        key_at=key_at,
        key_length=key_length,
        value_at=value_at,
        value_length=value_length,
        headers_at=headers_at,
        header_count=header_count,
        batch=batch,
    )


def _check_offsets(delta: Integers, batch: Integers, last_delta: Integers) -> None:
    if not len(delta):
        return
    grows = (delta[1:] > delta[:-1]) | (batch[1:] != batch[:-1])
    if not grows.all() or (delta < 0).any() or (delta > last_delta[batch]).any():
        raise DamagedRecords("offsets that do not grow or leave their batch")


def _spans(data: Bytes, payload: Payload) -> tuple[Integers, Integers]:
    """Where each record begins, after its length, and ends; checked by the caller.

    A length below zero or a sum that wraps round shows there as an end before the start. As long as neither is so,
    every record begins after the end of the one before it.
    """
    counts = payload.batches.count
    start = np.empty(int(counts.sum()), np.int64)
    end = np.empty(len(start), np.int64)
    order = np.argsort(-counts, kind="stable")
    at, limit, count = payload.start[order], payload.end[order], counts[order]
    slot = (np.cumsum(counts) - counts)[order]
    alive = np.searchsorted(-count, -np.arange(int(count[0]) + 1 if len(count) else 1), side="left").tolist()
    step = 0
    while alive[step] >= ACROSS_MIN:
        live = alive[step]
        length, begin = read_varints(data, at[:live])
        row = slot[:live] + step
        start[row] = begin
        end[row] = at[:live] = begin + length
        step += 1
    live = alive[step]
    if live:
        raw = _as_bytes(payload.view)
        for index in range(live):
            first, stop = int(slot[index]) + step, int(slot[index] + count[index])
            starts, ends = _walk(raw, int(at[index]), int(limit[index]), stop - first)
            start[first:stop] = starts
            end[first:stop] = ends
    return start, end


def _walk(raw: bytes, at: int, limit: int, count: int) -> tuple[list[int], list[int]]:
    """The spans of `count` records one after the other from `at` on, none of them beyond `limit`."""
    starts: list[int] = []
    ends: list[int] = []
    for _ in range(count):
        if not 0 <= at < limit:
            raise DamagedRecords("fewer records than counted")
        length = raw[at]
        at += 1
        if length >= 0x80:
            length &= 0x7F
            shift = 7
            while True:
                byte = raw[at]
                at += 1
                length |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift >= 7 * VARINT_BYTES_MAX:
                    raise DamagedRecords("a varint without an end")
        starts.append(at)
        at += (length >> 1) ^ -(length & 1)
        if at > limit:
            raise DamagedRecords("a record that leaves its batch")
        ends.append(at)
    return starts, ends


def _as_bytes(view: memoryview) -> bytes:
    """Python reads single bytes of a bytes object fastest; most views begin where one does, and no copy is made."""
    whole = view.obj
    if isinstance(whole, bytes) and len(view) and _address(view) == _address(whole):
        return whole
    return bytes(view)


def _address(data: memoryview | bytes) -> int:
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address
