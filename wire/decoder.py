"""A strict decoder, built from the compiled schemas, that checks every length, count and tag.

The codec library's own decoders do not check lengths: a short frame yields truncated strings, a long count a long loop.
This one reads the same classes. Memory and time are bounded by the frame's bytes and by `elements_max`. Large messages
are read as paced work (`body_work`), which costs about a fifth more.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import cache
from struct import Struct, unpack_from
from struct import error as struct_error
from typing import Any

from common.errors import MalformedFrame
from common.identifiers import UUID_BYTES, ZERO_UUID
from common.pacing import Work
from wire.primitives import INT16, INT32, STRING_BYTES_MAX, uvarint

ELEMENTS_MAX = 250_000  # array elements of one message, nested ones and tagged fields included
ELEMENTS_PER_STEP = 64  # read between two yields
NUMBER_MAX = 2**31 - 1
TAGS_MAX = 100  # of one struct; no schema has more than ten
STRUCT_COST, VALUE_COST = 3, 1  # units of `common.pacing`

_FIXED = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "bool": "?"}


class _Cursor:
    """A decoder's position `at` in `data`, which ends at `end`, and the array elements `left` to read at most."""

    __slots__ = ("at", "data", "end", "left")

    def __init__(self, data: memoryview, at: int, elements_max: int) -> None:
        self.data = data
        self.at = at
        self.end = len(data)
        self.left = elements_max

    def claim(self, count: int, size_min: int) -> None:
        """Check that `count` elements fit into the rest of the data and the limit."""
        self.left -= count
        if count * size_min > self.end - self.at or self.left < 0:
            raise MalformedFrame("array length")


_Reader = Callable[[_Cursor], Any]
_Step = Callable[[_Cursor, Any], None]


def decode_body(
    message_class: Any,
    version: int,
    data: memoryview,
    at: int,
    elements_max: int = ELEMENTS_MAX,
    *,
    allow_trailing: bool = False,
) -> Any:
    """The message at `data[at:]`. Raises MalformedFrame, also for bytes after it unless `allow_trailing`."""
    cursor = _Cursor(data, at, elements_max)
    try:
        message = _body_reader(message_class, version)(cursor)
    except (struct_error, IndexError, UnicodeDecodeError) as error:
        raise MalformedFrame(message_class.name) from error
    _check_end(message_class, cursor, allow_trailing)
    return message


def body_work(
    message_class: Any,
    version: int,
    data: memoryview,
    at: int,
    elements_max: int = ELEMENTS_MAX,
    *,
    allow_trailing: bool = False,
) -> Work[Any]:
    """`decode_body` as work; `data` must not change until its end."""
    cursor = _Cursor(data, at, elements_max)
    try:
        message = yield from _body_work(message_class, version)(cursor)
    except (struct_error, IndexError, UnicodeDecodeError) as error:
        raise MalformedFrame(message_class.name) from error
    _check_end(message_class, cursor, allow_trailing)
    return message


def _check_end(message_class: Any, cursor: _Cursor, allow_trailing: bool) -> None:
    if cursor.at != cursor.end and not allow_trailing:
        raise MalformedFrame(f"{message_class.name}: {cursor.end - cursor.at} bytes too many")


@cache  # one entry per message class and version: bounded by the schemas
def _body_reader(message_class: Any, version: int) -> _Reader:
    flexible = bool(message_class.flexible_version_q(version))
    return _struct_reader(message_class._struct, version, flexible, message_class)


def _struct_reader(struct: Any, version: int, flexible: bool, data_class: Any) -> _Reader:
    present = [field for field in struct._fields if field.for_version_q(version)]
    steps = _steps([field for field in present if not field.tagged_field_q(version)], version, flexible)
    tagged = [field for field in present if field.tagged_field_q(version)]
    if flexible:
        steps.append(_tags_step(tagged, version))
    make = object.__new__

    def read(cursor: _Cursor) -> Any:
        message = make(data_class)
        message._version = version
        message.tags = message.unknown_tags = None
        for step in steps:
            step(cursor, message)
        return message

    return read


def _steps(fields: list[Any], version: int, flexible: bool) -> list[_Step]:
    """One step per field, or per run of fields of fixed size."""
    steps: list[_Step] = []
    run: list[Any] = []
    for field in fields:
        if field.type_str in _FIXED and not field.is_array():
            run.append(field)
            continue
        if run:
            steps.append(_fixed_step(run))
            run = []
        steps.append(_field_step(field.name, _field_reader(field, version, flexible)))
    if run:
        steps.append(_fixed_step(run))
    return steps


def _fixed_step(fields: list[Any]) -> _Step:
    layout = Struct(">" + "".join(_FIXED[field.type_str] for field in fields))
    names = tuple(field.name for field in fields)

    def step(cursor: _Cursor, message: Any) -> None:
        values = layout.unpack_from(cursor.data, cursor.at)
        cursor.at += layout.size
        for name, value in zip(names, values, strict=True):
            setattr(message, name, value)

    return step


