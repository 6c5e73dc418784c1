"""Which batches under a right CRC are refused because what they hold cannot be records."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from common.errors import ErrorCode, ProtocolError
from records.batch import COMPRESSION_MASK, HEADER_BYTES, ProduceLimits, check_produced, read_header, seal, write_header
from records.builder import build_batch
from records.compression import Compression, compress
from records.framing import check_framing
from records.record import Record, check_records

NOW = 1_700_000_000_000
INFLATED_MAX = 8 << 20
SIZES = ((1, 10), (1, 100_000), (5, 300), (200, 100), (3_000, 90), (40, 20_000))


def some_batch(codec: Compression, count: int, size: int, headers: int = 0) -> bytearray:
    rng = random.Random(count)
    records = [
        Record(
            n,
            NOW + rng.randrange(999),
            None if n % 3 else b"key",
            rng.randbytes(rng.randrange(size)),
            [("h", b"x")] * headers,
        )
        for n in range(count)
    ]
    return build_batch(records, compression=codec)


def with_body(codec: Compression, body: bytes, count: int = 1) -> bytearray:
    """A batch whose header is right in all and whose records are `body`."""
    first = build_batch([Record(n, NOW, b"k", b"v") for n in range(count)])
    batch = first[:HEADER_BYTES] + body
    header = read_header(first, 0)
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    write_header(batch, 0, replace(header, attributes=attributes, batch_length=len(batch) - 12))
    seal(batch, 0, len(batch))
    return batch


def framing(batch: bytearray) -> None:
    """As a broker checks a produced batch."""
    view = memoryview(bytes(7) + batch + b"\1" * 50)  # it lies in the middle of a receive buffer
    header = check_produced(view, 7, 7 + len(batch), ProduceLimits(batch_bytes_max=1 << 30), NOW)
    check_framing(view, 7, 7 + len(batch), header)


def code_of(batch: bytearray) -> ErrorCode | None:
    """Why it is refused."""
    try:
        framing(batch)
    except ProtocolError as error:
        return error.code
    return None


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize(("count", "size"), SIZES)
def test_sound_batches_pass(codec: Compression, count: int, size: int) -> None:
    for headers in (0, 3):
        batch = some_batch(codec, count, size, headers)
        framing(batch)
        check_records(memoryview(batch), 0, len(batch), inflated_bytes_max=INFLATED_MAX)


Spoil = Callable[[bytes], bytes]
SPOILT: dict[str, Spoil] = {
    "garbage": lambda _: b"\xa5" * 100,
    "zeros": lambda _: bytes(100),
    "text": lambda _: b"not a record in any way " * 9,
    "nothing": lambda _: b"",
    "a length beyond the batch": lambda good: b"\xfe\x7f" + good[1:],
    "a negative length": lambda good: b"\1" + good[1:],
    "bytes after the last record": lambda good: good + b"\0" * 5,
    "one record too many": lambda good: good + good,
    "a last record cut short": lambda good: good[:-1],
    "another offset": lambda good: good[:3] + b"\4" + good[4:],
    "a key beyond its record": lambda good: good[:4] + b"\x7e" + good[5:],
    "a varint without an end": lambda good: good[:1] + b"\0" + b"\xff" * 40,
}


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("name", SPOILT)
def test_what_is_no_record_is_refused(codec: Compression, name: str) -> None:
    good = bytes(build_batch([Record(0, NOW, b"k", b"v" * 20)])[HEADER_BYTES:])
    assert code_of(with_body(codec, compress(codec, SPOILT[name](good)))) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_what_is_no_compressed_data_is_refused(codec: Compression) -> None:
    rng = random.Random(codec)
    packed = compress(codec, rng.randbytes(300))
    for body in (b"", b"\0" * 40, rng.randbytes(1_000), packed[:9], b"\xff" * 30):
        assert code_of(with_body(codec, body)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Compression))
def test_damage_never_raises_anything_else(codec: Compression) -> None:
    rng = random.Random(11)
    for size in (30, 3_000):
        good = some_batch(codec, 20, size)[HEADER_BYTES:]
        for _ in range(150):
            body = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                body[rng.randrange(min(len(body), 400))] = rng.randrange(256)
            damaged = with_body(codec, bytes(body[: rng.choice([len(body), rng.randrange(len(body))])]), 20)
            assert code_of(damaged) in (None, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_bomb_is_not_inflated(codec: Compression) -> None:
    record = bytes(build_batch([Record(0, NOW, None, bytes(32 << 20))])[HEADER_BYTES:])
    batch = with_body(codec, compress(codec, record))
    del record
    tracemalloc.start()
    framing(batch)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
