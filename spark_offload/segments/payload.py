"""The records of several batches as one piece of memory: where they lie, or inflated next to each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from records.batch import HEADER_BYTES
from records.compression import Compression, DamagedData, InflatedTooLarge, decompress
from spark_offload.segments.batch_scan import BatchTable, Flags
from spark_offload.segments.varints import DamagedRecords, Integers

GROUP_BYTES = 32 << 20  # inflated at once; Arrow counts a column's bytes in 31 bits
GROUP_BATCHES = 128  # enough for steps over all batches of a group to be worth while
PAYLOAD_BYTES_MAX = (1 << 31) - 1
_CODECS = tuple(Compression)  # by their numbers
RECORD_BYTES_MIN = 7  # length, attributes, two deltas, two lengths and the number of headers


@dataclass(slots=True)
class Payload:
    """`view[start[i] : end[i]]` are the records of batch i of `batches`; starts grow."""

    batches: BatchTable
    view: memoryview
    start: Integers
    end: Integers

    def where(self, rows: Flags) -> Payload:
        """The chosen batches alone, in the same memory."""
        return Payload(self.batches.where(rows), self.view, self.start[rows], self.end[rows])


def payloads(
    view: memoryview, batches: BatchTable, *, inflated_bytes_max: int, group_bytes: int = GROUP_BYTES
) -> Iterator[Payload]:
    """The batches, in order, in groups of about `group_bytes` inflated bytes; of more when `GROUP_BATCHES` have more,
    but not of more than `GROUP_BYTES`.

    Batches without a codec are not copied when none of their group has one. DamagedRecords: data that the codec did
    not write, a batch that inflates to more than `inflated_bytes_max`, more records counted than the bytes can hold.
    """
    if not len(batches):
        return
    if not batches.codec.any():
        yield from _as_they_lie(view, batches)
        return
    parts: list[bytes] = []
    ends: list[int] = []
    total = first = 0
    places = zip(batches.at.tolist(), batches.end.tolist(), batches.codec.tolist(), strict=True)
    for index, (at, end, codec) in enumerate(places):
        part = _inflate(codec, view[at + HEADER_BYTES : end], inflated_bytes_max)
        limit = group_bytes if len(parts) >= GROUP_BATCHES else GROUP_BYTES
        if total + len(part) > limit and parts:
            yield _joined(batches.where(slice(first, index)), parts, ends)
            parts, ends, total, first = [], [], 0, index
        parts.append(part)
        total += len(part)
        ends.append(total)
    yield _joined(batches.where(slice(first, len(batches))), parts, ends)


def _as_they_lie(view: memoryview, batches: BatchTable) -> Iterator[Payload]:
    if len(view) > PAYLOAD_BYTES_MAX:
        raise DamagedRecords(f"{len(view)} bytes are too many for one piece")
    yield _checked(Payload(batches, view, batches.at + HEADER_BYTES, batches.end))


def _joined(batches: BatchTable, parts: list[bytes], ends: list[int]) -> Payload:
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    end = np.array(ends, np.int64)
    return _checked(Payload(batches, memoryview(data), np.concatenate(([0], end[:-1])), end))


def _checked(payload: Payload) -> Payload:
    """Nothing is allocated for records that the bytes cannot hold."""
    room = payload.end - payload.start
    count = payload.batches.count
    if (count * RECORD_BYTES_MIN > room).any():
        raise DamagedRecords("fewer records than counted")
    if ((count == 0) & (room != 0)).any():
        raise DamagedRecords("records in a batch that counts none")
    return payload


def _inflate(codec: int, data: memoryview, bytes_max: int) -> bytes:
    try:
        return decompress(_CODECS[codec], data, min(bytes_max, PAYLOAD_BYTES_MAX))
    except InflatedTooLarge as error:
        raise DamagedRecords(f"the records of a batch inflate to more than {bytes_max} bytes") from error
    except (DamagedData, ValueError, IndexError) as error:
        raise DamagedRecords("the records of a batch cannot be inflated") from error