def _field_step(name: str, read: _Reader) -> _Step:
    def step(cursor: _Cursor, message: Any) -> None:
        setattr(message, name, read(cursor))

    return step


def _tags_step(fields: list[Any], version: int) -> _Step:
    """Tagged fields. Unknown ones are skipped, known ones must fill exactly their stated size."""
    readers = {field.tag: (field.name, _field_reader(field, version, True)) for field in fields}
    arrays = [field.name for field in fields if field.is_array() and field.default is not None]

    def step(cursor: _Cursor, message: Any) -> None:
        for name in arrays:  # the schema's default would be one list for all messages
            setattr(message, name, [])
        count, cursor.at = uvarint(cursor.data, cursor.at)
        if count > TAGS_MAX:
            raise MalformedFrame("tagged fields")
        cursor.left -= count
        for _ in range(count):
            _read_tag(cursor, message, readers)

    return step


def _read_tag(cursor: _Cursor, message: Any, readers: Mapping[int, tuple[str, _Reader]]) -> None:
    tag, cursor.at = uvarint(cursor.data, cursor.at)
    size, cursor.at = uvarint(cursor.data, cursor.at)
    stop = cursor.at + size
    if stop > cursor.end:
        raise MalformedFrame("tagged field")
    known = readers.get(tag)
    if known is None:
        cursor.at = stop
        return
    setattr(message, known[0], known[1](cursor))
    if cursor.at != stop:
        raise MalformedFrame("tagged field")


def _field_reader(field: Any, version: int, flexible: bool) -> _Reader:
    nullable = bool(field.nullable_for_version_q(version))
    if field.is_struct_array():
        element = _struct_reader(field.array_of, version, flexible, field.data_class)
        return _array_reader(element, _size_min(field.array_of, version, flexible), nullable, flexible)
    if field.is_array():
        code = _FIXED.get(field.array_of.type_str)
        if code is not None:
            return _numbers_reader(code, nullable, flexible)
        element = _scalar_reader(field.array_of.type_str, False, flexible)
        return _array_reader(element, _size_min(field.array_of, version, flexible), nullable, flexible)
    if field.is_struct():
        struct = _struct_reader(field, version, flexible, field.data_class)
        return _nullable_struct_reader(struct) if nullable else struct
    return _scalar_reader(field.type_str, nullable, flexible)


def _nullable_struct_reader(read_struct: _Reader) -> _Reader:
    def read(cursor: _Cursor) -> Any:
        marker = cursor.data[cursor.at]
        cursor.at += 1
        if marker == 0xFF:
            return None
        if marker != 1:
            raise MalformedFrame("struct marker")
        return read_struct(cursor)

    return read


# paced ----------------------------------------------------------------------------------------------------

_WorkReader = Callable[[_Cursor], Work[Any]]
_WorkStep = Callable[[_Cursor, Any], Work[None]]


@cache
def _body_work(message_class: Any, version: int) -> _WorkReader:
    flexible = bool(message_class.flexible_version_q(version))
    return _struct_work(message_class._struct, version, flexible, message_class)


def _struct_work(struct: Any, version: int, flexible: bool, data_class: Any) -> _WorkReader:
    """Like `_struct_reader`, but arrays are read in steps."""
    present = [field for field in struct._fields if field.for_version_q(version)]
    steps: list[_Step | _WorkStep] = []
    works: list[bool] = []
    run: list[Any] = []

    def end_run() -> None:
        steps.extend(plain := _steps(run, version, flexible))
        works.extend([False] * len(plain))
        run.clear()

    for field in present:
        if field.tagged_field_q(version):
            continue
        if field.is_array():
            end_run()
            steps.append(_array_work(field, version, flexible))
            works.append(True)
        else:
            run.append(field)
    end_run()
    if flexible:
        steps.append(_tags_step([field for field in present if field.tagged_field_q(version)], version))
        works.append(False)
    plan = tuple(zip(steps, works, strict=True))
    make = object.__new__

    def read(cursor: _Cursor) -> Work[Any]:
        message = make(data_class)
        message._version = version
        message.tags = message.unknown_tags = None
        for step, is_work in plan:
            if is_work:
                yield from step(cursor, message)  # type: ignore[misc]  # a work's step, as the plan says
            else:
                step(cursor, message)
        yield STRUCT_COST
        return message

    return read


