"""What lies behind a segment's log, decoded: aborted transactions, producers, leader epochs. Pure."""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import NamedTuple

_INDEX_VERSION = 0
_INDEX_ENTRY = Struct(">hqqqq")
_EPOCHS_VERSION = "0"


class AbortedEntry(NamedTuple):
    """Source: Apache Kafka's AbortedTxn, version 0. `last_offset` is that of the abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def aborted_entries(data: bytes) -> list[AbortedEntry]:
    """ValueError when the bytes are no transaction index."""
    if len(data) % _INDEX_ENTRY.size:
        raise ValueError(f"a transaction index of {len(data)} bytes")
    found: list[AbortedEntry] = []
    for version, *fields in _INDEX_ENTRY.iter_unpack(data):
        entry = AbortedEntry(*fields)
        if version != _INDEX_VERSION or not entry.first_offset <= entry.last_offset:
            raise ValueError(f"entry {len(found)} of a transaction index is damaged")
        if found and entry.last_offset <= found[-1].last_offset:
            raise ValueError(f"entry {len(found)} of a transaction index is out of order")
        found.append(entry)
    return found


def epoch_entries(data: bytes) -> list[tuple[int, int]]:
    """(leader epoch, start offset), ascending. ValueError when the bytes are no leader epoch checkpoint."""
    try:
        lines = data.decode("ascii").splitlines()
        pairs = [line.split(" ") for line in lines[2:]]
        found = [(int(epoch), int(start)) for epoch, start in pairs]
        whole = lines[:1] == [_EPOCHS_VERSION] and int(lines[1]) == len(found)
    except (ValueError, IndexError) as error:
        raise ValueError("leader epochs that cannot be read") from error
    if not whole or any(later <= earlier for earlier, later in pairwise(found)):
        raise ValueError("leader epochs that are not whole or do not ascend")
    return found
