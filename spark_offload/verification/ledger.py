"""A ledger of acknowledged writes, and whether they are there.

A client notes topic, partition, offset and a hash of the key of each acknowledged write. The hash is the first 16 hex
digits of the SHA-256 of the key's bytes, and empty for a record without key: every language has it. A column
`tombstone` (true or false) may tell which writes deleted their key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from spark_offload.segments.varints import Integers

Hashes = npt.NDArray[np.uint64]

HASH_DIGITS = 16
NO_KEY = 0
"""Stands for the empty hash. A key that hashes to it is as improbable as any other collision."""
ROWS_MAX = 50_000_000
"""They are held in the driver, 17 bytes each."""
COLUMNS = ("topic", "partition", "offset", "key_hash")
_PARQUET_MAGIC = b"PAR1"
_NO_DIGIT = 255
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _DIGITS[np.frombuffer(_digits, np.uint8)] = np.arange(16)


class LedgerError(ValueError):
    """A file that is no ledger."""


def key_hash(key: bytes | None) -> int:
    """As a number; `f"{key_hash(key):016x}"` is what stands in a ledger, "" for None."""
    return NO_KEY if key is None else int.from_bytes(hashlib.sha256(key).digest()[:8], "big")


def key_hashes(keys: Iterable[bytes | None]) -> Hashes:
    sha256 = hashlib.sha256
    digests = b"".join(bytes(8) if key is None else sha256(key).digest()[:8] for key in keys)
    return np.frombuffer(digests, ">u8").astype(np.uint64)


class Writes(NamedTuple):
    """Acknowledged writes of one partition, ascending by offset."""

    offset: Integers
    key_hash: Hashes
    is_tombstone: npt.NDArray[np.bool_]

    def between(self, start: int, end: int) -> Writes:
        """Those with `start` <= offset < `end`."""
        low, high = np.searchsorted(self.offset, (start, end)).tolist()
        return Writes(self.offset[low:high], self.key_hash[low:high], self.is_tombstone[low:high])

    def at(self, rows: npt.NDArray[np.bool_] | Integers) -> Writes:
        return Writes(self.offset[rows], self.key_hash[rows], self.is_tombstone[rows])


NO_WRITES = Writes(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.bool_))


@dataclass(slots=True)
class Ledger:
    """All writes by (topic, partition)."""

    writes: dict[tuple[str, int], Writes] = field(default_factory=dict)

    def of(self, topic: str, partition: int) -> Writes:
        return self.writes.get((topic, partition), NO_WRITES)

    def __len__(self) -> int:
        return sum(len(one.offset) for one in self.writes.values())


def read_ledger(data: bytes, name: str) -> Ledger:
    """CSV with a header line, or Parquet. Raises LedgerError, which names it."""
    try:
        table = _table(data)
        missing = [column for column in COLUMNS if column not in table.column_names]
        if missing:
            raise LedgerError(f"{name}: the column {', '.join(missing)} is missing; a ledger has {', '.join(COLUMNS)}")
        if table.num_rows > ROWS_MAX:
            raise LedgerError(f"{name}: {table.num_rows} rows, and at most {ROWS_MAX} can be held")
        return _grouped(table)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise error if isinstance(error, LedgerError) else LedgerError(f"{name}: {error}") from error


def _table(data: bytes) -> pa.Table:
    if data[:4] == _PARQUET_MAGIC:
        return pyarrow.parquet.read_table(pa.BufferReader(data))
    types = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "key_hash": pa.string()}
    options = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False)
    return pyarrow.csv.read_csv(pa.BufferReader(data), convert_options=options)


def _numbers(hashes: pa.StringArray) -> Hashes:
    """Of all of them at once: a ledger may have millions. Raises ValueError."""
    held = np.asarray(pc.binary_length(hashes)) > 0
    texts = hashes.filter(pa.array(held))
    found = np.full(len(hashes), NO_KEY, np.uint64)
    if not len(texts):
        return found
    bounds = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    digits = _DIGITS[np.frombuffer(texts.buffers()[2], np.uint8)[bounds[0] : bounds[-1]]]
    if (np.diff(bounds) != HASH_DIGITS).any() or (digits == _NO_DIGIT).any():
        raise ValueError(f"a key_hash has {HASH_DIGITS} hex digits, or is empty for a record without key")
    found[held] = (digits[0::2] << 4 | digits[1::2]).view(">u8")
    return found


def _grouped(table: pa.Table) -> Ledger:
    topics = table["topic"].combine_chunks().dictionary_encode()
    key = _numbers(pc.fill_null(table["key_hash"].cast(pa.string()), "").combine_chunks())
    offset = table["offset"].cast(pa.int64()).to_numpy().astype(np.int64)
    partition = table["partition"].cast(pa.int32()).to_numpy().astype(np.int64)
    tombstone = np.zeros(len(offset), np.bool_)
    if "tombstone" in table.column_names:
        tombstone = pc.fill_null(table["tombstone"].cast(pa.bool_()), False).to_numpy().astype(np.bool_)
    number = topics.indices.to_numpy().astype(np.int64) if len(offset) else np.empty(0, np.int64)
    names = topics.dictionary.to_pylist()
    order = np.lexsort((offset, partition, number))
    ledger = Ledger()
    if not len(order):
        return ledger
    same = (np.diff(number[order]) == 0) & (np.diff(partition[order]) == 0)
    for rows in np.split(order, np.flatnonzero(~same) + 1):
        place = (names[int(number[rows[0]])], int(partition[rows[0]]))
        ledger.writes[place] = Writes(offset[rows], key[rows], tombstone[rows])
    return ledger
