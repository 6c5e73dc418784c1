"""What one turn of the loop does on a link between voters, however large its frames: counted in bytes, not timed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.ports import Buffer
from kraft.quorum import message_codec
from kraft.quorum.handshake import MAC_BYTES, Mac, Purpose, Session
from kraft.quorum.link import COPIED_BYTES_MAX, SEALED_BYTES, Link
from kraft.quorum.message_codec import decoded_map, encoded_parts

SCRATCH_BYTES = 64 << 10
LARGE = 4 << 20
PLAIN = SEALED_BYTES // 4


class Counted:
    """A MAC that notes how many bytes it takes."""

    def __init__(self, number: int, took: list[int]) -> None:
        self._state = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=MAC_BYTES)
        self._took = took

    def update(self, piece: bytes | memoryview, /) -> None:
        self._took.append(len(piece))
        self._state.update(piece)

    def digest(self) -> bytes:
        return self._state.digest()


class CountedSeal:
    def __init__(self, took: list[int]) -> None:
        self._took = took
        self._number = 0

    def begin(self) -> Mac:
        self._number += 1
        return Counted(self._number, self._took)


class End:
    """One end of a connection whose kernel holds `room` bytes. What is `sent` is as it was given."""

    peer = ("voter", 1)

    def __init__(self, room: int) -> None:
        self.inbox = bytearray()
        self.room = room
        self.other: End
        self.sent: list[Buffer] = []
        self.is_aborted = False
        self._readable: Callable[[], None] | None = None
        self._writable: Callable[[], None] | None = None

    def recv_into(self, view: memoryview) -> int:
        count = min(len(view), len(self.inbox))
        if not count:
            raise BlockingIOError
        view[:count] = self.inbox[:count]
        del self.inbox[:count]
        return count

    def send(self, data: Buffer, more: bool = False) -> int:
        room = self.room - len(self.other.inbox)
        if room <= 0:
            raise BlockingIOError
        self.sent.append(data)
        with memoryview(data) as view:
            self.other.inbox += view[:room]
            return min(len(view), room)

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self._readable = callback

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._writable = callback

    def abort(self) -> None:
        self.is_aborted = True

    def turn(self) -> bool:
        """Call back once, as a turn of a loop does. Whether something was to be done."""
        is_writable = self._writable is not None and len(self.other.inbox) < self.room
        if self._writable is not None and is_writable:
            self._writable()
        is_readable = bool(self.inbox) and not self.is_aborted
        if self._readable is not None and is_readable:
            self._readable()
        return is_writable or is_readable


class Greeting:
    """A handshake of one word from each side."""

    def __init__(self, took: list[int]) -> None:
        self.session: Session | None = None
        self._took = took

    def opening(self) -> bytes | None:
        return b"hello"

    def receive(self, frame: bytes) -> bytes | None:
        assert frame == b"hello"
        seals: Any = CountedSeal(self._took), CountedSeal(self._took)
        self.session = Session(1, Purpose.RAFT, bytes(16), *seals)
        return None


class Voter:
    """`took`: what its MACs take, one list for each turn."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.took: list[int] = []
        self.most = 0
        self.got: list[bytes] = []
        self.failures: list[str] = []
        self.link = Link(
            end,  # type: ignore[arg-type]  # without what a link does not use
            Greeting(self.took),
            memoryview(bytearray(SCRATCH_BYTES)),
            lambda: 0.0,
            unsent_bytes_max=64 << 20,
            opened=lambda link, session: None,
            received=lambda link, payload: self.got.append(bytes(payload)),
            closed=lambda link, reason: self.failures.append(reason),
        )

    def turn(self) -> bool:
        before = sum(self.took)
        did = self.end.turn()
        self.most = max(self.most, sum(self.took) - before)
        return did


def voters(room: int = 1 << 20) -> tuple[Voter, Voter]:
    """Two that have greeted each other."""
    one, two = End(room), End(room)
    one.other, two.other = two, one
    made = Voter(one), Voter(two)
    settle(*made)
    assert all(voter.link.session is not None for voter in made)
    return made


def settle(*made: Voter) -> None:
    while sum(voter.turn() for voter in made):
        pass


