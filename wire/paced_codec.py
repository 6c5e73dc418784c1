"""Decodes and encodes frames of any size as paced work, for messages that are too large for `wire.codec`.

A struct with few elements below it is encoded by one call of the codec library's encoders; a larger one is encoded
element by element. A response is sent as parts, so that no large buffer has to grow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from kafka.protocol.schemas.fields.codecs import Int32, UnsignedVarInt32
from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer

from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from wire.apis import APIS
from wire.codec import RequestHeader, request_start, response_head, response_start, started_request
from wire.decoder import ELEMENTS_MAX, body_work
from wire.messages import Message, Struct
from wire.primitives import INT32

PART_BYTES = 64 << 10
_ELEMENT_BYTES_FIRST = 256
LIGHT_ELEMENTS = 64  # a struct with no more below it is written in one go
STRUCT_COST, BYTES_PER_UNIT = 4, 4_096
ANSWER_BYTES_MAX = 64 << 20  # where no other bound is given, and of one element of an answer

_Weigh = Callable[[Any], int]
_Write = Callable[["_Writer", Any], Work[None]]


def decode_request_work(data: memoryview, elements_max: int = ELEMENTS_MAX) -> Work[tuple[RequestHeader, Any]]:
    """As `wire.codec.decode_request`, as work; `data` must not change until it ends."""
    header, at = request_start(data)
    request = APIS[header.api_key].request
    message = yield from body_work(request, header.version, data, at, elements_max, allow_trailing=True)
    return header, message


def decode_response_work(api_key: int, version: int, data: memoryview) -> Work[Any]:
    """The message of a node's response: as many elements as its bytes can hold."""
    _, version, at = response_start(api_key, version, data)
    message = yield from body_work(APIS[api_key].response, version, data, at, len(data))
    return message


def encode_request_work(message: Message, version: int, correlation: int, client_id: str) -> Work[list[bytes]]:
    """`wire.codec.encode_request` as work: a whole frame in parts, of any length."""
    writer = _Writer(started_request(message, version, correlation, client_id), sys.maxsize)
    message_class: Any = type(message)
    yield from _message_writer(message_class, version)(writer, message)
    return writer.finished()


def encode_response_work(
    api_key: int, version: int, correlation: int, message: Message, bytes_max: int = ANSWER_BYTES_MAX
) -> Work[list[bytes]]:
    """A whole frame in parts. Raises ProtocolError when it would exceed `bytes_max`."""
    writer = _Writer(response_head(api_key, version, correlation), bytes_max)
    message_class: Any = type(message)
    yield from _message_writer(message_class, version)(writer, message)
    return writer.finished()


def element_work(api_key: int, version: int, name: str, element: Struct) -> Work[bytes]:
    """One encoded element of a response's list `name`."""
    response = APIS[api_key].response
    writer = _Writer(EncodeBuffer(_ELEMENT_BYTES_FIRST), ANSWER_BYTES_MAX)
    write = _list_writer(response, version, name)
    yield from write(writer, [element])
    writer.close_part()
    return b"".join(writer.parts)


@cache
def _list_writer(response: Any, version: int, name: str) -> _Write:
    return _elements_writer(response._struct.fields[name], version, bool(response.flexible_version_q(version)))


class RowsWriter:
    """Encodes a response whose rows, the elements of its list `name`, come one after another.

    Only the encoded bytes are kept.
    """

    def __init__(self, api_key: int, version: int, correlation: int, name: str, bytes_max: int) -> None:
        response = APIS[api_key].response
        self._version = version
        self._flexible = bool(response.flexible_version_q(version))
        self._name = name
        self._count = 0
        self._bytes_max = bytes_max
        self._start = response_head(api_key, version, correlation)
        self._struct = response._struct
        self._rows = _Writer(EncodeBuffer(PART_BYTES), bytes_max)
        self._write = _list_writer(response, version, name)

    def add(self, rows: list[Any]) -> Work[None]:
        """Raises ProtocolError when the answer would become too long."""
        self._count += len(rows)
        yield from self._write(self._rows, rows)

    def add_written(self, parts: list[bytes], count: int) -> None:
        """Append `count` encoded rows. Raises ProtocolError as `add` does."""
        self._count += count
        self._rows.take_parts(parts)

    def finished(self, message: Message) -> list[bytes]:
        """The whole frame; `message` has everything but the rows."""
        version, flexible = self._version, self._flexible
        writer = _Writer(self._start, self._bytes_max)
        for field in self._struct.untagged_fields(version):
            if field.name == self._name:
                _write_count(writer.out, self._count, flexible)
                writer.close_part()
                writer.take(self._rows)
            else:
                value = getattr(message, field.name)
                field.encode_into(value, writer.out, version=version, compact=flexible, tagged=flexible)
        if flexible:
            self._struct.tagged_fields(version).encode_into(message, writer.out, version=version)
        return writer.finished()


def is_light(message: Message, version: int) -> bool:
    """Whether a message has few elements, so that it is written in one go."""
    message_class: Any = type(message)
    return _message_weigher(message_class, version)(message) <= LIGHT_ELEMENTS


def longest_list(message: Message) -> int:
    """The length of the longest of a message's own lists."""
    message_class: Any = type(message)
    return max((len(getattr(message, name, None) or ()) for name in _lists(message_class)), default=0)


