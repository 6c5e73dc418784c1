"""The quick reader of keys and values against the careful one."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ProtocolError
from records.batch import HEADER_BYTES
from records.builder import build_batch
from records.pairs import Pair, read_pairs
from records.record import Record, decode_records

Drawn = list[tuple[int, int, bytes | None, bytes | None, object]]
SIZES = st.sampled_from([0, 1, 62, 63, 64, 127, 128, 8_190, 8_192, 20_000])
RECORDS = st.lists(
    st.builds(
        lambda step, time, key, value, headers: (step, time, key, value, headers),
        st.integers(1, 300),
        st.integers(0, 1 << 40),
        st.none() | SIZES.map(bytes),
        st.none() | SIZES.map(bytes),
        st.sampled_from([(), (("h", b"v"),), (("h", None),)]),
    ),
    min_size=1,
    max_size=12,
)


def built(drawn: Drawn) -> bytes:
    records, offset = [], 0
    for step, time, key, value, headers in drawn:
        records.append(Record(offset, time, key, value, headers))  # type: ignore[arg-type]
        offset += step
    return bytes(build_batch(records))


@given(RECORDS, st.integers(1, 5))
def test_keys_and_values_are_those_of_the_careful_reader(drawn: Drawn, some: int) -> None:
    batch = built(drawn)
    with memoryview(batch) as view:
        records = decode_records(view, 0, len(batch), inflated_bytes_max=1 << 20)
    pairs: list[Pair] = []
    at, left = HEADER_BYTES, len(records)
    while left:
        at = read_pairs(batch, at, len(batch), min(some, left), pairs)
        left -= min(some, left)
    assert at == len(batch)
    assert pairs == [(record.key, record.value) for record in records if record.key is not None]


@given(RECORDS, st.data())
def test_damage_is_told_or_harmless(drawn: Drawn, data: st.DataObject) -> None:
    batch = bytearray(built(drawn))
    for _ in range(3):
        batch[data.draw(st.integers(HEADER_BYTES, len(batch) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):  # and nothing else
        read_pairs(bytes(batch), HEADER_BYTES, len(batch), len(drawn), [])


def test_records_that_end_early_are_damaged() -> None:
    batch = built([(1, 0, b"k", b"v", ())])
    for end in range(HEADER_BYTES, len(batch)):
        with pytest.raises(ProtocolError, match="CORRUPT_MESSAGE"):
            read_pairs(batch[:end], HEADER_BYTES, end, 1, [])
