"""Lines as records and records as lines: what `consume --format json` prints, `produce --json` reads again."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.streams.record_formats import (
    FIELDS,
    BadFormat,
    Incoming,
    hex_shape,
    json_shape,
    shape_of,
    terminal_shape,
    visible,
)
from tidelog.streams.record_lines import BadLine, Outgoing, header_option, json_line, text_lines

maybe_bytes = st.none() | st.binary() | st.text().map(str.encode)
headers = st.lists(st.tuples(st.text(), st.binary()), max_size=3).map(tuple)
records = st.builds(
    Incoming,
    topic=st.just("t"),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    timestamp_ms=st.integers(-1, 253_402_300_799_999),
    key=maybe_bytes,
    value=maybe_bytes,
    headers=headers,
)


@given(records)
def test_json_brings_back_the_same_record(record: Incoming) -> None:
    line = json_shape()(record)
    assert line.endswith(b"\n") and b"\n" not in line[:-1]
    time_ms = None if record.timestamp_ms < 0 else record.timestamp_ms
    assert json_line(line[:-1]) == (record.key, record.value, record.headers, record.partition, time_ms)


@given(records)
def test_json_says_nothing_to_a_terminal(record: Incoming) -> None:
    assert visible(json_shape()(record)).encode() == json_shape()(record)


@given(records, st.sampled_from(["text", "{key}{value}{headers}", "{offset} {value_base64}", "hex"]))
def test_nothing_but_what_can_be_seen_goes_to_a_terminal(record: Incoming, name: str) -> None:
    shown = shape_of(name, terminal=True)(record).decode()
    assert all(one.isprintable() or one in "\n\t" for one in shown)


def test_what_moves_a_cursor_or_hides_text_is_written_out() -> None:
    assert visible(b"a\x1b[2Jb\r\x9b\xc2\x9b\t\n") == "a\\x1b[2Jb\\r\\x9b\\x9b\t\n"
    assert visible("\u202eabc\u2066".encode()) == "\\u202eabc\\u2066"


@given(st.binary().filter(lambda data: b"\n" not in data))
def test_text_is_the_value_as_it_is(value: bytes) -> None:
    assert text_lines(None)(value) == Outgoing(None, value)
    assert shape_of("text", terminal=False)(Incoming("t", 0, 0, 0, b"k", value)) == value + b"\n"


@given(st.binary(), st.binary(), st.binary(min_size=1))
def test_a_separator_ends_the_key_at_its_first_place(key: bytes, value: bytes, separator: bytes) -> None:
    record = text_lines(separator)(key + separator + value)
    assert record is not None and record.key is not None and record.value is not None
    assert separator not in record.key
    assert record.key + separator + record.value == key + separator + value


@given(maybe_bytes, maybe_bytes)
def test_hex_tells_null_from_empty(key: bytes | None, value: bytes | None) -> None:
    words = hex_shape(Incoming("t", 0, 0, 0, key, value)).decode().removesuffix("\n").split(" ")
    assert [None if word == "-" else bytes.fromhex(word) for word in words] == [key, value]


BAD = [
    ("", "has no '='"),
    ("[1]", "no object"),
    ("{", "no JSON"),
    ('{"value": "a", "valeu": 1}', "valeu"),
    ('{"key": "a"}', "value is missing"),
    ('{"value": "a", "value_base64": "YQ=="}', "both"),
    ('{"value_base64": "?"}', "base64"),
    ('{"value_base64": 1}', "no text"),
    ('{"value": "a", "partition": -1}', "partition"),
    ('{"value": "a", "partition": true}', "partition"),
    ('{"value": "a", "timestamp": 1.5}', "timestamp"),
    ('{"value": "a", "headers": 1}', "headers"),
    ('{"value": "a", "headers": [1]}', "header"),
    ('{"value": "a", "headers": {"h": null}}', "without a value"),
    ('{"value": "a", "headers": [{"key": "h", "value": "", "x": 1}]}', "'x'"),
    ("[" * 100_000, "no JSON"),
]


@pytest.mark.parametrize(("line", "words"), BAD)
def test_a_line_that_is_no_record_says_why(line: str, words: str) -> None:
    with pytest.raises(BadLine, match=words.replace("?", r"\?")):
        (json_line if line else text_lines(b"="))(line.encode())


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), st.lists, max_leaves=5))
def test_a_value_may_be_json_itself(value: object) -> None:
    record = json_line(json.dumps({"value": value}).encode())
    assert record is not None
    if value is None:
        assert record.value is None
    elif isinstance(value, str):
        assert record.value == value.encode()
    else:
        assert record.value is not None and json.loads(record.value) == value


@given(st.binary())
def test_any_bytes_are_a_record_or_a_bad_line(line: bytes) -> None:
    with contextlib.suppress(BadLine):
        assert json_line(line) is None or line.strip()


def test_headers_of_the_command_line() -> None:
    assert header_option("a=b=c") == ("a", b"b=c")
    for wrong in ("a", "=b", ""):
        with pytest.raises(BadLine):
            header_option(wrong)


RECORD = Incoming("t", 1, 2, 1_234, b"k\xff", None, (("a", b"1"), ("b", None)))


def test_templates() -> None:
    shape = shape_of(r"{partition}:{offset}\t{key_hex} {value}|{header:a}{{x}}", terminal=False)
    assert shape(RECORD) == b"1:2\t6bff |1{x}\n"
    for name in FIELDS:
        assert shape_of(f"{{{name}}}", terminal=False)(RECORD).endswith(b"\n")
    assert shape_of("{time} {timestamp}", terminal=False)(RECORD._replace(timestamp_ms=-1)) == b"- -1\n"


@pytest.mark.parametrize("text", ["yaml", "", "{", "{}", "{0}", "{none}", "{value.real}", "{value[0]}", "{value!r}"])
@pytest.mark.parametrize("more", ["", "{value:>9}", r"\q", "\\"])
def test_what_is_no_format_is_refused(text: str, more: str) -> None:
    with pytest.raises(BadFormat):
        shape_of(text + more, terminal=False)


def test_a_shape_for_a_terminal_leaves_what_is_harmless() -> None:
    assert terminal_shape(lambda record: "grüß dich\t1\n".encode())(RECORD) == "grüß dich\t1\n".encode()
