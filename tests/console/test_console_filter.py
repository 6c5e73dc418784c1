"""A filter's short cuts: what they leave out would not have been wanted either."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ProtocolError
from console.formats.record_filter import Filter, Wanted, matcher
from records.builder import build_batch
from records.record import Record, decode_records, inflate_records

NAMES = st.sampled_from(["a", "b", "é", 'q"q', "b\\c", ""])
TEXTS = st.sampled_from(["UA", "LA/X", "é", 'a"b', "\\", "\u2028", "", "A"])
PLAIN = TEXTS | st.integers(-3, 3) | st.booleans() | st.none() | st.floats(allow_nan=False, width=16)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
OPERATORS = st.sampled_from(["==", "!=", "~", "<", ">="])


@st.composite
def conditions(draw: st.DrawFn) -> str:
    """Of one or two paths, each of one or two steps."""
    parts = []
    for _ in range(draw(st.integers(1, 2))):
        steps = draw(st.lists(NAMES.map(lambda name: f"[{json.dumps(name)}]") | st.just("[*]"), min_size=1, max_size=2))
        sign = draw(OPERATORS)
        wanted = draw(TEXTS | st.integers(-3, 3)) if sign in ("<", ">=") else draw(PLAIN)
        parts.append(f"${''.join(steps)}" + (f" {sign} {json.dumps(wanted)}" if draw(st.booleans()) else ""))
    return " && ".join(parts)


@st.composite
def written(draw: st.DrawFn) -> bytes | None:
    """A value as one client or another writes it, or what is no JSON at all."""
    value = draw(VALUES | st.dictionaries(NAMES, VALUES, min_size=1, max_size=3))
    text = json.dumps(value, ensure_ascii=draw(st.booleans())).encode()
    return draw(st.sampled_from([text, text, text, text.replace(b"U", b"\\u0055"), text + b"}", text[:-1], None]))


def inflated(records: list[Record]) -> tuple[Any, bytes]:
    batch = memoryview(build_batch(records))
    return inflate_records(batch, 0, len(batch), inflated_bytes_max=1 << 20)


@given(conditions(), st.lists(written(), min_size=1, max_size=5), st.sampled_from(["", "k", "é"]), st.booleans())
def test_no_short_cut_loses_a_record(condition: str, values: list[bytes | None], key: str, has_header: bool) -> None:
    wanted = matcher(Wanted(key, "h=v" if has_header else "", condition))
    headers = [("h", b"v"), ("é", None)]
    records = [
        Record(0, 5, "aké".encode() if number % 2 else None, value, headers if number < 3 else ())
        for number, value in enumerate(values)
    ]
    batch = memoryview(build_batch(records))
    looked_at = decode_records(batch, 0, len(batch), inflated_bytes_max=1 << 20)
    found = list(wanted.wanted_of(*inflated(records)))
    assert found == [(number, one) for number, one in enumerate(looked_at) if wanted(one)]


@pytest.mark.parametrize(("parts", "written"), [([b"rare"], []), ([], [b"rare"]), ([b"key"], [b"rare", b"DL"])])
def test_records_without_the_bytes_are_not_decoded(parts: list[bytes], written: list[bytes]) -> None:
    """But for the few in which a length or a delta looks like an escape."""
    looked_at: list[int] = []

    def test(record: Record) -> bool:
        looked_at.append(record.offset)
        return True

    header, data = inflated([Record(0, 5, b"key", b'{"carrier":"DL","row":%d}' % number) for number in range(1_000)])
    assert len(list(Filter([test], parts, written, None).wanted_of(header, data))) == len(looked_at) < 20


@given(st.binary(max_size=60), st.integers(1, 5), st.sampled_from(["$.a", '$.a == "b"']))
def test_damage_is_said_in_one_way(data: bytes, count: int, condition: str) -> None:
    header, _ = inflated([Record(0, 5, b"k", b"v")] * count)
    try:
        list(matcher(Wanted(condition=condition)).wanted_of(header, data))
    except ProtocolError:
        return
