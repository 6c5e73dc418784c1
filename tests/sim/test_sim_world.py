"""Death without cleanup, pauses, power, disks, and what peers hear of them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from typing import cast

import pytest

from common.ports import Ports
from tests.sim.disk import FileNode
from tests.sim.loop import LeakedTasks, NodeDead
from tests.sim.nemesis import Fault, shrink
from tests.sim.sample_nodes import Recorder, forever, world_of
from tests.sim.world import World, collect_dead, moved_memory


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


def test_a_task_that_a_finally_block_makes_does_not_keep_the_world() -> None:
    async def late(ports: Ports) -> None:
        ports.disk.list("")

    async def main(ports: Ports) -> None:
        try:
            await forever()
        finally:
            await asyncio.shield(late(ports))

    world = world_of(a=main)
    world.run_for(1)
    gone = weakref.ref(world)
    world.close()
    del world
    collect_dead()
    assert gone() is None


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
