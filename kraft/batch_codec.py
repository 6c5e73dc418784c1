"""Encodes and decodes large batches in slices (`common.pacing`). The bytes are those of `encode_batch`.

A topic with ten thousand partitions is one batch, because it must be atomic; encoding or decoding it at once would
block the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.pacing import Work
from kraft.batches import Batch, BatchHeader, MetadataRecord, decode_batch
from kraft.records import PIECE_BYTES_MAX

STRETCH = 100  # records between two yields
ENCODING_COST, DECODING_COST = 1, 1  # per record
_BYTES_PER_UNIT = 100  # of records with long lists

_ARRAY_OF_2 = b"\x92"
_FIX_ARRAY, _ARRAY_16, _ARRAY_32 = 0x90, b"\xdc", b"\xdd"


class _Undecoded(msgspec.Struct, frozen=True, array_like=True):
    header: BatchHeader
    records: list[msgspec.Raw]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Undecoded)
_record_decoder = msgspec.msgpack.Decoder(MetadataRecord)


def encoding_records(records: Sequence[MetadataRecord]) -> Work[list[bytes]]:
    """Each record as it stands in a batch."""
    encoded: list[bytes] = []
    for at in range(0, len(records), STRETCH):
        some = list(map(_encoder.encode, records[at : at + STRETCH]))
        encoded += some
        yield len(some) * ENCODING_COST + sum(map(len, some)) // _BYTES_PER_UNIT
    return encoded


def assembled_batch(header: BatchHeader, encoded: Sequence[bytes]) -> bytes:
    """The batch of records that are encoded already."""
    count = len(encoded)
    if count < 16:
        head = bytes((_FIX_ARRAY | count,))
    elif count < 1 << 16:
        head = _ARRAY_16 + count.to_bytes(2, "big")
    else:
        head = _ARRAY_32 + count.to_bytes(4, "big")
    return b"".join((_ARRAY_OF_2, _encoder.encode(header), head, *encoded))


def decoding_batch(data: bytes | bytearray | memoryview) -> Work[Batch | None]:
    """The work of `decode_batch`."""
    if len(data) <= 2 * PIECE_BYTES_MAX:
        return decode_batch(data)
    records: list[MetadataRecord] = []
    try:
        undecoded = _decoder.decode(data)
        each = DECODING_COST + len(data) // max(len(undecoded.records), 1) // _BYTES_PER_UNIT
        for at in range(0, len(undecoded.records), STRETCH):
            some = undecoded.records[at : at + STRETCH]
            records += map(_record_decoder.decode, some)
            yield len(some) * each
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    return Batch(undecoded.header, records) if records else None
