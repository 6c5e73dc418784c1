"""Zigzag varints, many at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

VARINT_BYTES_MAX = 10
_MORE = 0x80
_ONE_BYTE: Integers = (np.arange(_MORE, dtype=np.int64) >> 1) ^ -(np.arange(_MORE, dtype=np.int64) & 1)


class DamagedRecords(ValueError):
    """Bytes that no writer of record batches makes; the text says what is wrong with them."""


def read_varints(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """The varint at each position of `at`, and the position after it.

    IndexError for a position past the end of `data`, DamagedRecords for a varint of more than ten bytes. A negative
    position counts from the end, as everywhere in numpy: who does not trust the positions checks the results.
    """
    first = data.take(at)
    after = at + 1
    if not len(first) or first.max() < _MORE:
        return _ONE_BYTE.take(first), after
    try:
        second = data.take(after)
    except IndexError:  # may be that of a varint that ends with its first byte
        return _read_long(data, first, after)
    goes_on = first >= _MORE
    if (goes_on & (second >= _MORE)).any():
        return _read_long(data, first, after)
    after += goes_on
    raw = (second * goes_on).astype(np.int16) << 7
    raw |= first & 0x7F
    return ((raw >> 1) ^ -(raw & 1)).astype(np.int64), after


def _read_long(data: Bytes, first: Bytes, after: Integers) -> tuple[Integers, Integers]:
    """Varints of any length, whose first bytes are read."""
    going = np.flatnonzero(first >= _MORE)
    raw = (first & 0x7F).astype(np.int64)
    for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
        byte = data[after[going]].astype(np.int64)
        raw[going] |= (byte & 0x7F) << shift
        after[going] += 1
        going = going[byte >= _MORE]
        if not len(going):
            return unzigzag(raw), after
    raise DamagedRecords("a varint without an end")


def unzigzag(raw: Integers) -> Integers:
    """The shift must bring in zeros even where the top bit is set."""
    unsigned = raw.view(np.uint64)
    return ((unsigned >> np.uint64(1)) ^ (np.uint64(0) - (unsigned & np.uint64(1)))).view(np.int64)


def write_varints(values: Integers) -> tuple[Bytes, Integers]:
    """Each value's varint at the front of a row of `VARINT_BYTES_MAX` bytes, and how many of them it takes."""
    raw = ((values << 1) ^ (values >> 63)).view(np.uint64)
    rows = np.empty((len(values), VARINT_BYTES_MAX), np.uint8)
    sizes = np.ones(len(values), np.int64)
    for place in range(VARINT_BYTES_MAX):
        rest = raw >> np.uint64(7)
        rows[:, place] = (raw & np.uint64(0x7F)).astype(np.uint8) | np.where(rest != 0, _MORE, 0).astype(np.uint8)
        sizes += rest != 0
        raw = rest
        if not raw.any():
            break
    return rows, sizes