@cache
def _lists(message_class: Any) -> tuple[str, ...]:
    return tuple(name for name, field in message_class._struct.fields.items() if field.is_array())


class _Writer:
    """The encoded part of a frame: full parts, and the buffer after them."""

    __slots__ = ("_bytes_max", "_size", "out", "parts")

    def __init__(self, out: EncodeBuffer, bytes_max: int) -> None:
        self.out = out
        self.parts: list[bytes] = []
        self._size = 0
        self._bytes_max = bytes_max

    def cut(self) -> None:
        """Begin another part if this one is full."""
        if self.out.pos >= PART_BYTES:
            self.close_part()
            self._check()

    def _check(self) -> None:
        if self._size > self._bytes_max:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"the answer is longer than {self._bytes_max} bytes")

    def close_part(self) -> None:
        out = self.out
        if not out.pos:
            return
        self.parts.append(bytes(memoryview(out.buf)[: out.pos]))
        self._size += out.pos
        out.pos = 0

    def take_parts(self, parts: list[bytes]) -> None:
        self.close_part()
        self.parts += parts
        self._size += sum(len(part) for part in parts)
        self._check()

    def take(self, other: _Writer) -> None:
        """Append everything of `other`."""
        other.close_part()
        self.parts += other.parts
        self._size += other._size

    def finished(self) -> list[bytes]:
        self.close_part()
        self.parts[0] = INT32.pack(self._size - INT32.size) + self.parts[0][INT32.size :]
        return self.parts


@cache  # one entry per message class and version, as of the next: bounded by the schemas
def _message_weigher(message_class: Any, version: int) -> _Weigh:
    return _weigher(message_class._struct, version)


@cache
def _message_writer(message_class: Any, version: int) -> _Write:
    return _struct_writer(message_class._struct, version, bool(message_class.flexible_version_q(version)))


def _weigher(struct: Any, version: int) -> _Weigh:
    """Counts the elements in the arrays of a struct, nested ones included, and stops above LIGHT_ELEMENTS."""
    arrays = [
        (field.name, _weigher(field.array_of, version) if field.is_struct_array() else None)
        for field in struct._fields
        if field.is_array() and field.for_version_q(version)
    ]

    def weigh(item: Any) -> int:
        total = 0
        for name, inner in arrays:
            elements = getattr(item, name)
            if elements:
                total += len(elements)
                if total > LIGHT_ELEMENTS:
                    return total
                if inner is not None:
                    for element in elements:
                        total += inner(element)
                        if total > LIGHT_ELEMENTS:
                            return total
        return total

    return weigh


def _struct_writer(struct: Any, version: int, flexible: bool) -> _Write:
    """Writes a struct field by field, its arrays in steps."""
    fields = [
        (field.name, field, _array_writer(field, version, flexible) if field.is_array() else None)
        for field in struct.untagged_fields(version)
    ]
    tagged = struct.tagged_fields(version) if flexible else None

    def write(writer: _Writer, item: Any) -> Work[None]:
        for name, field, array in fields:
            value = getattr(item, name)
            if array is None:
                field.encode_into(value, writer.out, version=version, compact=flexible, tagged=flexible)
            else:
                yield from array(writer, value)
        if tagged is not None:
            tagged.encode_into(item, writer.out, version=version)
        yield STRUCT_COST

    return write


def _array_writer(field: Any, version: int, flexible: bool) -> _Write:
    if not field.is_struct_array():
        return _values_writer(field, version, flexible)
    write_elements = _elements_writer(field, version, flexible)

    def write(writer: _Writer, elements: list[Any] | None) -> Work[None]:
        _write_count(writer.out, None if elements is None else len(elements), flexible)
        if elements:
            yield from write_elements(writer, elements)

    return write


def _elements_writer(field: Any, version: int, flexible: bool) -> _Write:
    struct = field.array_of
    weigh = _weigher(struct, version)
    heavy = _struct_writer(struct, version, flexible)

    def write(writer: _Writer, elements: list[Any]) -> Work[None]:
        out = writer.out
        light = struct.compiled_encode_into(version, compact=flexible, tagged=flexible)
        spent = 0
        for element in elements:
            weight = weigh(element)
            if weight > LIGHT_ELEMENTS:
                yield from heavy(writer, element)
            else:
                before = out.pos
                light(element, out)
                spent += STRUCT_COST + 2 * weight + (out.pos - before) // BYTES_PER_UNIT
            if out.pos >= PART_BYTES:
                writer.cut()
            if spent >= LIGHT_ELEMENTS:
                yield spent
                spent = 0
        yield spent

    return write


def _values_writer(field: Any, version: int, flexible: bool) -> _Write:
    encode_into, step = field.array_of.encode_into, LIGHT_ELEMENTS

    def write(writer: _Writer, values: list[Any] | None) -> Work[None]:
        _write_count(writer.out, None if values is None else len(values), flexible)
        known = values if isinstance(values, list) else list(values or ())
        for begin in range(0, len(known), step):
            now = known[begin : begin + step]
            for value in now:
                encode_into(value, writer.out, version=version, compact=flexible, tagged=flexible)
            writer.cut()
            yield len(now)

    return write


def _write_count(out: EncodeBuffer, count: int | None, flexible: bool) -> None:
    if flexible:
        UnsignedVarInt32.encode_into(out, 0 if count is None else count + 1)
    else:
        Int32.encode_into(out, -1 if count is None else count)
