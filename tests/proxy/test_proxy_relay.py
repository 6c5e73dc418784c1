"""Relays over sockets that take and give what a test wants, and over real ones with mutated readiness."""

from __future__ import annotations

import random
import ssl
from collections import deque
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.relay import BURST_RECORDS, RECORD_BYTES, ROOM_BYTES, Relay, Room
from proxy.sockets import Connection

CLIENT, BROKER = 3, 4


class Poll:
    """Level-triggered readiness that a test asks for by itself."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], object]] = {}
        self.writers: dict[int, Callable[[], object]] = {}

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> None:
        self.readers[fd] = callback

    def remove_reader(self, fd: int, /) -> None:
        self.readers.pop(fd, None)

    def add_writer(self, fd: int, callback: Callable[[], object], /) -> None:
        self.writers[fd] = callback

    def remove_writer(self, fd: int, /) -> None:
        self.writers.pop(fd, None)


class FakeSocket:
    """`incoming` holds what is read next: bytes, or an exception; `takes` how much each send takes, or an exception."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.incoming: deque[bytes | Exception] = deque()
        self.takes: deque[int | Exception] = deque()
        self.sent = b""
        self.closed = self.shut = False
        self.tls: FakeTls | None = None

    def fileno(self) -> int:
        return -1 if self.closed else self.fd

    def recv_into(self, view: memoryview) -> int:
        if not self.incoming:
            raise BlockingIOError
        piece = self.incoming.popleft()
        if isinstance(piece, Exception):
            raise piece
        taken = piece[: len(view)]
        view[: len(taken)] = taken
        if len(taken) < len(piece):
            self.incoming.appendleft(piece[len(taken) :])
        return len(taken)

    def send(self, data: memoryview) -> int:
        take = self.takes.popleft() if self.takes else len(data)
        if isinstance(take, Exception):
            raise take
        take = min(max(take, 1), len(data))
        self.sent += bytes(data[:take])
        return take

    def shutdown(self, _how: int) -> None:
        self.shut = True

    def close(self) -> None:
        self.closed = True


class FakeTls:
    """Reads one record at a time, as OpenSSL does, into a place that has to be large enough for any. An end stays."""

    def __init__(self, sock: FakeSocket) -> None:
        self.incoming, self.write = sock.incoming, sock.send
        self.said = 0

    def read(self, size: int, view: memoryview) -> int:
        assert size == RECORD_BYTES <= len(view)
        piece = self.incoming[0] if self.incoming else ssl.SSLWantReadError()
        if isinstance(piece, Exception):
            raise piece
        if piece:
            self.incoming.popleft()
        view[: len(piece)] = piece
        return len(piece)

    def shutdown(self) -> None:
        self.said += 1
        raise ssl.SSLWantReadError


def make(tls: bool = False, room: Room | None = None) -> tuple[Poll, FakeSocket, FakeSocket, Relay, list[Relay]]:
    poll, client, broker, ended = Poll(), FakeSocket(CLIENT), FakeSocket(BROKER), list[Relay]()
    room = room or Room(4 * RECORD_BYTES)
    client.tls = FakeTls(client) if tls else None
    relay = Relay(poll, cast(Connection, client), cast(Connection, broker), room, "lkc-aaaaaa", "10.0.0.1")
    relay.on_close = ended.append
    relay.start()
    return poll, client, broker, relay, ended


Takes = list[int | Exception]
PIECES = st.lists(st.binary(min_size=1, max_size=3 * RECORD_BYTES), max_size=8)
TAKES = st.lists(st.integers(1, 2 * RECORD_BYTES) | st.just(BlockingIOError()), max_size=30)


@given(PIECES, PIECES, TAKES, TAKES, st.randoms(use_true_random=False))
def test_all_bytes_come_through_in_order_however_slowly_they_are_taken(
    up: list[bytes], down: list[bytes], broker_takes: Takes, client_takes: Takes, rng: random.Random
) -> None:
    poll, client, broker, relay, ended = make()
    client.incoming.extend(up)
    broker.incoming.extend(down)
    broker.takes.extend(broker_takes)
    client.takes.extend(client_takes)
    for _ in range(400):
        ready = [poll.readers[one.fd] for one in (client, broker) if one.incoming and one.fd in poll.readers]
        ready += list(poll.writers.values())
        if not ready:
            break
        rng.choice(ready)()
    assert broker.sent == b"".join(up)
    assert client.sent == b"".join(down)
    assert (relay.up.moved, relay.down.moved) == (len(broker.sent), len(client.sent))
    assert sorted(poll.readers) == [CLIENT, BROKER]
    assert not poll.writers
    assert not ended


