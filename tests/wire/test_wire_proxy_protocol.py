"""The PROXY protocol: round trips, every cut, known bytes, refusals, and mutated headers."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import MalformedFrame
from wire.proxy_protocol import HEADER_BYTES_MAX, SIGNATURE, ProxyHeader, encode, parse

GOOD = ProxyHeader(("1.2.3.4", 258), ("5.6.7.8", 772), "b0-lkc-abc123.kafka.test")
HOSTS = st.ip_addresses().filter(lambda address: address.version == 4 or address.ipv4_mapped is None).map(str)
ADDRESSES = st.tuples(HOSTS, st.integers(0, 65_535))
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", fullmatch=True)


def with_fields(fields: bytes) -> bytes:
    body = encode(GOOD._replace(authority=None))[16:] + fields
    return SIGNATURE + struct.pack(">BBH", 0x21, 0x11, len(body)) + body


@given(ADDRESSES, ADDRESSES, st.none() | NAMES, st.binary(max_size=20))
def test_what_is_encoded_is_parsed(
    source: tuple[str, int], destination: tuple[str, int], authority: str | None, behind: bytes
) -> None:
    header = ProxyHeader(source, destination, authority)
    data = encode(header)
    assert parse(data + behind) == (header, len(data))
    assert parse(memoryview(bytearray(data + behind))) == (header, len(data))


def test_every_cut_waits() -> None:
    data = encode(GOOD)
    assert all(parse(data[:size]) is None for size in range(len(data)))


def test_known_bytes() -> None:
    assert encode(GOOD._replace(authority="a.b")) == (
        SIGNATURE + b"\x21\x11\x00\x12" + b"\x01\x02\x03\x04\x05\x06\x07\x08\x01\x02\x03\x04" + b"\x02\x00\x03a.b"
    )


def test_fields_that_nobody_reads_are_passed_over() -> None:
    fields = b"\x04\x00\x02pp" + b"\x05\x00\x01u" + b"\x02\x00\x03A.b" + b"\x04\x00\x00" + b"\xe0\x00\x01x\xe0\x00\x01y"
    parsed = parse(with_fields(fields))
    assert parsed is not None
    assert parsed[0] == GOOD._replace(authority="a.b")


def test_an_ipv4_address_stays_one_beside_an_ipv6_address() -> None:
    parsed = parse(encode(ProxyHeader(("10.0.0.1", 1), ("2001:db8::1", 2), None)))
    assert parsed is not None
    assert parsed[0].source == ("10.0.0.1", 1)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x2a",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        SIGNATURE[:-1] + b"\x00",
        SIGNATURE + b"\x11\x11\x00\x00",  # version 1 in version 2's clothes
        SIGNATURE + b"\x20\x00\x00\x00",  # LOCAL
        SIGNATURE + b"\x21\x12\x00\x0c" + bytes(12),  # a datagram
        SIGNATURE + b"\x21\x00\x00\x00",  # no family
        SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11),
        SIGNATURE + b"\x21\x21\x00\x23" + bytes(35),
        SIGNATURE + b"\x21\x11" + struct.pack(">H", HEADER_BYTES_MAX - 15),
        with_fields(b"\x02"),
        with_fields(b"\x02\x00\x04a.b"),
        with_fields(b"\x02\x00\x00"),
        with_fields(b"\x02\x00\x02a\xff"),
        with_fields(b"\x02\x00\x02a\n"),
        with_fields(b"\x02\x00\x01a\x02\x00\x01b"),
        with_fields(b"\x05\x00\x01a\x05\x00\x01b"),
    ],
)
def test_refusals(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        parse(data)


@pytest.mark.parametrize("authority", ["", "A.b", "a b", "ä", "a" * 254, "a.\n"])
def test_no_authority_that_would_be_refused_is_encoded(authority: str) -> None:
    with pytest.raises(ValueError, match=r"host name|codec"):
        encode(GOOD._replace(authority=authority))


def test_mutated_headers_are_refused_or_read_within_their_bounds() -> None:
    rng, refused = random.Random(3), 0
    for _ in range(20_000):
        data = bytearray(encode(GOOD))
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = data[: rng.randrange(len(data) + 1)]
        try:
            parsed = parse(cut)
        except MalformedFrame:
            refused += 1
            continue
        assert parsed is None or parsed[1] <= len(cut)
    assert refused > 1_000
