"""What is taken for sound at a glance, beside the rules that look at every record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from records.batch import HEADER_BYTES, TIMESTAMP_TYPE, read_header, seal, write_header
from records.builder import assemble, build_batch, empty_batch
from records.compression import Compression
from records.record import Record
from spark_offload.segments.batch_scan import scan_batches
from spark_offload.segments.payload import Payload, payloads
from spark_offload.segments.sound_records import BLOCK_RECORDS, surely_sound
from spark_offload.verification import record_checks
from spark_offload.verification.checks import Check, Findings, Place
from spark_offload.verification.headers import read_headers
from spark_offload.verification.log_walk import Stretch
from spark_offload.verification.record_checks import Glance, RecordChecker, decode
from tests.spark_offload.segment_bytes import NOW, segment

PLACE = Place("t", 0, "k")
MIB = 1 << 20

field = st.none() | st.binary(max_size=30) | st.integers(0, 300).map(bytes)
timestamps = st.integers(NOW - 100, NOW + 100) | st.integers(NOW - 10**7, NOW + 10**7)
plain_records = st.builds(Record, st.just(0), timestamps, field, field, st.just(()))
values = st.binary(min_size=20, max_size=20)
fixed_records = st.builds(Record, st.just(0), st.just(NOW), st.just(b"key"), values, st.just(()))
a_batch = st.lists(plain_records, min_size=1, max_size=6) | st.lists(fixed_records, min_size=1, max_size=80)
changes = st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=3)
segments = st.lists(a_batch, min_size=1, max_size=6)


# However few the batches are; with blocks that end within batches and round them.
GLANCES = pytest.mark.parametrize(
    "glance",
    [partial(surely_sound, across_min=1, block_records=size) for size in (4, BLOCK_RECORDS)],
    ids=["small blocks", "large blocks"],
)


def payload_of(data: bytes | memoryview) -> Payload:
    view = memoryview(data)
    (payload,) = payloads(view, scan_batches(view, check_crc=False), inflated_bytes_max=MIB)
    return payload


def stretch_of(data: bytes) -> Stretch:
    view = memoryview(data)
    bounds = [*scan_batches(view, check_crc=False).at.tolist(), len(data)]
    return Stretch(view, 0, read_headers(view, bounds, 0))


def by_all_rules(stretch: Stretch) -> tuple[list[int], list[str]]:
    """How many records each sound batch has, and what is wrong with the others."""
    found = Findings()
    counts = [
        count
        for decoded in decode(stretch, stretch.headers, MIB, PLACE, found)
        for count in decoded.payload.batches.count.tolist()
    ]
    return counts, [str(problem) for problem in found.problems]


def sealed(log: bytearray) -> bytes:
    for at in scan_batches(memoryview(bytes(log)), check_crc=False).at.tolist():
        seal(log, at, read_header(log, at).size)
    return bytes(log)


@GLANCES
@given(batches=segments, log_append_time=st.booleans())
def test_what_a_writer_makes_is_sound(glance: Glance, batches: list[list[Record]], log_append_time: bool) -> None:
    data = segment(batches, timestamp_type=TIMESTAMP_TYPE if log_append_time else 0)
    assert glance(payload_of(data)).all()


@GLANCES
@given(
    batches=segments, changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=3)
)
def test_nothing_is_sound_that_the_rules_refuse(
    glance: Glance, batches: list[list[Record]], changes: list[tuple[int, int]]
) -> None:
    """Bytes of records change, of no header; what is sound by itself is so whatever its neighbours are."""
    log = bytearray(segment(batches))
    bounds = [*scan_batches(memoryview(bytes(log))).at.tolist(), len(log)]
    for place, bits in changes:
        row = place % len(batches)
        at = bounds[row] + HEADER_BYTES + place // len(batches) % (bounds[row + 1] - bounds[row] - HEADER_BYTES)
        log[at] ^= bits
    data = sealed(log)
    sound = glance(payload_of(data)).tolist()
    for number, (at, end) in enumerate(pairwise(bounds)):
        _, problems = by_all_rules(stretch_of(data[at:end]))
        assert not (sound[number] and problems)


@GLANCES
@given(batches=segments, seed=st.integers(0, 2**32), codec=st.sampled_from([Compression.NONE, Compression.LZ4]))
def test_the_check_finds_what_decoding_finds(
    glance: Glance, batches: list[list[Record]], seed: int, codec: Compression
) -> None:
    chance = Random(seed)
    log = bytearray(segment(batches, codec))
    for at in scan_batches(memoryview(bytes(log))).at.tolist():
        if chance.random() < 0.5:
            size = read_header(log, at).size
            log[at + chance.randrange(HEADER_BYTES, size)] ^= chance.randrange(256)
    stretch = stretch_of(sealed(log))
    counts, problems = by_all_rules(stretch)
    found = Findings()
    assert RecordChecker(MIB, PLACE, found, glance).check(stretch, stretch.headers) == sum(counts)
    assert [str(problem) for problem in found.problems] == problems


def lengths_that_lie(records: Sequence[Record]) -> bytearray:
    """One key gives a byte to its value; the record keeps its length, and all else is as it was."""
    batch = build_batch(records)
    at = bytes(batch).index(b"\x06key")
    batch[at] = 8
    return batch


def bytes_behind_the_last_field(records: Sequence[Record]) -> bytearray:
    batch = build_batch(records)
    at = bytes(batch).rindex(b"v" * 20) - 1
    batch[at] = 38  # the value is one byte shorter, and that byte is where the number of headers was
    return batch


def null_beyond_null(records: Sequence[Record]) -> bytearray:
    batch = build_batch(records)
    batch[bytes(batch).index(b"\x06key")] = 3  # a length of -2
    return batch


def another_greatest_timestamp(records: Sequence[Record]) -> bytearray:
    batch = build_batch(records)
    write_header(batch, 0, replace(read_header(batch, 0), max_timestamp=NOW + 1))
    return batch


def offsets_out_of_order(records: Sequence[Record]) -> bytearray:
    batch = build_batch(records)
    first = HEADER_BYTES + 3
    batch[first] = 2
    return batch


def one_record_less(records: Sequence[Record]) -> bytearray:
    header = read_header(build_batch(records), 0)
    return assemble(header, build_batch(records[:-1])[HEADER_BYTES:])


def one_record_more(records: Sequence[Record]) -> bytearray:
    header = read_header(build_batch(records[:-1]), 0)
    return assemble(header, build_batch(records)[HEADER_BYTES:])


Lie = Callable[[Sequence[Record]], bytearray]
LIES: list[Lie] = [
    lengths_that_lie,
    bytes_behind_the_last_field,
    null_beyond_null,
    another_greatest_timestamp,
    offsets_out_of_order,
    one_record_less,
    one_record_more,
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("place", [0, 3, 69])
def test_a_batch_that_lies_is_found_among_many_that_are_alike(lie: Lie, place: int) -> None:
    """At full size: enough batches, each of enough records, that lengths are guessed from those before."""
    records = [Record(0, NOW, b"key", b"v" * 20)] * 100
    base, parts = 0, []
    for number in range(70):
        batch = lie(records) if number == place else build_batch(records)
        header = read_header(batch, 0)
        write_header(batch, 0, replace(header, base_offset=base))
        base = replace(header, base_offset=base).next_offset
        parts.append(batch)
    stretch = stretch_of(sealed(bytearray(b"".join(parts))))
    payload = payload_of(bytes(stretch.view))
    assert np.flatnonzero(~surely_sound(payload)).tolist() == [place]
    found = Findings()
    checked = RecordChecker(MIB, PLACE, found).check(stretch, stretch.headers)
    assert found.failed == {Check.RECORD: 1}
    assert found.problems[0].position == int(payload.batches.at[place])
    assert checked == sum(payload.batches.count.tolist()) - int(payload.batches.count[place])


@GLANCES
def test_what_needs_more_than_a_glance_is_left_to_the_rules(glance: Glance) -> None:
    """Headers, long fields, gaps that compaction left, batches of no records."""
    record = Record(0, NOW, b"k", b"v")
    whole = build_batch([record] * 3, base_offset=10)
    gap = assemble(replace(read_header(whole, 0), count=2), build_batch([record] * 2)[HEADER_BYTES:])
    with_header, long = record._replace(headers=(("h", b"1"),)), record._replace(value=bytes(9_000))
    log = bytearray(segment([[with_header], [record], [long]]))
    log += build_batch([record] * 7, base_offset=3) + gap
    log += empty_batch(read_header(build_batch([record], base_offset=13), 0))
    data = sealed(log)
    payload = payload_of(data)
    assert glance(payload).tolist() == [False, True, False, True, False, False]
    found = Findings()
    checker = RecordChecker(MIB, PLACE, found, glance)
    assert checker.check(stretch_of(data), stretch_of(data).headers) == 1 + 1 + 1 + 7 + 2
    assert not found.problems


@GLANCES
def test_timestamps_whose_sum_wraps_round_are_left_to_the_rules(glance: Glance) -> None:
    batch = build_batch([Record(0, -(2**63), None, b"v"), Record(0, 2**62, None, b"v")])
    far = build_batch([Record(0, 0, None, b"v"), Record(0, 2**62, None, b"v")])
    assert not glance(payload_of(bytes(batch))).any()
    assert not glance(payload_of(bytes(far))).any()


@GLANCES
@given(body=st.binary(min_size=40, max_size=400), count=st.integers(1, 5), neighbour=st.binary(max_size=20))
def test_any_bytes_are_looked_at_and_none_round_them(glance: Glance, body: bytes, count: int, neighbour: bytes) -> None:
    data = bytes(assemble(read_header(build_batch([Record(0, NOW, b"k", b"v")] * count), 0), body))
    among = memoryview(neighbour + data + neighbour)[len(neighbour) : len(neighbour) + len(data)]
    assert glance(payload_of(among)).tolist() == glance(payload_of(data)).tolist()


@GLANCES
def test_stretches_that_are_like_one_that_told_nothing_are_checked_without_a_glance(glance: Glance) -> None:
    record = Record(0, NOW, b"k", b"v" * 20, (("h", b"1"),))
    found = Findings()
    checker = RecordChecker(MIB, PLACE, found, glance)
    good, bad = stretch_of(segment([[record] * 3])), stretch_of(bytes(null_beyond_null([record._replace(key=b"key")])))
    for number in range(2 * record_checks.STRETCHES_ALIKE + 3):
        assert checker.check(good, good.headers) == 3
        assert checker.check(bad, bad.headers) == 0
        assert found.failed == {Check.RECORD: number + 1}
