"""The simulated disk: faults of the device, and what a loss of power leaves."""

from __future__ import annotations

import asyncio
import errno
from typing import cast

from common.ports import FileIdentity, Ports
from tests.sim.disk import FileNode
from tests.sim.sample_nodes import Main, forever, world_of
from tests.sim.world import no_collection


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


def test_whoever_alters_a_file_in_place_leaves_a_trace() -> None:
    identities = list[FileIdentity]()

    async def main(ports: Ports) -> None:
        file = ports.disk.open("f", create=True)
        file.pwrite(b"abc", 0)
        ports.disk.open("other", create=True).pwrite(b"abc", 0)
        for _ in range(4):
            identities.append(file.identity())
            await asyncio.sleep(1)
        identities.append(ports.disk.open("f").identity())
        identities.append(ports.disk.open("other").identity())
        await forever()

    world = world_of(a=main)
    world.run_for(1.5)
    world.nodes["a"].device.alter("f", 1, b"x")
    world.run_for(1)
    world.nodes["a"].device.alter("f", 2, None)
    world.run_for(5)
    first, same, overwritten, cut, again, other = identities
    assert first == same
    assert cut == again
    assert len({(one.inode, one.size, one.changed_ns) for one in (first, overwritten, cut, other)}) == 4
    world.close()


def after_power_loss(main: Main) -> set[tuple[tuple[str, bytes], ...]]:
    found = set()
    with no_collection():  # each world's end collects what it has left, without all that the suite holds
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

    with no_collection():
        for seed in range(50):
            world = world_of(seed, a=main)
            world.run_for(1)
            world.power_off("a")
            device = world.nodes["a"].device
            assert list(device.root.names) == ["d"]
            assert cast(FileNode, device.find("d/g/f")).cached == b"x"
            assert device.find("d/e") is None
            world.close()
