"""TLS with clients, on the two ends of a pair of sockets: ours is one, Python's `ssl` the other."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.server_tls import Places, ServerContext, ServerTls
from tests.proxy.proxy_world import HOST, Authority

ROOM_BYTES = 16 * 1024
ROUNDS_MAX = 100_000


class Pair:
    """A server and a client, neither of which ever waits: `both` gives them turns until both are done."""

    def __init__(self, context: ServerContext, client: ssl.SSLContext, quick: int) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        theirs.setblocking(False)
        self.server = context.accept(self.ours, Places(quick))
        self.client = client.wrap_socket(theirs, server_hostname=HOST, do_handshake_on_connect=False)

    def shake_hands(self) -> Pair:
        self.both(self.server.do_handshake, self.client.do_handshake)
        return self

    @staticmethod
    def both(*steps: Callable[[], object]) -> None:
        left = list(steps)
        for _ in range(ROUNDS_MAX):
            for step in list(left):
                try:
                    step()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    continue
                left.remove(step)
            if not left:
                return
        raise AssertionError(f"{left} never came to an end")

    def close(self) -> None:
        self.ours.close()
        self.client.close()


@pytest.fixture(params=[0, 1], ids=["lean", "quick"])
def quick(request: pytest.FixtureRequest) -> int:
    """How many places there are for the faster library: both kinds pass the same tests."""
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def pair(certificate: ServerContext, authority: Authority, quick: int) -> Iterator[Pair]:
    with closing(Pair(certificate, authority.client_context(), quick).shake_hands()) as pair:
        assert isinstance(pair.server, ServerTls) == bool(quick)
        yield pair


def all_of(read: Callable[[], bytes], size: int) -> Callable[[], None]:
    """A step of `Pair.both` that has read so many bytes; they are in its attribute `got`."""
    got = bytearray()

    def step() -> None:
        while len(got) < size:
            got.extend(read())

    step.got = got  # type: ignore[attr-defined]
    return step


def reader(server: Any) -> Callable[[], bytes]:
    """An end is nothing, or the error by which `ssl` tells it."""
    room = memoryview(bytearray(ROOM_BYTES))

    def read() -> bytes:
        try:
            return bytes(room[: server.read(ROOM_BYTES, room)])
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""

    return read


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 300_000), max_size=5), st.lists(st.integers(1, 100_000), max_size=5), st.integers(0, 1))
def test_bytes_of_any_sizes_arrive_in_both_directions(down: list[int], up: list[int], quick: int) -> None:
    with closing(Pair(*_contexts(), quick).shake_hands()) as pair:
        for size in down:
            words = os.urandom(size)
            got = all_of(lambda: pair.client.recv(65_536), size)
            pair.both(lambda words=words: pair.server.write(words), got)  # type: ignore[misc]
            assert got.got == words  # type: ignore[attr-defined]
        for size in up:
            words = os.urandom(size)
            got = all_of(reader(pair.server), size)
            pair.both(lambda words=words: pair.client.send(words), got)  # type: ignore[misc]
            assert got.got == words  # type: ignore[attr-defined]


_made: list[tuple[ServerContext, ssl.SSLContext]] = []


def _contexts() -> tuple[ServerContext, ssl.SSLContext]:
    """Hypothesis takes no fixture of a function's."""
    if not _made:
        authority = Authority.make()
        pem = authority.write(Path(os.environ.get("TMPDIR", "/tmp")) / f"server-tls-{os.getpid()}.pem", (HOST,))
        text = pem.read_text()
        pem.unlink()
        _made.append((ServerContext(text, text), authority.client_context()))
    return _made[0]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions_from_1_2_on_are_spoken(
    certificate: ServerContext, authority: Authority, quick: int, version: ssl.TLSVersion
) -> None:
    context = authority.client_context()
    context.minimum_version = context.maximum_version = version
    with closing(Pair(certificate, context, quick).shake_hands()) as pair:
        assert pair.client.version() == pair.server.version() == version.name.replace("_", ".")


def test_suites_without_forward_secrecy_are_refused(
    certificate: ServerContext, authority: Authority, quick: int
) -> None:
    context = authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("kRSA:@SECLEVEL=0")
    with closing(Pair(certificate, context, quick)) as pair, pytest.raises(ssl.SSLError, match=r"(?i)no.shared.cipher"):
        pair.both(pair.client.do_handshake, pair.server.do_handshake)


def test_what_is_no_tls_is_an_error_with_its_reason(
    certificate: ServerContext, authority: Authority, quick: int
) -> None:
    with closing(Pair(certificate, authority.client_context(), quick)) as pair:
        raw = socket.socket(fileno=os.dup(pair.client.fileno()))
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        raw.close()
        with pytest.raises(ssl.SSLError) as caught:
            pair.server.do_handshake()
        assert caught.value.reason.lower().replace("_", " ") == "http request"


