"""Encodes many records of a shard as runs: keys with a common prefix, and rests and values of equal length.

One `struct` format decodes a whole run, so a million committed offsets cost some 0.2 µs each. A run is a head of four
numbers, the common prefix of the keys, then the rest of each key with its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

_HEAD = Struct(">HHII")  # sizes of common prefix, key rest and value; number of records
RUN_RECORDS_MAX = 1_000  # records of one run that are read at a time
PART_BYTES = 256 << 10


class Run(NamedTuple):
    """Records as pairs (rest of the key, value); each key is `begin` and its rest."""

    begin: bytes
    pairs: Iterable[tuple[bytes, bytes]]
    records: int


def pack_runs(begin: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode records with the key prefix `begin`, sorted by their lengths. The rest of a key must not be empty."""
    by_size: dict[tuple[int, int], list[bytes]] = {}
    for rest, value in pairs:
        size = (len(rest), len(value))
        some = by_size.get(size)
        if some is None:
            some = by_size[size] = []
        some.append(rest)
        some.append(value)
    parts: list[bytes] = []
    for (rest_size, value_size), data in by_size.items():
        for at in range(0, len(data), 2 * RUN_RECORDS_MAX):
            some = data[at : at + 2 * RUN_RECORDS_MAX]
            parts.append(_HEAD.pack(len(begin), rest_size, value_size, len(some) // 2))
            parts.append(begin)
            parts += some
    return b"".join(parts)


def pack_parts(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, int]]:
    """Encode records of any length in parts, each with its number of records. A part ends with the record that brings
    it to RUN_RECORDS_MAX records or PART_BYTES."""
    part: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in pairs:
        part.append((key, value))
        size += len(key) + len(value)
        if size >= PART_BYTES or len(part) >= RUN_RECORDS_MAX:
            yield pack_runs(b"", part), len(part)
            part, size = [], 0
    if part:
        yield pack_runs(b"", part), len(part)


def read_runs(piece: bytes) -> Iterator[Run]:
    """The inverse of `pack_runs`. Raises ValueError for invalid bytes."""
    at, view = 0, memoryview(piece)
    try:
        while at < len(piece):
            begin_size, rest_size, value_size, count = _HEAD.unpack_from(piece, at)
            at += _HEAD.size
            begin = piece[at : at + begin_size]
            at += begin_size
            end = at + (rest_size + value_size) * count
            if end > len(piece) or not rest_size or count > RUN_RECORDS_MAX:
                raise ValueError("a run that is cut off")
            yield Run(begin, Struct(f"{rest_size}s{value_size}s").iter_unpack(view[at:end]), count)
            at = end
    except struct_error as error:
        raise ValueError("a run's head that is cut off") from error
