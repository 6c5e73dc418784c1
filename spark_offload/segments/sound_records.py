"""Finds the batches of a payload whose records are certainly sound, without a table of their records.

Most batches hold a record for each of their offsets, none with headers, no field of 8 KiB or more. A few passes over
all batches at once check such batches: the i-th records of all of them are found together, and each field is read where
the one before it ends. A batch that does not fit may still be sound; the caller checks it by all rules
(`spark_offload.segments.record_table`).

Positions are used unchecked, because reads are clipped to the payload and positions never decrease: if the last field
of a record ends where its length says, every field lies inside.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import numpy.typing as npt

from spark_offload.segments.batch_scan import Flags, bytes_of
from spark_offload.segments.payload import Payload
from spark_offload.segments.record_table import RECORD_SIZES, UNKNOWN_SIZE
from spark_offload.segments.varints import Bytes, DamagedRecords, Integers, read_varints

BLOCK_RECORDS = 8_192  # looked at together: their bytes and columns fit the second cache of a core
ACROSS_MIN = 48  # batches; for fewer ones a step over all of them costs more than it saves
RECORDS_MAX = 1 << 13  # of a batch; the offsets of more take three bytes
TIMESTAMP_MAX = 1 << 61  # sums of two such ones do not wrap round
GUESSES_MAX = 3  # per block
_ONE_BYTE_OFFSETS = 64
_MORE = 0x80

_Values = npt.NDArray[np.int16]


def _two_bytes() -> tuple[npt.NDArray[np.int64], Flags]:
    """By the two bytes that a varint begins with, the first one being the lower: its raw value, and whether it ends
    with them."""
    first, second = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> 8
    short = first < _MORE
    return np.where(short, first, first & 0x7F | second << 7), short | (second < _MORE)


def _field_sizes() -> Integers:
    """Of a key or value with its length, which is -1 for a null; UNKNOWN_SIZE where two bytes do not tell."""
    raw, known = _two_bytes()
    width = np.where(np.arange(1 << 16) & _MORE, 2, 1)
    size = np.where(raw & 1, np.where(raw == 1, 0, UNKNOWN_SIZE), raw >> 1)
    return np.where(known, size + width, UNKNOWN_SIZE)


def _values() -> _Values:
    raw, _ = _two_bytes()
    return ((raw >> 1) ^ -(raw & 1)).astype(np.int16)


_FIELD_SIZES, _VALUES = _field_sizes(), _values()
_NTH = np.arange(RECORDS_MAX) << 1
_OFFSET_FIRST: Bytes = np.where(_NTH < _MORE, _NTH, _NTH & 0x7F | _MORE).astype(np.uint8)
_OFFSET_SECOND: Bytes = (_NTH >> 7).astype(np.uint8)
_OFFSET_WIDTH: Integers = np.where(_NTH < _MORE, 1, 2)
_BOTH = np.array([0, 1])


def surely_sound(payload: Payload, across_min: int = ACROSS_MIN, block_records: int = BLOCK_RECORDS) -> Flags:
    """One flag per batch. False says nothing."""
    batches = payload.batches
    sound = np.zeros(len(batches), np.bool_)
    rows = np.flatnonzero(
        batches.is_dense
        & (batches.count > 0)
        & (batches.count <= RECORDS_MAX)
        & (batches.base_timestamp < TIMESTAMP_MAX)
        & (batches.base_timestamp > -TIMESTAMP_MAX)
    )
    if len(rows) < across_min:
        return sound
    rows = rows[np.argsort(-batches.count[rows], kind="stable")]
    with suppress(DamagedRecords, IndexError):
        sound[rows] = _Look(payload, rows, across_min, block_records).sound()
    return sound


class _Look:
    """At the batches `rows` of a payload, those of most records first."""

    def __init__(self, payload: Payload, rows: Integers, across_min: int, block_records: int) -> None:
        self._across_min, self._block_records = across_min, block_records
        self._data = bytes_of(payload.view)
        batches = payload.batches
        self._count = batches.count[rows]
        self._at, self._end = payload.start[rows], payload.end[rows]
        self._greatest = batches.max_timestamp[rows] - batches.base_timestamp[rows]
        self._any_time = batches.is_log_append_time[rows]
        self._seen = np.full(len(rows), np.iinfo(np.int64).min)  # the greatest timestamp delta so far
        self._bad = np.zeros(len(rows), np.bool_)
        self._size = np.zeros(len(rows), np.int64)  # of the last record of each, with its length
        self._even = False  # the records before had the same
        self._places = np.empty((block_records + 2 * len(rows), 2), np.int64)  # large enough for a block and a row more

    def sound(self) -> Flags:
        """Of each of the batches. Raises IndexError and DamagedRecords when nothing can be said."""
        step, most = 0, int(self._count[0])
        while step < most:
            live = int(np.searchsorted(-self._count, -step, side="left"))
            if live < self._across_min and most > 2 * step:
                self._bad[:live] = True  # few and far longer than the others
                break
            # a quarter of the batches have records in all steps of the block
            steps = max(1, min(self._block_records // live, int(self._count[live // 4]) - step))
            self._block(step, steps, live)
            step += steps
            if step < most and np.count_nonzero(self._bad) * 2 > len(self._bad):
                return np.zeros(len(self._bad), np.bool_)
        timely: Flags = self._any_time | (self._seen == self._greatest)
        return timely & ~self._bad

    def _block(self, step: int, steps: int, live: int) -> None:
        """Records `step` and on of the first `live` batches. Where a batch has fewer, its first one here is looked at
        again."""
        begin, end, first = self._spans(steps, live)
        count = self._count[:live]
        inside: Flags | None = None
        if count[-1] < step + steps:
            inside = np.arange(step, step + steps)[:, None] < count
            begin, first = np.where(inside, begin, begin[0]), np.where(inside, first, first[0])
        ending = np.flatnonzero(count <= step + steps)
        self._bad[ending] |= end[count[ending] - 1 - step, ending] != self._end[ending]
        self._at[:live] = end[-1]
        at: Integers = begin.reshape(-1)
        at += 2
        if first.min() >= _MORE:
            at += 1
        elif first.max() >= _MORE:
            at += (first >= _MORE).reshape(-1)
        delta, at = self._timestamps(at)
        wrong = self._wrong_offsets(at, step, steps, live)
        rows = at.reshape(steps, live)
        rows += _OFFSET_WIDTH[step : step + steps, None]
        self._pass_field(at)
        self._pass_field(at)
        wrong |= self._data.take(at, mode="clip").reshape(steps, live) != 0
        at += 1
        wrong |= at.reshape(steps, live) != end
        if wrong.any():
            self._bad[:live] |= (wrong if inside is None else wrong & inside).any(axis=0)
        greatest = delta.reshape(steps, live).max(axis=0)
        np.maximum(self._seen[:live], greatest, out=self._seen[:live])

    def _spans(self, steps: int, live: int) -> tuple[Integers, Integers, Bytes]:
        """Where records begin and end, a row for each step, and the bytes that they begin with."""
        places, first = np.empty((steps + 1, live), np.int64), np.empty((steps, live), np.uint8)
        places[0] = self._at[:live]
        done = 0
        for _ in range(GUESSES_MAX):
            done += self._guessed(places[done:], first[done:])
            if done == steps:
                break
            some = min(2, steps - done)
            self._follow(places[done : done + some + 1], first[done : done + some])
            done += some
        self._follow(places[done:], first[done:])
        return places[:-1].copy(), places[1:], first

    def _guessed(self, places: Integers, first: Bytes) -> int:
        """Records have often the length of the one before: as many rows are filled as that is so in all batches."""
        steps, live = first.shape
        size = self._size[:live]
        if not self._even or not steps:
            return 0
        np.multiply(np.arange(1, steps + 1)[:, None], size, out=places[1:])
        places[1:] += places[0]
        at = places[:-1].reshape(-1)
        self._data.take(at, mode="clip", out=first.reshape(-1))
        same = (RECORD_SIZES.take(self._pairs(first.reshape(-1), at)).reshape(steps, live) == size).all(axis=1)
        return steps if same.all() else int(same.argmin())

    def _follow(self, places: Integers, first: Bytes) -> None:
        """Fill all rows, one after the other."""
        steps, live = first.shape
        if not steps:
            return
        both = self._places[: (steps + 1) * live].reshape(steps + 1, live, 2)
        there = np.empty((steps, live, 2), np.uint8)
        before, size = self._size[:live], np.empty(live, np.int64)
        across = size[:, None]
        np.add(places[0][:, None], _BOTH, out=both[0])
        look, sizes, add = self._data.take, RECORD_SIZES.take, np.add
        for at, pair, starts, after in zip(both, there, there.view(np.uint16)[:, :, 0], both[1:], strict=False):
            look(at, None, pair, "clip")
            sizes(starts, None, size, "clip")
            add(at, across, after)
        places[1:] = both[1:, :, 0]
        first[:] = there[:, :, 0]
        if steps > 1:
            before = places[-2] - places[-3]
        self._even = bool((before == size).all())
        self._size[:live] = size

    def _pairs(self, first: Bytes, at: Integers) -> npt.NDArray[np.uint16]:
        """`first`, and what lies behind it."""
        pairs = self._data.take(at + 1, mode="clip").astype(np.uint16)
        pairs <<= 8
        pairs |= first
        return pairs

    def _timestamps(self, at: Integers) -> tuple[npt.NDArray[np.integer], Integers]:
        """Deltas, and the positions behind them."""
        first = self._data.take(at, mode="clip")
        long = first >= _MORE
        if not long.any():
            at += 1
            return _VALUES.take(first), at
        pairs = self._pairs(first, at)
        if (pairs >= _MORE << 8)[long].any():
            values, after = read_varints(self._data, at)
            if values.min() < -TIMESTAMP_MAX or values.max() > TIMESTAMP_MAX:
                raise DamagedRecords("a timestamp that no clock shows")
            return values, after
        at += 1
        at += long
        return _VALUES.take(pairs), at

    def _wrong_offsets(self, at: Integers, step: int, steps: int, live: int) -> Flags:
        """Whether deltas are other than the number of their record."""
        found = self._data.take(at, mode="clip").reshape(steps, live)
        wrong: Flags = found != _OFFSET_FIRST[step : step + steps, None]
        short = max(0, min(steps, _ONE_BYTE_OFFSETS - step))
        if short < steps:
            second = self._data.take(at[short * live :] + 1, mode="clip").reshape(-1, live)
            wrong[short:] |= second != _OFFSET_SECOND[step + short : step + steps, None]
        return wrong

    def _pass_field(self, at: Integers) -> None:
        """Over a key or a value."""
        first = self._data.take(at, mode="clip")
        if first.max() >= _MORE:
            at += _FIELD_SIZES.take(self._pairs(first, at))
        else:
            at += _FIELD_SIZES.take(first)
