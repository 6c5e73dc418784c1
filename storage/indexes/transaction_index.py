"""The aborted transactions of one segment, as its `.txnindex` file holds them.

Source: Apache Kafka's AbortedTxn, version 0: version int16, producer id, first offset, last offset (that of the abort
marker), last stable offset as it stood when the marker was written; all int64, big-endian, ordered by last offset.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from common.ports import Buffer
from storage.indexes.offset_index import Pread, search

VERSION = 0
_ENTRY = Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """Records of `producer_id` in [first_offset, last_offset] were aborted."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode(transaction: AbortedTransaction) -> bytes:
    return _ENTRY.pack(VERSION, *transaction)


def checked_fields(data: Buffer, before: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of each entry of `data`, which follow one whose last offset is `before`. ValueError if a version or
    the order is invalid."""
    for version, producer_id, first, last, last_stable in _ENTRY.iter_unpack(data):
        if version != VERSION or first > last:
            raise ValueError("a transaction index entry is damaged")
        if last <= before:
            raise ValueError("a transaction index entry is out of order")
        before = last
        yield producer_id, first, last, last_stable


def decode(data: Buffer) -> list[AbortedTransaction]:
    """All entries of a file. ValueError if the length, a version or the order is invalid."""
    if len(data) % ENTRY_BYTES:
        raise ValueError(f"a transaction index of {len(data)} bytes")
    found: list[AbortedTransaction] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*fields)
        if version != VERSION or entry.first_offset > entry.last_offset:
            raise ValueError(f"transaction index entry {len(found)} is damaged")
        if found and entry.last_offset <= found[-1].last_offset:
            raise ValueError(f"transaction index entry {len(found)} is out of order")
        found.append(entry)
    return found


def decode_below(data: Buffer, offset: int) -> list[AbortedTransaction]:
    """The entries of a file whose markers lie below `offset`; what comes after them need not be sound. ValueError if
    another thing than an entry comes before their end."""
    found: list[AbortedTransaction] = []
    for at in range(0, len(data) - len(data) % ENTRY_BYTES, ENTRY_BYTES):
        version, *fields = _ENTRY.unpack_from(data, at)
        entry = AbortedTransaction(*fields)
        before = found[-1].last_offset if found else -1
        if version != VERSION or entry.first_offset >= entry.last_offset or entry.last_offset <= before:
            raise ValueError(f"transaction index entry {len(found)} is damaged")
        if entry.last_offset >= offset:
            break
        found.append(entry)
    return found


def collect(
    entries: Iterable[AbortedTransaction], fetch_offset: int, upper_bound: int
) -> tuple[list[AbortedTransaction], bool]:
    """The transactions that overlap [fetch_offset, upper_bound), and whether later segments cannot add any.

    They cannot when an entry's last stable offset has reached the bound: no transaction that ends later began before
    it.
    """
    found = []
    for entry in entries:
        if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound:
            found.append(entry)
        if entry.last_stable_offset >= upper_bound:
            return found, True
    return found, False


def _last_offset(data: Buffer, at: int) -> int:
    return int.from_bytes(data[at + 18 : at + 26], "big", signed=True)


def first_entry_at(data: Buffer, offset: int) -> int:
    """The first entry of `data` whose last offset is at or after `offset`; their number if there is none."""
    low, high = 0, len(data) // ENTRY_BYTES
    if low < high and _last_offset(data, 0) >= offset:
        return 0
    while low < high:
        middle = (low + high) // 2
        if _last_offset(data, middle * ENTRY_BYTES) < offset:
            low = middle + 1
        else:
            high = middle
    return low


def entries_below(pread: Pread, count: int, offset: int) -> int:
    """How many of a file's `count` entries have markers below `offset`: those stay when the log is truncated there."""
    return search(pread, count, ENTRY_BYTES, _last_offset, offset - 1) + 1
