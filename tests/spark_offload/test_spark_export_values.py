"""Values as columns: JSON beside Python's own reader, Avro beside fastavro, and bytes that are neither."""

from __future__ import annotations

import datetime
import io
import json
import random
from decimal import Context, Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from spark_offload.export.avro_schema import parse_avro
from spark_offload.export.ddl import parse_ddl
from spark_offload.export.table_columns import AvroValues, TableColumns, ValueFormat
from spark_offload.options import OptionError

COLUMNS = "a bigint, b string, c double, d struct<x:tinyint,y:array<date>>, t timestamp, q decimal(10,2)"

# Without text in logical types: fastavro reads what it can of those.
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Row",
    "namespace": "a.b",
    "fields": [
        {"name": "whole", "type": "long"},
        {"name": "small", "type": "int"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "real", "type": ["double", "null"]},
        {"name": "flag", "type": "boolean"},
        {"name": "bytes", "type": "bytes"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
        {"name": "many", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "inner",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Inner",
                    "fields": [
                        {"name": "x", "type": "float"},
                        {"name": "ys", "type": {"type": "array", "items": {"type": "array", "items": "int"}}},
                    ],
                },
            ],
        },
        {"name": "again", "type": ["null", "Inner"]},
    ],
}
LOGICAL = {
    "type": "record",
    "name": "Times",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exact", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}},
        {
            "name": "wide",
            "type": {"type": "fixed", "name": "W", "size": 20, "logicalType": "decimal", "precision": 38, "scale": 3},
        },
    ],
}


def decoded(value_format: ValueFormat, values: list[bytes | None]) -> list[dict[str, Any] | bytes | None]:
    """Each value as its columns, as its bytes where it could not be decoded, or None for a tombstone."""
    columns = TableColumns(value_format, include_headers=False)
    rows = len(values)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.nulls(rows, pa.binary()),
            pa.array(values, pa.binary()),
            pa.repeat("t", rows).cast(pa.string()),
            pa.array(np.zeros(rows, np.int32)),
            pa.array(np.arange(rows)),
            pa.array(np.zeros(rows, np.int64)).cast(pa.timestamp("us", tz="UTC")),
            pa.array(np.zeros(rows, np.int32)),
        ],
        schema=columns.source,
    )
    table, undecoded = columns.rows(batch.slice(0))
    table.validate(full=True)
    assert table.schema == columns.schema
    found: list[dict[str, Any] | bytes | None] = []
    for row in table.to_pylist():
        own = ("key", "topic", "partition", "offset", "timestamp", "timestampType", "tombstone", "undecoded_value")
        fields = {name: value for name, value in row.items() if name not in own}
        if row["tombstone"] or row["undecoded_value"] is not None:
            assert not any(value is not None for value in fields.values())
            found.append(row["undecoded_value"])
        else:
            found.append(fields)
    assert undecoded == sum(isinstance(one, bytes) for one in found)
    return found


