"""The simulated network: order, cuts, buffers, and what is heard of a death."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import pytest

from common.ports import Ports
from tests.sim.loop import NS
from tests.sim.sample_nodes import Pair, forever, world_of


def test_bytes_arrive_in_the_receivers_own_context() -> None:
    pair = Pair()
    assert (pair.server.got, pair.server.tenant) == (b"hello", "nobody")
    pair.world.close()


@pytest.mark.parametrize("seed", range(10))
def test_order_is_kept_whatever_the_cuts(seed: int) -> None:
    pair, sent = Pair(seed), b""
    for number in range(200):
        part = b"%d," % number
        assert pair.client.socket.send(part[:1]) == 1
        rest = pair.client.socket.send(part[1:])
        sent += part[: 1 + rest]
        if number == 50:
            pair.world.fabric.change_cut([("a", "b")], 1)
        if number == 150:
            pair.world.fabric.change_cut([("a", "b")], -1)
        pair.world.run_for(0.001)
    pair.world.run_for(2)
    assert pair.server.got == b"hello" + sent
    pair.world.close()


def test_a_full_send_buffer_and_when_there_is_room_again() -> None:
    pair = Pair()
    pair.server.socket.on_readable(None)
    sent, calls = 5, list[str]()
    with contextlib.suppress(BlockingIOError):
        while sent < 1 << 20:
            sent += pair.client.socket.send(bytes(3000))
    assert sent < 1 << 20
    pair.client.socket.on_writable(lambda: calls.append("room"))
    pair.world.run_for(1)
    assert calls == []
    pair.server.socket.on_readable(pair.server.read)
    pair.world.run_for(0.5)
    assert calls
    pair.client.socket.on_writable(None)
    pair.world.run_for(0.5)
    assert len(pair.server.got) == sent
    pair.world.close()


def test_a_cut_one_way_only() -> None:
    pair = Pair()
    pair.world.fabric.change_cut([("a", "b")], 1)
    pair.client.socket.send(b"1")
    pair.server.socket.send(b"2")
    pair.world.run_for(1)
    assert (pair.server.got, pair.client.got) == (b"hello", b"2")
    pair.world.run_for(30)
    assert pair.client.lost == "ETIMEDOUT"
    pair.world.close()


def test_a_stalled_connection_beside_one_that_is_not() -> None:
    pair = Pair()
    pair.client.socket.stall(pair.world.scheduler.now_ns + 2 * NS)  # type: ignore[attr-defined]
    pair.client.socket.send(b"1")
    pair.server.socket.send(b"2")
    pair.world.run_for(1)
    assert (pair.server.got, pair.client.got) == (b"hello", b"2")
    pair.world.run_for(2)
    assert pair.server.got == b"hello1"
    pair.world.close()


def test_a_kill_is_heard() -> None:
    heard = set[str]()
    for seed in range(12):
        pair = Pair(seed)
        pair.world.kill("b")
        pair.world.run_for(1)
        heard.add(pair.client.lost)
        pair.world.close()
    assert heard == {"ECONNRESET", "end"}


def test_a_power_loss_is_not_heard_until_one_writes_to_the_new_life() -> None:
    pair = Pair()
    pair.world.power_off("b")
    pair.world.run_for(1)
    pair.world.start("b")
    pair.world.run_for(60)
    assert pair.client.lost == "no"  # half-open, for ever
    pair.client.socket.send(b"anyone?")
    pair.world.run_for(1)
    assert pair.client.lost == "ECONNRESET"
    pair.world.close()


def test_close_delivers_what_was_sent() -> None:
    pair = Pair()
    pair.client.socket.send(b" world")
    pair.client.socket.close()
    pair.world.run_for(1)
    assert (pair.server.got, pair.server.lost) == (b"hello world", "end")
    assert pair.world.fabric.sockets == {}
    pair.world.close()


def test_connect_is_refused_or_cut() -> None:
    errors = list[object]()

    async def main(ports: Ports) -> None:
        with pytest.raises(ConnectionRefusedError):
            await ports.network.connect(("b", 9))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await ports.network.connect(("down", 1))
        errors.append("both")

    async def idle(ports: Ports) -> None:
        await forever()

    world = world_of(b=idle, down=idle, a=main)
    world.fabric.change_cut([("a", "down")], 1)
    world.run_for(5)
    assert errors == ["both"]
    world.close()


def test_a_listener_that_pauses_hands_on_later_what_came_meanwhile() -> None:
    accepted = list[float]()

    async def server(ports: Ports) -> None:
        listener = ports.network.listen(("b", 1), lambda socket: accepted.append(ports.clock.monotonic()))
        listener.pause()
        await asyncio.sleep(2)
        assert accepted == []
        listener.resume()
        await forever()

    async def client(ports: Ports) -> None:
        await asyncio.sleep(0.5)
        await ports.network.connect(("b", 1))  # the system answers for a listener that accepts nothing
        await forever()

    world = world_of(b=server, a=client)
    world.run_for(5)
    assert len(accepted) == 1
    world.close()


def test_there_is_no_tls_and_it_says_so() -> None:
    pair = Pair()
    with pytest.raises(NotImplementedError, match="no TLS"):
        pair.client.socket.secure(ssl.create_default_context(), server_side=False)
    pair.world.close()
