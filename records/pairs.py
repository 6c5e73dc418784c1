"""Keys and values of records, without offsets, timestamps and headers, for state that is rebuilt from a log.

Written for millions of records, so the loop reads one-byte lengths itself. `records.record` has the format and reads
all fields.
"""

from __future__ import annotations

from common.errors import ErrorCode, ProtocolError

Pair = tuple[bytes, bytes | None]
"""Key and value; None is a tombstone."""

_SHIFT_MAX = 28


def read_pairs(data: bytes, at: int, end: int, count: int, pairs: list[Pair]) -> int:
    """Append key and value of `count` records, which begin at `data[at]`, to `pairs`; returns the position after them.

    Skips records without a key. Raises ProtocolError(CORRUPT_MESSAGE) when a length disagrees with another or leads
    beyond `end`; pairs appended before are sound.
    """
    append = pairs.append
    try:
        for _ in range(count):
            length = data[at]
            at += 1
            if length > 127:
                length, at = _long(data, at - 1)
            record_end = at + (length >> 1)
            if record_end > end or length & 1:
                raise _damaged()
            at += 1  # attributes
            while data[at] > 127:  # timestamp delta
                at += 1
            at += 1
            while data[at] > 127:  # offset delta
                at += 1
            at += 1
            key_length = data[at]
            at += 1
            if key_length > 127:
                key_length, at = _long(data, at - 1)
            value_at = at + (key_length >> 1) if key_length != 1 else at
            value_length = data[value_at]
            key_end = value_at
            value_at += 1
            if value_length > 127:
                value_length, value_at = _long(data, value_at - 1)
            value_end = value_at + (value_length >> 1)
            if value_length & 1 or key_length & 1:  # -1 is null, and the only odd one
                if (value_length & 1 and value_length != 1) or (key_length & 1 and key_length != 1):
                    raise _damaged()
                if value_length == 1:
                    value_end = value_at
                if value_end >= record_end:
                    raise _damaged()
                if key_length != 1:
                    append((data[at:key_end], None))
            elif value_end >= record_end:  # the number of headers follows
                raise _damaged()
            else:
                append((data[at:key_end], data[value_at:value_end]))
            at = record_end
    except IndexError as error:
        raise _damaged() from error
    return at


def _long(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > _SHIFT_MAX:
            raise _damaged()


def _damaged() -> ProtocolError:
    return ProtocolError(ErrorCode.CORRUPT_MESSAGE, "records whose lengths disagree")
