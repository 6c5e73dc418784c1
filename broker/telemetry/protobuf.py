"""Fields of protobuf messages, found one after another in their bytes. No I/O.

The library parses a message as a whole, in one call that holds the interpreter for as long as it takes: tens of
milliseconds for a megabyte of empty messages. Here each field is a step of its own, and what is not read is not parsed.
Groups, which proto3 does not have, count as damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_VARINT_BYTES_MAX = 10
_TAG_MIN = 8  # of field 1
_DOUBLE, _INT64 = Struct("<d"), Struct("<q")


class DamagedMessage(ValueError):
    """No protobuf library can have written this message."""


class TooManyFields(ValueError):
    """Reading on would take more fields than were allowed."""


def tag(field: int, wire_type: int = _LENGTH) -> int:
    """What stands before each value of a field. Messages, strings and bytes have their length before them."""
    return field << 3 | wire_type


def varint_tag(field: int) -> int:
    return tag(field, _VARINT)


def fixed64_tag(field: int) -> int:
    return tag(field, _FIXED64)


class MessageReader:
    """Reads from `data`, of all messages together at most `fields_max` fields."""

    def __init__(self, data: bytes, fields_max: int) -> None:
        self._data = data
        self._floor = 0
        self.left = fields_max

    def allow(self, count: int | None) -> None:
        """Of what follows read at most `count` fields; None: as many as are left."""
        self._floor = 0 if count is None else max(self.left - count, 0)

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Tag, begin and end of each value of the message between `at` and `end`.

        Raises TooManyFields, and DamagedMessage where a field is not whole.
        """
        data = self._data
        while at < end:
            if self.left <= self._floor:
                raise TooManyFields
            self.left -= 1
            found = data[at]
            at += 1
            if found > 127:
                found, at = self._varint(at - 1, end)
            wire_type = found & 7
            if wire_type == _LENGTH and at < end:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = self._varint(at - 1, end)
                stop = at + size
            elif wire_type == _VARINT:
                stop = self._varint(at, end)[1]
            elif wire_type in (_FIXED64, _FIXED32):
                stop = at + (8 if wire_type == _FIXED64 else 4)
            else:
                raise DamagedMessage(f"a field of wire type {wire_type}")
            if stop > end or found < _TAG_MIN:
                raise DamagedMessage("a field is not whole")
            yield found, at, stop
            at = stop

    def int64(self, at: int) -> int:
        """The value of a varint field."""
        found = self._varint(at, len(self._data))[0] & (1 << 64) - 1
        return found - (1 << 64) if found >> 63 else found

    def sfixed64(self, at: int) -> int:
        found: int = _INT64.unpack_from(self._data, at)[0]
        return found

    def double(self, at: int) -> float:
        found: float = _DOUBLE.unpack_from(self._data, at)[0]
        return found

    def text(self, at: int, end: int, bytes_max: int) -> str:
        """A string, cut if it has more than `bytes_max` bytes."""
        if end - at > bytes_max:
            return self._data[at : at + bytes_max].decode(errors="ignore")
        try:
            return self._data[at:end].decode()
        except UnicodeDecodeError as error:
            raise DamagedMessage("a string is not UTF-8") from error

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value, data = 0, self._data
        for place in range(at, min(at + _VARINT_BYTES_MAX, end)):
            byte = data[place]
            value |= (byte & 127) << 7 * (place - at)
            if byte < 128:
                return value, place + 1
        raise DamagedMessage("a number does not end")