def _array_work(field: Any, version: int, flexible: bool) -> _WorkStep:
    name, nullable = field.name, bool(field.nullable_for_version_q(version))
    read_count = _length_reader(INT32, nullable, flexible)
    size_min = _size_min(field.array_of, version, flexible)
    inner: _WorkReader | None = None
    if field.is_struct_array():
        element = _struct_reader(field.array_of, version, flexible, field.data_class)
        cost = STRUCT_COST
        if any(one.is_array() and one.for_version_q(version) for one in field.array_of._fields):
            inner = _struct_work(field.array_of, version, flexible, field.data_class)
    else:
        element = _scalar_reader(field.array_of.type_str, False, flexible)
        cost = VALUE_COST

    def step(cursor: _Cursor, message: Any) -> Work[None]:
        count = read_count(cursor)
        if count < 0:
            setattr(message, name, None)
            return
        cursor.claim(count, size_min)
        values: list[Any] = []
        setattr(message, name, values)
        if inner is not None:
            for _ in range(count):
                values.append((yield from inner(cursor)))  # noqa: PERF401  # a comprehension cannot yield from
            return
        for begin in range(0, count, ELEMENTS_PER_STEP):
            now, left = min(ELEMENTS_PER_STEP, count - begin), cursor.left
            values += [element(cursor) for _ in range(now)]
            yield now * cost + left - cursor.left

    return step


# lengths and values ---------------------------------------------------------------------------------------


def _length_reader(classic: Struct, nullable: bool, flexible: bool) -> Callable[[_Cursor], int]:
    """Reads a length or count; -1 for null, where the schema allows null."""

    def read(cursor: _Cursor) -> int:
        if flexible:
            length, cursor.at = uvarint(cursor.data, cursor.at)
            length -= 1
        else:
            (length,) = classic.unpack_from(cursor.data, cursor.at)
            cursor.at += classic.size
        if length < 0 and (length != -1 or not nullable):
            raise MalformedFrame("null where there is none" if length == -1 else "negative length")
        return int(length)

    return read


def _array_reader(read_element: _Reader, size_min: int, nullable: bool, flexible: bool) -> _Reader:
    read_count = _length_reader(INT32, nullable, flexible)

    def read(cursor: _Cursor) -> list[Any] | None:
        count = read_count(cursor)
        if count < 0:
            return None
        cursor.claim(count, size_min)
        return [read_element(cursor) for _ in range(count)]

    return read


def _numbers_reader(code: str, nullable: bool, flexible: bool) -> _Reader:
    read_count = _length_reader(INT32, nullable, flexible)
    size = Struct(">" + code).size

    def read(cursor: _Cursor) -> list[Any] | None:
        count = read_count(cursor)
        if count < 0:
            return None
        cursor.claim(count, size)
        values = unpack_from(f">{count}{code}", cursor.data, cursor.at)
        cursor.at += count * size
        return list(values)

    return read


def _scalar_reader(type_name: str, nullable: bool, flexible: bool) -> _Reader:
    if type_name in _FIXED:
        layout = Struct(">" + _FIXED[type_name])

        def read_fixed(cursor: _Cursor) -> Any:
            (value,) = layout.unpack_from(cursor.data, cursor.at)
            cursor.at += layout.size
            return value

        return read_fixed
    if type_name == "uuid":
        return _read_uuid
    if type_name == "bitfield":
        return _read_bitfield
    read_length = _length_reader(INT16 if type_name == "string" else INT32, nullable, flexible)

    length_max = STRING_BYTES_MAX if type_name == "string" else NUMBER_MAX

    def read_slice(cursor: _Cursor) -> bytes | None:
        length = read_length(cursor)
        if length < 0:
            return None
        if length > length_max:
            raise MalformedFrame("string length")
        start = cursor.at
        cursor.at = stop = start + length
        if stop > cursor.end:
            raise MalformedFrame(f"{type_name} length")
        return bytes(cursor.data[start:stop])

    if type_name != "string":  # bytes, records
        return read_slice

    def read_string(cursor: _Cursor) -> str | None:
        raw = read_slice(cursor)
        return None if raw is None else raw.decode()

    return read_string


def _read_uuid(cursor: _Cursor) -> uuid.UUID | None:
    raw = bytes(cursor.data[cursor.at : cursor.at + UUID_BYTES])
    if len(raw) != UUID_BYTES:
        raise MalformedFrame("uuid")
    cursor.at += UUID_BYTES
    return None if raw == ZERO_UUID else uuid.UUID(bytes=raw)


def _read_bitfield(cursor: _Cursor) -> set[int] | None:
    """Authorized operations in the library's form: the set bits, None where only the sign bit is set (unknown)."""
    (value,) = INT32.unpack_from(cursor.data, cursor.at)
    cursor.at += INT32.size
    bits = {bit for bit in range(32) if value >> bit & 1}
    return None if bits == {31} else bits


def _size_min(field: Any, version: int, flexible: bool) -> int:
    """The fewest bytes that `field` can take, by which a count is checked against the rest of the frame."""
    if field.is_array():
        return 1 if flexible else 4
    if field.is_struct():
        if field.nullable_for_version_q(version):
            return 1
        inner = [f for f in field._fields if f.for_version_q(version) and not f.tagged_field_q(version)]
        return sum(_size_min(f, version, flexible) for f in inner) + flexible
    if field.type_str in _FIXED:
        return Struct(">" + _FIXED[field.type_str]).size
    if field.type_str == "uuid":
        return UUID_BYTES
    if field.type_str == "bitfield":
        return 4
    if flexible:
        return 1
    return 2 if field.type_str == "string" else 4
