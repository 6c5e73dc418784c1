"""The reader of hellos against real ones, every cut of them, and OpenSSL's own reading of mutated ones."""

from __future__ import annotations

import contextlib
import random
import ssl
import struct

import pytest

from proxy.client_hello import UNRECOGNIZED_NAME, BadHello, ClientHello, alert_record, peek_bytes, read_hello
from tests.proxy.proxy_world import hello

LIMIT = 16_384
ROUNDS = 10_000


def read(data: bytes, limit: int = LIMIT) -> ClientHello | None:
    return read_hello(memoryview(data), limit)


def cut_into_records(data: bytes, rng: random.Random, records_max: int = 40) -> bytes:
    """The same handshake message in other records."""
    message, out = data[5:], b""
    for number in range(records_max):
        size = rng.choice((1, 2, 3, 50, 200)) if number < records_max - 1 else len(message)
        out += data[:3] + struct.pack(">H", min(size, len(message))) + message[:size]
        message = message[size:]
        if not message:
            break
    return out


def with_name(value: bytes) -> bytes:
    """A hello with a server_name extension of these bytes."""
    extensions = struct.pack(">HH", 0, len(value)) + value
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + struct.pack(">H", len(extensions))
    body += extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack(">H", len(message)) + message


def named(host: bytes) -> bytes:
    return with_name(struct.pack(">HBH", len(host) + 3, 0, len(host)) + host)


@pytest.mark.parametrize("tls12", [False, True])
@pytest.mark.parametrize("alpn", [(), ("kafka", "h2")])
def test_the_name_that_a_client_asked_for_is_read(tls12: bool, alpn: tuple[str, ...]) -> None:
    data = hello("B0-lkc-abc123.Kafka.Test", alpn, tls12=tls12)
    assert read(data + b"later bytes") == ClientHello("b0-lkc-abc123.kafka.test", len(data))
    assert read(hello(None)) == ClientHello(None, len(hello(None)))


def test_every_cut_waits_and_all_records_agree() -> None:
    data, rng = hello("b7.kafka.test"), random.Random(1)
    assert all(read(data[:size]) is None for size in range(len(data)))
    for _ in range(200):
        pieces = cut_into_records(data, rng)
        assert read(pieces) == ClientHello("b7.kafka.test", len(pieces))
        assert read(pieces[:-1]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1",
        b"\x00\x00\x00\x1a\x00\x12",
        b"\x80\x2e\x01",
        b"\x16\x02\x01\x00\x05",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x01",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\r\n\r\n\x00\r\nQUIT\n",
    ],
)
def test_the_first_wrong_byte_is_refused(data: bytes) -> None:
    with pytest.raises(BadHello):
        read(data)


@pytest.mark.parametrize(
    "host",
    [b"", b"a" * 254, b"a." * 126 + b"aa", b"a..b", b".a", b"a.", b"-a.b", b"1.2.3.4", b"a\0.b", b"a b", b"\xff"],
)
def test_a_name_that_is_none_is_answered_as_an_unknown_one(host: bytes) -> None:
    with pytest.raises(BadHello) as refused:
        read(named(host))
    assert refused.value.alert == UNRECOGNIZED_NAME
    assert read(named(b"a.b")) is not None


def test_a_name_of_ten_kilobytes_is_refused() -> None:
    with pytest.raises(BadHello):
        read(named(b"a" * 10_240))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\0\x06\0\0\x03a.bx",  # a byte behind the list
        b"\0\x06\x01\0\x03a.b",  # no host name
        b"\0\x0c\0\0\x03a.b\0\0\x03c.d",  # two of them
        b"\0\x07\0\0\x03a.b",
        b"\0\x06\0\0\x04a.b",
    ],
)
def test_a_malformed_server_name_is_refused(value: bytes) -> None:
    with pytest.raises(BadHello):
        read(with_name(value))


def test_two_server_names_in_two_extensions_are_refused() -> None:
    data = bytearray(named(b"a.b"))
    extension = data[-12:]
    data += extension
    for at, width in ((3, 2), (6, 3)):
        size = int.from_bytes(data[at : at + width], "big") + len(extension)
        data[at : at + width] = size.to_bytes(width, "big")
    data[-26:-24] = struct.pack(">H", 2 * len(extension))
    with pytest.raises(BadHello, match="twice"):
        read(bytes(data))


def test_its_size_and_number_of_records_are_bounded() -> None:
    drip = b"\x16\x03\x01\x00\x01\x01" + b"\x16\x03\x01\x00\x01\x00" * 2 + b"\x16\x03\x01\x00\x01\x40"
    with pytest.raises(BadHello, match="records"):
        read(drip + b"\x16\x03\x01\x00\x01\x00" * 500)
    with pytest.raises(BadHello, match="more than 8192"):
        read(b"\x16\x03\x01\x3f\xff\x01\x00\x40\x00" + bytes(20_000), 8_192)


def test_a_peek_shows_the_largest_hello_in_the_most_records() -> None:
    """Else a connection would wait for bytes that the peek never shows."""
    limit = 600
    body = named(b"a.b")[9:]
    padding = limit - len(body)
    extensions = struct.pack(">HH", 0, 8) + body[-8:] + struct.pack(">HH", 21, padding - 4) + bytes(padding - 4)
    body = body[:-14] + struct.pack(">H", len(extensions)) + extensions
    assert len(body) == limit
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    pieces = b"".join(b"\x16\x03\x01\0\x01" + message[at : at + 1] for at in range(63))
    pieces += b"\x16\x03\x01" + struct.pack(">H", len(message) - 63) + message[63:]
    assert read(pieces[: peek_bytes(limit)], limit) == ClientHello("a.b", len(pieces))


def openssl_reads(data: bytes, context: ssl.SSLContext) -> str | None:
    """The name that OpenSSL hands to its callback; "" when it refuses the hello first."""
    seen: list[str | None] = []

    def note(_tls: object, name: str | None, _context: object) -> None:
        seen.append(name)

    context.sni_callback = note
    incoming = ssl.MemoryBIO()
    incoming.write(data)
    with contextlib.suppress(ssl.SSLError):
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    return seen[0] if seen else ""


def mutated(data: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.choice((0, 1, 1, 2, 8))):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at]
            case 3:
                data[at:at] = data[at : at + rng.randrange(1, 9)]
    return data


def test_no_other_name_than_openssls_is_ever_read() -> None:
    """A name routed here and another one seen by TLS would cross tenants: to refuse more is fine, to differ is not."""
    rng, context = random.Random(7), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    seeds = [
        hello("b0.kafka.test"),
        hello("lkc-9.kafka.test", ("kafka",), tls12=True),
        hello(None),
        hello("x" * 60 + ".kafka.test"),
    ]
    agreed = refused = 0
    for _ in range(ROUNDS):
        data = bytearray(rng.choice(seeds))
        if rng.random() < 0.3:
            data = bytearray(cut_into_records(bytes(data), rng))
        data = mutated(data, rng)
        try:
            found = read(bytes(data))
        except BadHello:
            refused += 1
            continue
        if found is not None:
            theirs = openssl_reads(bytes(data[: found.size]), context)
            if theirs != "":
                assert found.server_name == (None if theirs is None else theirs.lower())
                agreed += 1
    assert agreed > ROUNDS // 20
    assert refused > ROUNDS // 20


def test_the_alert_in_the_clear() -> None:
    assert alert_record(UNRECOGNIZED_NAME) == b"\x15\x03\x03\x00\x02\x02\x70"
