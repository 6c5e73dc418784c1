"""What one record can make the console show: never much more than the record's own bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from console.formats.record_decoders import (
    HEADERS_MAX,
    SHOWN_BYTES_MAX,
    SHOWN_MORE,
    SHOWN_TIMES,
    decoder_of,
    visible_headers,
)
from console.formats.record_lines import SHORT, line_of
from records.record import Record


def nested(levels: int, inner: str = "1") -> bytes:
    return ('{"a":[' * levels + inner + "]}" * levels).encode()


@pytest.mark.parametrize(
    "data", [nested(450), nested(32, ",".join("1" * 30_000)), b"[" * 900 + b"]" * 900, nested(400, "[],{}")]
)
@pytest.mark.parametrize("name", ["auto", "json"])
def test_what_is_nested_deep_is_shown_as_it_is(name: str, data: bytes) -> None:
    shown = decoder_of(name)(data)
    assert len(shown) <= SHOWN_TIMES * len(data) + SHOWN_MORE
    assert shown == data.decode()


def test_what_is_nested_a_little_has_its_lines() -> None:
    for value in (json.loads(nested(5)), {'k"[{': ["\\", {"b": [[], {}, "],{"]}] * 500}):
        assert decoder_of("auto")(json.dumps(value).encode()) == json.dumps(value, indent=2)


def test_a_string_without_an_end_is_searched_once() -> None:
    """Were it searched from each of its quotes on, this would take minutes."""
    data = b'["' + rb"\"" * 500_000
    assert decoder_of("auto")(data) == data.decode()


LIST = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}
LONG = {"type": "array", "items": {"type": "record", "name": "L", "fields": [{"name": "n" * 9_000, "type": "int"}]}}


def test_avro_is_cut_where_its_schema_makes_much_of_few_bytes() -> None:
    deep = b"\2" * 150 + b"\0"
    shown = decoder_of("avro", json.dumps(LIST))(deep)
    assert json.loads(shown)
    assert len(shown) <= SHOWN_TIMES * len(deep) + SHOWN_MORE
    many = b"\x80\x7d" + b"\2" * 8_000 + b"\0"  # 8,000 numbers, each under a long name
    shown = decoder_of("avro", json.dumps(LONG))(many)
    assert shown.endswith("… (what follows is not shown)")
    assert len(shown) <= SHOWN_TIMES * len(many) + SHOWN_MORE + 40


@pytest.mark.parametrize(
    "headers",
    [
        [("h", b"x" * (1 << 20))] * 50,
        [("n" * (1 << 20), b"x")] * 500,
        [("n", None)] * 100_000,
        [("n", nested(450))] * 1_000,
    ],
)
def test_headers_are_cut_together(headers: list[tuple[str, bytes | None]]) -> None:
    shown = visible_headers(headers)
    assert len(shown) <= HEADERS_MAX + 1
    assert sum(len(name) + len(value) for name, value in shown) <= SHOWN_TIMES * SHOWN_BYTES_MAX
    assert shown[-1] == ("…", f"{len(headers) - len(shown) + 1} more headers are not shown")


def test_a_few_headers_are_shown_whole() -> None:
    headers: Any = [("a", b"1"), ("b", None), ("c", b'{"d":2}')]
    assert visible_headers(headers) == [("a", "1"), ("b", "null"), ("c", '{\n  "d": 2\n}')]
    (one,) = visible_headers([("a", b"x" * (SHOWN_BYTES_MAX + 7))])
    assert one[1].endswith("x… (7 bytes more are not shown)")


def test_a_line_is_short_and_says_that_there_is_more() -> None:
    decoder = decoder_of("auto")
    for value in (b"x" * 300, b" " * 5_000 + b"x", b"[" + b" " * 9_000 + b"]"):
        line = line_of(0, Record(0, 0, None, value), "", -1, decoder, decoder)
        assert len(line.short) <= SHORT + 1
        assert line.short.endswith("…") == (value[:1] != b"[")
