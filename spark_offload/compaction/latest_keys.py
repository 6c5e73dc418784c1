"""Where each key of a partition was seen last, within a budget of memory.

Keys are compared whole, not by a digest. Records are named by their *place*, the number of records read before them,
which is the same in every reading of immutable objects. When the keys outgrow the budget, half of them are put off to
another reading: a hash of the key separates the halves, which may be halved again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_offload.segments.batch_scan import Flags
from spark_offload.segments.varints import Integers

KEY_MEMORY_BYTES = 256 << 20
BYTES_PER_KEY = 48  # beside the key itself: its place, its entry in Arrow's table while keys are brought together
FOLD_KEYS_MIN = 1 << 19
BITS_MAX = 16  # keys that agree in this many bits have equal hashes
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)


class Bucket(NamedTuple):
    """Keys whose hash has `value` in its lowest `bits` bits."""

    bits: int = 0
    value: int = 0


class LatestKeys:
    """`add` everything in order, then `places()`; `put_off` are the buckets that need a reading of their own."""

    def __init__(self, bucket: Bucket = Bucket(), memory_bytes: int = KEY_MEMORY_BYTES) -> None:  # noqa: B008  a value
        self.bucket = bucket
        self.put_off: list[Bucket] = []
        self._memory_bytes = memory_bytes
        self._fold_keys = min(FOLD_KEYS_MIN, memory_bytes // BYTES_PER_KEY)
        self._keys: pa.Array = pa.array([], pa.binary())
        self._places: Integers = np.empty(0, np.int64)
        self._pending: list[tuple[pa.Array, Integers]] = []
        self._pending_keys = 0
        self._pending_bytes = 0

    def add(self, keys: pa.Array, places: Integers) -> None:
        """`keys` (binary, no nulls) of the records at `places`, which grow from call to call."""
        if self.bucket.bits:
            mine = self._of_bucket(keys)
            keys, places = keys.filter(pa.array(mine)), places[mine]
        if not len(keys):
            return
        self._pending.append(_last_of_each(keys, places))
        self._pending_keys += len(self._pending[-1][0])
        self._pending_bytes += self._pending[-1][0].nbytes
        if self._pending_keys >= max(self._fold_keys, len(self._keys)) or self._pending_bytes >= self._memory_bytes:
            self._fold()

    def places(self) -> Integers:
        """The places of the last record of each key of the bucket, ascending."""
        self._fold()
        return np.sort(self._places)

    def __len__(self) -> int:
        """The number of keys at the last call of `places`."""
        return len(self._keys)

    def _fold(self) -> None:
        if not self._pending:
            return
        keys = _joined([self._keys, *(keys for keys, _ in self._pending)])
        places = np.concatenate([self._places, *(places for _, places in self._pending)])
        self._pending, self._pending_keys, self._pending_bytes = [], 0, 0
        self._keys, self._places = _last_of_each(keys, places)
        while self._bytes() > self._memory_bytes and self.bucket.bits < BITS_MAX:
            bits, value = self.bucket
            self.bucket = Bucket(bits + 1, value)
            self.put_off.append(Bucket(bits + 1, value | 1 << bits))
            mine = self._of_bucket(self._keys)
            self._keys, self._places = self._keys.filter(pa.array(mine)), self._places[mine]

    def _bytes(self) -> int:
        return int(self._keys.nbytes) + BYTES_PER_KEY * len(self._keys)

    def _of_bucket(self, keys: pa.Array) -> Flags:
        mask = np.uint64((1 << self.bucket.bits) - 1)
        mine: Flags = (hashes(keys) & mask) == np.uint64(self.bucket.value)
        return mine


def _joined(arrays: list[pa.Array]) -> pa.Array:
    """As one array; beyond 2 GiB of keys their offsets take 64 bits."""
    if sum(array.nbytes for array in arrays) >= 1 << 31:
        arrays = [array.cast(pa.large_binary()) for array in arrays]
    elif any(pa.types.is_large_binary(array.type) for array in arrays):
        arrays = [array.cast(pa.binary()) for array in arrays]
    return pa.concat_arrays(arrays)


def _last_of_each(keys: pa.Array, places: Integers) -> tuple[pa.Array, Integers]:
    """Each key once, with its last place."""
    encoded = keys.dictionary_encode()
    last = np.empty(len(encoded.dictionary), np.int64)
    last[encoded.indices.to_numpy()] = places  # of several values for one index, numpy keeps the last
    return encoded.dictionary, last


def hashes(keys: pa.Array) -> npt.NDArray[np.uint64]:
    """64 bits for each key (binary, no nulls): a polynomial of its bytes and its length, stirred."""
    wide = pa.types.is_large_binary(keys.type)
    _, bounds_buffer, data_buffer = keys.buffers()
    kind = np.int64 if wide else np.int32
    bounds = np.frombuffer(bounds_buffer, kind)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    lengths = np.diff(bounds)
    data = np.frombuffer(data_buffer, np.uint8)[bounds[0] : bounds[-1]] if data_buffer else np.empty(0, np.uint8)
    at = np.arange(len(data)) - np.repeat(bounds[:-1] - bounds[0], lengths)
    weights = np.cumprod(np.full(int(lengths.max(initial=0)) + 1, _MULTIPLIER, np.uint64))
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum((data.astype(np.uint64) + np.uint64(1)) * weights[at], out=sums[1:])
    value = sums[bounds[1:] - bounds[0]] - sums[bounds[:-1] - bounds[0]] + lengths.astype(np.uint64)
    for _ in range(2):
        value = (value ^ (value >> np.uint64(32))) * _MIX
    mixed: npt.NDArray[np.uint64] = value ^ (value >> np.uint64(32))
    return mixed
