"""Which records are wanted: by key, header, and a condition on the value. No I/O.

A search looks at many records and wants few. So a filter first asks what is cheap: whether the bytes of a batch, then
of a record, hold what a wanted record has, and whether the members of a value that the condition names can hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from console.formats.json_path import Criterion, Holds, parse_condition
from records.batch import BatchHeader
from records.record import Record, RecordSpan, record_bounds, record_of, scan_records, span_within, value_of

Decode = Callable[[bytes], Any]
"""The value that a condition looks at; raises ValueError if there is none."""
Test = Callable[[Record], bool]
ESCAPE = b"\\"
"""Where JSON has one, a text may be written in other bytes than its own."""


class Undecoded:
    """How many values a condition could not look at, and why the first of them."""

    def __init__(self) -> None:
        self.count, self.why = 0, ""

    def counting(self, decode: Decode) -> Decode:
        """The same decoder, which counts here."""

        def counted(data: bytes) -> Any:
            try:
                return decode(data)
            except ValueError as error:
                self.why = self.why or str(error)
                self.count += 1
                raise

        return counted


class Wanted(NamedTuple):
    """Empty fields match everything. `key`: bytes that the key has; `header`: NAME, or NAME=VALUE."""

    key: str = ""
    header: str = ""
    condition: str = ""


class Filter:
    """`parts` are in the bytes of each wanted record, `written` too, unless an escape is there. `may_hold` is asked of
    a value before `tests` are of its record."""

    def __init__(
        self, tests: Sequence[Test], parts: Sequence[bytes], written: Sequence[bytes], may_hold: Holds | None
    ) -> None:
        self._tests = tests
        self._parts = parts
        self._written = written
        self._may_hold = may_hold

    def __call__(self, record: Record) -> bool:
        return all(test(record) for test in self._tests)

    @property
    def is_open(self) -> bool:
        """Whether it wants every record."""
        return not self._tests

    def wanted_of(self, header: BatchHeader, data: bytes) -> Iterator[tuple[int, Record]]:
        """Wanted records among those of a batch, with their numbers in it. Raises ProtocolError for damage, as far as
        it looks."""
        if not self._may_be_in(data, 0, len(data)):
            return
        may_hold = self._may_hold
        for number, span in self._spans(header, data):
            if may_hold is None or may_hold(value_of(data, span)):
                record = record_of(header, data, span)
                if self(record):
                    yield number, record

    def _spans(self, header: BatchHeader, data: bytes) -> Iterator[tuple[int, RecordSpan]]:
        if not (self._parts or self._written):
            yield from enumerate(scan_records(header, data))
            return
        for number, bounds in enumerate(record_bounds(header, data)):
            if self._may_be_in(data, *bounds):
                yield number, span_within(data, bounds)

    def _may_be_in(self, data: bytes, start: int, end: int) -> bool:
        """False only if no wanted record is in these bytes of records."""
        for part in self._parts:
            if data.find(part, start, end) < 0:
                return False
        for part in self._written:
            if data.find(part, start, end) < 0:
                return data.find(ESCAPE, start, end) >= 0
        return True


def matcher(wanted: Wanted, decode: Decode | None = None) -> Filter:
    """`decode` is that of JSON if none is given. Raises BadPath."""
    tests, parts, written, may_hold = list[Test](), list[bytes](), list[bytes](), None
    if wanted.key:
        part = wanted.key.encode()
        parts.append(part)
        tests.append(lambda record: record.key is not None and part in record.key)
    if wanted.header:
        name, sign, value = wanted.header.partition("=")
        parts += [one.encode() for one in (name.strip(), value.strip()) if one.isascii()]
        tests.append(_header(name.strip(), value.strip().encode() if sign else None))
    if wanted.condition:
        criteria = parse_condition(wanted.condition)
        if decode is None:
            written += [one.text.encode() for one in criteria if one.text and one.text.isascii()]
            may_hold = _named_members(criteria)
        tests.append(_condition(criteria, decode or msgspec.json.decode))
    return Filter(tests, [one for one in parts if one], written, may_hold)


def _header(name: str, wanted: bytes | None) -> Test:
    return lambda record: any(
        key == name and (wanted is None or (content is not None and wanted in content))
        for key, content in record.headers
    )


def _condition(criteria: Sequence[Criterion], decode: Decode) -> Test:
    def test(record: Record) -> bool:
        if record.value is None:
            return False
        try:
            value = decode(record.value)
        except (ValueError, RecursionError):
            return False
        return all(one.holds_in(value) for one in criteria)

    return test


def _named_members(criteria: Sequence[Criterion]) -> Holds | None:
    """Reads of an object the members alone that the criteria name, which is much less than all of it. What this lets
    through may still be no JSON. None where a path does not begin with a member."""
    names = [one.steps[0] for one in criteria if one.steps and isinstance(one.steps[0], str)]
    if len(names) < len(criteria):
        return None
    fields = {name: f"member_{number}" for number, name in enumerate(dict.fromkeys(names))}
    try:
        looked_at = msgspec.defstruct(
            "Members", [(field, Any, UNSET) for field in fields.values()],
            rename={field: name for name, field in fields.items()},
        )  # fmt: skip
    except ValueError:
        return None  # a name that this cannot be done with
    decode = msgspec.json.Decoder(looked_at).decode
    asked = [(fields[name], one.behind_first) for name, one in zip(names, criteria, strict=True)]

    def may_hold(value: bytes | None) -> bool:
        if value is None:
            return False
        try:
            found = decode(value)
        except (ValueError, RecursionError):
            return False
        for field, holds in asked:
            member = getattr(found, field)
            if member is UNSET or not holds(member):
                return False
        return True

    return may_hold
