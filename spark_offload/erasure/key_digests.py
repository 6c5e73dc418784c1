"""Keys as they leave the driver: 16-byte digests under a secret that lives in memory alone.

Spark writes what it broadcasts to disk, on the driver's machine and on every executor's. So it is given digests, and
their secret goes another way (see `secrets_of_tasks`). Without the secret nobody can tell a digest from chance, and a
short key cannot be found by trying either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_offload.batch_scan import Flags
from spark_offload.erasure.key_file import KEYS_MAX
from spark_offload.options import OptionError

DIGEST_BYTES = 16
SECRET_BYTES = 32
_DIGEST = np.dtype([("high", ">u8"), ("low", ">u8")])


def digest_of(key: bytes | memoryview, secret: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES, key=secret).digest()


class KeyDigests:
    """A set of digests: 16 bytes each, sorted."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        table = np.frombuffer(packed, _DIGEST)
        self._high = table["high"].astype(np.uint64)  # native order: searched a million times
        self._low = table["low"].astype(np.uint64)

    @classmethod
    def of_keys(cls, keys: Iterable[bytes], secret: bytes) -> KeyDigests:
        """Raises OptionError for more keys than one run takes."""
        found: dict[bytes, None] = {}
        for key in keys:
            found[digest_of(key, secret)] = None
            if len(found) > KEYS_MAX:
                raise OptionError(f"one erasure takes at most {KEYS_MAX} keys; split the key file")
        return cls(b"".join(sorted(found)))

    @property
    def packed(self) -> bytes:
        return self._packed

    def __len__(self) -> int:
        return len(self._high)

    def holds(self, digests: bytes) -> Flags:
        """A flag for each of the digests, which lie one behind the other."""
        table = np.frombuffer(digests, _DIGEST)
        high, low = table["high"].astype(np.uint64), table["low"].astype(np.uint64)
        found = np.zeros(len(table), np.bool_)
        at = np.searchsorted(self._high, high)
        live = np.flatnonzero(at < len(self._high))
        while len(live):  # once, but for two digests of one set with the same first half
            same = self._high[at[live]] == high[live]
            live = live[same]
            hit = self._low[at[live]] == low[live]
            found[live[hit]] = True
            live = live[~hit]
            at[live] += 1
            live = live[at[live] < len(self._high)]
        return found


class KeyMatcher:
    """Which of many records have one of the keys; each key of a chunk is digested once, however often it is there."""

    def __init__(self, digests: KeyDigests, secret: bytes) -> None:
        self._digests = digests
        self._secret = secret

    def match(self, keys: pa.Array) -> tuple[Flags, dict[bytes, int]]:
        """(a flag per record, digest of each key that was found and how many records have it). Null keys are none."""
        none = np.zeros(len(keys), np.bool_)
        if not len(self._digests) or not len(keys):
            return none, {}
        coded = keys.dictionary_encode()
        values = coded.dictionary
        digests = [digest_of(value.as_buffer(), self._secret) for value in values]
        wanted = self._digests.holds(b"".join(digests))
        if not wanted.any():
            return none, {}
        codes: npt.NDArray[np.int64] = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        flags: Flags = np.append(wanted, False)[codes]  # -1, of null, is the last one
        counts = np.bincount(codes[flags], minlength=len(wanted))
        return flags, {digests[at]: int(counts[at]) for at in np.flatnonzero(counts).tolist()}