RECORDS = st.lists(st.sampled_from([1, 100, RECORD_BYTES - 1, *[RECORD_BYTES] * 6]), min_size=1, max_size=40)


@given(RECORDS, st.sampled_from([b"", ConnectionResetError()]), st.integers(1, 2 * BURST_RECORDS))
def test_records_come_through_in_order_and_so_does_the_end_behind_them(
    sizes: list[int], end: bytes | Exception, in_one_room: int
) -> None:
    poll, client, broker, relay, ended = make(tls=True, room=Room(in_one_room * RECORD_BYTES))
    records = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    client.incoming.extend([*records, end])
    up = relay.up
    for _ in range(len(sizes) + 1):
        if CLIENT in poll.readers:
            poll.readers[CLIENT]()
    assert broker.sent == b"".join(records)
    assert up.ended or ended == [relay]
    assert CLIENT not in poll.readers


@pytest.mark.parametrize(("end", "said"), [(b"", 1), (ssl.SSLEOFError(), 0)])
def test_an_end_is_answered_in_its_own_way(end: bytes | Exception, said: int) -> None:
    """OpenSSL is not to be asked for close_notify after an error, and an end without it is one; the other direction
    still finishes."""
    poll, client, broker, _, ended = make(tls=True)
    assert client.tls is not None
    tls = client.tls
    client.incoming.extend([b"request", end])
    for _ in range(2):
        poll.readers[CLIENT]()
    assert broker.sent == b"request"
    assert broker.shut
    assert not ended
    broker.incoming.extend([b"answer", b""])
    for _ in range(2):
        poll.readers[BROKER]()
    assert client.sent == b"answer"
    assert tls.said == said
    assert ended


def test_neither_a_burst_nor_a_room_ends_right_behind_a_piece_that_the_kernel_sends() -> None:
    """Measured: the few bytes that are too many for one piece cost as much as a full one."""
    piece = 64 * 1024 - 200  # of a loopback with any headers
    for size in (BURST_RECORDS * RECORD_BYTES, ROOM_BYTES):
        assert size % piece > piece // 2
    assert len(Room().records) == BURST_RECORDS - 1


def test_tls_that_must_write_before_it_reads_waits_without_spinning() -> None:
    """A client that asks for key updates and reads nothing brings it about."""
    poll, client, broker, _, ended = make()
    client.incoming.extend([ssl.SSLWantWriteError(), b"more"])
    poll.readers[CLIENT]()
    assert CLIENT not in poll.readers
    poll.writers[CLIENT]()
    assert CLIENT not in poll.writers
    poll.readers[CLIENT]()
    assert broker.sent == b"more"
    assert not ended


@pytest.mark.parametrize("parked_first", [True, False])
def test_that_wait_and_a_full_client_share_the_descriptor(parked_first: bool) -> None:
    poll, client, broker, _, ended = make()
    client.takes.append(1)
    broker.incoming.append(b"downward")
    client.incoming.extend([ssl.SSLWantWriteError(), b"upward"])
    order = [poll.readers[CLIENT], poll.readers[BROKER]]
    for step in order if parked_first else order[::-1]:
        step()
    assert not poll.readers
    poll.writers[CLIENT]()
    assert client.sent == b"downward"
    assert not poll.writers
    poll.readers[CLIENT]()
    assert broker.sent == b"upward"
    assert sorted(poll.readers) == [CLIENT, BROKER]
    assert not ended


def test_an_error_on_either_side_ends_both() -> None:
    for side in (0, 1):
        poll, *socks, relay, ended = make()
        socks[side].incoming.append(ConnectionResetError())
        poll.readers[socks[side].fd]()
        assert socks[0].closed
        assert socks[1].closed
        assert ended == [relay]
        assert not poll.readers
        assert not poll.writers
        relay.close()
        assert len(ended) == 1


def test_what_is_held_for_a_slow_reader_is_a_copy_of_at_most_the_room() -> None:
    poll, client, broker, relay, _ = make()
    broker.takes.append(10)
    client.incoming.append(b"a" * (6 * RECORD_BYTES))
    poll.readers[CLIENT]()
    assert relay.up.rest is not None
    assert len(relay.up.rest) == 4 * RECORD_BYTES - 10
    assert relay.up.rest.obj is not relay.up.room.whole.obj
    relay.up.room.whole[:] = b"b" * len(relay.up.room.whole)
    poll.writers[BROKER]()
    assert set(broker.sent) == {ord("a")}
