"""Keys as they leave the driver: 16-byte digests under a secret that lives in memory alone.

Spark writes what it broadcasts to disk, on the driver's machine and on every executor's. So it is given digests, and
their secret goes another way (see `secrets_of_tasks`). Without the secret a digest looks like chance, and a
short key cannot be found by trying either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_offload.erasure.key_file import KEYS_MAX
from spark_offload.options import OptionError
from spark_offload.segments.batch_scan import Flags
from spark_offload.segments.varints import Integers

DIGEST_BYTES = 16
SECRET_BYTES = 32
NO_PLACE = -1
_DIGEST = np.dtype([("high", ">u8"), ("low", ">u8")])
Words = npt.NDArray[np.uint64]


def digest_of(key: bytes | memoryview, secret: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES, key=secret).digest()


class KeyDigests:
    """A set of digests, given sorted, 16 bytes each."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        self._high, self._low = _words(packed)

    def __len__(self) -> int:
        return len(self._high)

    def places(self, digests: bytes) -> Integers:
        """Where each of the digests, which lie one behind the other, stands in the set, or `NO_PLACE`."""
        high, low = _words(digests)
        found = np.full(len(high), NO_PLACE, np.int64)
        at = np.searchsorted(self._high, high)
        live = np.flatnonzero(at < len(self._high))
        while len(live):  # once, but for two digests of the set with the same first half
            live = live[self._high[at[live]] == high[live]]
            hit = self._low[at[live]] == low[live]
            found[live[hit]] = at[live[hit]]
            live = live[~hit]
            at[live] += 1
            live = live[at[live] < len(self._high)]
        return found


class ErasureKeys:
    """What the driver keeps of a key file: the digests, and in which line each key stood first."""

    def __init__(self, keys: Iterable[tuple[int, bytes]], secret: bytes, keys_max: int = KEYS_MAX) -> None:
        """`keys` as of `key_file.read_keys`. Raises OptionError for none, and for more than one run takes."""
        packed, lines = bytearray(), list[int]()
        for line, key in keys:
            packed += digest_of(key, secret)
            lines.append(line)
            if len(lines) > keys_max:
                raise OptionError(f"one erasure takes at most {keys_max} keys; split the key file")
        if not lines:
            raise OptionError("the key file names no key")
        high, low = _words(bytes(packed))
        order = np.lexsort((low, high))
        new = np.ones(len(order), np.bool_)
        new[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
        kept = order[new]
        self.secret = secret
        self.digests = KeyDigests(np.frombuffer(packed, _DIGEST)[kept].tobytes())
        self._lines: Integers = np.minimum.reduceat(np.array(lines, np.int64)[order], np.flatnonzero(new))

    def __len__(self) -> int:
        return len(self.digests)

    def __repr__(self) -> str:
        return f"<{len(self)} keys>"

    def line_of(self, digest: bytes) -> int:
        """The line in the key file, from 1."""
        (place,) = self.digests.places(digest).tolist()
        return int(self._lines[place])


class KeyMatcher:
    """Which of many records have one of the keys; each key of a chunk is digested once, however often it is there."""

    def __init__(self, digests: KeyDigests, secret: bytes) -> None:
        self._digests = digests
        self._secret = secret

    def match(self, keys: pa.Array) -> tuple[Flags, dict[bytes, int]]:
        """(a flag per record, digest of each key that was found and how many records have it). Null keys are none."""
        none = np.zeros(len(keys), np.bool_)
        if not len(self._digests) or keys.null_count == len(keys):
            return none, {}
        coded = keys.dictionary_encode()
        digests = [digest_of(value.as_buffer(), self._secret) for value in coded.dictionary]
        wanted = self._digests.places(b"".join(digests)) != NO_PLACE
        if not wanted.any():
            return none, {}
        codes: Integers = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        flags: Flags = np.append(wanted, False)[codes]  # -1, of null, is the last one
        counts = np.bincount(codes[flags], minlength=len(wanted))
        return flags, {digests[at]: int(counts[at]) for at in np.flatnonzero(counts).tolist()}


def _words(packed: bytes) -> tuple[Words, Words]:
    """Both halves in native order, because they are searched often."""
    table = np.frombuffer(packed, _DIGEST)
    return table["high"].astype(np.uint64), table["low"].astype(np.uint64)
