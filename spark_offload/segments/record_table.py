"""Where the records of a payload lie, field by field: the shared ground of every job over segments.

The i-th record's length is read in all batches at once; when few batches have an i-th record, plain Python walks the
rest from length to length, and every other field is then read over all records at once. Each position is checked
before anything is made of it, so bytes that lie end in DamagedRecords and never in memory outside the payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_offload.segments.batch_scan import bytes_of
from spark_offload.segments.payload import Payload
from spark_offload.segments.varints import VARINT_BYTES_MAX, Bytes, DamagedRecords, Integers, read_varints

PART_RECORDS = 8_192  # a part's columns and bytes fit the second cache of a core
ACROSS_MIN = 8  # batches; below, a step over all of them costs more than the same records one by one
UNKNOWN_SIZE = 1 << 40  # leads out of every payload, and many of them do not wrap round


def _sizes() -> Integers:
    """Of a record with its length, by the two bytes that it begins with; UNKNOWN_SIZE where they do not tell."""
    both = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2).astype(np.int64)
    first, second = both[:, 0], both[:, 1]
    short = first < 0x80
    raw = np.where(short, first, first & 0x7F | second << 7)
    known = (short | (second < 0x80)) & (raw & 1 == 0) & (raw > 0)
    return np.where(known, (raw >> 1) + 2 - short, UNKNOWN_SIZE)


RECORD_SIZES = _sizes()


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
        start, end = _spans(data, payload)
        return _locate(data, payload, start, end)
    except IndexError as error:
        raise DamagedRecords("a record that leaves its batch") from error


def locate_in_parts(payload: Payload, part_records: int = PART_RECORDS) -> Iterator[tuple[Payload, RecordTable]]:
    """As `locate_records`, a few batches after the other, for who can do without the whole: a part's bytes and columns
    stay in the caches of a core."""
    data = bytes_of(payload.view)
    ends = np.cumsum(payload.batches.count)
    try:
        start, end = _spans(data, payload)
        first = record = 0
        while first < len(ends):
            after = max(first + 1, int(np.searchsorted(ends, record + part_records, side="right")))
            rows, records = slice(first, after), slice(record, int(ends[after - 1]))
            part = Payload(payload.batches.where(rows), payload.view, payload.start[rows], payload.end[rows])
            yield part, _locate(data, part, start[records], end[records])
            first, record = after, records.stop
    except IndexError as error:
        raise DamagedRecords("a record that leaves its batch") from error


def _locate(data: Bytes, payload: Payload, start: Integers, end: Integers) -> RecordTable:
    batches = payload.batches
    count = batches.count
    last = np.cumsum(count)[count > 0] - 1
    if not (end > start).all() or (end[last] != payload.end[count > 0]).any():
        raise DamagedRecords("record lengths that do not fill their batch")
    timestamp_delta, at = read_varints(data, start + 1)
    offset_delta, at = read_varints(data, at)
    key_length, key_at = read_varints(data, at)
    key_bytes = np.maximum(key_length, 0)
    if not (end - key_at >= key_bytes).all() or (key_length < -1).any():
        raise DamagedRecords("a key that leaves its record")
    value_length, value_at = read_varints(data, key_at + key_bytes)
    value_bytes = np.maximum(value_length, 0)
    if not (end - value_at >= value_bytes).all() or (value_length < -1).any():
        raise DamagedRecords("a value that leaves its record")
    header_count, headers_at = read_varints(data, value_at + value_bytes)
    if header_count.any():
        if not ((headers_at <= end) & (header_count >= 0) & (header_count <= (end - headers_at) >> 1)).all():
            raise DamagedRecords("headers that leave their record")
        if ((header_count == 0) & (headers_at != end)).any():
            raise DamagedRecords("bytes after a record's last field")
    elif (headers_at != end).any():
        raise DamagedRecords("bytes after a record's last field")
    _check_offsets(offset_delta, last, batches.last_offset_delta[count > 0])
    batch = np.repeat(np.arange(len(count)), count)
    timestamp = timestamp_delta
    timestamp += np.repeat(batches.base_timestamp, count)
    if (fixed := batches.is_log_append_time).any():
        timestamp = np.where(fixed[batch], batches.max_timestamp[batch], timestamp)
    offset = offset_delta
    offset += np.repeat(batches.base_offset, count)
    return RecordTable(
        start=start,
        end=end,
        offset=offset,
        timestamp=timestamp,
        key_at=key_at,
        key_length=key_length,
        value_at=value_at,
        value_length=value_length,
        headers_at=headers_at,
        header_count=header_count,
        batch=batch,
    )


def _check_offsets(delta: Integers, last: Integers, largest: Integers) -> None:
    """`last` are the rows of the last record of each batch that has any, `largest` the delta that it may have at most.
    What grows from a first one that is not below zero to a last one that is not too large lies between them."""
    if not len(delta):
        return
    first = np.concatenate(([0], last[:-1] + 1))
    grows = delta[1:] > delta[:-1]
    grows[last[:-1]] = True
    if not grows.all() or (delta[first] < 0).any() or (delta[last] > largest).any():
        raise DamagedRecords("offsets that do not grow or leave their batch")


def _spans(data: Bytes, payload: Payload) -> tuple[Integers, Integers]:
    """Where each record begins, after its length, and ends; checked by the caller.

    A length below zero or a sum that wraps round shows there as an end before the start. As long as neither is so,
    every record begins after the end of the one before it, and none ends after the last one of its batch.
    """
    counts = payload.batches.count
    end = np.empty(int(counts.sum()), np.int64)
    slots = np.cumsum(counts) - counts
    order = np.argsort(-counts, kind="stable")
    count = counts[order]
    alive = np.searchsorted(-count, -np.arange(int(count[0]) + 1 if len(count) else 1), side="left")
    steps = int(np.count_nonzero(alive >= ACROSS_MIN))
    live = int(alive[steps])
    across = _ends_across(data, payload.start[order], alive[:steps].tolist())
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    taken = np.minimum(counts, steps)
    step = np.arange(len(across)) - np.repeat(np.cumsum(taken) - taken, taken)
    found = across.take((np.cumsum(alive[:steps]) - alive[:steps]).take(step) + np.repeat(rank, taken))
    if live:
        end[np.repeat(slots, taken) + step] = found
        raw = _as_bytes(payload.view)
        for row in order[:live].tolist():
            first, stop = int(slots[row]) + steps, int(slots[row] + counts[row])
            at = int(end[first - 1]) if steps else int(payload.start[row])
            end[first:stop] = _walk(raw, at, int(payload.end[row]), stop - first)
    else:
        end = found
    place = np.empty(len(end), np.int64)
    place[1:] = end[:-1]
    place[slots[counts > 0]] = payload.start[counts > 0]
    return read_varints(data, place)[1], end


def _ends_across(data: Bytes, at: Integers, alive: list[int]) -> Integers:
    """The ends of the first records of the first `alive[0]` batches, then those of the second records of the first
    `alive[1]` ones, and so on. The batches begin at `at`.

    As long as all lengths have one or two bytes, one lookup by these tells where the next record begins. A record is
    longer than that; what ends otherwise is read again by the rules."""
    try:
        pairs: npt.NDArray[np.uint16] = np.ndarray(max(len(data) - 1, 0), np.uint16, data, strides=(1,))
        ends = np.empty(sum(alive), np.int64)
        place, done = at, 0
        for live in alive:
            found = ends[done : done + live]
            place = np.add(place[:live], RECORD_SIZES.take(pairs[place[:live]]), out=found)
            done += live
        if not len(ends) or ends.max() < UNKNOWN_SIZE:
            return ends
    except IndexError:
        pass
    parts = [np.empty(0, np.int64)]
    for live in alive:
        length, begin = read_varints(data, at[:live])
        at = begin + length
        parts.append(at)
    return np.concatenate(parts)


def _walk(raw: bytes, at: int, limit: int, count: int) -> list[int]:
    """The ends of `count` records one after the other from `at` on, none of them beyond `limit`."""
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
        begin = at
        at += (length >> 1) ^ -(length & 1)
        if not begin < at <= limit:  # also keeps it within 64 bits
            raise DamagedRecords("a record that leaves its batch")
        ends.append(at)
    return ends


def _as_bytes(view: memoryview) -> bytes:
    """Python reads single bytes of a bytes object fastest; most views begin where one does, and no copy is made."""
    whole = view.obj
    if isinstance(whole, bytes) and len(view) and _address(view) == _address(whole):
        return whole
    return bytes(view)


def _address(data: memoryview | bytes) -> int:
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address
