"""The headers of many batches as columns, with what was computed over their bytes. Nothing in them is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from records.batch import (
    CODEC_MAX,
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    MAGIC,
    NO_SEQUENCE,
    SEQUENCE_MASK,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
)
from spark_offload.segments.batch_headers import HEADER, checksums_between, headers_between
from spark_offload.segments.batch_scan import BatchTable, Flags
from spark_offload.segments.varints import Integers

OFFSET_MAX = 2**62
"""Beyond it sums would wrap round; no log gets there."""


@dataclass(slots=True)
class Headers:
    """One row per batch. `at` and `end` are positions in the object, `computed` is the CRC-32C of the bytes that
    `crc` is said to cover. Columns are int64."""

    at: Integers
    end: Integers
    computed: Integers
    fields: npt.NDArray[np.void]
    _columns: dict[str, Integers] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.at)

    def column(self, name: str) -> Integers:
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self.fields[name].astype(np.int64)
        return found

    def has(self, attribute: int) -> Flags:
        flags: Flags = (self.column("attributes") & attribute) != 0
        return flags

    @property
    def is_control(self) -> Flags:
        return self.has(CONTROL)

    @property
    def has_any_control(self) -> bool:
        return bool(self.is_control.any())

    @property
    def is_transactional(self) -> Flags:
        return self.has(TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> Flags:
        return self.has(TIMESTAMP_TYPE)

    @property
    def has_horizon(self) -> Flags:
        return self.has(DELETE_HORIZON)

    @property
    def last_offset(self) -> Integers:
        return self.column("base_offset") + self.column("last_offset_delta")

    @property
    def last_sequence(self) -> Integers:
        base = self.column("base_sequence")
        return np.where(base < 0, NO_SEQUENCE, (base + self.column("last_offset_delta")) & SEQUENCE_MASK)

    @property
    def has_right_crc(self) -> Flags:
        right: Flags = self.computed == self.column("crc")
        return right

    @property
    def is_possible(self) -> Flags:
        """Whether offsets, counts and format can be those of a batch at all: only such ones are looked into."""
        base, delta, count = self.column("base_offset"), self.column("last_offset_delta"), self.column("count")
        possible: Flags = (
            (self.column("magic") == MAGIC)
            & (base >= 0)
            & (base < OFFSET_MAX)
            & (delta >= 0)
            & (count >= 0)
            & (count <= delta + 1)
            & ((self.column("attributes") & COMPRESSION_MASK) <= CODEC_MAX)
        )
        return possible

    def where(self, rows: Flags | slice) -> Headers:
        return Headers(self.at[rows], self.end[rows], self.computed[rows], self.fields[rows])

    def table(self, origin: int) -> BatchTable:
        """As the decoder takes it, with positions relative to `origin`."""
        return BatchTable(
            at=self.at - origin,
            end=self.end - origin,
            base_offset=self.column("base_offset"),
            attributes=self.column("attributes"),
            last_offset_delta=self.column("last_offset_delta"),
            base_timestamp=self.column("base_timestamp"),
            max_timestamp=self.column("max_timestamp"),
            producer_id=self.column("producer_id"),
            count=self.column("count"),
        )


def read_headers(view: memoryview, bounds: Sequence[int], origin: int) -> Headers:
    """Of the batches between each two of `bounds`; `origin` is where `view` lies in its object."""
    positions = np.array(bounds, np.int64) + origin
    computed = checksums_between(view, bounds)
    return Headers(positions[:-1], positions[1:], computed, headers_between(view, bounds))


def joined(parts: Sequence[Headers]) -> Headers:
    """All rows, in the order of the parts."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none = np.empty(0, np.int64)
        return Headers(none, none, none, np.empty(0, HEADER))
    return Headers(
        np.concatenate([part.at for part in parts]),
        np.concatenate([part.end for part in parts]),
        np.concatenate([part.computed for part in parts]),
        np.concatenate([part.fields for part in parts]),
    )
