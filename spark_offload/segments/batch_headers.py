"""Where the fields of a batch lie, for numpy: stepping from batch to batch, and many headers at once. Nothing that the
bytes say is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct

import numpy as np
import numpy.typing as npt

from common.checksum import crc32c
from records.batch import CRC_FROM, HEADER_BYTES, PREFIX_BYTES
from spark_offload.segments.varints import Integers

HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
Headers = npt.NDArray[np.void]
"""One `HEADER` per batch."""
_LENGTH_AT = 8
_LENGTH = Struct(">i")


def steps(view: memoryview) -> tuple[list[int], int]:
    """The positions of the whole batches of `view`, then the end of the last one; and the stated size of the next one:
    0 when it is not known yet, -1 when it is too small for a batch."""
    unpack = _LENGTH.unpack_from
    found: list[int] = []
    at, end = 0, len(view)
    while end - at >= PREFIX_BYTES:
        size = unpack(view, at + _LENGTH_AT)[0] + PREFIX_BYTES
        found.append(at)
        if size < HEADER_BYTES:
            return found, -1
        if size > end - at:
            return found, size
        at += size
    found.append(at)
    return found, 0


def headers_between(view: memoryview, bounds: Sequence[int]) -> Headers:
    """Of the batches between each two of `bounds`, as `steps` gives them."""
    return np.frombuffer(b"".join([view[at : at + HEADER_BYTES] for at in bounds[:-1]]), HEADER)


def checksums_between(view: memoryview, bounds: Sequence[int]) -> Integers:
    """The CRC-32C of the bytes of each batch that its own field `crc` is said to cover."""
    return np.array([crc32c(view[at + CRC_FROM : end]) for at, end in pairwise(bounds)], np.int64)