def test_a_turn_seals_and_checks_a_part_of_a_large_frame() -> None:
    one, two = voters()
    large, small = random.Random(1).randbytes(LARGE), b"small"
    for payload in (large, small, large, b"", small):
        one.link.send(payload)
    one.link.flush()
    assert sum(one.took) <= SEALED_BYTES
    settle(one, two)
    assert two.got == [large, small, large, small]
    assert one.most <= SEALED_BYTES + COPIED_BYTES_MAX
    assert two.most <= SCRATCH_BYTES
    assert sum(one.took) == sum(two.took) == 2 * LARGE + 2 * len(small), "each byte is hashed once"
    assert one.link.unsent_bytes == 0


def test_a_large_payload_is_sent_from_where_it_is_and_small_ones_together() -> None:
    one, two = voters()
    large = bytes(LARGE)
    for payload in (b"one", b"two", large):
        one.link.send(payload)
    one.link.flush()
    settle(one, two)
    owners = [part.obj for part in one.end.sent if isinstance(part, memoryview)]
    copied = {id(owner): memoryview(owner).nbytes for owner in owners if owner is not large}
    assert sum(copied.values()) < 1_000, "only what is small is copied"
    assert len(copied) <= 3, "the greeting, the small frames, the head of the large one"
    assert two.got == [b"one", b"two", large]


def test_what_waits_for_the_peer_is_not_copied_again_with_each_flush() -> None:
    one, two = voters(room=1_000)
    payload = bytes(LARGE)
    one.link.send(payload)
    for number in range(50):
        one.link.send(b"%d" % number)
        one.link.flush()
    assert one.link.unsent_bytes > LARGE
    settle(one, two)
    assert two.got == [payload, *(b"%d" % number for number in range(50))]
    assert one.link.unsent_bytes == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3 * PLAIN), max_size=6), st.sampled_from([7, 5_000, 1 << 20]), st.data())
def test_frames_arrive_whole_and_in_order_or_the_link_ends(sizes: list[int], room: int, data: st.DataObject) -> None:
    one, two = voters(room if room > 7 or sum(sizes) < 10_000 else 5_000)
    payloads = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    total = sum(sizes) + len(sizes) * (4 + MAC_BYTES)
    spoilt = data.draw(st.none() | st.integers(0, max(total - 1, 0))) if payloads else None
    for payload in payloads:
        cut = data.draw(st.integers(0, len(payload)))
        one.link.send(payload[:cut], payload[cut:])
    one.link.flush()
    passed = 0
    while one.turn() or two.end.inbox:
        if spoilt is not None and passed <= spoilt < passed + len(two.end.inbox):
            two.end.inbox[spoilt - passed] ^= 1
            spoilt = -1
        passed += len(two.end.inbox)
        while two.turn():
            pass
        if two.failures:
            break
        passed -= len(two.end.inbox)
    expected = [payload for payload in payloads if payload]
    if spoilt is None:
        assert two.got == expected
        assert not two.failures
    else:
        assert two.got == expected[: len(two.got)]
        assert len(two.got) < len(expected) or two.failures or len(expected) < len(payloads)


@pytest.mark.parametrize("size", [1, MAC_BYTES - 1, MAC_BYTES])
def test_a_frame_too_short_for_a_seal_or_with_a_wrong_one_ends_the_link(size: int) -> None:
    _, two = voters()
    two.end.inbox += size.to_bytes(4, "little") + bytes(size)
    two.turn()
    assert two.failures == ["a frame that the peer did not seal"]


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 18) | st.integers(0xFFF0, 0x10010))
def test_the_parts_of_a_message_are_its_encoding(index: int, term: int, size: int) -> None:
    command = bytes(size)
    message = {"type": "append_entries", "term": term, "prevLogIdx": index, "entries": [(command, index, term)]}
    parts = encoded_parts(message)
    assert b"".join(parts) == msgspec.msgpack.encode(message)
    assert decoded_map(b"".join(parts)) == {**message, "entries": [[command, index, term]]}
    assert (len(parts) == 1) == (size <= message_codec.COPIED_BYTES_MAX)
    assert len(parts) == 1 or parts[1] is command
    two = {**message, "entries": [(command, index, term)] * 2}
    assert b"".join(encoded_parts(two)) == msgspec.msgpack.encode(two)
