"""Columns written as Spark writes them: `name string, delay double, at struct<x:int, y:array<string>>`.

Types are those that a JSON value can fill without doubt. A decimal takes numbers and text, a timestamp ISO 8601 in UTC
or with an offset, a date `2013-07-01`.
"""

from __future__ import annotations

import re

import pyarrow as pa

from spark_offload.options import OptionError

NESTING_MAX = 32
PRECISION_MAX = 38
_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z_][A-Za-z0-9_]*|`(?:[^`]|``)+`)|(?P<number>\d+)|(?P<sign>[<>(),:]))")
_PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
KNOWN = (*_PLAIN, "decimal(p,s)", "array<…>", "struct<name:…>")


def parse_ddl(text: str) -> pa.Schema:
    """The columns. Raises OptionError with the position of the error."""
    return _Parser(text).columns()


class _Parser:
    """Reads from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise OptionError(f"the schema cannot be read from {text[at:].strip()[:40]!r} on")
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind], match.start(kind)))
            at = match.end()
        self._at = 0

    def columns(self) -> pa.Schema:
        fields = self._fields()
        if self._at < len(self._tokens):
            raise self._fault("a comma or the end")
        return pa.schema(fields)

    def _fields(self, depth: int = 0) -> list[pa.Field]:
        """As many as commas join."""
        fields: list[pa.Field] = []
        while True:
            name = self._word("a name")
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if self._peek() == ":":
                self._at += 1
            if any(field.name.lower() == name.lower() for field in fields):
                raise OptionError(f"the schema names {name} twice")
            fields.append(pa.field(name, self._type(depth)))
            if self._peek() != ",":
                return fields
            self._at += 1

    def _type(self, depth: int) -> pa.DataType:
        if depth > NESTING_MAX:
            raise OptionError(f"the schema is nested deeper than {NESTING_MAX} levels")
        name = self._word("a type").lower()
        if name in _PLAIN:
            return _PLAIN[name]
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name == "array":
            self._sign("<")
            element = self._type(depth + 1)
            self._sign(">")
            return pa.list_(pa.field("element", element))
        if name == "struct":
            self._sign("<")
            fields = self._fields(depth + 1)
            self._sign(">")
            return pa.struct(fields)
        raise OptionError(f"the schema has no type {name!r}; the types are {', '.join(KNOWN)}")

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._at += 1
            precision = self._number()
            if self._peek() == ",":
                self._at += 1
                scale = self._number()
            self._sign(")")
        if not 1 <= precision <= PRECISION_MAX or scale > precision:
            raise OptionError(f"the schema has no decimal({precision},{scale})")
        return pa.decimal128(precision, scale)

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _word(self, what: str) -> str:
        return self._next("word", what)

    def _number(self) -> int:
        return int(self._next("number", "a number"))

    def _sign(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._fault(repr(sign))
        self._at += 1

    def _next(self, kind: str, what: str) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != kind:
            raise self._fault(what)
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _fault(self, wanted: str) -> OptionError:
        if self._at >= len(self._tokens):
            return OptionError(f"the schema ends where {wanted} is due")
        where = self._tokens[self._at][2]
        return OptionError(f"the schema has {self._text[where:][:40]!r} where {wanted} is due")