def avro_bytes(schema: Any, row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


# JSON -------------------------------------------------------------------------------------------------------


def test_json_values_are_columns_and_others_are_kept() -> None:
    fine: dict[bytes, dict[str, Any]] = {
        b"{}": {},
        b' {"a":\n5}\r\n': {"a": 5},
        b'{"a": -7, "b": "h\xc3\xa9", "c": 1, "more": [{"x": 1}]}': {"a": -7, "b": "h\xe9", "c": 1.0},
        b'{"d": {"x": 3, "y": ["2020-01-02", null]}}': {
            "d": {"x": 3, "y": [datetime.date(2020, 1, 2), None]},
        },
        b'{"t": "2020-01-01T01:00:00+01:00", "q": 1.25}': {
            "t": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
            "q": Decimal("1.25"),
        },
        b'{"a": null, "b": "a\\u0000}"}': {"b": "a\0}"},
    }
    bad = [
        b"",
        b" ",
        b"x",
        b"}",
        b"{",
        b"null",
        b"[1]",
        b'{"a":',
        b'{"a": "1"}',
        b'{"a": 1.5}',
        b'{"a": 9223372036854775808}',
        b'{"a": 1}{"a": 2}',
        b'{"a": 1} {"a": 2}',
        b'{"a": 1, "a": 2}',
        b'{"b": "\xff"}',
        b'{"b": 5}',
        b'{"b": "x\n}',
        b'{"b": "x}',
        b'{"d": {"x": 300}}',
        b'{"d": {"y": ["2020-13-01"]}}',
        b'{"t": "0000-01-01"}',
        b'{"q": 1.256}',
        b'{"c": {}}',
        b"\x00{}",
        b'{"more": ' + b"[" * 100_000 + b"}",
    ]
    names = ("a", "b", "c", "d", "t", "q")
    values: list[bytes | None] = [*fine, None, *bad]
    random.Random(5).shuffle(values)
    for value, found in zip(values, decoded(ValueFormat("json", COLUMNS), values), strict=True):
        if value is None or value in bad:
            assert found == value, value
        else:
            assert found == {name: fine[value].get(name) for name in names}


@pytest.mark.parametrize("seed", range(4))
def test_json_is_what_python_reads(seed: int) -> None:
    chance = random.Random(seed)

    def damaged(text: bytes) -> bytes:
        data = bytearray(text)
        for _ in range(chance.randint(0, 2)):
            data[chance.randrange(len(data))] = chance.choice(b'{}[]",:\n\\ 01x\xff')
        return bytes(data)

    rows = [{"a": chance.randrange(100), "b": "x" * chance.randrange(9), "z": [1, {"k": None}]} for _ in range(800)]
    values: list[bytes | None] = [damaged(json.dumps(row).encode()) for row in rows]
    found = decoded(ValueFormat("json", "a bigint, b string"), values)
    assert 100 < sum(isinstance(one, dict) for one in found) < 800
    for value, one in zip(values, found, strict=True):
        assert value is not None
        if isinstance(one, dict):
            read = json.loads(value)
            assert one == {"a": read.get("a"), "b": read.get("b")}
        else:
            assert one == value
            assert not _python_reads(value), value


def _python_reads(value: bytes) -> bool:
    """Whether the value is an object whose fields have the right types, and nothing is there twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        assert len({*names} & {"a", "b"}) == sum(name in ("a", "b") for name in names)
        return dict(pairs)

    try:
        row = json.loads(value.decode(), object_pairs_hook=once)
    except (ValueError, AssertionError):
        return False
    whole = isinstance(row, dict) and type(row.get("a")) in (int, type(None))
    return whole and type(row.get("b")) in (str, type(None))


@pytest.mark.parametrize(
    "text",
    ["", "a", "a int,", "a int b int", "a foo", "a struct<x int", "a decimal(50,2)", "a int, A int", "a array<int>>",
     "a int;", "a map<string,int>", "a int not null", "a " + "array<" * 100 + "int" + ">" * 100],
)  # fmt: skip
def test_a_schema_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        parse_ddl(text)


# Avro -------------------------------------------------------------------------------------------------------


def some_row(chance: random.Random) -> dict[str, Any]:
    def inner() -> dict[str, Any] | None:
        ys = [[chance.randrange(-300, 300) for _ in range(chance.randrange(4))] for _ in range(chance.randrange(4))]
        return chance.choice([None, {"x": 0.5, "ys": ys}])

    return {
        "whole": chance.choice([0, -1, 2**63 - 1, -(2**63), chance.getrandbits(40)]),
        "small": chance.choice([0, 2**31 - 1, -(2**31)]),
        "text": chance.choice([None, "", "h\xe9" * chance.randrange(90)]),
        "real": chance.choice([None, 1.5, -1e300]),
        "flag": chance.random() < 0.5,
        "bytes": chance.randbytes(chance.randrange(5)),
        "kind": chance.choice("ABC"),
        "code": b"abc",
        "many": [chance.choice([None, "x" * chance.randrange(3)]) for _ in range(chance.randrange(5))],
        "counts": {str(key): key for key in range(chance.randrange(4))},
        "inner": inner(),
        "again": inner(),
    }


def test_avro_values_are_what_fastavro_wrote() -> None:
    chance = random.Random(3)
    rows = [some_row(chance) for _ in range(500)]
    found = decoded(ValueFormat("avro", json.dumps(AVRO)), [avro_bytes(AVRO, row) for row in rows])
    assert found == [row | {"counts": list(row["counts"].items())} for row in rows]


def test_blocks_that_tell_their_bytes() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "l", "type": {"type": "array", "items": "int"}}]}
    values = [b"\x03\x04\x02\x04\x02\x06\x00", b"\x03\x04\x02\x04\x00", b"\x00"]  # -2 items, 2 bytes; 1 item; end
    assert decoded(ValueFormat("avro", json.dumps(schema)), [*values]) == [{"l": [1, 2, 3]}, {"l": [1, 2]}, {"l": []}]


def test_logical_types() -> None:
    row = {
        "at": datetime.datetime(2013, 7, 1, 1, 2, 3, 4000, tzinfo=datetime.UTC),
        "exact": datetime.datetime(1969, 7, 1, 1, 2, 3, 45, tzinfo=datetime.UTC),
        "day": datetime.date(1902, 3, 4),
        "clock": datetime.time(23, 59, 59, 999000),
        "price": Decimal(-(10**20) + 1).scaleb(-2),
        "wide": Decimal(10**38 - 1).scaleb(-3, Context(prec=40)),
    }
    assert decoded(ValueFormat("avro", json.dumps(LOGICAL)), [avro_bytes(LOGICAL, row)]) == [row]
    late = [{**LOGICAL, "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}]
    plain = {"type": "record", "name": "Times", "fields": [{"name": "at", "type": "long"}]}
    beyond = avro_bytes(plain, {"at": 253_402_300_800_000})
    assert decoded(ValueFormat("avro", json.dumps(late[0])), [beyond]) == [beyond]
    tall = {"type": "record", "name": "R", "fields": [
        {"name": "p", "type": {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}}]}  # fmt: skip
    values: list[bytes | None] = [b"\x04\x03\xe7", b"\x04\x03\xe8", b"\x04\xfc\x19", b"\x04\xfc\x18", b"\x00",
                                  b"\x24" + bytes(16) + b"\x03\xe7", b"\x24\x01" + bytes(17)]  # fmt: skip
    assert decoded(ValueFormat("avro", json.dumps(tall)), values) == [
        {"p": Decimal("99.9")}, values[1], {"p": Decimal("-99.9")}, values[3], values[4], {"p": Decimal("99.9")},
        values[6]]  # fmt: skip


def test_twenty_thousand_damaged_values_give_errors_and_nothing_else() -> None:
    chance = random.Random(11)
    schema = {**AVRO, "fields": [field for field in AVRO["fields"] if field["name"] != "flag"]}  # fastavro takes any
    parsed = fastavro.parse_schema(schema)
    sound = [avro_bytes(schema, some_row(chance)) for _ in range(300)]
    values: list[bytes | None] = []
    for _ in range(20_000):
        data = bytearray(chance.choice(sound))
        for _ in range(chance.randrange(4)):
            if data and chance.random() < 0.7:
                data[chance.randrange(len(data))] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
            if chance.random() < 0.3:
                data = data[: chance.randint(0, len(data))]
        values.append(bytes(data))
    found = decoded(ValueFormat("avro", json.dumps(schema)), values)
    differ = 0
    for value, one in zip(values, found, strict=True):
        assert value is not None
        read = _by_fastavro(parsed, value)
        if isinstance(one, bytes):
            assert one == value
            # A count or length below zero, or a wrong byte count of a block: fastavro does not look at all of them.
            differ += read is not None
        else:
            assert read is not None, value
            assert isinstance(one, dict)
            assert repr(one) == repr(read | {"counts": one["counts"]})  # nan is not equal to itself
    assert 1000 < sum(isinstance(one, dict) for one in found) < 19_000
    assert differ < 200


def _by_fastavro(schema: Any, value: bytes) -> dict[str, Any] | None:
    stream = io.BytesIO(value)
    try:
        row = fastavro.schemaless_reader(stream, schema, None)
    except Exception:
        return None
    return row if not stream.read() and isinstance(row, dict) else None


def test_values_with_confluents_header_are_read_with_the_schema_of_their_id() -> None:
    table = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "double"},
            {"name": "b", "type": "string", "default": "none", "aliases": ["old"]},
            {"name": "c", "type": ["null", {"type": "record", "name": "I", "fields": [{"name": "x", "type": "long"}]}],
             "default": None},
        ],
    }  # fmt: skip
    first = {"type": "record", "name": "R", "fields": [{"name": "old", "type": "string"}, {"name": "a", "type": "int"}]}
    second = {"type": "record", "name": "R", "fields": [
        {"name": "a", "type": "float"}, {"name": "dropped", "type": "string"},
        {"name": "c", "type": {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}}]}  # fmt: skip
    by_id = ((7, json.dumps(first)), (1 << 31, json.dumps(second)), (9, json.dumps(table)))
    values: list[bytes | None] = [
        b"\0\0\0\0\x07" + avro_bytes(first, {"old": "x", "a": 3}),
        b"\0\x80\0\0\0" + avro_bytes(second, {"a": 0.5, "dropped": "y", "c": {"x": 4}}),
        b"\0\0\0\0\x08" + avro_bytes(first, {"old": "x", "a": 3}),
        b"\1\0\0\0\x07" + avro_bytes(first, {"old": "x", "a": 3}),
        b"\0\0\0\0\x09" + avro_bytes(table, {"a": 1.0, "b": "z", "c": None}),
        b"\0\0\0",
        None,
    ]
    format_of_all = ValueFormat("avro", json.dumps(table), has_header=True, by_id=by_id)
    assert decoded(format_of_all, values) == [
        {"a": 3.0, "b": "x", "c": None},
        {"a": 0.5, "b": "none", "c": {"x": 4}},
        values[2],
        values[3],
        {"a": 1.0, "b": "z", "c": None},
        values[5],
        None,
    ]
    assert decoded(ValueFormat("avro", json.dumps(table), has_header=True), values[4:5]) == [
        {"a": 1.0, "b": "z", "c": None}
    ]


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        '"string"',
        '{"type": "record", "name": "R", "fields": []}',
        '{"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Unknown"}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a"}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "fixed", "name": "F"}}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "enum", "name": "E"}}]}',
        '{"type": "record", "fields": [{"name": "a", "type": "int"}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": 5}]}',
    ],
)
def test_an_avro_schema_that_makes_no_columns_is_refused(schema: str) -> None:
    with pytest.raises(OptionError):
        parse_avro(schema)


def test_schemas_that_do_not_go_together_are_refused() -> None:
    def record(*fields: dict[str, Any]) -> str:
        return json.dumps({"type": "record", "name": "R", "fields": list(fields)})

    table = record({"name": "a", "type": "int"})
    for other in (record({"name": "a", "type": "string"}), record({"name": "b", "type": "int"})):
        with pytest.raises(OptionError):
            AvroValues(ValueFormat("avro", table, has_header=True, by_id=((1, other),)))
    for wrong in (
        ValueFormat("xml"),
        ValueFormat("json"),
        ValueFormat("raw", "a int"),
        ValueFormat("json", "a int", has_header=True),
        ValueFormat("avro", table, by_id=((1, table),)),
        ValueFormat("avro", table, has_header=True, by_id=((1, table), (1, table))),
        ValueFormat("json", "value_offset int, offset int"),
    ):
        with pytest.raises(OptionError):
            TableColumns(wrong, include_headers=False)


def test_a_field_named_like_a_records_own_column_gets_another_name() -> None:
    columns = TableColumns(ValueFormat("json", "Offset int, a int, value string"), include_headers=True)
    assert columns.schema.names[-3:] == ["value_Offset", "a", "value_value"]
