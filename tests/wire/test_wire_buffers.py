"""Long buffers grow in place and by bounded steps."""

from __future__ import annotations

import random

from tests.wire.fakes import Bench, frame, until
from wire.buffers import BUFFER_BYTES, LONG_BYTES, BufferPool
from wire.connection import Connection


def test_a_long_buffer_grows_in_place_by_bounded_steps() -> None:
    pool = BufferPool()
    buffer = pool.take(LONG_BYTES)
    buffer[:3] = b"abc"
    assert pool.grow(buffer, 5 * LONG_BYTES)
    assert len(buffer) == 2 * LONG_BYTES
    assert pool.grow(buffer, 2 * LONG_BYTES + 10)
    assert len(buffer) == 2 * LONG_BYTES + 10
    assert buffer[:3] == b"abc"


def test_a_short_buffer_or_one_in_use_is_not_grown() -> None:
    pool = BufferPool()
    assert not pool.grow(pool.take(BUFFER_BYTES), LONG_BYTES)
    buffer = pool.take(LONG_BYTES)
    with memoryview(buffer):
        assert not pool.grow(buffer, 2 * LONG_BYTES)
    assert len(buffer) == LONG_BYTES


def test_only_buffers_of_a_size_class_are_kept() -> None:
    pool = BufferPool()
    buffer = pool.take(LONG_BYTES)
    pool.grow(buffer, LONG_BYTES + 10)
    pool.give(buffer)
    assert len(pool.take(LONG_BYTES)) == LONG_BYTES


async def test_a_frame_of_several_long_buffers_arrives_whole() -> None:
    bench, frames = Bench(), list[bytes]()

    def take(_: Connection, __: bytearray, view: memoryview, at: int, end: int) -> None:
        frames.append(bytes(view[at:end]))

    _, peer = bench.connect(take, pipe_bytes=1 << 30)
    sent = [b"short", random.Random(7).randbytes(3 * LONG_BYTES + 123), b"behind"]
    for payload in sent:
        peer.send(frame(payload))
    await until(lambda: len(frames) == len(sent))
    assert frames == sent
    assert bench.pool.held == 0
    bench.watch.close()