def test_an_error_is_not_told_again_by_another_connection(
    certificate: ServerContext, authority: Authority, quick: int, pair: Pair
) -> None:
    """OpenSSL keeps errors by thread, not by connection."""
    with closing(Pair(certificate, authority.client_context(), quick)) as bad:
        os.write(bad.client.fileno(), b"\x16\x03\x01\xff\xff" + bytes(100))
        with pytest.raises(ssl.SSLError):
            bad.server.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        reader(pair.server)()
    pair.client.send(b"x")
    assert reader(pair.server)() == b"x"


@pytest.mark.parametrize("how", ["close_notify", "shut", "reset"])
def test_ends_of_a_client(pair: Pair, how: str, quick: int) -> None:
    if how == "close_notify":
        with pytest.raises(ssl.SSLWantReadError):
            pair.client.unwrap()
    elif how == "shut":
        os_level = socket.socket(fileno=os.dup(pair.client.fileno()))
        os_level.shutdown(socket.SHUT_WR)
        os_level.close()
    else:
        pair.server.write(b"unread")
        pair.client.close()  # with unread bytes: a reset
        # `ssl` of Python 3.11 loses the error's number, and tells an end
        with pytest.raises(ConnectionResetError) if quick else suppress(ConnectionResetError):
            assert reader(pair.server)() == b""
        return
    assert reader(pair.server)() == b""
    pair.server.write(b"the answer")
    assert pair.client.recv(100) == b"the answer"


def test_our_end_leaves_the_client_its_words(pair: Pair) -> None:
    with pytest.raises(ssl.SSLWantReadError):
        pair.server.shutdown()
    assert pair.client.recv(1) == b""
    pair.client.send(b"last words")
    assert reader(pair.server)() == b"last words"
    pair.client.unwrap()
    assert reader(pair.server)() == b""
    pair.server.shutdown()


def test_a_full_sink_takes_the_same_bytes_later(pair: Pair) -> None:
    words = os.urandom(4 << 20)
    with pytest.raises(ssl.SSLWantWriteError):
        pair.server.write(words)
    got = all_of(lambda: pair.client.recv(65_536), len(words))
    pair.both(lambda: pair.server.write(bytes(words)), got)  # equal bytes at another place
    assert got.got == words  # type: ignore[attr-defined]


def test_a_client_that_is_gone_is_an_error_of_write(pair: Pair) -> None:
    pair.client.close()
    with pytest.raises((BrokenPipeError, ssl.SSLEOFError)):
        pair.server.write(b"x")


def test_the_descriptor_outlives_what_spoke_tls_on_it(pair: Pair) -> None:
    del pair.server
    os.fstat(pair.ours.fileno())


def test_an_encrypted_key_is_refused_in_words(authority: Authority, tmp_path: Path) -> None:
    text = authority.write(tmp_path / "both.pem", (HOST,)).read_text()
    key = load_pem_private_key(text[: text.index("-----BEGIN CERT")].encode(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    with pytest.raises(ValueError, match="has a password"):
        ServerContext(text, key.decode())


def test_places_are_taken_as_long_as_their_connections_are_there(certificate: ServerContext) -> None:
    places, pairs = Places(2), [socket.socketpair() for _ in range(4)]
    open_ones = [certificate.accept(ours, places) for ours, _ in pairs[:3]]
    assert [isinstance(one, ServerTls) for one in open_ones] == [True, True, False]
    assert places.taken == 2
    del open_ones[0]
    assert places.taken == 1
    open_ones.append(certificate.accept(pairs[3][0], places))
    assert isinstance(open_ones[-1], ServerTls)
    del open_ones
    assert places.taken == 0
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


TICKETS = """
import socket, ssl, sys
from proxy.server_tls import Places, ServerContext
ours, theirs = socket.socketpair()
text = open(sys.argv[1]).read()
server = ServerContext(text, text).accept(ours, Places(int(sys.argv[2])))
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
theirs.setblocking(False)
ours.setblocking(False)
client = context.wrap_socket(theirs, do_handshake_on_connect=False)
left = [server.do_handshake, client.do_handshake]
while left:
    for step in list(left):
        try:
            step()
            left.remove(step)
        except ssl.SSLWantReadError:
            pass
server.write(b"x")
assert client.recv(1) == b"x" and client.version() == "TLSv1.3"
print(client.session.has_ticket)
"""


def test_no_tickets_are_made(authority: Authority, tmp_path: Path, quick: int) -> None:
    """In a process of its own: it depends on what loads the library first."""
    pem = authority.write(tmp_path / "both.pem", (HOST,))
    done = subprocess.run(
        [sys.executable, "-c", TICKETS, str(pem), str(quick)], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("False", "")
