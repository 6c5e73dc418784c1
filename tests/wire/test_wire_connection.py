"""Connections over in-memory sockets: framing, order, bounds, pauses, ends."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import MalformedFrame
from common.node_settings.connections import ConnectionSettings
from tests.wire.fakes import Bench, CountingPool, FakeFile, FakeRegion, frame, frames_in, turns, until
from wire.buffers import BUFFER_BYTES
from wire.connection import SCARCE_RECEIVE_BYTES, SET_ASIDE_BYTES_MAX, Connection
from wire.outgoing import Reply

pytestmark = pytest.mark.virtual_time


def echo(connection: Connection, _: bytearray, view: memoryview, at: int, end: int) -> None:
    connection.reply([frame(bytes(view[at:end]))])


class Later:
    """A handler that keeps its replies for the test to answer."""

    def __init__(self, held: bool = False) -> None:
        self.replies: list[Reply] = []
        self.payloads: list[bytes] = []
        self._held = held

    def __call__(self, connection: Connection, _: bytearray, view: memoryview, at: int, end: int) -> None:
        self.payloads.append(bytes(view[at:end]))
        self.replies.append(connection.reply_later(end - at if self._held else 0))

    async def has(self, count: int) -> None:
        await until(lambda: len(self.replies) >= count)


# framing -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(1, 200), st.integers(1, 70_000), st.sampled_from([BUFFER_BYTES - 4, BUFFER_BYTES, 700_000])
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([1 << 30, 1000, 4096, 65_537]),
    st.integers(0, 9),
)
def test_any_frames_cut_anywhere_arrive_whole_and_in_order(sizes: list[int], cut: int, seed: int) -> None:
    rng = random.Random(seed)
    payloads = [rng.randbytes(size) for size in sizes]

    async def run() -> None:
        bench = Bench()
        connection, peer = bench.connect(pipe_bytes=1 << 22)
        peer.other.receive_max = cut
        stream = b"".join(frame(payload) for payload in payloads)
        at = 0
        while at < len(stream):
            size = rng.choice([3, 1000, 100_000, len(stream)])
            peer.other.inbox += stream[at : at + size]
            peer.other.poll()
            at += size
            await turns(2)
        await until(lambda: len(bench.frames) == len(payloads))
        assert bench.frames == payloads
        assert bench.pool.lent == bench.pool.held == 0
        connection.close()
        bench.watch.close()

    asyncio.run(run())


async def test_an_idle_or_half_open_connection_owns_no_buffer() -> None:
    bench = Bench()
    pairs = [bench.connect() for _ in range(1000)]
    for _, peer in pairs:
        peer.send(b"\0\0\1")
    await turns()
    assert (bench.pool.lent, bench.pool.lent_most) == (0, 1)
    assert bench.pool.held == 3000
    for connection, _ in pairs:
        connection.close()
    assert bench.pool.held == 0
    bench.watch.close()


@pytest.mark.parametrize("head", [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\x10\1"])
async def test_an_absurd_length_closes_with_one_violation(head: bytes) -> None:
    bench = Bench()
    connection, peer = bench.connect(limits=ConnectionSettings(frame_bytes_max=4096))
    peer.send(head + b"x" * 100)
    await turns()
    assert connection.is_closed
    assert peer.ended
    assert len(bench.violations) == 1
    assert bench.closed == [connection]
    bench.watch.close()


async def test_a_long_claim_costs_no_memory_before_its_bytes() -> None:
    bench = Bench()
    _, peer = bench.connect()
    peer.send((90 << 20).to_bytes(4, "big") + b"x" * 1000)
    await turns()
    assert bench.pool.held == 1004
    bench.watch.close()


async def test_a_handler_that_refuses_a_frame_closes_only_its_connection() -> None:
    def refuse(connection: Connection, _: bytearray, view: memoryview, at: int, end: int) -> None:
        raise MalformedFrame("no such api")

    bench = Bench()
    bad, bad_peer = bench.connect(refuse)
    good, good_peer = bench.connect(echo)
    bad_peer.send(frame(b"a") + frame(b"b"))
    good_peer.send(frame(b"c"))
    await turns()
    assert bad.is_closed
    assert not good.is_closed
    assert bench.violations == ["malformed frame: no such api"]
    assert frames_in(good_peer.inbox) == [b"c"]
    bench.watch.close()


async def test_a_handler_that_fails_closes_and_tells_the_loop() -> None:
    def fail(connection: Connection, _: bytearray, view: memoryview, at: int, end: int) -> None:
        raise RuntimeError("bug")

    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    bench = Bench()
    connection, peer = bench.connect(fail)
    peer.send(frame(b"a"))
    await turns()
    assert connection.is_closed
    assert [str(error) for error in told] == ["bug"]
    assert bench.pool.held == 0
    bench.watch.close()


# order -------------------------------------------------------------------------------------------------------


async def test_replies_keep_the_order_of_requests() -> None:
    bench = Bench()
    later = Later()
    connection, peer = bench.connect(later)
    peer.send(b"".join(frame(bytes([n])) for n in range(5)))
    await turns()
    for n in (3, 1, 0):
        later.replies[n].send([frame(bytes([n]))])
    await turns()
    assert frames_in(peer.inbox) == [b"\0", b"\1"]
    connection.handler = echo
    peer.send(frame(b"now"))
    later.replies[2].send([])
    await turns()
    assert frames_in(peer.inbox) == [b"\0", b"\1", b"\3"]
    later.replies[4].send([frame(b"\4")])
    await turns()
    assert frames_in(peer.inbox) == [b"\0", b"\1", b"\3", b"\4", b"now"]
    bench.watch.close()


async def test_one_send_per_turn_however_many_replies() -> None:
    bench = Bench()
    _, peer = bench.connect(echo)
    peer.send(frame(b"x") * 50)
    await turns()
    assert frames_in(peer.inbox) == [b"x"] * 50
    assert peer.other.sends == 1
    bench.watch.close()


async def test_too_many_waiting_replies_pause_reading_and_lose_nothing() -> None:
    bench = Bench()
    later = Later()
    _, peer = bench.connect(later, ConnectionSettings(replies_pending_max=8))
    peer.send(b"".join(frame(bytes([n])) for n in range(40)))
    await turns()
    assert len(later.replies) == 8
    for n in range(40):
        await later.has(n + 1)
        assert len(later.replies) - n <= 8
        later.replies[n].send([frame(later.payloads[n])])
    await turns()
    assert frames_in(peer.inbox) == [bytes([n]) for n in range(40)]
    bench.watch.close()


# muting ------------------------------------------------------------------------------------------------------


async def test_a_muted_connection_handles_nothing_until_unmuted() -> None:
    bench = Bench()

    def once(connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        bench.collect(connection, buffer, view, at, end)
        connection.mute()

    connection, peer = bench.connect(once)
    peer.send(frame(b"a") + frame(b"b") + frame(b"c") + b"\0\0")
    for expected in ([b"a"], [b"a", b"b"], [b"a", b"b", b"c"]):
        await turns()
        assert bench.frames == expected
        assert bench.pool.lent == 0
        connection.unmute()
    peer.send(b"\0\1d")
    await turns()
    assert bench.frames[-1] == b"d"
    bench.watch.close()


async def test_mute_for_ends_by_itself_and_nests() -> None:
    bench = Bench()
    connection, peer = bench.connect()
    connection.mute()
    connection.mute_for(0.01)
    peer.send(frame(b"a"))
    await asyncio.sleep(0.03)
    assert bench.frames == []
    connection.unmute()
    await turns()
    assert bench.frames == [b"a"]
    bench.watch.close()


# sending -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 200_000)), min_size=1, max_size=8), st.integers(0, 99))
def test_bytes_and_regions_leave_in_order_and_regions_are_released_once(sizes: list[int], seed: int) -> None:
    rng = random.Random(seed)
    disk = FakeFile(rng.randbytes(500_000))

    async def run() -> None:
        bench = Bench()
        connection, peer = bench.connect(pipe_bytes=rng.choice([1000, 65_536, 1 << 20]))
        parts: list[Any] = []
        expected = b""
        for size in sizes:
            if rng.random() < 0.5:
                parts.append(rng.randbytes(size))
                expected += parts[-1]
            else:
                at = rng.randrange(300_000)
                parts.append(FakeRegion(disk, at, size))
                expected += disk.data[at : at + size]
        split = rng.randrange(len(parts) + 1)
        connection.send(parts[:split])
        connection.send(parts[split:])
        got = bytearray()
        while len(got) < len(expected):
            await turns(2)
            got += peer.inbox
            peer.inbox.clear()
            peer.other.poll()
        await turns(4)
        assert bytes(got) == expected
        assert all(part.released == 1 for part in parts if isinstance(part, FakeRegion))
        assert connection.unsent_regions == bench.pool.unsent == 0
        bench.watch.close()

    asyncio.run(run())


async def test_long_regions_go_by_sendfile_and_short_ones_with_the_bytes() -> None:
    bench = Bench()
    connection, peer = bench.connect(pipe_bytes=1 << 20)
    disk = FakeFile(bytes(300_000))
    connection.send([b"head", FakeRegion(disk, 0, 60_000), b"mid", FakeRegion(disk, 0, 100_000), b"tail"])
    await turns()
    assert len(peer.inbox) == 160_011
    assert (peer.other.sends, peer.other.sendfiles) == (2, 1)
    bench.watch.close()


@pytest.mark.parametrize("length", [1000, 100_000])
async def test_a_file_that_ends_early_closes_the_connection(length: int) -> None:
    bench = Bench()
    connection, _ = bench.connect()
    region = FakeRegion(FakeFile(b"short"), 0, length)
    connection.send([b"head", region])
    await turns()
    assert connection.is_closed
    assert region.released == 1
    assert len(bench.violations) == 1
    bench.watch.close()


async def test_closing_releases_the_regions_of_all_replies() -> None:
    bench = Bench()
    later = Later()
    connection, peer = bench.connect(later, pipe_bytes=100)
    disk = FakeFile(bytes(1 << 20))
    peer.send(frame(b"a") + frame(b"b") + frame(b"c"))
    await turns()
    regions = [FakeRegion(disk, 0, 200_000) for _ in range(3)]
    later.replies[0].send([regions[0]])
    later.replies[2].send([regions[2]])
    await turns()
    peer.close()
    await turns()
    assert connection.is_closed
    later.replies[1].send([regions[1]])
    assert [region.released for region in regions] == [1, 1, 1]
    assert bench.violations == []
    assert bench.closed == [connection]
    bench.watch.close()


# bounds ------------------------------------------------------------------------------------------------------


async def test_a_reader_that_stalls_loses_its_connection_and_others_go_on() -> None:
    bench = Bench()
    limits = ConnectionSettings(unsent_bytes_max=10_000, stall_s=0.05)
    big = frame(b"x" * 3000)

    def answer(connection: Connection, _: bytearray, view: memoryview, at: int, end: int) -> None:
        bench.frames.append(b"")
        connection.reply([big])

    stalled, stalled_peer = bench.connect(answer, limits, pipe_bytes=2000)
    good, good_peer = bench.connect(echo, limits)
    stalled_peer.send(frame(b"?") * 100)
    await turns()
    assert len(bench.frames) == 4  # then reading paused: 12,016 bytes are over the limit
    await until(lambda: stalled.is_closed)
    assert len(bench.violations) == 1
    assert "unsent" in bench.violations[0]
    assert stalled_peer.other.was_aborted  # else the system keeps what it has for this reader
    good_peer.send(frame(b"hello"))
    await turns()
    assert frames_in(good_peer.inbox) == [b"hello"]
    assert bench.pool.unsent == 0
    assert not good.is_closed
    bench.watch.close()


async def test_a_slow_reader_that_makes_progress_keeps_its_connection() -> None:
    bench = Bench()
    limits = ConnectionSettings(unsent_bytes_max=10_000, stall_s=0.5)
    connection, peer = bench.connect(echo, limits, pipe_bytes=2000)
    peer.other.inbox += frame(b"x" * 3000) * 10
    peer.other.poll()
    got = bytearray()
    while len(got) < 30_040 and not connection.is_closed:
        await asyncio.sleep(0.05)
        got += peer.inbox
        peer.inbox.clear()
        peer.other.poll()
    assert frames_in(got) == [b"x" * 3000] * 10
    assert not connection.is_closed
    bench.watch.close()


async def test_reply_bytes_of_all_connections_are_bounded_together() -> None:
    bench = Bench(pool=CountingPool(unsent_bytes_max=1 << 20))
    handled = 0

    def answer(connection: Connection, _: bytearray, view: memoryview, at: int, end: int) -> None:
        nonlocal handled
        handled += 1
        connection.reply([bytes(100_000)])

    pairs = [bench.connect(answer, pipe_bytes=10) for _ in range(40)]
    for _, peer in pairs:
        peer.other.inbox += frame(b"?") * 20
        peer.other.poll()
    await turns(50)
    # Without the common bound each would hold its own 16 MB: 20 replies each.
    assert bench.pool.unsent < (1 << 20) + 40 * 200_000
    assert handled < 90
    bench.watch.close()


async def test_requests_in_handlers_are_bounded_per_connection() -> None:
    bench = Bench()
    later = Later(held=True)
    connection, peer = bench.connect(later, ConnectionSettings(held_bytes_max=5000))
    peer.send(frame(b"x" * 2000) * 10)
    await turns()
    assert len(later.replies) == 3
    assert bench.pool.held >= 6000
    for n in range(10):
        await later.has(n + 1)
        later.replies[n].send([frame(b"ok")])
    await turns()
    assert frames_in(peer.inbox) == [b"ok"] * 10
    assert bench.pool.held == 0
    connection.close()
    bench.watch.close()


async def test_half_frames_wait_in_line_for_memory_and_all_get_through() -> None:
    bench = Bench(pool=CountingPool(held_bytes_max=600_000))
    count = 20
    pairs = [bench.connect(pipe_bytes=1 << 22) for _ in range(count)]
    payloads = [bytes([n]) * 300_000 for n in range(count)]
    most = 0
    for at in range(0, 300_004, 50_000):
        for (_, peer), payload in zip(pairs, payloads, strict=True):
            peer.other.inbox += frame(payload)[at : at + 50_000]
            peer.other.poll()
        await turns(3)
        most = max(most, bench.pool.held)
    await until(lambda: len(bench.frames) == count)
    assert sorted(bench.frames) == payloads
    assert bench.pool.held == 0
    assert most < 600_000 + (1 << 20) + count * (SET_ASIDE_BYTES_MAX + SCARCE_RECEIVE_BYTES)
    bench.watch.close()


async def test_a_stalled_half_frame_at_the_head_of_the_line_is_closed() -> None:
    bench = Bench(pool=CountingPool(held_bytes_max=100_000))
    limits = ConnectionSettings(stall_s=0.05)
    stalled, stalled_peer = bench.connect(limits=limits, pipe_bytes=1 << 22)
    stalled_peer.send((500_000).to_bytes(4, "big") + bytes(200_000))
    await turns()
    waiting, waiting_peer = bench.connect(limits=limits, pipe_bytes=1 << 22)
    waiting_peer.send(frame(bytes(150_000))[:120_000])
    await turns()
    waiting_peer.send(frame(bytes(150_000))[120_000:])
    await until(lambda: bench.frames)
    assert stalled.is_closed
    assert not waiting.is_closed
    assert len(bench.violations) == 1
    bench.watch.close()


# ends --------------------------------------------------------------------------------------------------------


async def test_idle_connections_are_closed_and_active_ones_are_not() -> None:
    bench = Bench()
    limits = ConnectionSettings(idle_s=0.2)
    idle, _ = bench.connect(echo, limits)
    busy, busy_peer = bench.connect(echo, limits)
    later = Later()
    waiting, waiting_peer = bench.connect(later, limits)
    waiting_peer.send(frame(b"long poll"))
    for _ in range(12):
        busy_peer.send(frame(b"x"))
        await asyncio.sleep(0.04)
    assert idle.is_closed
    assert not busy.is_closed
    assert not waiting.is_closed
    assert bench.violations == []
    bench.watch.close()


async def test_close_after_flush_sends_what_is_left() -> None:
    bench = Bench()
    connection, peer = bench.connect(echo, pipe_bytes=1000)
    peer.send(frame(b"x" * 900))
    await turns()
    peer.inbox.clear()
    connection.send([b"y" * 5000])
    connection.close_after_flush()
    got = bytearray()
    while not connection.is_closed:
        await turns(2)
        got += peer.inbox
        peer.inbox.clear()
        peer.other.poll()
    got += peer.inbox
    assert got.endswith(b"y" * 5000)
    bench.watch.close()


async def test_close_after_flush_gives_up_on_a_stalled_peer() -> None:
    bench = Bench()
    connection, _ = bench.connect(echo, ConnectionSettings(stall_s=0.03), pipe_bytes=1000)
    connection.send([b"y" * 5000])
    connection.close_after_flush()
    await until(lambda: connection.is_closed)
    assert bench.violations == []
    bench.watch.close()
