"""The aborted transactions of one segment, as its `.txnindex` file holds them.

Source: Apache Kafka's AbortedTxn, version 0: version int16, producer id, first offset, last offset (that of the abort
marker), last stable offset as it stood when the marker was written; all int64, big-endian, ordered by last offset.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from common.ports import Buffer
from storage.indexes.offset_index import Pread, search

VERSION = 0
_STEP_ENTRIES = 4_096
_WINDOW_ENTRIES = 128
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


def least_first_offset(pread: Pread, size: int) -> int:
    """The first offset of the earliest transaction in a file of `size` bytes. ValueError if it is damaged."""
    least = 2**63 - 1
    step = _STEP_ENTRIES * ENTRY_BYTES
    for at in range(0, size, step):
        entries = decode(pread(min(step, size - at), at))
        least = min(least, min((entry.first_offset for entry in entries), default=least))
    return least


def find(pread: Pread, size: int, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
    """As `collect`, for a file of `size` bytes, reading no more than necessary. ValueError if it is damaged."""
    count = size // ENTRY_BYTES
    slot = search(pread, count, ENTRY_BYTES, _last_offset, fetch_offset - 1) + 1
    found: list[AbortedTransaction] = []
    while slot < count:
        taken = min(_WINDOW_ENTRIES, count - slot)
        more, complete = collect(decode(pread(taken * ENTRY_BYTES, slot * ENTRY_BYTES)), fetch_offset, upper_bound)
        found += more
        if complete:
            return found, True
        slot += taken
    return found, False


def _last_offset(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 18 : at + 26], "big", signed=True)


def bytes_below(entries: Iterable[AbortedTransaction], offset: int) -> int:
    """The file's length after a truncation of the log at `offset`: entries with markers below it stay."""
    count = 0
    for entry in entries:
        if entry.last_offset >= offset:
            break
        count += 1
    return count * ENTRY_BYTES
