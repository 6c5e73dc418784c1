"""The latest committed record of each key, over any number of records: hashes of keys, not the keys. Pure.

Two keys with the same 64 bits of SHA-256 would be taken for one; among a thousand million keys that is to be expected
once in forty such tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from common.checksum import crc32c
from spark_offload.segments.arrow_columns import binary_column
from spark_offload.segments.batch_scan import Flags
from spark_offload.segments.varints import Integers
from spark_offload.verification.ledger import Hashes, key_hashes
from spark_offload.verification.record_checks import Decoded

FOLD_ROWS = 2_000_000


class KeyTable(NamedTuple):
    """Ascending by `key_hash`, each once. `crc` is of key, value and headers of the record at `offset`."""

    key_hash: Hashes
    offset: Integers
    crc: Integers
    is_tombstone: npt.NDArray[np.bool_]

    @property
    def rows(self) -> int:
        return len(self.key_hash)

    def rows_of(self, hashes: Hashes) -> tuple[Integers, Flags]:
        """The row of each hash, and whether it is there at all."""
        at = np.searchsorted(self.key_hash, hashes)
        if not len(self.key_hash):
            return np.zeros(len(hashes), np.int64), np.zeros(len(hashes), np.bool_)
        rows = np.minimum(at, len(self.key_hash) - 1)
        there: Flags = self.key_hash[rows] == hashes
        return rows, there

    def taken(self, rows: Integers | Flags) -> KeyTable:
        return KeyTable(self.key_hash[rows], self.offset[rows], self.crc[rows], self.is_tombstone[rows])


NO_KEYS = KeyTable(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))


@dataclass(slots=True)
class LatestKeys:
    """Takes records in any order of pieces; `table` folds them."""

    _parts: list[KeyTable] = field(default_factory=list)
    _rows: int = 0

    def add(self, decoded: Decoded, wanted: Flags) -> None:
        """The chosen records, ascending by offset; those without a key do not count."""
        payload, records = decoded
        rows = np.flatnonzero(wanted & (records.key_length >= 0))
        if not len(rows):
            return
        keys = binary_column(payload.view, records.key_at[rows], records.key_length[rows]).dictionary_encode()
        last = np.zeros(len(keys.dictionary), np.int64)
        last[keys.indices.to_numpy()] = rows  # of rows with one key the last one stays
        self._take(
            KeyTable(
                key_hashes(keys.dictionary.to_pylist()),
                records.offset[last],
                contents(decoded, last),
                records.value_length[last] < 0,
            )
        )

    def merge(self, table: KeyTable) -> None:
        self._take(table)

    def _take(self, part: KeyTable) -> None:
        self._parts.append(part)
        self._rows += part.rows
        if self._rows > FOLD_ROWS and self._rows > 2 * self._parts[0].rows:
            self.table()

    def table(self) -> KeyTable:
        if not self._parts:
            return NO_KEYS
        joined = KeyTable(*(np.concatenate(column) for column in zip(*self._parts, strict=True)))
        order = np.lexsort((joined.offset, joined.key_hash))
        ordered = joined.taken(order)
        is_last = np.ones(ordered.rows, np.bool_)
        is_last[:-1] = ordered.key_hash[1:] != ordered.key_hash[:-1]
        folded = ordered.taken(is_last)
        self._parts, self._rows = [folded], folded.rows
        return folded


def contents(decoded: Decoded, rows: Integers) -> Integers:
    """The CRC-32C of key, value and headers of each of these records: the same wherever a record is copied to."""
    view, records = decoded.payload.view, decoded.records
    places = zip(records.key_at[rows].tolist(), records.end[rows].tolist(), strict=True)
    return np.array([crc32c(view[at:end]) for at, end in places], np.int64)
