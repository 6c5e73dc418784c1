"""Death without cleanup, pauses, power, disks, and what peers hear of them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import gc
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from common.ports import Ports, Socket
from tests.sim.disk import FileNode
from tests.sim.loop import LeakedTasks, NodeDead
from tests.sim.nemesis import Fault, shrink
from tests.sim.world import World, moved_memory

Main = Callable[[Ports], Coroutine[Any, Any, None]]
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def world_of(seed: int = 1, **mains: Main) -> World:
    world = World(seed, keep_trace=True)
    for name, main in mains.items():
        world.add_node(name, main)
        world.start(name)
    return world


async def forever() -> None:
    await asyncio.Event().wait()


class Recorder:
    """Keeps all that a socket gives."""

    def __init__(self) -> None:
        self.socket: Socket = cast(Socket, None)
        self.got = b""
        self.lost = "no"
        self.tenant = ""

    def attach(self, socket: Socket) -> None:
        self.socket = socket
        socket.on_readable(self.read)

    def read(self) -> None:
        buffer = bytearray(7000)
        self.tenant = tenant.get()
        try:
            count = self.socket.recv_into(memoryview(buffer))
        except BlockingIOError:
            return
        except OSError as error:
            self.lost = errno.errorcode[error.errno or 0]
            self.socket.close()
            return
        self.got += buffer[:count]
        if count == 0:
            self.lost = "end"
            self.socket.close()


class Pair:
    """`a` connects to `b` and both keep what they get."""

    def __init__(self, seed: int = 1) -> None:
        self.client, self.server = Recorder(), Recorder()
        self.world = world_of(seed, b=self.b, a=self.a)
        self.world.run_for(1)

    async def a(self, ports: Ports) -> None:
        await asyncio.sleep(0.1)
        self.client.attach(await ports.network.connect(("b", 1)))
        tenant.set("a's own")
        self.client.socket.send(b"hello")
        await forever()

    async def b(self, ports: Ports) -> None:
        ports.network.listen(("b", 1), self.server.attach)
        await forever()


def test_finally_blocks_of_the_dead_do_not_run_and_could_not_touch_the_world() -> None:
    ran = list[str]()

    async def main(ports: Ports) -> None:
        file = ports.disk.open("f", create=True)
        try:
            await forever()
        finally:
            ran.append("finally")
            try:
                file.pwrite(b"from the grave", 0)
            except Exception:  # NodeDead is a BaseException: not caught here
                ran.append("swallowed")
            ran.append("wrote")

    world = world_of(a=main)
    world.run_for(1)
    world.kill("a")
    gc.collect()
    world.run_for(1)
    assert ran == []
    world.close()
    gc.collect()  # only now is the coroutine freed
    assert ran == ["finally"]
    assert cast(FileNode, world.nodes["a"].device.root.names["f"]).cached == b""


def test_timers_threads_and_ports_of_a_dead_node() -> None:
    ran, kept = list[str](), list[Ports]()

    async def main(ports: Ports) -> None:
        kept.append(ports)
        asyncio.get_running_loop().call_later(2, ran.append, "timer")
        await asyncio.sleep(0.9999)
        await asyncio.to_thread(ran.append, "thread")

    world = world_of(a=main)
    world.run_for(1)
    world.kill("a")
    world.run_for(9)
    assert ran == []
    with pytest.raises(NodeDead):
        kept[0].disk.list("")
    with pytest.raises(NodeDead):
        kept[0].network.listen(("a", 1), lambda socket: None)
    world.close()


def test_stop_runs_cleanup_and_a_task_left_over_fails_the_run() -> None:
    ran, kept = list[str](), list[object]()

    async def tidy(ports: Ports) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(forever())
        finally:
            await asyncio.to_thread(ran.append, "cleaned")

    async def untidy(ports: Ports) -> None:
        kept.append(asyncio.create_task(forever()))
        await forever()

    world = world_of(a=tidy, b=untidy)
    world.run_for(1)
    world.stop("a")
    world.run_for(1)
    assert (ran, world.nodes["a"].loop) == (["cleaned"], None)
    world.stop("b")
    with pytest.raises(LeakedTasks):
        world.run_for(1)
    world.close()


def test_a_pause_makes_timers_late() -> None:
    times = list[float]()

    async def main(ports: Ports) -> None:
        begin = ports.clock.monotonic()
        for _ in range(3):
            await asyncio.sleep(1)
            times.append(ports.clock.monotonic() - begin)

    world = world_of(a=main)
    world.run_for(1.5)
    world.pause("a")
    world.run_for(5)
    assert len(times) == 1
    world.resume("a")
    world.run_for(2)
    assert times[1] == pytest.approx(6.5, abs=0.01)
    assert times[2] == pytest.approx(7.5, abs=0.01)
    world.close()


def test_the_clock_of_the_ports_is_the_clock_of_the_loop() -> None:
    async def main(ports: Ports) -> None:
        for _ in range(5):
            assert ports.clock.monotonic() == asyncio.get_running_loop().time()
            ports.disk.sync_directory("")
            await asyncio.sleep(0.1)

    world = world_of(a=main)
    world.run_for(2)
    assert world.nodes["a"].device.blocking_sync_count == 5
    world.close()


def test_fsync_on_the_loop_stops_the_node_and_in_a_thread_does_not() -> None:
    ticks = list[float]()

    async def main(ports: Ports) -> None:
        async def tick() -> None:
            while True:
                await asyncio.sleep(0.001)
                ticks.append(ports.clock.monotonic())

        task = asyncio.create_task(tick())
        file = ports.disk.open("f", create=True)
        await asyncio.to_thread(file.fsync)
        await asyncio.sleep(0.05)
        file.fsync()
        await asyncio.sleep(0.05)
        task.cancel()

    world = World(1)
    world.add_node("a", main)
    world.nodes["a"].device.slow_factor = 100
    world.start("a")
    world.run_for(1)
    gaps = sorted(b - a for a, b in itertools.pairwise(ticks))
    assert gaps[-2] < 0.003
    assert gaps[-1] > 0.01
    assert world.nodes["a"].device.blocking_sync_count == 1
    world.close()


def test_a_stuck_device_holds_threads_until_it_moves_again() -> None:
    done = list[float]()

    async def main(ports: Ports) -> None:
        file = ports.disk.open("f", create=True)
        await asyncio.sleep(0.5)
        begin = ports.clock.monotonic()
        file.pwrite(b"x", 0)
        done.append(ports.clock.monotonic() - begin)
        await asyncio.to_thread(file.fsync)
        done.append(ports.clock.monotonic() - begin)
        await forever()

    world = world_of(a=main)
    world.set_stuck("a", True)
    world.run_for(2)
    assert len(done) == 1
    assert done[0] >= 0.005
    world.set_stuck("a", False)
    world.run_for(1)
    assert 1.4 < done[1] < 1.6
    world.close()


def test_a_node_dies_in_the_middle_of_a_callback() -> None:
    async def main(ports: Ports) -> None:
        file = ports.disk.open("f", create=True)
        await asyncio.sleep(0.5)
        for number in range(9):
            file.pwrite(b"x", number)

    world = world_of(a=main)
    world.run_for(0.2)
    world.nodes["a"].device.kill_countdown = 4
    world.run_for(1)
    assert world.nodes["a"].loop is None
    assert cast(FileNode, world.nodes["a"].device.root.names["f"]).cached == b"xxx"
    world.close()


def test_a_device_that_is_full_or_fails() -> None:
    codes = list[int | None]()

    async def main(ports: Ports) -> None:
        file = ports.disk.open("f", create=True)
        file.pwrite(b"abc", 0)
        await asyncio.sleep(1)
        for position in (0, 3):
            try:
                file.pwrite(b"x", position)
                codes.append(None)
            except OSError as error:
                codes.append(error.errno)
        assert file.pread(3, 0) in (b"xbc", b"abc")
        await forever()

    for fault, expected in (("full", [None, errno.ENOSPC]), ("error", [errno.EIO, errno.EIO])):
        codes.clear()
        world = world_of(a=main)
        world.run_for(0.5)
        setattr(world.nodes["a"].device, fault, errno.EIO)
        world.run_for(1)
        assert codes == expected
        world.close()


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


def hashes(kind: type) -> set[str]:
    found = set[str]()
    for seed in range(8):
        with moved_memory(seed):
            world = World(1)

            async def main(ports: Ports, world: World = world) -> None:
                things = [Recorder() for _ in range(9)]
                for thing in kind(things):
                    world.trace(str(things.index(thing)))

            world.add_node("a", main)
            world.start("a")
            world.run_for(1)
            found.add(world.trace_hash)
            world.close()
    return found


def test_moved_memory_exposes_a_set_of_plain_objects() -> None:
    assert len(hashes(list)) == 1
    assert len(hashes(set)) > 1


def after_power_loss(main: Main) -> set[tuple[tuple[str, bytes], ...]]:
    found = set()
    for seed in range(150):
        world = world_of(seed, a=main)
        world.run_for(1)
        world.power_off("a")
        names = world.nodes["a"].device.root.names
        found.add(tuple((name, bytes(node.cached)) for name, node in names.items() if isinstance(node, FileNode)))
        world.close()
    return found


def test_unflushed_writes_are_kept_dropped_or_torn() -> None:
    async def main(ports: Ports) -> None:
        file = ports.disk.open("f", create=True)
        file.fsync()
        ports.disk.sync_directory("")
        file.pwrite(b"abcd", 0)
        file.pwrite(b"efgh", 4)

    found = {dict(names)["f"] for names in after_power_loss(main)}
    assert {b"", b"abcd", b"abcdefgh", b"\0\0\0\0efgh"} <= found
    assert any(0 < len(content) < 4 for content in found)


def test_synced_bytes_under_a_name_that_was_not() -> None:
    async def main(ports: Ports) -> None:
        file = ports.disk.open("f.new", create=True)
        file.pwrite(b"x", 0)
        file.fsync()
        ports.disk.rename("f.new", "f")

    assert after_power_loss(main) == {(), (("f.new", b"x"),), (("f", b"x"),)}


def test_what_was_synced_with_its_directory_stays_also_below_a_renamed_one() -> None:
    async def main(ports: Ports) -> None:
        ports.disk.make_directory("d/e")
        file = ports.disk.open("d/e/f.new", create=True)
        file.pwrite(b"x", 0)
        file.fsync()
        ports.disk.rename("d/e/f.new", "d/e/f")
        ports.disk.sync_directory("d/e")
        ports.disk.rename("d/e", "d/g")
        ports.disk.sync_directory("d")
        assert ports.disk.list("d/g") == ["f"]
        ports.disk.make_directory("h")
        ports.disk.remove_tree("h")
        ports.disk.sync_directory("")

    for seed in range(50):
        world = world_of(seed, a=main)
        world.run_for(1)
        world.power_off("a")
        device = world.nodes["a"].device
        assert list(device.root.names) == ["d"]
        assert cast(FileNode, device.find("d/g/f")).cached == b"x"
        assert device.find("d/e") is None
        world.close()


def test_a_kill_keeps_the_page_cache() -> None:
    async def main(ports: Ports) -> None:
        ports.disk.open("f", create=True).pwrite(b"x", 0)

    world = world_of(a=main)
    world.run_for(1)
    world.kill("a")
    assert cast(FileNode, world.nodes["a"].device.find("f")).cached == b"x"
    world.close()


def test_shrinking_leaves_what_is_needed() -> None:
    faults = [Fault(number, "kill", f"n{number}", "", 1) for number in range(12)]
    needed = {faults[3], faults[9]}
    fewer, runs = shrink(faults, lambda few: needed <= set(few))
    assert set(fewer) == needed
    assert runs < 40
